#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/reference/kernels.h"

namespace loramux::reference {

void RmsNorm(const KernelContext&, const float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n,
             NormWeights weights, float eps, float* y, std::int64_t y_stride) {
  for (std::int64_t i = 0; i < m; ++i) {
    float squares = 0;
    for (std::int64_t j = 0; j < n; ++j) squares += x[i * x_stride + j] * x[i * x_stride + j];
    const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
    for (std::int64_t j = 0; j < n; ++j) {
      y[i * y_stride + j] = x[i * x_stride + j] * inverse * (weights.weight[j] + weights.offset);
    }
  }
}

void Rope(const KernelContext&, float* x, std::int64_t x_stride, std::int64_t m, std::int64_t heads,
          const RopeShape& shape, const float* cos, const float* sin) {
  const std::int64_t half = shape.rotary_dim / 2;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t head = 0; head < heads; ++head) {
      float* const at = x + i * x_stride + head * shape.head_dim;
      for (std::int64_t t = 0; t < half; ++t) {
        float& first = at[shape.adjacent_pairs ? 2 * t : t];
        float& second = at[shape.adjacent_pairs ? 2 * t + 1 : t + half];
        const float c = cos[i * half + t];
        const float s = sin[i * half + t];
        const float a = first;
        const float b = second;
        first = a * c - b * s;
        second = b * c + a * s;
      }
    }
  }
}

void GateMul(const KernelContext&, GateForm form, const float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n,
             float* y, std::int64_t y_stride) {
  // In float, 1 + erf and 1 + tanh lose what they are for negative numbers.
  const auto apply = [f = form.f, form](float gate) {
    if (f == Activation::kSilu) return gate / (1.0f + std::exp(-gate));
    if (f == Activation::kRelu) return std::max(gate, 0.0f);
    const double x = gate;
    if (f == Activation::kClampedSwiglu) {
      const double g = std::min(x, static_cast<double>(form.limit));
      return static_cast<float>(g / (1 + std::exp(-static_cast<double>(form.alpha) * g)));
    }
    if (f == Activation::kGelu) return static_cast<float>(x / 2 * std::erfc(-x / std::numbers::sqrt2));
    const double inner = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
    return static_cast<float>(x / (1 + std::exp(-2 * inner)));
  };
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      float up = form.gated ? x[i * x_stride + n + j] : 1.0f;
      if (form.f == Activation::kClampedSwiglu) up = std::clamp(up, -form.limit, form.limit) + 1;
      y[i * y_stride + j] = apply(x[i * x_stride + j]) * up;
    }
  }
}

void AddRows(const KernelContext&, float factor, const float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n,
             float* y, std::int64_t y_stride) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) y[i * y_stride + j] += factor * x[i * x_stride + j];
  }
}

void ScaleRows(const KernelContext&, float factor, float cap, float* x, std::int64_t x_stride, std::int64_t m,
               std::int64_t n) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      float& value = x[i * x_stride + j];
      value *= factor;
      if (cap > 0 && std::isfinite(value)) value = cap * std::tanh(value / cap);
    }
  }
}

}  // namespace loramux::reference
