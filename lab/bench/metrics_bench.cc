// The cost of a scrape of /metrics with many adapters: making the page from a snapshot, without the wait for the
// engine.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "server/metrics/metrics_service.h"

namespace loramux {
namespace {

void Bench(std::uint32_t adapters) {
  OsClock clock;
  AdapterRegistry registry(ModelConfig{}, {"base"}, {});
  auto snapshot = std::make_shared<EngineSnapshot>();
  snapshot->stats.device = {.capacity_pages = 1 << 20, .free_pages = 1 << 19, .page_bytes = 1 << 16};
  ServerMetrics metrics(kTopAdapters, "base", 8192);
  for (std::uint32_t i = 0; i < adapters; ++i) {
    auto version = std::make_shared<AdapterVersion>();
    version->name = "customer-" + std::to_string(i);
    version->layout.pages = 8;
    version->layout.max_rank = 16;
    AdapterSnapshot& adapter = snapshot->adapters.emplace_back();
    adapter.version = VersionSummary(*registry.Commit(std::move(version)).value());
    adapter.device = i % 2 == 0 ? TierState::kResident : TierState::kAbsent;
    adapter.waiting = i % 5;
    SequenceMetrics(metrics, adapter.version.name, {}, 0).End(FinishReason::kStop);
  }
  const auto grammars = GrammarCompiler::Refusing();
  const auto spans = SpanExporter::None();
  const MetricsService service(
      metrics, [&](auto) { return snapshot; }, registry, clock, *grammars, *spans);
  std::vector<double> ms;
  std::size_t bytes = 0;
  for (int i = 0; i < 50; ++i) {
    const TimeNs start = clock.Now();
    bytes = service.Page().size();
    ms.push_back(static_cast<double>(clock.Now() - start) / kNsPerMs);
  }
  std::sort(ms.begin(), ms.end());
  std::printf("  %6u adapters  p50 %7.2f ms  p99 %7.2f ms  %7zu bytes\n", adapters, ms[25], ms[49], bytes);
}

void BenchCounting() {
  OsClock clock;
  ServerMetrics metrics(kTopAdapters, "base", 8192);
  SequenceMetrics sequence(metrics, "sql", "", clock.Now());
  GenerationEvent event;
  event.token = SampledToken{};
  event.prompt_tokens = 10;
  constexpr int kTokens = 1'000'000;
  const TimeNs start = clock.Now();
  for (int i = 0; i < kTokens; ++i) {
    event.now = start + i;
    sequence.Take(event);
  }
  std::printf("  counting a token: %.0f ns\n", static_cast<double>(clock.Now() - start) / kTokens);
}

}  // namespace
}  // namespace loramux

int main() {
  std::printf("a scrape of /metrics\n");
  for (const std::uint32_t adapters : {10u, 1000u, 5000u}) loramux::Bench(adapters);
  loramux::BenchCounting();
  return 0;
}
