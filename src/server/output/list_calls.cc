// Calls as one array of {"name", "arguments"}: Granite writes it behind <|tool_call|> or <tool_call>, Phi-4-mini behind
// "functools", or between its own tokens.
#include "server/output/formats.h"
#include "server/output/json_call.h"

namespace loramux {
namespace {

// The array, or a single object. `opened`: the marker had its "[".
class ListBody final : public CallBody {
 public:
  explicit ListBody(bool opened) : opened_(opened) {}

  State Step(char c, CallWriter& calls) override {
    if (opened_) {
      body_ = std::make_unique<JsonCallListBody>(JsonCallBody::Keys::kAny);
      opened_ = false;
      if (const State state = body_->Step('[', calls); state != State::kMore) return state;
    }
    if (body_ == nullptr && IsJsonSpace(c)) return State::kMore;
    if (body_ == nullptr && c == '[') body_ = std::make_unique<JsonCallListBody>(JsonCallBody::Keys::kAny);
    if (body_ == nullptr && c == '{') body_ = std::make_unique<JsonCallBody>(JsonCallBody::Keys::kAny);
    return body_ == nullptr ? State::kBroken : body_->Step(c, calls);
  }
  std::size_t unread() const override { return body_ == nullptr ? 1 : body_->unread(); }

 private:
  bool opened_;
  std::unique_ptr<CallBody> body_;
};

std::unique_ptr<CallBody> OpenList(const std::shared_ptr<const ToolSet>&) { return std::make_unique<ListBody>(false); }

std::unique_ptr<CallBody> OpenListBehindBracket(const std::shared_ptr<const ToolSet>&) {
  return std::make_unique<ListBody>(true);
}

constexpr CallMarker kGraniteMarkers[] = {{"<|tool_call|>", OpenList}, {"<tool_call>", OpenList}};
constexpr CallMarker kPhiMarkers[] = {
    {"functools[", OpenListBehindBracket}, {"<|tool_call|>", OpenList}, {"<|/tool_call|>"}};

}  // namespace

constinit const CallGrammar kGraniteCalls = {kGraniteMarkers, nullptr, '{', {}};
constinit const CallGrammar kPhiCalls = {kPhiMarkers, nullptr, '{', {}};

}  // namespace loramux
