// Qwen3-Coder: <tool_call><function=NAME><parameter=KEY>value</parameter>...</function></tool_call>. Values are plain
// text; the tool's schema says which of them are strings. Any tag but the first may be missing where the meaning is
// clear without it.
#include <algorithm>
#include <cctype>
#include <map>
#include <utility>
#include <vector>

#include "server/output/formats.h"
#include "server/output/json_scanner.h"
#include "server/output/python_call.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxTagNameBytes = 256;
constexpr std::size_t kMaxTagSpaces = 16;                     // between two tags that end a value together
constexpr std::size_t kMaxValueBytes = std::size_t{1} << 20;  // most bytes of a value that is no string
constexpr int kMaxSchemaDepth = 8;
constexpr std::string_view kCall = "<tool_call>",
                           kFunction = "<function=", kParameter = "<parameter=", kEndFunction = "</function>",
                           kEndParameter = "</parameter>", kEndCall = "</tool_call>";

// ---- The meaning of a value

// The types of JSON that a schema allows, as bits.
using Types = unsigned;
constexpr Types kNull = 1, kBoolean = 2, kNumber = 4, kString = 8, kArray = 16, kObject = 32, kAnyType = 63;

Types TypeOf(const Json& value) {
  if (value.is_null()) return kNull;
  if (value.is_boolean()) return kBoolean;
  if (value.is_number()) return kNumber;
  if (value.is_string()) return kString;
  return value.is_array() ? kArray : kObject;
}

Types TypeNamed(const Json& name) {
  constexpr std::pair<std::string_view, Types> kTypes[] = {
      {"null", kNull},     {"boolean", kBoolean}, {"number", kNumber}, {"integer", kNumber},
      {"string", kString}, {"array", kArray},     {"object", kObject}};
  for (const auto& [type, bit] : kTypes) {
    if (name == type) return bit;
  }
  return kAnyType;
}

Types TypesOf(const Json& schema, int depth = 0) {
  const auto any_of = [](const Json& list, const auto& types) {
    Types all = 0;
    for (const Json& item : list) all |= types(item);
    return all;
  };
  if (!schema.is_object() || depth > kMaxSchemaDepth) return kAnyType;
  const auto find = [&schema](const char* keyword) {
    const auto found = schema.find(keyword);
    return found == schema.end() ? nullptr : &*found;
  };
  if (const Json* type = find("type")) return type->is_array() ? any_of(*type, TypeNamed) : TypeNamed(*type);
  if (const Json* value = find("const")) return TypeOf(*value);
  if (const Json* values = find("enum"); values != nullptr && values->is_array()) return any_of(*values, TypeOf);
  for (const char* keyword : {"anyOf", "oneOf"}) {
    const Json* branches = find(keyword);
    if (branches == nullptr || !branches->is_array()) continue;
    return any_of(*branches, [depth](const Json& branch) { return TypesOf(branch, depth + 1); });
  }
  return kAnyType;
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && IsJsonSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsJsonSpace(text.back())) text.remove_suffix(1);
  return text;
}

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  AppendEscaped(quoted, text);
  return quoted + '"';
}

// The JSON that a value means: itself, if it is JSON or a literal of Python and not only strings are allowed, otherwise
// a string.
std::string MeaningOf(std::string_view text, Types types) {
  if (types == kString) return Quoted(text);
  const std::string_view trimmed = Trimmed(text);
  auto json = ParseJson(trimmed);
  if (!json.ok()) {
    if (const auto literal = ParsePythonValue(trimmed)) json = ParseJson(*literal);
  }
  if (!json.ok()) return Quoted(text);
  const bool string_instead = (TypeOf(*json) & types) == 0 && (types & kString) != 0;
  return string_instead ? Quoted(text) : DumpJson(*json);
}

// ---- The call

// The name in a tag, without what models put around it.
std::string PlainName(std::string_view name) {
  name = Trimmed(name);
  const bool quoted = name.size() >= 2 && name.front() == name.back() && (name.front() == '"' || name.front() == '\'');
  if (quoted) name = name.substr(1, name.size() - 2);
  return std::string(Trimmed(name));
}

// Passes a call on when it is complete, since a client cannot take back what it saw of one that breaks.
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
        break;
    }
    return StepValue(c, calls);
  }

  // The model ended the call with its answer.
  bool Finish(CallWriter& calls, bool cut) override {
    if (where_ == Where::kInFunction && tag_.empty() && !cut) return End(calls);
    if (where_ != Where::kValue) return false;
    const bool closed = end_ != kNone && (tag_.empty() || !cut);
    const std::size_t last = value_.rfind('<');
    const bool half_a_tag =
        end_ == kNone && last != std::string::npos && BeginsTag(std::string_view(value_).substr(last));
    if (!closed && (cut || half_a_tag)) return false;
    EndValue(closed ? end_ : value_.size());
    return End(calls);
  }

  std::size_t unread() const override { return std::max<std::size_t>(1, tag_.size()); }
  std::string_view ahead() const override { return ahead_; }

 private:
  enum class Where { kBeforeFunction, kFunctionName, kInFunction, kParameterName, kValue };
  static constexpr std::string_view kInside[] = {kParameter, kEndFunction, kEndCall, kEndParameter, kCall, kFunction};
  static constexpr std::size_t kNone = std::string::npos;

  static bool BeginsTag(std::string_view text) {
    return std::ranges::any_of(kInside, [text](std::string_view tag) { return tag.starts_with(text); });
  }

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
    if (where_ == Where::kBeforeFunction) {
      where_ = Where::kFunctionName;
    } else if (tag == kParameter) {
      where_ = Where::kParameterName;
      parameter_.clear();
    } else if (tag != kEndParameter) {  // one too many
      if (tag == kCall || tag == kFunction) ahead_ = tag;
      End(calls);
      return State::kDone;
    }
    return State::kMore;
  }

  State StepName(char c, std::string& name, Where next) {
    if (c == '>') {
      name = PlainName(name);
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
    const Json* schema = tools_->Parameter(function_, parameter_);
    types_ = schema == nullptr ? kString : TypesOf(*schema);
    value_.clear();
    end_ = kNone;
    tag_.clear();
  }

  State StepValue(char c, CallWriter& calls) {
    value_ += c;
    if (end_ != kNone && LooksAhead(c) && !ahead_.empty()) {
      EndValue(end_);
      End(calls);
      if (ahead_ == kEndCall) ahead_.clear();
      return State::kDone;
    }
    if (c == '=' && CallBegins()) {
      End(calls);
      return State::kDone;
    }
    if (c == '>') MeetInValue();
    return types_ == kString || value_.size() <= kMaxValueBytes ? State::kMore : State::kBroken;
  }

  // Behind a tag that may be part of the value: returns false if it is, because something else than the end of the call
  // or the beginning of another one follows. Puts the tag that follows into `ahead_`.
  bool LooksAhead(char c) {
    if (tag_.empty() && IsJsonSpace(c)) return true;
    tag_ += c;
    for (const std::string_view tag : {kEndCall, kCall, kFunction}) {
      if (!tag.starts_with(tag_)) continue;
      if (tag == tag_) ahead_ = tag;
      return true;
    }
    tag_.clear();
    end_ = kNone;
    return false;
  }

  // A tag may have ended with the last byte of the value.
  void MeetInValue() {
    if (value_.ends_with(kEndParameter)) {
      EndValue(value_.size() - kEndParameter.size());
      where_ = Where::kInFunction;
      return;
    }
    for (const std::string_view tag : {kEndFunction, kEndCall}) {
      if (!value_.ends_with(tag)) continue;
      end_ = value_.size() - tag.size();
      tag_.clear();
      return;
    }
    const std::size_t begin = value_.rfind('<');
    if (begin == kNone || value_.size() - begin > kParameter.size() + kMaxTagNameBytes) return;
    const std::string_view tag = std::string_view(value_).substr(begin);
    if (!tag.starts_with(kParameter)) return;
    std::string name = PlainName(tag.substr(kParameter.size(), tag.size() - kParameter.size() - 1));
    if (!IsNext(name, begin == 0 || value_[begin - 1] == '\n')) return;
    EndValue(begin);
    parameter_ = std::move(name);
    BeginValue();
  }

  // Whether the tag of a parameter within a value begins the next one.
  bool IsNext(const std::string& name, bool on_its_line) const {
    const bool plain = !name.empty() && std::ranges::all_of(name, [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
             std::string_view("_-.").find(c) != std::string_view::npos;
    });
    if (!plain || name == parameter_ || given_.contains(name)) return false;
    return on_its_line || tools_->Parameter(function_, name) != nullptr || !tools_->HasParameters(function_);
  }

  // Another call begins within the value, whose own tags are all missing: <tool_call> and <function=.
  bool CallBegins() {
    if (!value_.ends_with(kFunction)) return false;
    std::size_t at = value_.size() - kFunction.size();
    for (std::size_t spaces = 0; at > 0 && IsJsonSpace(value_[at - 1]) && spaces < kMaxTagSpaces; ++spaces) --at;
    if (!std::string_view(value_).substr(0, at).ends_with(kCall)) return false;
    at -= kCall.size();
    ahead_ = value_.substr(at);
    EndValue(at);
    return true;
  }

  // The value has `size` bytes. One line break at each end belongs to the tags.
  void EndValue(std::size_t size) {
    std::string_view text = std::string_view(value_).substr(0, size);
    if (text.starts_with('\n')) text.remove_prefix(1);
    if (text.ends_with('\n')) text.remove_suffix(1);
    const auto [place, fresh] = given_.emplace(parameter_, members_.size());
    if (fresh) members_.emplace_back();
    members_[place->second] = Quoted(parameter_) + ": " + MeaningOf(text, types_);
    value_.clear();
  }

  bool End(CallWriter& calls) {
    std::string arguments = "{";
    for (const std::string& member : members_) arguments += (&member == members_.data() ? "" : ", ") + member;
    calls.Start(function_);
    calls.Arguments(arguments + '}');
    calls.End();
    return true;
  }

  std::shared_ptr<const ToolSet> tools_;
  Where where_;
  std::string function_, parameter_;
  std::string tag_;                   // may become a tag
  std::string value_;                 // value of the parameter
  Types types_ = kString;             // types that the value may have
  std::size_t end_ = kNone;           // where the value ends if only white space and another call follow
  std::string ahead_;                 // read behind the call
  std::vector<std::string> members_;  // members of the arguments, as JSON
  std::map<std::string, std::size_t, std::less<>> given_;  // their places by name
};

std::unique_ptr<CallBody> OpenQwenCall(const std::shared_ptr<const ToolSet>& tools) {
  return std::make_unique<QwenCoderBody>(tools, false);
}

std::unique_ptr<CallBody> OpenQwenFunction(const std::shared_ptr<const ToolSet>& tools) {
  return std::make_unique<QwenCoderBody>(tools, true);
}

constexpr CallMarker kQwenMarkers[] = {{kCall, OpenQwenCall}, {kFunction, OpenQwenFunction}, {kEndCall}};

}  // namespace

constinit const CallGrammar kQwenCoderCalls = {kQwenMarkers, nullptr, '{', {}};

}  // namespace loramux
