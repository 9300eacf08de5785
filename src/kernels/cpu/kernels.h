// The vectorised implementations (Google Highway); each call dispatches to the machine's best instruction set. Each
// function is the public one of the same name and signature without validation.
#pragma once

#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_context.h"
#include "kernels/lora.h"
#include "kernels/lora_sums.h"
#include "kernels/matmul.h"
#include "kernels/own_rows.h"

namespace loramux::cpu {

class LoraRider;

void MatMul(const KernelContext& context, const float* x, std::int64_t x_stride, std::int64_t m, const PackedMatrix& w,
            const float* bias, float* y, std::int64_t y_stride);
// MatMul with quantised weights.
void GroupMatMul(const KernelContext& context, const float* x, std::int64_t x_stride, std::int64_t m,
                 const PackedMatrix& w, const float* bias, float* y, std::int64_t y_stride);
// The same two with the tasks of `rider` in the product's parallel region.
void RiddenMatMul(const KernelContext& context, const float* x, std::int64_t x_stride, std::int64_t m,
                  const PackedMatrix& w, const float* bias, float* y, std::int64_t y_stride, const LoraRider& rider);
void RiddenGroupMatMul(const KernelContext& context, const float* x, std::int64_t x_stride, std::int64_t m,
                       const PackedMatrix& w, const float* bias, float* y, std::int64_t y_stride,
                       const LoraRider& rider);
void MatMulWithLora(const KernelContext& context, LoraVariant variant, std::span<const LoraProjection> projections,
                    const float* x, std::int64_t x_stride, std::int64_t m, const PackedMatrix& w, const float* bias,
                    float* y, std::int64_t y_stride, float* workspace);

void LoraMatMul(const KernelContext& context, LoraVariant variant, std::span<const LoraProjection> projections,
                const float* x, std::int64_t x_stride, std::int64_t in, float* workspace);

void OwnProducts(const KernelContext& context, std::span<const OwnSegment> segments, const float* x,
                 std::int64_t x_stride, std::int64_t in, float* y, std::int64_t y_stride);

void LoraSums(const LoraSumsInput& input, std::span<const LoraSumsOutput> outputs, bool fused, float* workspace);

void StoreKv(const KernelContext& context, const KvLayout& layout, std::int64_t layer, const PageArena& arena,
             std::span<const AttentionSequence> sequences, const float* k, std::int64_t k_stride, const float* v,
             std::int64_t v_stride);
void PagedAttention(const KernelContext& context, const KvLayout& layout, std::int64_t layer, const PageArena& arena,
                    std::span<const AttentionSequence> sequences, std::int64_t num_heads, const ScoreForm& form,
                    const float* q, std::int64_t q_stride, float* out, std::int64_t out_stride, float* workspace);

void RmsNorm(const KernelContext& context, const float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n,
             NormWeights weights, float eps, float* y, std::int64_t y_stride);
void Rope(const KernelContext& context, float* x, std::int64_t x_stride, std::int64_t m, std::int64_t heads,
          const RopeShape& shape, const float* cos, const float* sin);
void GateMul(const KernelContext& context, GateForm form, const float* x, std::int64_t x_stride, std::int64_t m,
             std::int64_t n, float* y, std::int64_t y_stride);
void AddRows(const KernelContext& context, float factor, const float* x, std::int64_t x_stride, std::int64_t m,
             std::int64_t n, float* y, std::int64_t y_stride);
void ScaleRows(const KernelContext& context, float factor, float cap, float* x, std::int64_t x_stride, std::int64_t m,
               std::int64_t n);

}  // namespace loramux::cpu
