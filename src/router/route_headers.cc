#include "router/route_headers.h"

#include <initializer_list>

#include "auth/objective_headers.h"

namespace loramux {

Status ReadRouteHeaders(const HeaderLookup& header, RouteRequest& request) {
  ASSIGN_OR_RETURN(request.tpot_objective, ObjectiveIn(header, kTpotHeaders));
  request.session_id = header("x-session-id");
  request.session_token = header(kSessionTokenHeader);
  return Ok{};
}

std::string_view RewrittenModel(const HeaderLookup& header) {
  const std::string_view name = header("x-llm-d-model-name-rewrite");
  return name.empty() ? header("x-gateway-model-name-rewrite") : name;
}

}  // namespace loramux
