#include "kernels/elementwise.h"

#include "base/check.h"
#include "kernels/cpu/kernels.h"
#include "kernels/reference/kernels.h"

namespace loramux {

void RmsNorm(const KernelContext& context, const float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n,
             const float* weight, float eps, float* y, std::int64_t y_stride) {
  CHECK(context.pool != nullptr);
  CHECK_GT(n, 0);
  const auto implementation = context.backend == Backend::kReference ? reference::RmsNorm : cpu::RmsNorm;
  implementation(context, x, x_stride, m, n, weight, eps, y, y_stride);
}

void Rope(const KernelContext& context, float* x, std::int64_t x_stride, std::int64_t m, std::int64_t heads,
          std::int64_t head_dim, const float* cos, const float* sin) {
  CHECK(context.pool != nullptr);
  CHECK_EQ(head_dim % 2, 0);
  const auto implementation = context.backend == Backend::kReference ? reference::Rope : cpu::Rope;
  implementation(context, x, x_stride, m, heads, head_dim, cos, sin);
}

void SiluMul(const KernelContext& context, const float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n,
             float* y, std::int64_t y_stride) {
  CHECK(context.pool != nullptr);
  const auto implementation = context.backend == Backend::kReference ? reference::SiluMul : cpu::SiluMul;
  implementation(context, x, x_stride, m, n, y, y_stride);
}

void AddRows(const KernelContext& context, const float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n,
             float* y, std::int64_t y_stride) {
  CHECK(context.pool != nullptr);
  const auto implementation = context.backend == Backend::kReference ? reference::AddRows : cpu::AddRows;
  implementation(context, x, x_stride, m, n, y, y_stride);
}

}  // namespace loramux
