#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/elementwise.h"

namespace loramux::reference {
namespace {

void LayerNormRow(const float* x, std::int64_t n, const NormWeights& weights, float eps, float* y) {
  float sum = 0, squares = 0;
  for (std::int64_t j = 0; j < n; ++j) sum += x[j];
  const float mean = sum / static_cast<float>(n);
  for (std::int64_t j = 0; j < n; ++j) squares += (x[j] - mean) * (x[j] - mean);
  const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
  for (std::int64_t j = 0; j < n; ++j) y[j] = (x[j] - mean) * inverse * weights.weight[j] + weights.bias[j];
}

void RmsNormRow(const float* x, std::int64_t n, const NormWeights& weights, float eps, float* y) {
  float squares = 0;
  for (std::int64_t j = 0; j < n; ++j) squares += x[j] * x[j];
  const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
  for (std::int64_t j = 0; j < n; ++j) y[j] = x[j] * inverse * (weights.weight[j] + weights.offset);
}

}  // namespace

void NormRows(const KernelContext&, const NormRowsArguments& a) {
  const auto row = a.weights.bias == nullptr ? RmsNormRow : LayerNormRow;
  for (std::int64_t i = 0; i < a.rows; ++i) row(a.x[i], a.width, a.weights, a.eps, a.y[i]);
}

void Rope(const KernelContext&, const RopeArguments& a) {
  const std::int64_t half = a.shape.rotary_dim / 2;
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t head = 0; head < a.heads; ++head) {
      float* const at = a.x[i] + head * a.shape.head_dim;
      for (std::int64_t t = 0; t < half; ++t) {
        float& first = at[a.shape.adjacent_pairs ? 2 * t : t];
        float& second = at[a.shape.adjacent_pairs ? 2 * t + 1 : t + half];
        const float c = a.cos[i * half + t];
        const float s = a.sin[i * half + t];
        const float before = first;
        first = before * c - second * s;
        second = second * c + before * s;
      }
    }
  }
}

void GateMul(const KernelContext&, const GateMulArguments& a) {
  const GateForm& form = a.form;
  // In float, 1 + erf and 1 + tanh lose what they are for negative numbers.
  const auto apply = [&form](float gate) {
    if (form.f == Activation::kSilu) return gate / (1.0f + std::exp(-gate));
    if (form.f == Activation::kRelu) return std::max(gate, 0.0f);
    if (form.f == Activation::kRelu2) return std::max(gate, 0.0f) * std::max(gate, 0.0f);
    const double x = gate;
    if (form.f == Activation::kClampedSwiglu) {
      const double g = std::min(x, static_cast<double>(form.limit));
      return static_cast<float>(g / (1 + std::exp(-static_cast<double>(form.alpha) * g)));
    }
    if (form.f == Activation::kGelu) return static_cast<float>(x / 2 * std::erfc(-x / std::numbers::sqrt2));
    const double inner = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
    return static_cast<float>(x / (1 + std::exp(-2 * inner)));
  };
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < a.width; ++j) {
      float up = form.gated ? a.x[i][a.width + j] : 1.0f;
      if (form.f == Activation::kClampedSwiglu) up = std::clamp(up, -form.limit, form.limit) + 1;
      a.y[i][j] = apply(a.x[i][j]) * up;
    }
  }
}

void AddRows(const KernelContext&, const AddRowsArguments& a) {
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < a.width; ++j) a.y[i][j] += a.factor * a.x[i][j];
  }
}

void ScaleRows(const KernelContext&, const ScaleRowsArguments& a) {
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < a.width; ++j) {
      float& value = a.x[i][j];
      value *= a.factor;
      if (a.cap > 0 && std::isfinite(value)) value = a.cap * std::tanh(value / a.cap);
    }
  }
}

}  // namespace loramux::reference
