#include "server/server.h"

#include "server/http_exchange.h"
#include "server/http_server.h"
#include "server/metrics_service.h"
#include "server/openai_service.h"

namespace loramux {

struct Server::Impl {
  Impl(const ServerOptions& options, const ServerParts& parts)
      : seeds(options.seed),
        metrics(options.metrics, parts.registry->base_names().front(), options.max_model_len),
        metrics_service(metrics, parts.engine_snapshot, *parts.registry, *parts.clock),
        service({parts.clock, parts.generation, parts.registry, parts.tokenizer, parts.chat_template, &seeds, &metrics},
                {options.model_path, parts.clock->UnixSeconds(), options.max_model_len},
                {options.tokenizer_threads, options.max_buffered_bytes, options.sse_keepalive, options.fairness_header}),
        http(WithHooks(options.http), routes, *parts.clock) {
    service.AddRoutes(routes);
    metrics_service.AddRoutes(routes);
  }

  HttpServerOptions WithHooks(HttpServerOptions http_options) {
    http_options.hooks.random_bits = [this] { return seeds.Next(); };
    http_options.hooks.responded = [this](int status) { metrics.CountResponse(status); };
    return http_options;
  }

  SeedSource seeds;
  ServerMetrics metrics;
  MetricsService metrics_service;
  RouteTable routes;
  OpenAiService service;
  HttpServer http;   // last: its threads end before what they use
};

Result<std::unique_ptr<Server>> Server::Start(ServerOptions options, ServerParts parts) {
  CHECK(parts.clock != nullptr && parts.generation != nullptr);
  CHECK(parts.registry != nullptr && parts.tokenizer != nullptr);
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
