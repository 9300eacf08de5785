// Cross-origin requests: which web pages of other origins may read responses (the CORS protocol of the Fetch standard).
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace loramux {

// Header fields: names and values.
using HeaderList = std::vector<std::pair<std::string, std::string>>;

// In both functions `allowed` holds exact origins such as "https://chat.example.com", or "*" for any origin. If it is
// empty, no header is sent. Credentials (cookies) are never allowed; keys in the Authorization header are.

// Returns the headers of every response to a request with this Origin header (empty: the request has none).
HeaderList CorsHeaders(const std::vector<std::string>& allowed, std::string_view origin);
// Returns the further headers of the response to a preflight request. `methods` is the value of the Allow header,
// `requested_headers` the value of Access-Control-Request-Headers. Empty unless the origin is allowed.
HeaderList PreflightHeaders(const std::vector<std::string>& allowed, std::string_view origin, std::string_view methods,
                            std::string_view requested_headers);

}  // namespace loramux
