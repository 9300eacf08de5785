#include "schedule/performance_model.h"

#include <algorithm>

namespace loramux {

double PerformanceModel::SecondsOf(const StepLoad& load) const {
  const auto count = [](std::int64_t value) { return static_cast<double>(value); };
  double seconds = step + per_prefill_token * count(load.prefill_tokens) + per_decode_sequence * count(load.decode_sequences) +
                   per_prefill_attention * count(load.prefill_attention) + per_decode_context * count(load.decode_context);
  if (load.distinct_adapters > 0) {
    seconds += per_adapter * count(load.distinct_adapters);
    if (shape == LoraCostShape::kBgmv) {
      seconds += per_padded_rank * count(load.adapter_tokens) * count(load.max_rank);
    } else {
      const double mean_rank = count(load.rank_sum) / count(load.distinct_adapters);
      const double token_ranks = load.token_ranks > 0 ? count(load.token_ranks) : count(load.adapter_tokens) * mean_rank;
      seconds += per_rank * count(load.rank_sum) + per_adapter_token_rank * token_ranks;
    }
  }
  const double dense = per_prefill_token * count(load.prefill_tokens) + per_decode_sequence * count(load.decode_sequences);
  seconds += std::max(0.0, dense_floor - dense);
  return std::max(floor, seconds);
}

}  // namespace loramux
