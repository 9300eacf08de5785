#include "envoy/picker_request.h"

#include "cluster/prefix_blocks.h"
#include "router/answer_lengths.h"
#include "router/request_scan.h"

namespace loramux {

std::string_view HeaderOf(const ProxyHeaders& headers, std::string_view name) {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

Result<RouteRequest> RouteRequestOf(const ProxyHeaders& headers, std::string_view body) {
  RouteRequest request;
  const std::string_view type = HeaderOf(headers, "content-type");
  const bool json = type.empty() || type.find("json") != std::string_view::npos;
  if (body.empty() || !json) return request;
  ScannedRequest scanned;
  if (!ScanRequest(body, scanned)) return InvalidArgument("The request body is not a JSON object, or it ends early");
  request.adapter = scanned.adapter.empty() ? scanned.model : scanned.adapter;
  request.prompt_tokens = PromptTokens(scanned);
  request.output_tokens = AnswerLengths().Expect({}, scanned.max_tokens);
  request.prefix = PrefixBlocks(request.adapter, scanned.text);
  return request;
}

}  // namespace loramux
