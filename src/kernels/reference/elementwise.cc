#include <cmath>

#include "kernels/reference/kernels.h"

namespace loramux::reference {

void RmsNorm(const KernelContext&, const float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n,
             const float* weight, float eps, float* y, std::int64_t y_stride) {
  for (std::int64_t i = 0; i < m; ++i) {
    float squares = 0;
    for (std::int64_t j = 0; j < n; ++j) squares += x[i * x_stride + j] * x[i * x_stride + j];
    const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
    for (std::int64_t j = 0; j < n; ++j) y[i * y_stride + j] = x[i * x_stride + j] * inverse * weight[j];
  }
}

void Rope(const KernelContext&, float* x, std::int64_t x_stride, std::int64_t m, std::int64_t heads,
          std::int64_t head_dim, const float* cos, const float* sin) {
  const std::int64_t half = head_dim / 2;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t head = 0; head < heads; ++head) {
      float* first = x + i * x_stride + head * head_dim;
      float* second = first + half;
      for (std::int64_t t = 0; t < half; ++t) {
        const float c = cos[i * half + t];
        const float s = sin[i * half + t];
        const float a = first[t];
        const float b = second[t];
        first[t] = a * c - b * s;
        second[t] = b * c + a * s;
      }
    }
  }
}

void SiluMul(const KernelContext&, const float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n, float* y,
             std::int64_t y_stride) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      const float gate = x[i * x_stride + j];
      y[i * y_stride + j] = gate / (1.0f + std::exp(-gate)) * x[i * x_stride + n + j];
    }
  }
}

void AddRows(const KernelContext&, const float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n, float* y,
             std::int64_t y_stride) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) y[i * y_stride + j] += x[i * x_stride + j];
  }
}

}  // namespace loramux::reference
