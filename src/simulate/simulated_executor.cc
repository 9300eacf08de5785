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

AssistedRows SimulatedExecutor::RowsOf(const AdapterSegment& segment) const {
  const SimulatedLink::Arrival arrival = adapters_->ArrivalOf(segment.generation);
  const auto from_now = [now = clock_->Now()](TimeNs at) {
    return static_cast<double>(at - now) / static_cast<double>(kNsPerSecond);
  };
  return {.tokens = segment.num_tokens,
          .rank = segment.rank,
          .arrival_begins = from_now(arrival.begins),
          .arrival_ends = from_now(arrival.ends)};
}

double SimulatedExecutor::WithArrivals(double begin, double on_device,
                                       const std::vector<AssistedRows>& arriving) const {
  if (arriving.empty()) return begin + on_device;
  const std::int64_t layers = std::max<std::int64_t>(1, device_.layers);
  double now = begin;
  for (std::int64_t layer = 1; layer <= layers; ++layer) {
    const double share = static_cast<double>(layer) / static_cast<double>(layers);
    for (const AssistedRows& rows : arriving)
      now = std::max(now, rows.arrival_begins + share * (rows.arrival_ends - rows.arrival_begins));
    now += on_device / static_cast<double>(layers);
  }
  return now;
}

double SimulatedExecutor::SecondsOf(const StepBatch& batch) {
  StepLoad load = LoadOf(batch);
  load.after_prefill = after_prefill_;
  after_prefill_ = StepsAfterPrefill(load);
  const double on_device = std::max(host_.beside, device_.SecondsOf(load) * pace_->At(clock_->Now())) +
                           host_.per_request * static_cast<double>(batch.sequences.size());
  double wait = 0;
  std::vector<AssistedRows> arriving;  // from the host tier, layer by layer
  for (const StepSequence& sequence : batch.sequences) {
    if (sequence.adapter_arrival < 0) continue;
    const AdapterSegment& segment = *batch.SegmentOf(sequence);
    const AssistedRows rows = RowsOf(segment);
    if (segment.in_host)
      wait = std::max(wait, rows.arrival_ends);
    else
      arriving.push_back(rows);
  }
  std::vector<AssistedRows> in_host;
  for (const AdapterSegment& segment : batch.segments) {
    if (!segment.in_host || segment.to_device == nullptr) continue;
    AssistedRows rows = RowsOf(segment);
    rows.arrival_begins -= wait;
    rows.arrival_ends -= wait;
    in_host.push_back(rows);
  }
  if (in_host.empty()) return WithArrivals(wait, on_device, arriving);
  // What arrives without assistance holds the step up too.
  return wait + std::max(AssistedStepSeconds(device_.model, load, on_device, in_host),
                         WithArrivals(wait, on_device, arriving) - wait);
}

void SimulatedExecutor::Submit(StepBatch batch) {
  CHECK(!batch_.has_value());
  const auto duration = static_cast<TimeNs>(
      std::ceil((SecondsOf(batch) + device_.model.between_steps) * static_cast<double>(kNsPerSecond)));
  busy_ += duration;
  ends_at_ = clock_->Now() + duration;
  events_->Push(ends_at_, EventKind::kStepEnds, 0, server_);
  batch_ = std::move(batch);
}

bool SimulatedExecutor::Poll(StepResult& result) {
  if (!batch_.has_value() || clock_->Now() < ends_at_) return false;
  const SampleBatch& samples = batch_->samples;
  result.tokens.resize(samples.rows.size());
  for (std::size_t first = 0; first < samples.rows.size(); ++first) {
    if (!samples.IsFirst(first)) continue;
    SampleWithDraft(samples, first, result.tokens, [&](std::size_t row) {
      return SampledToken{.id = TokenAt(samples.rows[row].params.seed, samples.rows[row].generated_count)};
    });
  }
  result.scores.assign(batch_->scores.size(), {});  // what they say changes no plan
  result.pooled.assign(batch_->pools.ranges.size(), 0);
  result.batch = std::move(*batch_);
  batch_.reset();
  return true;
}

}  // namespace loramux
