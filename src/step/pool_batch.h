// What a step pools for embeddings, as flat arrays: it can be copied to a device as it stands.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "step/sample_batch.h"

namespace loramux {

// Adjacent rows of a batch whose hidden states, after the final norm, are added to a sum one after the other. The order
// is that of the positions and the sum goes on from step to step, so the result does not depend on the chunks.
struct PoolRange {
  std::int64_t first_row = 0, rows = 0;  // rows of the batch; at least one row
  FlatRange sum;                         // range of PoolBatch::sums: the sum over the earlier positions; empty: zero
};

// The sums of a step. Memory is kept by Clear. Sums are double, so that those of long prompts lose nothing.
struct PoolBatch {
  std::vector<PoolRange> ranges;
  std::vector<double> sums;  // [hidden_size] for each range with one

  void Clear() {
    ranges.clear();
    sums.clear();
  }
  // Adds a range that goes on from `sum` (empty: zero).
  void Add(std::int64_t first_row, std::int64_t rows, std::span<const double> sum) {
    ranges.push_back(
        {first_row, rows, {static_cast<std::uint32_t>(sums.size()), static_cast<std::uint32_t>(sum.size())}});
    sums.insert(sums.end(), sum.begin(), sum.end());
  }
  // The sum that a range goes on from.
  std::span<const double> SumBefore(const PoolRange& range) const {
    return std::span(sums).subspan(range.sum.first, range.sum.size);
  }
};

}  // namespace loramux
