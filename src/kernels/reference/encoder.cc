#include "kernels/encoder.h"

#include <algorithm>
#include <cmath>

namespace loramux::reference {

void EncoderAttention(const KernelContext&, const EncoderAttentionArguments& a) {
  float* const weights = a.workspace;
  for (std::int64_t head = 0; head < a.num_heads; ++head) {
    const std::int64_t at = head * a.head_dim;
    for (std::int64_t i = 0; i < a.rows; ++i) {
      for (std::int64_t j = 0; j < a.rows; ++j) {
        float score = 0;
        for (std::int64_t d = at; d < at + a.head_dim; ++d) score += a.q[i][d] * a.k[j][d];
        weights[j] = score / std::sqrt(static_cast<float>(a.head_dim));
      }
      const float most = *std::max_element(weights, weights + a.rows);
      float sum = 0;
      for (std::int64_t j = 0; j < a.rows; ++j) sum += weights[j] = std::exp(weights[j] - most);
      for (std::int64_t d = at; d < at + a.head_dim; ++d) {
        float value = 0;
        for (std::int64_t j = 0; j < a.rows; ++j) value += weights[j] * a.v[j][d];
        a.out[i][d] = value / sum;
      }
    }
  }
}

}  // namespace loramux::reference
