#include "server/server.h"

#include "server/adapter_service.h"
#include "server/http_exchange.h"
#include "server/http_server.h"
#include "server/openai_service.h"

namespace loramux {

struct Server::Impl {
  Impl(const ServerOptions& options, const ServerParts& parts)
      : seeds(options.seed),
        service({parts.clock, parts.generation, parts.registry, parts.tokenizer, parts.chat_template, &seeds, parts.adapters},
                {options.model_path, parts.clock->UnixSeconds(), options.max_model_len},
                {options.tokenizer_threads, options.max_buffered_bytes}),
        http(options.http, routes, *parts.clock) {
    service.AddRoutes(routes);
    if (options.adapter_admin_key) {
      adapters.emplace(parts.adapters, AdapterServiceOptions{.admin_key = *options.adapter_admin_key});
      adapters->AddRoutes(routes);
    }
  }

  SeedSource seeds;
  RouteTable routes;
  OpenAiService service;
  std::optional<AdapterService> adapters;
  HttpServer http;   // last: its threads end before what they use
};

Result<std::unique_ptr<Server>> Server::Start(ServerOptions options, ServerParts parts) {
  CHECK(parts.clock != nullptr && parts.generation != nullptr);
  CHECK(parts.registry != nullptr && parts.tokenizer != nullptr);
  CHECK(!options.adapter_admin_key || parts.adapters != nullptr);
  auto impl = std::make_unique<Impl>(options, parts);
  RETURN_IF_ERROR(impl->http.Start());
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() { Shutdown(); }

std::uint16_t Server::port() const { return impl_->http.port(); }
int Server::connections() const { return impl_->http.connections(); }
void Server::Shutdown() { impl_->http.Shutdown(); }

}  // namespace loramux
