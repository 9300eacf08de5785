#include "router/proxy.h"

#include <fmt/format.h>

#include "router/forwarding.h"

namespace loramux {
namespace {

constexpr std::size_t kMostPathShown = 200;

}  // namespace

void Proxy::AddRoutes(RouteTable& routes) {
  const auto handler = [this](HttpExchange& exchange) { return Handle(exchange); };
  // All of /v1, because servers of others have more there than loramux has.
  routes.Add("POST", "/v1/*", handler);
  for (const char* path : {"/tokenize", "/detokenize", "/classify", "/score", "/rerank", "/v2/rerank", "/generate",
                           "/generate_stream", "/inference/v1/generate", "/"}) {
    routes.Add("POST", path, handler);
  }
  for (const char* path : {"/info", "/tokenizer_info"}) routes.Add("GET", path, handler);
}

// Servers, and proxies before them, take such a path for the one without dots, empty segments and the rest, which may
// be a route that this router answers itself, with a check of its own.
boost::asio::awaitable<void> Proxy::Handle(HttpExchange& exchange) {
  const std::string normal = NormalPath(exchange.request().path);
  if (normal != exchange.request().path) {
    HttpReply reply = ErrorReply(404, fmt::format("Not Found: expected the path {}, found {}.", normal,
                                                  exchange.request().path.substr(0, kMostPathShown)));
    co_await exchange.Send(std::move(reply));
    co_return;
  }
  Forwarding forwarding(*this, exchange, pool_.clock().Now());
  co_await forwarding.Run();
}

}  // namespace loramux
