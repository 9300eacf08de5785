#include "envoy/picker_request.h"

#include "cluster/prefix_blocks.h"
#include "router/answer_lengths.h"
#include "router/request_scan.h"
#include "router/route_headers.h"

namespace loramux {

std::string_view HeaderOf(const ProxyHeaders& headers, std::string_view name) {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

Result<PickerRequest> PickerRequestOf(const ProxyHeaders& headers, std::string_view body) {
  PickerRequest request;
  const HeaderLookup header = [&headers](std::string_view name) { return HeaderOf(headers, name); };
  RETURN_IF_ERROR(ReadRouteHeaders(header, request.route));
  const std::string_view type = HeaderOf(headers, "content-type");
  const bool json = type.empty() || type.find("json") != std::string_view::npos;
  if (body.empty() || !json) return request;
  ScannedRequest scanned;
  if (!ScanRequest(body, scanned)) return InvalidArgument("The request body is not a JSON object, or it ends early");
  const std::string_view rewritten = RewrittenModel(header);
  if (!rewritten.empty()) {
    request.body = WithModel(body, scanned, rewritten);
    scanned.model = rewritten;
  }
  request.route.adapter = scanned.adapter.empty() ? scanned.model : scanned.adapter;
  request.route.prompt_tokens = PromptTokens(scanned);
  request.route.output_tokens = AnswerLengths().Expect({}, scanned.max_tokens);
  request.route.prefix = PrefixBlocks(request.route.adapter, scanned.text);
  return request;
}

}  // namespace loramux
