#include "kernels/encoder.h"

#include "base/check.h"
#include "kernels/cpu/encoder.h"
#include "kernels/reference/encoder.h"

namespace loramux {

void LayerNorm(const KernelContext& context, const float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n,
               const float* weight, const float* bias, float eps, float* y, std::int64_t y_stride) {
  CHECK(context.pool != nullptr);
  CHECK_GT(n, 0);
  const auto implementation = context.backend == Backend::kReference ? reference::LayerNorm : cpu::LayerNorm;
  implementation(context, x, x_stride, m, n, weight, bias, eps, y, y_stride);
}

void Gelu(const KernelContext& context, float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n) {
  CHECK(context.pool != nullptr);
  const auto implementation = context.backend == Backend::kReference ? reference::Gelu : cpu::Gelu;
  implementation(context, x, x_stride, m, n);
}

void EncoderAttention(const KernelContext& context, const EncoderRows& x, float* out, std::int64_t out_stride,
                      float* workspace) {
  CHECK(context.pool != nullptr);
  CHECK_GT(x.head_dim, 0);
  CHECK(x.rows <= 1 || (x.stride >= x.num_heads * x.head_dim && out_stride >= x.num_heads * x.head_dim));
  const auto implementation =
      context.backend == Backend::kReference ? reference::EncoderAttention : cpu::EncoderAttention;
  implementation(context, x, out, out_stride, workspace);
}

}  // namespace loramux
