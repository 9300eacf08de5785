#include "engine/step_load.h"

#include <algorithm>

namespace loramux {

StepLoad LoadOf(const StepBatch& batch) {
  StepLoad load;
  for (const StepSequence& sequence : batch.sequences) {
    const auto tokens = static_cast<std::int64_t>(sequence.tokens.size);
    if (tokens == 1) {
      ++load.decode_sequences;
      load.decode_context += sequence.position + 1;
    } else {
      load.prefill_tokens += tokens;
      load.prefill_attention += tokens * sequence.position + tokens * (tokens + 1) / 2;
      load.prefill_context += sequence.position + tokens;
      ++load.prefill_sequences;
    }
  }
  for (const AdapterSegment& segment : batch.segments) {
    const std::int64_t rank = segment.rank;
    load.adapter_tokens += segment.num_tokens;
    load.token_ranks += segment.num_tokens * rank;
    ++load.distinct_adapters;
    load.rank_sum += rank;
    load.max_rank = std::max(load.max_rank, rank);
  }
  return load;
}

}  // namespace loramux
