// Gemma 4: <|tool_call>call:NAME{key:value,...}<tool_call|>. Keys are plain, and so are numbers, true and false; a text
// stands between two <|"|>, with nothing escaped. A call is passed on when it is complete, since only then it is JSON.
#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>

#include "server/output/formats.h"
#include "server/output/json_scanner.h"
#include "server/output/python_call.h"

namespace loramux {
namespace {

constexpr std::string_view kGemmaCall = "call:", kGemmaQuote = "<|\"|>";
constexpr std::size_t kMaxGemmaBytes = std::size_t{1} << 20;  // most bytes of the arguments
constexpr std::size_t kMaxGemmaDepth = 64;

bool IsGemmaNameByte(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("_-.:/").find(c) != std::string_view::npos;
}

// True for a number, a string, true, false or null of JSON.
bool IsJsonPrimitive(std::string_view text) {
  if (text.empty() || text.front() == '[' || text.front() == '{') return false;
  JsonScanner scanner;  // a number ends only with what follows it, so the text is read as the item of an array
  scanner.Step('[');
  for (const char c : text) {
    if (scanner.Step(c) != JsonScanner::Result::kMore) return false;
  }
  return scanner.Step(']') == JsonScanner::Result::kEnd;
}

// Writes arguments as JSON. What is JSON already stays as it is, so a number keeps all of its digits.
class GemmaReader {
 public:
  explicit GemmaReader(std::string_view text) : rest_(text) {}

  // The whole text, which is one object; nullopt: it is none.
  std::optional<std::string> Object() {
    if (!rest_.starts_with('{') || !Value(0)) return std::nullopt;
    SkipSpace();
    return rest_.empty() ? std::optional(std::move(json_)) : std::nullopt;
  }

 private:
  void SkipSpace() {
    while (!rest_.empty() && IsJsonSpace(rest_.front())) rest_.remove_prefix(1);
  }
  bool Take(std::string_view text) {
    SkipSpace();
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  // What stands before the first of these bytes, without white space around it.
  std::string_view Plain(std::string_view ends) {
    SkipSpace();
    const std::size_t end = std::min(rest_.find_first_of(ends), rest_.size());
    std::string_view text = rest_.substr(0, end);
    rest_.remove_prefix(end);
    while (!text.empty() && IsJsonSpace(text.back())) text.remove_suffix(1);
    return text;
  }
  void WriteText(std::string_view text) {
    json_ += '"';
    AppendEscaped(json_, text);
    json_ += '"';
  }

  // A text between two quotes of Gemma's, or a string of JSON. False: there is none, and nothing was read.
  bool Quoted() {
    SkipSpace();
    if (rest_.starts_with(kGemmaQuote)) {
      const std::string_view text = rest_.substr(kGemmaQuote.size());
      const std::size_t end = text.find(kGemmaQuote);
      if (end == std::string_view::npos) return false;
      WriteText(text.substr(0, end));
      rest_ = text.substr(end + kGemmaQuote.size());
      return true;
    }
    if (!rest_.starts_with('"')) return false;
    JsonScanner scanner;
    for (std::size_t i = 0; i < rest_.size(); ++i) {
      const auto step = scanner.Step(rest_[i]);
      if (step == JsonScanner::Result::kError) return false;
      if (step == JsonScanner::Result::kMore) continue;
      json_ += rest_.substr(0, i + 1);
      rest_.remove_prefix(i + 1);
      return true;
    }
    return false;
  }

  bool Value(std::size_t depth) {
    if (Take("{")) return depth < kMaxGemmaDepth && Members(depth);
    if (Take("[")) return depth < kMaxGemmaDepth && Items(depth);
    if (Quoted()) return true;
    if (rest_.starts_with(kGemmaQuote)) return false;
    const std::string_view text = Plain(",]}");
    if (text.empty()) return false;
    if (IsJsonPrimitive(text)) {
      json_ += text;
    } else if (const auto literal = ParsePythonValue(text)) {
      json_ += *literal;
    } else {
      WriteText(text);
    }
    return true;
  }

  bool Members(std::size_t depth) {
    json_ += '{';
    if (!Take("}")) {
      do {
        if (!json_.ends_with('{')) json_ += ',';
        if (!Quoted()) {
          if (rest_.starts_with(kGemmaQuote)) return false;
          const std::string_view key = Plain(":,{}[]");
          if (key.empty()) return false;
          WriteText(key);
        }
        if (!Take(":")) return false;
        json_ += ':';
        if (!Value(depth + 1)) return false;
      } while (Take(","));
      if (!Take("}")) return false;
    }
    json_ += '}';
    return true;
  }

  bool Items(std::size_t depth) {
    json_ += '[';
    if (!Take("]")) {
      do {
        if (!json_.ends_with('[')) json_ += ',';
        if (!Value(depth + 1)) return false;
      } while (Take(","));
      if (!Take("]")) return false;
    }
    json_ += ']';
    return true;
  }

  std::string_view rest_;
  std::string json_;
};

class GemmaBody final : public CallBody {
 public:
  State Step(char c, CallWriter& calls) override {
    if (depth_ == 0) return StepName(c);
    arguments_ += c;
    if (arguments_.size() > kMaxGemmaBytes) return State::kBroken;
    if (++since_quote_ >= kGemmaQuote.size() && arguments_.ends_with(kGemmaQuote)) {
      in_text_ = !in_text_;
      since_quote_ = 0;
    }
    if (in_text_) return State::kMore;
    if (c == '{' || c == '[') ++depth_;
    if ((c != '}' && c != ']') || --depth_ > 0) return depth_ > kMaxGemmaDepth ? State::kBroken : State::kMore;
    const auto object = GemmaReader(arguments_).Object();
    if (!object) return State::kBroken;
    calls.Start(name_.substr(kGemmaCall.size()));
    calls.Arguments(*object);
    calls.End();
    return State::kDone;
  }

 private:
  State StepName(char c) {
    if (name_.empty() && IsJsonSpace(c)) return State::kMore;
    if (c == '{' && name_.size() > kGemmaCall.size()) {
      depth_ = 1;
      arguments_ = c;
      return State::kMore;
    }
    name_ += c;
    if (name_.size() <= kGemmaCall.size()) return kGemmaCall.starts_with(name_) ? State::kMore : State::kBroken;
    return IsGemmaNameByte(c) && name_.size() <= kMaxFunctionNameBytes ? State::kMore : State::kBroken;
  }

  std::string name_;       // with what stands before it
  std::string arguments_;  // begun, where depth_ is not 0
  std::size_t depth_ = 0;
  bool in_text_ = false;
  std::size_t since_quote_ = 0;  // bytes; two quotes share none
};

std::unique_ptr<CallBody> OpenGemmaCall(const std::shared_ptr<const ToolSet>&) { return std::make_unique<GemmaBody>(); }

constexpr CallMarker kGemmaMarkers[] = {{"<|tool_call>", OpenGemmaCall}, {"<tool_call|>"}};

}  // namespace

constinit const CallGrammar kGemmaCalls = {kGemmaMarkers, nullptr, '{', {}};

}  // namespace loramux
