#include "server/metrics/metrics_service.h"

#include <iterator>
#include <utility>
#include <vector>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include "server/metrics/engine_metrics.h"
#include "server/metrics/process_metrics.h"

namespace loramux {
namespace {

namespace asio = boost::asio;

// How long a scrape waits for the engine. Long, because the engine answers only between two checks of its executor.
constexpr std::chrono::milliseconds kSnapshotPatience(1000);

void Append(std::vector<prometheus::MetricFamily>& all, std::vector<prometheus::MetricFamily> more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

std::vector<prometheus::MetricFamily> GrammarFamilies(const GrammarCompilerStats& stats) {
  using prometheus::MetricType;
  std::vector<prometheus::MetricFamily> families = {
      {"loramux:grammar_uses_total",
       "Grammars asked for: kept (or refused before), or compiled.",
       MetricType::Counter,
       {}},
      {"loramux:grammars_kept", "Compiled grammars that are kept.", MetricType::Gauge, {}},
      {"loramux:grammars_kept_bytes", "Memory of the compiled grammars that are kept.", MetricType::Gauge, {}}};
  for (const auto& [outcome, count] : {std::pair{"kept", stats.hits}, {"compiled", stats.misses}}) {
    prometheus::ClientMetric& metric = families[0].metric.emplace_back();
    metric.label = {{"outcome", outcome}};
    metric.counter.value = static_cast<double>(count);
  }
  families[1].metric.emplace_back().gauge.value = static_cast<double>(stats.grammars);
  families[2].metric.emplace_back().gauge.value = static_cast<double>(stats.bytes);
  return families;
}

prometheus::MetricFamily SpanFamily(const SpanCounts& counts) {
  prometheus::MetricFamily family{
      "loramux:otlp_spans_total", "Spans of requests, by what became of them.", prometheus::MetricType::Counter, {}};
  for (const auto& [outcome, count] :
       {std::pair{"sent", counts.sent}, {"dropped", counts.dropped}, {"refused", counts.refused}}) {
    prometheus::ClientMetric metric;
    metric.label = {{"outcome", outcome}};
    metric.counter.value = static_cast<double>(count);
    family.metric.push_back(std::move(metric));
  }
  return family;
}

}  // namespace

MetricsService::MetricsService(const ServerMetrics& metrics, SnapshotSource snapshots, const AdapterRegistry& registry,
                               const Clock& clock, const GrammarCompiler& grammars, const SpanExporter& spans)
    : metrics_(metrics),
      snapshots_(std::move(snapshots)),
      registry_(registry),
      clock_(clock),
      grammars_(grammars),
      spans_(spans),
      thread_(1) {}

MetricsService::~MetricsService() { thread_.join(); }

void MetricsService::AddRoutes(RouteTable& routes) {
  routes.Add(
      "GET", "/metrics", [this](HttpExchange& exchange) { return Scrape(exchange); }, RouteAccess::kOpen);
}

std::string MetricsService::Page() const {
  std::vector<prometheus::MetricFamily> families = metrics_.Collect();
  const auto snapshot = snapshots_ ? snapshots_(kSnapshotPatience) : nullptr;
  if (snapshot != nullptr) {
    Append(families, EngineMetrics({.snapshot = snapshot.get(),
                                    .registered = registry_.List(),
                                    .model_name = metrics_.model_name(),
                                    .top_adapters = static_cast<std::size_t>(metrics_.top_adapters()),
                                    .unix_seconds = clock_.UnixSeconds()}));
  }
  if (!grammars_.refuses()) Append(families, GrammarFamilies(grammars_.stats()));
  if (spans_.exports()) families.push_back(SpanFamily(spans_.counts()));
  Append(families, ProcessMetrics());
  return prometheus::TextSerializer().Serialize(families);
}

asio::awaitable<void> MetricsService::Scrape(HttpExchange& exchange) {
  HttpReply reply;
  reply.content_type = kMetricsContentType;
  co_await asio::co_spawn(
      thread_,
      [this, &reply]() -> asio::awaitable<void> {
        reply.body = Page();
        co_return;
      },
      asio::use_awaitable);
  co_await exchange.Send(std::move(reply));
}

}  // namespace loramux
