// Operations of an encoder such as BERT, besides the products. Attention is bidirectional.
#pragma once

#include <cstdint>

#include "kernels/kernel_context.h"

namespace loramux {

// y[i, :] = (x[i, :] - mean) / sqrt(variance + eps) * weight + bias, over m rows of n. The variance divides by n, not n
// - 1. Strides in floats. x and y may be the same. Each row depends on itself alone.
void LayerNorm(const KernelContext& context, const float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n,
               const float* weight, const float* bias, float eps, float* y, std::int64_t y_stride);

// x = x / 2 (1 + erf(x / sqrt 2)) in place: the exact form, which transformers calls "gelu". Absolute error below 2^-22
// |x|.
void Gelu(const KernelContext& context, float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n);

// q, k and v of the same rows; consecutive rows are `stride` floats apart; heads of head_dim are adjacent. Not owning.
struct EncoderRows {
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  std::int64_t stride = 0;
  std::int64_t rows = 0;
  std::int64_t num_heads = 0;
  std::int64_t head_dim = 0;
};

// out[row, head, :] = softmax(q . K / sqrt(head_dim)) V over all rows: one sequence, in which every row attends to
// every row. workspace: EncoderAttentionFloats(...) floats.
void EncoderAttention(const KernelContext& context, const EncoderRows& x, float* out, std::int64_t out_stride,
                      float* workspace);

// Size of EncoderAttention's workspace in floats.
inline std::int64_t EncoderAttentionFloats(std::int64_t rows, int threads) { return rows * threads; }

}  // namespace loramux
