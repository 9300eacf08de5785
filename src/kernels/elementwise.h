// Row-wise operations around the products. All take m rows and strides in floats; each row's result depends on that row
// alone.
#pragma once

#include <cstdint>

#include "kernels/kernel_context.h"

namespace loramux {

// y[i, :] = x[i, :] / sqrt(mean(x[i, :]^2) + eps) * weight. x and y may be the same.
void RmsNorm(const KernelContext& context, const float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n,
             const float* weight, float eps, float* y, std::int64_t y_stride);

// Rotates pairs (x[t], x[t + head_dim / 2]) of each of `heads` heads of each row in place, as transformers'
// apply_rotary_pos_emb does. cos and sin: [m, head_dim / 2], one row per token.
void Rope(const KernelContext& context, float* x, std::int64_t x_stride, std::int64_t m, std::int64_t heads,
          std::int64_t head_dim, const float* cos, const float* sin);

// y[i, j] = silu(gate[i, j]) * up[i, j], with gate = x[i, 0..n), up = x[i, n..2n).
void SiluMul(const KernelContext& context, const float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n,
             float* y, std::int64_t y_stride);

// y[i, :] += x[i, :].
void AddRows(const KernelContext& context, const float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n,
             float* y, std::int64_t y_stride);

}  // namespace loramux
