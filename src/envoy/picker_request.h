// What a policy must know of a request, from its HTTP headers and body.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "cluster/route_policy.h"
#include "envoy/proxy_message.h"

namespace loramux {

// The value of a header; empty: absent.
std::string_view HeaderOf(const ProxyHeaders& headers, std::string_view name);

// A request, and the body that the server should get in the place of the client's; nullopt: the client's.
struct PickerRequest {
  RouteRequest route;
  std::optional<std::string> body;
};

// Reads `body` if it is JSON; what is not JSON, such as an uploaded file, goes to any server. Error
// (kInvalidArgument): the body is no JSON object, or a header is wrong (route_headers.h). The server checks the rest.
Result<PickerRequest> PickerRequestOf(const ProxyHeaders& headers, std::string_view body);

}  // namespace loramux
