#include "kernels/reference/encoder.h"

#include <algorithm>
#include <cmath>

namespace loramux::reference {

void LayerNorm(const KernelContext&, const float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n,
               const float* weight, const float* bias, float eps, float* y, std::int64_t y_stride) {
  for (std::int64_t i = 0; i < m; ++i) {
    const float* row = x + i * x_stride;
    float sum = 0, squares = 0;
    for (std::int64_t j = 0; j < n; ++j) sum += row[j];
    const float mean = sum / static_cast<float>(n);
    for (std::int64_t j = 0; j < n; ++j) squares += (row[j] - mean) * (row[j] - mean);
    const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
    for (std::int64_t j = 0; j < n; ++j) y[i * y_stride + j] = (row[j] - mean) * inverse * weight[j] + bias[j];
  }
}

void Gelu(const KernelContext&, float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      float& value = x[i * x_stride + j];
      value = value * 0.5f * (1.0f + std::erf(value * 0.70710678f));
    }
  }
}

void EncoderAttention(const KernelContext&, const EncoderRows& x, float* out, std::int64_t out_stride,
                      float* workspace) {
  for (std::int64_t head = 0; head < x.num_heads; ++head) {
    for (std::int64_t i = 0; i < x.rows; ++i) {
      const float* q = x.q + i * x.stride + head * x.head_dim;
      for (std::int64_t j = 0; j < x.rows; ++j) {
        const float* k = x.k + j * x.stride + head * x.head_dim;
        float score = 0;
        for (std::int64_t d = 0; d < x.head_dim; ++d) score += q[d] * k[d];
        workspace[j] = score / std::sqrt(static_cast<float>(x.head_dim));
      }
      const float most = *std::max_element(workspace, workspace + x.rows);
      float sum = 0;
      for (std::int64_t j = 0; j < x.rows; ++j) sum += workspace[j] = std::exp(workspace[j] - most);
      float* to = out + i * out_stride + head * x.head_dim;
      for (std::int64_t d = 0; d < x.head_dim; ++d) {
        float value = 0;
        for (std::int64_t j = 0; j < x.rows; ++j) value += workspace[j] * x.v[j * x.stride + head * x.head_dim + d];
        to[d] = value / sum;
      }
    }
  }
}

}  // namespace loramux::reference
