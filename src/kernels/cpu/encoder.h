// The encoder's operations (Google Highway): the public functions of the same names without validation.
#pragma once

#include "kernels/encoder.h"

namespace loramux::cpu {

void LayerNorm(const KernelContext& context, const float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n,
               const float* weight, const float* bias, float eps, float* y, std::int64_t y_stride);
void Gelu(const KernelContext& context, float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n);
void EncoderAttention(const KernelContext& context, const EncoderRows& x, float* out, std::int64_t out_stride,
                      float* workspace);

}  // namespace loramux::cpu
