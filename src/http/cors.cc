#include "http/cors.h"

#include <algorithm>

namespace loramux {
namespace {

constexpr const char* kMaxAgeSeconds = "600";  // how long a browser may cache a preflight response
constexpr const char* kExposedHeaders = "X-Request-Id, Retry-After, X-Loramux-Unknown-Fields";

bool Contains(const std::vector<std::string>& allowed, std::string_view origin) {
  return std::find(allowed.begin(), allowed.end(), origin) != allowed.end();
}

bool Allows(const std::vector<std::string>& allowed, std::string_view origin) {
  return !origin.empty() && (Contains(allowed, "*") || Contains(allowed, origin));
}

}  // namespace

HeaderList CorsHeaders(const std::vector<std::string>& allowed, std::string_view origin) {
  if (allowed.empty()) return {};
  const bool any = Contains(allowed, "*");
  HeaderList headers;
  if (!any) headers.emplace_back("Vary", "Origin");  // caches must keep one response per origin
  if (!Allows(allowed, origin)) return headers;
  headers.emplace_back("Access-Control-Allow-Origin", any ? "*" : std::string(origin));
  headers.emplace_back("Access-Control-Expose-Headers", kExposedHeaders);
  return headers;
}

HeaderList PreflightHeaders(const std::vector<std::string>& allowed, std::string_view origin, std::string_view methods,
                            std::string_view requested_headers) {
  if (!Allows(allowed, origin)) return {};
  HeaderList headers = {{"Access-Control-Allow-Methods", std::string(methods)},
                        {"Access-Control-Max-Age", kMaxAgeSeconds}};
  // Allow the requested headers by name, because "*" does not include Authorization.
  if (!requested_headers.empty()) headers.emplace_back("Access-Control-Allow-Headers", std::string(requested_headers));
  return headers;
}

}  // namespace loramux
