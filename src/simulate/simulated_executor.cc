#include "simulate/simulated_executor.h"

#include <cmath>

#include "base/check.h"
#include "base/prng.h"
#include "engine/step_load.h"

namespace loramux {

TokenId SimulatedExecutor::TokenAt(std::uint64_t seed, std::size_t n) {
  return static_cast<TokenId>(SplitMix64(seed + n) & static_cast<std::uint64_t>(kVocab - 1));
}

void SimulatedExecutor::Submit(const ExecutorBatch& batch) {
  CHECK(batch_ == nullptr);
  batch_ = &batch;
  const auto duration = static_cast<TimeNs>(std::ceil(model_.SecondsOf(LoadOf(batch)) * static_cast<double>(kNsPerSecond)));
  busy_ += duration;
  ends_at_ = clock_->Now() + duration;
  events_->Push(ends_at_, EventKind::kStepEnds);
}

bool SimulatedExecutor::Poll(ExecutorResult& result) {
  if (batch_ == nullptr || clock_->Now() < ends_at_) return false;
  result.tokens.clear();
  for (const ExecutorChunk& chunk : batch_->chunks) {
    if (chunk.sample) result.tokens.emplace_back().id = TokenAt(chunk.sampling->seed, chunk.context.generated.size());
  }
  batch_ = nullptr;
  return true;
}

}  // namespace loramux
