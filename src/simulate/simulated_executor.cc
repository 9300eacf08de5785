#include "simulate/simulated_executor.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/prng.h"

namespace loramux {

StepLoad LoadOf(const ExecutorBatch& batch) {
  StepLoad load;
  const AdapterResidency* previous = nullptr;
  for (const ExecutorChunk& chunk : batch.chunks) {
    const auto tokens = static_cast<std::int64_t>(chunk.tokens.size());
    if (tokens == 1) {
      ++load.decode_sequences;
      load.decode_context += chunk.position + 1;
    } else {
      load.prefill_tokens += tokens;
      load.prefill_attention += tokens * chunk.position + tokens * (tokens + 1) / 2;
    }
    if (chunk.adapter == nullptr) continue;
    const std::int64_t rank = chunk.adapter->version->layout.max_rank;
    load.adapter_tokens += tokens;
    load.token_ranks += tokens * rank;
    load.max_rank = std::max(load.max_rank, rank);
    if (chunk.adapter == previous) continue;
    previous = chunk.adapter;
    load.rank_sum += rank;
    ++load.distinct_adapters;
  }
  return load;
}

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
