#include "server/adapters/admin_gate.h"

#include <algorithm>
#include <utility>

#include <boost/beast/core/string.hpp>

#include "auth/bearer_key.h"
#include "base/log.h"

namespace loramux {
namespace {

HttpReply Unauthorised() {
  HttpReply reply = ErrorReply(401, "This needs the admin key: send it as `Authorization: Bearer KEY`.");
  reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

// True for application/json with or without parameters. Web pages cannot send it to another origin without asking it
// first, unlike the types of forms and plain text.
bool IsJson(std::string_view content_type) {
  std::string_view type = content_type.substr(0, content_type.find(';'));
  while (!type.empty() && (type.back() == ' ' || type.back() == '\t')) type.remove_suffix(1);
  return boost::beast::iequals(type, "application/json");
}

// Whether this server's own page sends the request. Without an admin key that is not told from a page whose name became
// this server's address, unless the browser used the address itself. With one, such a page does not know the key.
bool IsOwnPage(const HttpRequest& request, bool has_key) {
  const std::string_view origin = request.Header("Origin"), host = request.Header("Host");
  const std::size_t scheme = origin.find("://");
  const bool same_host = !host.empty() && scheme != std::string_view::npos && origin.substr(scheme + 3) == host;
  if (has_key) return same_host || request.Header("Sec-Fetch-Site") == "same-origin";
  const std::string_view name = host.substr(0, host.rfind(':'));
  return same_host && (name == "localhost" || name == "127.0.0.1" || name == "[::1]");
}

std::optional<HttpReply> ReasonToRefuse(const HttpRequest& request, const AdminGate& gate) {
  // A web page in an operator's browser can send requests to this server, also where its name changes its address to
  // that of this server (DNS rebinding). Its origin gives it away.
  const std::string_view origin = request.Header("Origin");
  const auto& allowed = gate.allowed_origins;
  const bool named = std::find(allowed.begin(), allowed.end(), origin) != allowed.end();
  if (!origin.empty() && !named && !IsOwnPage(request, !gate.key.empty())) {
    return ErrorReply(403, "Web pages of this origin may not change adapters; --allowed-origins can name it.");
  }
  if (!gate.key.empty() && !SameKey(BearerToken(request.Header("Authorization")), gate.key)) return Unauthorised();
  if (!request.body.empty()) {
    if (auto refusal = AdminGate::TypeRefusal(request)) return refusal;
  }
  if (!request.draining) return std::nullopt;
  return NotStarted(
      ErrorReply(Unavailable("The server is shutting down; adapters can no longer be loaded or unloaded.")));
}

}  // namespace

std::optional<HttpReply> AdminGate::TypeRefusal(const HttpRequest& request) {
  if (IsJson(request.Header("Content-Type"))) return std::nullopt;
  return ErrorReply(415, "Content-Type: expected application/json; send the header `Content-Type: application/json`.");
}

std::optional<HttpReply> AdminGate::Refusal(const HttpRequest& request) const {
  auto refusal = ReasonToRefuse(request, *this);
  if (refusal) spdlog::warn("{}: refused ({}): {}", request.path, refusal->status, refusal->body);
  return refusal;
}

}  // namespace loramux
