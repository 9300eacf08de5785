// Row-wise operations around the products. All take m rows and strides in floats; each row's result depends on that row
// alone.
#pragma once

#include <cstdint>

#include "formats/activation.h"
#include "kernels/kernel_context.h"

namespace loramux {

// The weights of a norm: weight[i] + offset. With a bias it is a LayerNorm.
struct NormWeights {
  const float* weight = nullptr;
  float offset = 0;
  const float* bias = nullptr;
};

// y[i, :] = x[i, :] / sqrt(mean(x[i, :]^2) + eps) * (weight + offset). x and y may be the same.
void RmsNorm(const KernelContext& context, const float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n,
             NormWeights weights, float eps, float* y, std::int64_t y_stride);

// Which elements of a head turn, and in which pairs.
struct RopeShape {
  std::int64_t head_dim = 0;
  std::int64_t rotary_dim = 0;  // the first ones; even, at most head_dim
  bool adjacent_pairs = false;  // (2 t, 2 t + 1), else (t, t + rotary_dim / 2)
};

// Rotates the pairs of each of `heads` heads of each row in place, as transformers' apply_rotary_pos_emb does. cos and
// sin: [m, rotary_dim / 2], one row per token.
void Rope(const KernelContext& context, float* x, std::int64_t x_stride, std::int64_t m, std::int64_t heads,
          const RopeShape& shape, const float* cos, const float* sin);

// y[i, j] = f(gate[i, j]) * up[i, j], with gate = x[i, 0..n), up = x[i, n..2n); or f(x[i, j]) if it is not `gated`.
struct GateForm {
  Activation f = Activation::kSilu;
  bool gated = true;
  float alpha = 0, limit = 0;  // of kClampedSwiglu
};
void GateMul(const KernelContext& context, GateForm form, const float* x, std::int64_t x_stride, std::int64_t m,
             std::int64_t n, float* y, std::int64_t y_stride);

// y[i, :] += factor * x[i, :].
void AddRows(const KernelContext& context, float factor, const float* x, std::int64_t x_stride, std::int64_t m,
             std::int64_t n, float* y, std::int64_t y_stride);

// x[i, :] *= factor; then, if cap > 0, x[i, :] = cap * tanh(x[i, :] / cap), except where it is -infinity.
void ScaleRows(const KernelContext& context, float factor, float cap, float* x, std::int64_t x_stride, std::int64_t m,
               std::int64_t n);

}  // namespace loramux
