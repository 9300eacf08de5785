#include "schedule/plan/cold_start.h"

#include <algorithm>
#include <array>

namespace loramux {
namespace {

double Seconds(double ns) { return ns / static_cast<double>(kNsPerSecond); }

// Seconds of a whole load from the host tier; 0: unknown.
double LoadSeconds(const ReloadCostEstimator::Time& time, std::int64_t pages) {
  return Seconds(time.latency_ns + time.page_ns * static_cast<double>(pages));
}

StepLoad FirstStep(std::int64_t tokens, std::int64_t context, std::int64_t rank) {
  StepLoad load{.adapter_tokens = tokens,
                .rank_sum = rank,
                .max_rank = rank,
                .distinct_adapters = 1,
                .token_ranks = tokens * rank};
  if (tokens == 1) {
    load.decode_sequences = 1;
    load.decode_context = context + 1;
  } else {
    load.prefill_tokens = tokens;
    load.prefill_attention = tokens * context + tokens * (tokens + 1) / 2;
    load.prefill_sequences = 1;
    load.prefill_context = context + tokens;
  }
  return load;
}

}  // namespace

ExpectedArrival ExpectArrival(const ResidencyManager& residency, const ReloadCostEstimator& reloads,
                              AdapterGeneration generation, TimeNs now) {
  const ReloadCostEstimator::Time link = reloads.BestOf(ReloadFrom::kHost);
  double ready = 0;  // when the link has done what was requested earlier
  for (const AdapterGeneration other : residency.Arriving()) {
    const AdapterResidency& adapter = residency.Get(other);
    if (adapter.host != TierState::kResident || adapter.progress == nullptr) continue;  // it comes from disk
    const double elapsed = Seconds(static_cast<double>(now - adapter.transfer_started));
    const double seen = adapter.progress->seen(), layers = adapter.progress->layers();
    ExpectedArrival arrival;
    if (seen > 0) {
      arrival = {-elapsed, elapsed * (layers - seen) / seen};
    } else {
      // The first in the queue may have been copied for as long as it was requested. The others wait for it.
      const double begins = ready > 0 ? ready : -elapsed;
      arrival = {begins, std::max(ready, begins + LoadSeconds(link, adapter.pages))};
    }
    if (other == generation) return arrival;
    ready = std::max(ready, arrival.ends);
  }
  return {ready, ready + LoadSeconds(link, residency.Get(generation).version->layout.pages)};
}

ColdStartCosts CostsOfColdStart(const PerformanceModel& model, std::int64_t tokens, std::int64_t context,
                                std::int64_t rank, const ExpectedArrival& arrival, TimeNs step_floor) {
  const StepLoad load = FirstStep(tokens, context, rank);
  const double on_device = model.SecondsOf(load);
  const std::array rows = {AssistedRows{tokens, rank, arrival.begins, arrival.ends}};
  return {.load = std::max(arrival.ends, Seconds(static_cast<double>(step_floor))),
          .assisted = AssistedStepSeconds(model, load, on_device, rows),
          .on_device = on_device};
}

}  // namespace loramux
