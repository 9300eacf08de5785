#include "engine/step_load.h"

#include <algorithm>

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
      load.prefill_context += chunk.position + tokens;
      ++load.prefill_sequences;
    }
    if (chunk.adapter != nullptr) {
      const std::int64_t rank = chunk.adapter->version->layout.max_rank;
      load.adapter_tokens += tokens;
      load.token_ranks += tokens * rank;
      if (chunk.adapter != previous) {
        ++load.distinct_adapters;
        load.rank_sum += rank;
        load.max_rank = std::max(load.max_rank, rank);
      }
    }
    previous = chunk.adapter;
  }
  return load;
}

}  // namespace loramux
