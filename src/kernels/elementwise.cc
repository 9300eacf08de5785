#include "kernels/elementwise.h"

#include "base/check.h"
#include "kernels/cpu/kernels.h"
#include "kernels/reference/kernels.h"

namespace loramux {

void RmsNorm(const KernelContext& context, const float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n,
             NormWeights weights, float eps, float* y, std::int64_t y_stride) {
  CHECK(context.pool != nullptr);
  CHECK_GT(n, 0);
  const auto implementation = context.backend == Backend::kReference ? reference::RmsNorm : cpu::RmsNorm;
  implementation(context, x, x_stride, m, n, weights, eps, y, y_stride);
}

void Rope(const KernelContext& context, float* x, std::int64_t x_stride, std::int64_t m, std::int64_t heads,
          const RopeShape& shape, const float* cos, const float* sin) {
  CHECK(context.pool != nullptr);
  CHECK_EQ(shape.rotary_dim % 2, 0);
  CHECK_LE(shape.rotary_dim, shape.head_dim);
  const auto implementation = context.backend == Backend::kReference ? reference::Rope : cpu::Rope;
  implementation(context, x, x_stride, m, heads, shape, cos, sin);
}

void GateMul(const KernelContext& context, GateForm form, const float* x, std::int64_t x_stride, std::int64_t m,
             std::int64_t n, float* y, std::int64_t y_stride) {
  CHECK(context.pool != nullptr);
  const auto implementation = context.backend == Backend::kReference ? reference::GateMul : cpu::GateMul;
  implementation(context, form, x, x_stride, m, n, y, y_stride);
}

void AddRows(const KernelContext& context, float factor, const float* x, std::int64_t x_stride, std::int64_t m,
             std::int64_t n, float* y, std::int64_t y_stride) {
  CHECK(context.pool != nullptr);
  const auto implementation = context.backend == Backend::kReference ? reference::AddRows : cpu::AddRows;
  implementation(context, factor, x, x_stride, m, n, y, y_stride);
}

void ScaleRows(const KernelContext& context, float factor, float cap, float* x, std::int64_t x_stride, std::int64_t m,
               std::int64_t n) {
  CHECK(context.pool != nullptr);
  const auto implementation = context.backend == Backend::kReference ? reference::ScaleRows : cpu::ScaleRows;
  implementation(context, factor, cap, x, x_stride, m, n);
}

}  // namespace loramux
