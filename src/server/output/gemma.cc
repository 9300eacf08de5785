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

// Reads arguments as JSON.
class GemmaReader {
 public:
  explicit GemmaReader(std::string_view text) : rest_(text) {}

  // The whole text, which is one object; nullopt: it is none.
  std::optional<Json> Object() {
    Json object;
    if (!rest_.starts_with('{') || !Value(object, 0)) return std::nullopt;
    SkipSpace();
    return rest_.empty() ? std::optional(std::move(object)) : std::nullopt;
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
  std::string Plain(std::string_view ends) {
    const std::size_t end = std::min(rest_.find_first_of(ends), rest_.size());
    std::string_view text = rest_.substr(0, end);
    rest_.remove_prefix(end);
    while (!text.empty() && IsJsonSpace(text.back())) text.remove_suffix(1);
    return std::string(text);
  }
  // What stands between two quotes, the first of which was read.
  bool Quoted(std::string& text) {
    const std::size_t end = rest_.find(kGemmaQuote);
    if (end == std::string_view::npos) return false;
    text = rest_.substr(0, end);
    rest_.remove_prefix(end + kGemmaQuote.size());
    return true;
  }

  bool Value(Json& value, std::size_t depth) {
    const bool may_open = depth < kMaxGemmaDepth;
    if (Take("{")) return may_open && Members(value = Json::object(), depth);
    if (Take("[")) return may_open && Items(value = Json::array(), depth);
    std::string text;
    if (Take(kGemmaQuote)) {
      if (!Quoted(text)) return false;
      value = std::move(text);
      return true;
    }
    text = Plain(",]}");
    if (text.empty()) return false;
    auto json = ParseJson(text);
    if (!json.ok()) {
      if (const auto literal = ParsePythonValue(text)) json = ParseJson(*literal);
    }
    value = json.ok() && json->is_primitive() ? std::move(*json) : Json(std::move(text));
    return true;
  }

  bool Members(Json& object, std::size_t depth) {
    if (Take("}")) return true;
    do {
      std::string key;
      if (Take(kGemmaQuote)) {
        if (!Quoted(key)) return false;
      } else {
        key = Plain(":,{}[]");
      }
      if (key.empty() || !Take(":") || !Value(object[key], depth + 1)) return false;
    } while (Take(","));
    return Take("}");
  }

  bool Items(Json& array, std::size_t depth) {
    if (Take("]")) return true;
    do {
      if (!Value(array.emplace_back(), depth + 1)) return false;
    } while (Take(","));
    return Take("]");
  }

  std::string_view rest_;
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
    calls.Arguments(DumpJson(*object));
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
