// The handler of GET /metrics. Needs coroutines.
#pragma once

#include <memory>
#include <string>

#include <boost/asio/thread_pool.hpp>

#include "adapter/registry.h"
#include "base/clock.h"
#include "http/exchange.h"
#include "server/metrics/metrics.h"
#include "server/tracing/span_exporter.h"
#include "text/grammar/grammar_compiler.h"

namespace loramux {

// The content type of Prometheus' text format.
inline constexpr const char* kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

// Thread-safe. Builds pages one at a time on a thread of its own, so a scrape delays neither the engine nor
// connections.
class MetricsService {
 public:
  // All arguments must outlive the service; the service must outlive its HTTP server. `spans` may be null.
  MetricsService(const ServerMetrics& metrics, SnapshotSource snapshots, const AdapterRegistry& registry,
                 const Clock& clock, const GrammarCompiler& grammars, const SpanExporter& spans);
  ~MetricsService();

  // Adds GET /metrics.
  void AddRoutes(RouteTable& routes);
  // Returns the page in Prometheus' text format 0.0.4. May block while it waits for the engine's snapshot.
  std::string Page() const;

 private:
  boost::asio::awaitable<void> Scrape(HttpExchange& exchange);

  const ServerMetrics& metrics_;
  const SnapshotSource snapshots_;
  const AdapterRegistry& registry_;
  const Clock& clock_;
  const GrammarCompiler& grammars_;
  const SpanExporter& spans_;
  boost::asio::thread_pool thread_;
};

}  // namespace loramux
