// The headers of a request that steer a router, in llm-d's words; their older names mean the same.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "cluster/route_policy.h"

namespace loramux {

// Returns the value of a header of the request, by its name in lower case; empty: it has none.
using HeaderLookup = std::function<std::string_view(std::string_view)>;

// Sets what the headers say of the request: x-llm-d-slo-tpot-ms (RouteRequest::tpot_objective), x-session-id,
// x-session-token. Error (kInvalidArgument): a time that is no number from 1 to 86400000. (Servers read
// x-llm-d-slo-ttft-ms.)
Status ReadRouteHeaders(const HeaderLookup& header, RouteRequest& request);

// Returns x-llm-d-model-name-rewrite: the model that the request is for, whatever its body says. Empty: the body's.
std::string_view RewrittenModel(const HeaderLookup& header);

// The response's header that names the server for later requests of the conversation (SessionToken).
inline constexpr const char* kSessionTokenHeader = "x-session-token";

}  // namespace loramux
