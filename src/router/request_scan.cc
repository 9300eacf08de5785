#include "router/request_scan.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "cluster/prefix_blocks.h"
#include "http/json_reader.h"

namespace loramux {
namespace {

constexpr std::size_t kMostText = kPrefixBlockBytes * kMaxPrefixBlocks;
constexpr char kRoleEnd = 0x1f, kMessageEnd = 0x1e;

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

void AppendUtf8(std::uint32_t code, std::string& out) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3f));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  }
}

// A position in a JSON text. After a fault it stands at the end, and every method does nothing.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : begin_(text.data()), at_(begin_), end_(begin_ + text.size()) {}

  std::size_t position() const { return static_cast<std::size_t>(at_ - begin_); }
  bool failed() const { return failed_; }
  // The next character that is no blank; 0 at the end.
  char Peek() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
    return at_ < end_ ? *at_ : '\0';
  }
  bool Take(char wanted) {
    if (Peek() != wanted) return false;
    ++at_;
    return true;
  }
  void Fail() {
    failed_ = true;
    at_ = end_;
  }

  // Reads a string and appends its first `most` bytes, or a few more, to `out`. Returns its length as it is written.
  std::size_t String(std::string& out, std::size_t most) {
    if (!Take('"')) {
      Fail();
      return 0;
    }
    const char* const begin = at_;
    const std::size_t size_before = out.size();
    while (true) {
      const char* const from = at_;
      at_ = StringStop(at_);
      const std::size_t room = most - std::min(most, out.size() - size_before);
      out.append(from, std::min(room, static_cast<std::size_t>(at_ - from)));
      if (at_ >= end_) break;
      if (*at_ == '"') return static_cast<std::size_t>(at_++ - begin);
      Escape(room > 0 ? &out : nullptr);
    }
    Fail();
    return 0;
  }
  // Passes over a value of any kind.
  void Skip() {
    std::size_t depth = 0;
    std::string none;
    do {
      const char c = Peek();
      if (c == '"') {
        String(none, 0);
      } else if (c == '{' || c == '[') {
        ++depth;
        ++at_;
      } else if (c == '}' || c == ']') {
        if (depth == 0) return Fail();
        --depth;
        ++at_;
      } else if (c == ',' || c == ':') {
        if (depth == 0) return Fail();
        ++at_;
      } else if (Word().empty()) {
        return Fail();
      }
    } while (depth > 0 && !failed_);
  }
  // A number, true, false or null, as it is written.
  std::string_view Word() {
    Peek();
    const char* const begin = at_;
    while (at_ < end_ && std::strchr(",:]}[{\" \n\r\t", *at_) == nullptr) ++at_;
    return {begin, static_cast<std::size_t>(at_ - begin)};
  }

  // Calls `field(name)` for each member of an object; it must pass over the value.
  template <typename Field>
  void Object(Field field) {
    if (!Take('{')) return Fail();
    if (Take('}')) return;
    std::string name;
    while (!failed_) {
      name.clear();
      Peek();
      String(name, 64);
      if (!Take(':')) return Fail();
      field(std::string_view(name));
      if (Take('}')) return;
      if (!Take(',')) return Fail();
    }
  }
  // Calls `element()` for each element of an array; it must pass over the value.
  template <typename Element>
  void Array(Element element) {
    if (!Take('[')) return Fail();
    if (Take(']')) return;
    while (!failed_) {
      element();
      if (Take(']')) return;
      if (!Take(',')) return Fail();
    }
  }

 private:
  // The first quotation mark or backslash from here; the end if there is none.
  const char* StringStop(const char* from) const {
    // Eight bytes at a time: a byte of `x` is zero where `x - ones` borrows into a high bit that `x` does not have.
    constexpr std::uint64_t kOnes = 0x0101010101010101, kHigh = 0x8080808080808080;
    const auto has_zero = [](std::uint64_t x) { return ((x - kOnes) & ~x & kHigh) != 0; };
    for (std::uint64_t bytes = 0; end_ - from >= 8; from += 8) {
      std::memcpy(&bytes, from, 8);
      if (has_zero(bytes ^ kOnes * '"') || has_zero(bytes ^ kOnes * '\\')) break;
    }
    while (from < end_ && *from != '"' && *from != '\\') ++from;
    return from;
  }
  // Four hexadecimal digits; -1: they are none.
  std::int32_t FourDigits() {
    if (end_ - at_ < 4) return -1;
    std::int32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      const int digit = HexDigit(at_[i]);
      if (digit < 0) return -1;
      code = code * 16 + digit;
    }
    at_ += 4;
    return code;
  }
  // Passes over an escape, and appends what it means.
  void Escape(std::string* out) {
    if (end_ - at_ < 2) return Fail();
    const char kind = at_[1];
    at_ += 2;
    if (kind != 'u') {
      static constexpr std::string_view kKinds = "bfnrt", kMeanings = "\b\f\n\r\t";
      const auto found = kKinds.find(kind);
      if (out != nullptr) *out += found == std::string_view::npos ? kind : kMeanings[found];
      return;
    }
    std::int32_t code = FourDigits();
    if (code < 0) return Fail();
    if (code >= 0xd800 && code < 0xdc00 && end_ - at_ >= 6 && at_[0] == '\\' && at_[1] == 'u') {
      at_ += 2;
      const std::int32_t low = FourDigits();
      if (low < 0xdc00 || low > 0xdfff) return Fail();
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    if (out != nullptr) AppendUtf8(static_cast<std::uint32_t>(code), *out);
  }

  const char* const begin_;
  const char* at_;
  const char* end_;
  bool failed_ = false;
};

class Scan {
 public:
  Scan(std::string_view body, ScannedRequest& request) : cursor_(body), request_(request) {}

  bool Run() {
    cursor_.Object([this](std::string_view name) { Field(name); });
    request_.text = system_ + instructions_ + messages_ + input_ + prompt_ + inputs_;
    if (request_.text.size() > kMostText) request_.text.resize(kMostText);
    return !cursor_.failed();
  }

 private:
  void Field(std::string_view name) {
    if (name == "messages") return Messages(messages_);
    if (name == "input") return Messages(input_);
    if (name == "prompt") return Prompt(prompt_);
    if (name == "inputs") return Prompt(inputs_);
    if (name == "query" || name == "documents" || name == "text_1" || name == "text_2") return Prompt(ignored_);
    if (name == "system") return System(system_);
    if (name == "instructions") return System(instructions_);
    if (name == "parameters" && cursor_.Peek() == '{') {
      return cursor_.Object([this](std::string_view inner) { Setting(inner, /*top=*/false); });
    }
    Setting(name, /*top=*/true);
  }

  void Setting(std::string_view name, bool top) {
    if (name == "model" && top) return Model();
    if (name == "model") return Name(ignored_);
    if (name == "lora_path" || name == "adapter_id" || name == "lora") return Name(request_.adapter);
    if (name == "merged_adapters") return Name(ignored_);
    if (name == "stream") {
      request_.stream = cursor_.Peek() == 't';
      return cursor_.Skip();
    }
    if (name == "n") return Integer(request_.choices);
    const bool limit = name == "max_tokens" || name == "max_completion_tokens" || name == "max_new_tokens" ||
                       name == "max_output_tokens";
    if (!limit) return cursor_.Skip();
    Integer(request_.max_tokens);
  }

  // A number that is neither negative nor broken; another value is passed over.
  void Integer(std::int64_t& into) {
    const char c = cursor_.Peek();
    if (c < '0' || c > '9') return cursor_.Skip();
    const std::string_view word = cursor_.Word();
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error == std::errc() && end == word.data() + word.size()) into = value;
  }

  void Model() {
    cursor_.Peek();
    request_.model_begin = cursor_.position();
    Name(request_.model);
    request_.model_end = cursor_.position();
  }

  // A string value; another one is passed over.
  void Text(std::string& into) {
    if (cursor_.Peek() != '"') return cursor_.Skip();
    into.clear();
    cursor_.String(into, 1024);
  }

  // The name of a model or an adapter. A value that is neither a string nor null is passed over.
  void Name(std::string& into) {
    const char c = cursor_.Peek();
    if (c != '"') {
      request_.names_known = request_.names_known && c == 'n';
      return cursor_.Skip();
    }
    into.clear();
    cursor_.String(into, 1024);
    if (std::ranges::find(request_.names, into) != request_.names.end()) return;
    if (request_.names.size() < ScannedRequest::kMostNames) return request_.names.push_back(into);
    request_.names_known = false;
  }

  // Appends a text of the prompt. `kept`: its beginning belongs to the text that is fingerprinted.
  void Append(std::string& to, bool kept) {
    const std::size_t room = kept ? kMostText - std::min(kMostText, to.size()) : 0;
    request_.text_bytes += static_cast<std::int64_t>(cursor_.String(to, room));
  }

  // A string; or strings, of which the first is fingerprinted; or ids, or lists of ids.
  void Prompt(std::string& text) {
    text.clear();
    const char kind = cursor_.Peek();
    if (kind == '"') return Append(text, true);
    if (kind != '[') return cursor_.Skip();
    bool first = true;
    std::int64_t listed = 0;
    cursor_.Array([&] {
      const char c = cursor_.Peek();
      if (c == '"' || c == '[') ++listed;
      if (c == '"') {
        Append(text, first);
        first = false;
      } else {
        IdOrIds(c);
      }
    });
    request_.prompts = std::max<std::int64_t>(1, listed);
  }
  void IdOrIds(char first) {
    if (first == '[') return cursor_.Array([this] { IdOrIds('1'); });
    if (first >= '0' && first <= '9') ++request_.token_ids;
    cursor_.Skip();
  }

  // Messages; or a text, which is one of the user; or texts or ids to embed.
  void Messages(std::string& text) {
    text.clear();
    const char kind = cursor_.Peek();
    if (kind == '"') {
      std::string content;
      Append(content, true);
      return AppendMessage("user", content, text);
    }
    if (kind != '[') return cursor_.Skip();
    std::int64_t listed = 0;
    cursor_.Array([&] {
      const char c = cursor_.Peek();
      std::string ignored;
      if (c == '{') return Message(text);
      if (c == '"' || c == '[') ++listed;
      if (c == '"') return Append(ignored, false);
      IdOrIds(c);
    });
    request_.prompts = std::max<std::int64_t>(1, listed);
  }
  void Message(std::string& text) {
    std::string role, content;
    bool has_role = false;
    cursor_.Object([&](std::string_view name) {
      if (name == "role") {
        has_role = cursor_.Peek() == '"';
        return Text(role);
      }
      if (name == "content") return Content(content);
      cursor_.Skip();
    });
    if (has_role) AppendMessage(role, content, text);
  }
  // A string, or parts of which some are texts.
  void Content(std::string& content) {
    content.clear();
    const char kind = cursor_.Peek();
    if (kind == '"') return Append(content, true);
    if (kind != '[') return cursor_.Skip();
    cursor_.Array([&] {
      if (cursor_.Peek() != '{') return cursor_.Skip();
      std::string part;
      cursor_.Object([&](std::string_view name) {
        if (name != "text") return cursor_.Skip();
        part.clear();
        if (cursor_.Peek() != '"') return cursor_.Skip();
        Append(part, true);
      });
      content += part;
    });
  }
  // It stands before all messages, wherever its field does.
  void System(std::string& text) {
    text.clear();
    std::string content;
    Content(content);
    AppendMessage("system", content, text);
  }
  static void AppendMessage(std::string_view role, std::string_view content, std::string& text) {
    if (text.size() >= kMostText) return;
    text += role;
    text += kRoleEnd;
    text += content;
    text += kMessageEnd;
  }

  Cursor cursor_;
  ScannedRequest& request_;
  std::string ignored_;  // a name that only ScannedRequest::names has
  std::string system_, instructions_, messages_, input_, prompt_, inputs_;  // texts of these fields
};

}  // namespace

bool ScanRequest(std::string_view body, ScannedRequest& request) { return Scan(body, request).Run(); }

std::string WithModel(std::string_view body, const ScannedRequest& request, std::string_view model) {
  const std::string name = DumpJson(Json(model));
  std::string changed(body);
  if (request.model_begin != request.model_end) {
    return changed.replace(request.model_begin, request.model_end - request.model_begin, name);
  }
  const std::size_t begin = body.find('{') + 1;
  const bool empty = body.substr(body.find_first_not_of(" \n\r\t", begin)).starts_with('}');
  return changed.insert(begin, "\"model\":" + name + (empty ? "" : ","));
}

std::int64_t PromptTokens(const ScannedRequest& request) {
  return request.token_ids + static_cast<std::int64_t>(static_cast<double>(request.text_bytes) / kBytesPerToken);
}

}  // namespace loramux
