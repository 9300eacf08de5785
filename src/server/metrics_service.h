// GET /metrics. Needs coroutines.
#pragma once

#include <memory>
#include <string>

#include <boost/asio/thread_pool.hpp>

#include "adapter/registry.h"
#include "base/clock.h"
#include "server/http_exchange.h"
#include "server/metrics.h"

namespace loramux {

inline constexpr const char* kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

// Thread-safe. Pages are made one at a time on a thread of its own: a scrape stops neither engine nor connections.
class MetricsService {
 public:
  // All of it must outlive the service.
  MetricsService(const ServerMetrics& metrics, SnapshotSource snapshots, const AdapterRegistry& registry,
                 const Clock& clock);
  ~MetricsService();

  void AddRoutes(RouteTable& routes);
  // The page itself, in Prometheus' text format 0.0.4.
  std::string Page() const;

 private:
  boost::asio::awaitable<void> Scrape(HttpExchange& exchange);

  const ServerMetrics& metrics_;
  const SnapshotSource snapshots_;
  const AdapterRegistry& registry_;
  const Clock& clock_;
  boost::asio::thread_pool thread_;
};

}  // namespace loramux
