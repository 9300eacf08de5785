// Qwen3-Coder: <tool_call><function=NAME><parameter=KEY>value</parameter>...</function></tool_call>. Values are plain
// text; the tool's schema says which of them are strings. The outer tags may be missing.
#include <algorithm>

#include "server/output/formats.h"
#include "server/output/json_scanner.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxTagNameBytes = 256;
constexpr std::size_t kMaxValueBytes = std::size_t{1} << 20;  // of a value that is no string
constexpr std::string_view kFunction = "<function=", kParameter = "<parameter=", kEndFunction = "</function>",
                           kEndParameter = "</parameter>", kEndCall = "</tool_call>";

// True if the schema allows strings only, so that the text of a value is the string. So is that of a parameter without
// a schema.
bool IsStringOnly(const Json* schema) {
  if (schema == nullptr || !schema->is_object()) return true;
  const auto type = schema->find("type");
  if (type != schema->end()) return *type == "string";
  const auto values = schema->find("enum");
  return values != schema->end() && values->is_array() && !values->empty() &&
         std::ranges::all_of(*values, [](const Json& value) { return value.is_string(); });
}

// The JSON that a value means: itself, if it is JSON or a constant of Python, otherwise a string.
std::string MeaningOf(const std::string& text) {
  if (text == "True" || text == "False") return text == "True" ? "true" : "false";
  if (text == "None") return "null";
  const auto json = ParseJson(text);
  if (json.ok()) return DumpJson(*json);
  std::string quoted = "\"";
  AppendEscaped(quoted, text);
  return quoted + '"';
}

class QwenCoderBody final : public CallBody {
 public:
  // `in_function`: the marker was the tag of the function, not the one around it.
  QwenCoderBody(std::shared_ptr<const ToolSet> tools, bool in_function)
      : tools_(std::move(tools)), where_(in_function ? Where::kFunctionName : Where::kBeforeFunction) {}

  State Step(char c, CallWriter& calls) override {
    switch (where_) {
      case Where::kBeforeFunction:
        return StepTag(c, {&kFunction, 1}, calls);
      case Where::kFunctionName:
        return StepName(c, function_, Where::kInFunction);
      case Where::kInFunction:
        return StepTag(c, kInside, calls);
      case Where::kParameterName:
        return StepName(c, parameter_, Where::kValue);
      case Where::kValue:
        StepValue(c, calls);
        break;
    }
    return value_.size() <= kMaxValueBytes ? State::kMore : State::kBroken;
  }

  std::size_t unread() const override { return std::max<std::size_t>(1, tag_.size()); }

 private:
  enum class Where { kBeforeFunction, kFunctionName, kInFunction, kParameterName, kValue };
  static constexpr std::string_view kInside[] = {kParameter, kEndFunction, kEndCall};

  // Reads white space and then one of the tags.
  State StepTag(char c, std::span<const std::string_view> tags, CallWriter& calls) {
    if (tag_.empty() && IsJsonSpace(c)) return State::kMore;
    tag_ += c;
    const auto tag = std::ranges::find_if(tags, [this](std::string_view one) { return one.starts_with(tag_); });
    if (tag == tags.end()) return State::kBroken;
    if (tag->size() > tag_.size()) return State::kMore;
    tag_.clear();
    return Meet(*tag, calls);
  }

  State Meet(std::string_view tag, CallWriter& calls) {
    if (tag == kFunction) {
      where_ = Where::kFunctionName;
      return State::kMore;
    }
    if (!calls.open()) {
      calls.Start(function_);
      calls.Arguments("{");
    }
    if (tag == kParameter) {
      where_ = Where::kParameterName;
      parameter_.clear();
      return State::kMore;
    }
    calls.Arguments("}");
    calls.End();
    return State::kDone;
  }

  State StepName(char c, std::string& name, Where next) {
    if (c == '>') {
      if (name.empty()) return State::kBroken;
      where_ = next;
      if (next == Where::kValue) BeginValue();
      return State::kMore;
    }
    name += c;
    const bool right = c != '<' && c != '\n' && name.size() <= kMaxTagNameBytes;
    return right ? State::kMore : State::kBroken;
  }

  void BeginValue() {
    string_ = IsStringOnly(tools_->Parameter(function_, parameter_));
    begun_ = false;
    first_ = true;
    value_.clear();
  }

  // One line break at each end of a value belongs to the tags.
  void StepValue(char c, CallWriter& calls) {
    if (!std::exchange(begun_, true) && c == '\n') return;
    tag_ += c;
    while (!tag_.empty() && !kEndParameter.starts_with(tag_) && !kBreakAndEnd.starts_with(tag_)) {
      value_ += tag_.front();
      tag_.erase(0, 1);
    }
    if (tag_ == kEndParameter || tag_ == kBreakAndEnd) return EndValue(calls);
    if (!string_ || value_.empty()) return;
    Prefix(calls, tag_.size());
    std::string piece;
    AppendEscaped(piece, std::exchange(value_, {}));
    calls.Arguments(piece, tag_.size());
  }

  void EndValue(CallWriter& calls) {
    tag_.clear();
    where_ = Where::kInFunction;
    Prefix(calls, 0);
    calls.Arguments(string_ ? "\"" : MeaningOf(value_));
    value_.clear();
  }

  // The key, before the first piece of its value.
  void Prefix(CallWriter& calls, std::size_t held) {
    if (!std::exchange(first_, false)) return;
    std::string key = std::exchange(any_, true) ? ", \"" : "\"";
    AppendEscaped(key, parameter_);
    calls.Arguments(key + (string_ ? "\": \"" : "\": "), held);
  }

  static constexpr std::string_view kBreakAndEnd = "\n</parameter>";

  std::shared_ptr<const ToolSet> tools_;
  Where where_;
  std::string function_, parameter_;
  std::string tag_;    // may become a tag
  std::string value_;  // not passed on yet
  bool string_ = false;
  bool begun_ = false;  // the value has its first character
  bool first_ = false;  // nothing of the parameter was passed on
  bool any_ = false;    // the object has a member
};

std::unique_ptr<CallBody> OpenQwenCall(const std::shared_ptr<const ToolSet>& tools) {
  return std::make_unique<QwenCoderBody>(tools, false);
}

std::unique_ptr<CallBody> OpenQwenFunction(const std::shared_ptr<const ToolSet>& tools) {
  return std::make_unique<QwenCoderBody>(tools, true);
}

constexpr CallMarker kQwenMarkers[] = {{"<tool_call>", OpenQwenCall}, {kFunction, OpenQwenFunction}, {kEndCall}};

}  // namespace

constinit const CallGrammar kQwenCoderCalls = {kQwenMarkers, nullptr, '{', {}};

}  // namespace loramux
