#include "simulate/simulated_executor.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/prng.h"
#include "engine/step_load.h"

namespace loramux {

TokenId SimulatedExecutor::TokenAt(std::uint64_t seed, std::size_t n) {
  return static_cast<TokenId>(SplitMix64(seed + n) & static_cast<std::uint64_t>(kVocab - 1));
}

double SimulatedExecutor::SecondsOf(const StepBatch& batch) {
  StepLoad load = LoadOf(batch);
  load.after_prefill = after_prefill_;
  after_prefill_ = StepsAfterPrefill(load);
  const double on_device = model_.SecondsOf(load) * pace_->At(clock_->Now());
  TimeNs there = 0;
  double tokens = 0, token_ranks = 0;
  for (const StepSequence& sequence : batch.sequences) {
    if (sequence.adapter_arrival < 0) continue;
    const AdapterSegment& segment = *batch.SegmentOf(sequence);
    there = std::max(there, adapters_->EndOf(segment.generation));
    tokens += static_cast<double>(sequence.tokens.size);
    token_ranks += static_cast<double>(sequence.tokens.size) * segment.rank;
  }
  const double wait =
      static_cast<double>(std::max<TimeNs>(0, there - clock_->Now())) / static_cast<double>(kNsPerSecond);
  if (wait == 0) return on_device;
  if (!assist_.has_value()) return wait + on_device;
  // Until the adapters are resident, layers run at the speed of the assisted step; the remaining ones run at the
  // device's speed.
  const double assisted =
      on_device + assist_->per_step + assist_->per_token * tokens + assist_->per_token_rank * token_ranks;
  return assisted <= wait ? assisted : wait + (1 - wait / assisted) * on_device;
}

void SimulatedExecutor::Submit(StepBatch batch) {
  CHECK(!batch_.has_value());
  const auto duration =
      static_cast<TimeNs>(std::ceil((SecondsOf(batch) + model_.between_steps) * static_cast<double>(kNsPerSecond)));
  busy_ += duration;
  ends_at_ = clock_->Now() + duration;
  events_->Push(ends_at_, EventKind::kStepEnds);
  batch_ = std::move(batch);
}

bool SimulatedExecutor::Poll(StepResult& result) {
  if (!batch_.has_value() || clock_->Now() < ends_at_) return false;
  result.tokens.clear();
  for (const SampleRow& row : batch_->samples.rows) {
    result.tokens.emplace_back().id = TokenAt(row.seed, row.generated_count);
  }
  result.scores.assign(batch_->scores.size(), {});  // what they say changes no plan
  result.pooled.assign(batch_->pools.ranges.size(), 0);
  result.batch = std::move(*batch_);
  batch_.reset();
  return true;
}

}  // namespace loramux
