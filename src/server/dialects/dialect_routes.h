// Every path that answers requests with a body, in whatever API: the table from which the server makes its routes, and
// an offline batch finds what a line asks for.
#pragma once

#include <span>
#include <string_view>

#include "http/exchange.h"
#include "server/openai/dialect.h"
#include "server/openai/openai_service.h"
#include "server/openai/text_routes.h"

namespace loramux {

// One of POST's paths.
struct ApiPath {
  std::string_view path;
  const Dialect* dialect = nullptr;  // of its requests, or at least of its errors
  TextAnswer text = nullptr;         // null: the model answers
};

// Returns all of them.
std::span<const ApiPath> ApiPaths();
// Returns the one with this path; null: there is none.
const ApiPath* FindApiPath(std::string_view path);

// Adds the routes of the APIs that the service does not add itself, and GET /info. The service must outlive the table's
// HTTP server.
void AddDialectRoutes(RouteTable& routes, OpenAiService& service);

}  // namespace loramux
