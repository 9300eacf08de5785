// Mistral: [TOOL_CALLS] and then an array of {"name", "arguments"}, or, since the 11th version of its tokenizer, a name
// and its arguments: [TOOL_CALLS]name{...}, [TOOL_CALLS]name[ARGS]{...} or [TOOL_CALLS]name[CALL_ID]id[ARGS]{...}.
#include <cctype>

#include "server/output/formats.h"
#include "server/output/json_call.h"

namespace loramux {
namespace {

constexpr std::string_view kArgs = "[ARGS]", kCallId = "[CALL_ID]";

bool IsNameByte(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.' || c == ':' || c == '/';
}

// A name, perhaps with tokens behind it, and an object.
class MistralNamedBody final : public CallBody {
 public:
  State Step(char c, CallWriter& calls) override {
    if (calls.open()) return StepArguments(c, calls);
    if (!token_.empty()) return StepToken(c);
    if (c == '[') {
      token_ = c;
      return State::kMore;
    }
    if (c == '{' && !name_.empty()) {
      calls.Start(name_);
      return StepArguments(c, calls);
    }
    if (IsJsonSpace(c)) return State::kMore;
    if (in_id_) return IsNameByte(c) ? State::kMore : State::kBroken;
    name_ += c;
    return IsNameByte(c) && name_.size() <= kMaxFunctionNameBytes ? State::kMore : State::kBroken;
  }

  std::size_t unread() const override { return token_.empty() ? 1 : token_.size(); }

 private:
  State StepArguments(char c, CallWriter& calls) {
    const JsonScanner::Result result = scanner_.Step(c);
    if (result == JsonScanner::Result::kError) return State::kBroken;
    calls.Arguments({&c, 1});
    if (result == JsonScanner::Result::kMore) return State::kMore;
    calls.End();
    return State::kDone;
  }

  State StepToken(char c) {
    token_ += c;
    if (!kArgs.starts_with(token_) && !kCallId.starts_with(token_)) return State::kBroken;
    if (token_ != kArgs && token_ != kCallId) return State::kMore;
    in_id_ = token_ == kCallId;
    token_.clear();
    return State::kMore;
  }

  std::string name_;
  std::string token_;  // begun, if not empty
  bool in_id_ = false;
  JsonScanner scanner_;
};

// The first character behind the marker tells the two forms apart.
class MistralBody final : public CallBody {
 public:
  State Step(char c, CallWriter& calls) override {
    if (body_ == nullptr && IsJsonSpace(c)) return State::kMore;
    if (body_ == nullptr && c == '[') body_ = std::make_unique<JsonCallListBody>(JsonCallBody::Keys::kAny);
    if (body_ == nullptr) body_ = std::make_unique<MistralNamedBody>();
    return body_->Step(c, calls);
  }
  std::size_t unread() const override { return body_ == nullptr ? 1 : body_->unread(); }

 private:
  std::unique_ptr<CallBody> body_;
};

std::unique_ptr<CallBody> OpenMistralCalls(const std::shared_ptr<const ToolSet>&) {
  return std::make_unique<MistralBody>();
}

constexpr CallMarker kMistralMarkers[] = {{"[TOOL_CALLS]", OpenMistralCalls}};

}  // namespace

constinit const CallGrammar kMistralCalls = {kMistralMarkers, nullptr, '{', {}};

}  // namespace loramux
