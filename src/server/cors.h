// Cross-origin requests: which web pages of other hosts may read responses (the Fetch standard's CORS protocol).
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace loramux {

using HeaderList = std::vector<std::pair<std::string, std::string>>;

// `allowed` are exact origins such as "https://chat.example.com", or "*" for any; if it is empty, no header is ever
// sent. Credentials (cookies) are never allowed; keys in the Authorization header are.

// What every response to a request with this Origin header (empty: none) carries.
HeaderList CorsHeaders(const std::vector<std::string>& allowed, std::string_view origin);
// What the answer to a preflight carries besides. `methods` is the value of Allow, `requested_headers` that of
// Access-Control-Request-Headers. Empty unless the origin is allowed.
HeaderList PreflightHeaders(const std::vector<std::string>& allowed, std::string_view origin, std::string_view methods,
                            std::string_view requested_headers);

}  // namespace loramux
