// Layers with states (Google Highway): the public functions of the same names without validation.
#pragma once

#include "kernels/states.h"

namespace loramux::cpu {

void CausalConv(const KernelContext& context, std::int64_t channels, std::int64_t width, const float* weights,
                const StatePlace& place, std::span<const StateSequence> sequences, const float* x,
                std::int64_t x_stride, float* y, std::int64_t y_stride);
void DeltaRule(const KernelContext& context, const DeltaShape& shape, const DeltaGates& form, const StatePlace& place,
               std::span<const StateSequence> sequences, const float* x, std::int64_t x_stride, const float* gates,
               std::int64_t gates_stride, float* out, std::int64_t out_stride, float* workspace);
void GatedRmsNorm(const KernelContext& context, std::int64_t heads, std::int64_t dim, const float* weight, float eps,
                  const float* z, std::int64_t z_stride, std::int64_t m, float* y, std::int64_t y_stride);
void MulSigmoid(const KernelContext& context, const float* gate, std::int64_t gate_stride, std::int64_t m,
                std::int64_t n, float* y, std::int64_t y_stride);

}  // namespace loramux::cpu
