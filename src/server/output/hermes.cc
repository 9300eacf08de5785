// Hermes, Qwen2.5 and Qwen3: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, one pair of tags a call.
#include "server/output/formats.h"
#include "server/output/json_call.h"

namespace loramux {
namespace {

std::unique_ptr<CallBody> OpenHermesCall(const std::shared_ptr<const ToolSet>&) {
  return std::make_unique<JsonCallBody>(JsonCallBody::Keys::kAny);
}

constexpr CallMarker kHermesMarkers[] = {{"<tool_call>", OpenHermesCall}, {"</tool_call>"}};

}  // namespace

constinit const CallGrammar kHermesCalls = {kHermesMarkers, nullptr, '{', {}};

}  // namespace loramux
