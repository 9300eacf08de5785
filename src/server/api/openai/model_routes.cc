#include "server/api/openai/model_routes.h"

#include <utility>

#include "auth/access.h"
#include "http/run_on.h"

namespace loramux {

namespace asio = boost::asio;

ModelRoutes::ModelRoutes(const AdapterRegistry& registry, AdapterFinder& finder, ModelListing listing)
    : registry_(registry), finder_(finder), listing_(std::move(listing)) {}

ModelRoutes::~ModelRoutes() { listers_.join(); }

void ModelRoutes::AddRoutes(RouteTable& routes) {
  routes.Add("GET", "/v1/models", [this](HttpExchange& exchange) { return Models(exchange); });
  routes.Add("GET", "/v1/models/*", [this](HttpExchange& exchange) { return Model(exchange); });
}

asio::awaitable<void> ModelRoutes::Models(HttpExchange& exchange) {
  HttpReply reply;
  co_await RunOn(listers_,
                 [&] { reply.body = ModelListBody(registry_, listing_, finder_, CallerOf(exchange.request())); });
  co_await exchange.Send(std::move(reply));
}

asio::awaitable<void> ModelRoutes::Model(HttpExchange& exchange) {
  HttpReply reply;
  co_await RunOn(listers_, [&] {
    auto body = ModelBody(registry_, listing_, exchange.request().tail, finder_, CallerOf(exchange.request()));
    if (body.ok()) reply.body = std::move(*body);
    if (!body.ok()) reply = ErrorReply(body.error());
  });
  co_await exchange.Send(std::move(reply));
}

}  // namespace loramux
