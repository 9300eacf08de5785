// The page for people: GET /, its files under /page/, and GET /docs. They hold no data; what the page shows comes from
// routes that need a key if the server has keys.
#pragma once

#include <string>

#include "http/exchange.h"

namespace loramux {

// What the browser may do with the page: nothing comes from elsewhere, nothing goes elsewhere, no script stands in
// HTML.
inline constexpr const char* kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

// Adds the routes of the page and of /docs.
void AddPageRoutes(RouteTable& routes);

// Adds GET /openapi.json, which serves `document`. It is open: it says what the program can do, and nothing of this
// server's models.
void AddOpenApiRoute(RouteTable& routes, std::string document);

}  // namespace loramux
