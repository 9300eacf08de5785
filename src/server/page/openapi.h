// The description of the API for programs: GET /openapi.json (OpenAPI 3.1), made from the table of routes that the
// server answers by and the table of fields that the parsers refuse by.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "http/exchange.h"

namespace loramux {

// Returns the document. Routes of the page itself, and those without a text, are left out.
std::string OpenApiDocument(std::span<const HttpRoute> routes, std::string_view version);

// Returns "METHOD path" of the routes that have no text: none, as a test says. Those of the page's files need none.
std::vector<std::string> RoutesWithoutText(std::span<const HttpRoute> routes);

}  // namespace loramux
