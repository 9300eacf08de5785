// GET /v1/models and /v1/models/{id} as handlers of the HTTP server. Needs coroutines.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>

#include "adapter/registry.h"
#include "http/exchange.h"
#include "server/adapters/adapter_finder.h"
#include "server/api/openai/model_listing.h"

namespace loramux {

// Thread-safe: one instance serves all connections.
class ModelRoutes {
 public:
  // `registry` and `finder` must outlive this, and this its HTTP server.
  ModelRoutes(const AdapterRegistry& registry, AdapterFinder& finder, ModelListing listing);
  // Waits for the work on its thread.
  ~ModelRoutes();

  void AddRoutes(RouteTable& routes);
  const ModelListing& listing() const { return listing_; }

 private:
  boost::asio::awaitable<void> Models(HttpExchange& exchange);
  boost::asio::awaitable<void> Model(HttpExchange& exchange);

  const AdapterRegistry& registry_;
  AdapterFinder& finder_;
  const ModelListing listing_;
  boost::asio::thread_pool listers_{1};  // a thread that lists adapters, which may block on the disk
};

}  // namespace loramux
