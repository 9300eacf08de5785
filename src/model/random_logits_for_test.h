// Logits for tests of sampling.
#pragma once

#include <cstddef>
#include <vector>

#include "base/prng.h"

namespace loramux {

// Approximately normally distributed, with this standard deviation.
inline std::vector<float> RandomLogits(std::size_t n, double spread, Prng& prng) {
  std::vector<float> logits(n);
  for (float& logit : logits) {
    double sum = 0;
    for (int i = 0; i < 12; ++i) sum += prng.NextDouble();
    logit = static_cast<float>((sum - 6.0) * spread);
  }
  return logits;
}

}  // namespace loramux
