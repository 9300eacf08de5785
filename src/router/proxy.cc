#include "router/proxy.h"

#include "router/forwarding.h"

namespace loramux {

void Proxy::AddRoutes(RouteTable& routes) {
  const auto handler = [this](HttpExchange& exchange) { return Handle(exchange); };
  // All of /v1, because servers of others have more there than loramux has.
  routes.Add("POST", "/v1/*", handler);
  for (const char* path : {"/tokenize", "/detokenize", "/generate", "/generate_stream", "/"}) {
    routes.Add("POST", path, handler);
  }
  for (const char* path : {"/info", "/tokenizer_info"}) routes.Add("GET", path, handler);
}

boost::asio::awaitable<void> Proxy::Handle(HttpExchange& exchange) {
  Forwarding forwarding(*this, exchange, pool_.clock().Now());
  co_await forwarding.Run();
}

}  // namespace loramux
