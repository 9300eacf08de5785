#include "engine/modeled_executor.h"

#include "base/check.h"
#include "base/prng.h"

namespace loramux {

TokenId ModeledExecutor::NextToken(AdapterGeneration adapter, std::span<const TokenId> prompt,
                                   std::span<const TokenId> generated, std::int64_t vocab_size) {
  std::uint64_t hash = SplitMix64(adapter.value);
  hash = SplitMix64(hash ^ static_cast<std::uint64_t>(prompt.size()) << 32 ^ static_cast<std::uint64_t>(prompt.back()));
  hash = SplitMix64(hash ^ generated.size());
  if (!generated.empty()) hash = SplitMix64(hash ^ static_cast<std::uint64_t>(generated.back()));
  return static_cast<TokenId>(hash % static_cast<std::uint64_t>(vocab_size));
}

void ModeledExecutor::Submit(const ExecutorBatch& batch) {
  CHECK(batch_ == nullptr);
  batch_ = &batch;
  TimeNs duration = cost_.base_ns;
  const AdapterResidency* previous = nullptr;
  for (const ExecutorChunk& chunk : batch.chunks) {
    duration += cost_.per_token_ns * static_cast<TimeNs>(chunk.tokens.size());
    if (chunk.adapter != nullptr && chunk.adapter != previous) {
      duration += cost_.per_rank_ns * chunk.adapter->version->layout.max_rank;
    }
    previous = chunk.adapter;
  }
  ends_at_ = clock_->Now() + duration;
}

bool ModeledExecutor::Poll(ExecutorResult& result) {
  if (batch_ == nullptr || clock_->Now() < ends_at_) return false;
  result.tokens.clear();
  result.waited = 0;
  for (const ExecutorChunk& chunk : batch_->chunks) {
    if (!chunk.sample) continue;
    SampledToken token;
    token.id = NextToken(chunk.adapter == nullptr ? kBaseModel : chunk.adapter->version->generation,
                         chunk.context.prompt, chunk.context.generated, vocab_size_);
    result.tokens.push_back(std::move(token));
  }
  batch_ = nullptr;
  return true;
}

}  // namespace loramux
