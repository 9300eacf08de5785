#include "kernels/states.h"

#include "base/check.h"
#include "kernels/cpu/states.h"
#include "kernels/reference/states.h"

namespace loramux {

void CausalConv(const KernelContext& context, std::int64_t channels, std::int64_t width, const float* weights,
                const StatePlace& place, std::span<const StateSequence> sequences, const float* x,
                std::int64_t x_stride, float* y, std::int64_t y_stride) {
  CHECK(context.pool != nullptr);
  CHECK_GT(channels, 0);
  CHECK_GT(width, 1);
  CHECK_GT(place.page_floats, 0);
  const auto implementation = context.backend == Backend::kReference ? reference::CausalConv : cpu::CausalConv;
  implementation(context, channels, width, weights, place, sequences, x, x_stride, y, y_stride);
}

void DeltaRule(const KernelContext& context, const DeltaShape& shape, const DeltaGates& form, const StatePlace& place,
               std::span<const StateSequence> sequences, const float* x, std::int64_t x_stride, const float* gates,
               std::int64_t gates_stride, float* out, std::int64_t out_stride, float* workspace) {
  CHECK(context.pool != nullptr);
  CHECK_GT(shape.HeadFloats(), 0);
  CHECK_EQ(shape.value_heads % shape.key_heads, 0);
  CHECK_GT(place.page_floats, 0);
  const auto implementation = context.backend == Backend::kReference ? reference::DeltaRule : cpu::DeltaRule;
  implementation(context, shape, form, place, sequences, x, x_stride, gates, gates_stride, out, out_stride, workspace);
}

void GatedRmsNorm(const KernelContext& context, std::int64_t heads, std::int64_t dim, const float* weight, float eps,
                  const float* z, std::int64_t z_stride, std::int64_t m, float* y, std::int64_t y_stride) {
  CHECK(context.pool != nullptr);
  CHECK_GT(dim, 0);
  const auto implementation = context.backend == Backend::kReference ? reference::GatedRmsNorm : cpu::GatedRmsNorm;
  implementation(context, heads, dim, weight, eps, z, z_stride, m, y, y_stride);
}

void MulSigmoid(const KernelContext& context, const float* gate, std::int64_t gate_stride, std::int64_t m,
                std::int64_t n, float* y, std::int64_t y_stride) {
  CHECK(context.pool != nullptr);
  const auto implementation = context.backend == Backend::kReference ? reference::MulSigmoid : cpu::MulSigmoid;
  implementation(context, gate, gate_stride, m, n, y, y_stride);
}

// From the last head to the first: where a query goes, only what was moved before has lain.
void SplitGates(const KernelContext& context, std::int64_t heads, std::int64_t dim, std::int64_t m, float* x,
                std::int64_t x_stride, float* y, std::int64_t y_stride) {
  CHECK(context.pool != nullptr);
  const std::int64_t tasks = std::min<std::int64_t>(m, m * heads * dim < 16384 ? 1 : context.pool->size() * 4);
  context.pool->Run(tasks, [&](std::int64_t task, int) {
    for (std::int64_t i = m * task / tasks; i < m * (task + 1) / tasks; ++i) {
      float* const row = x + i * x_stride;
      for (std::int64_t head = heads - 1; head >= 0; --head) {
        float* const query = row + 2 * head * dim;
        std::copy_n(query + dim, dim, y + i * y_stride + head * dim);
        std::copy_n(query, dim, row + (heads + head) * dim);
      }
    }
  });
}

}  // namespace loramux
