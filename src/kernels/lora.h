// The batched LoRA product: y += scale * B (A x) for every token of a mixed batch, each adapter at its true rank; then,
// where the adapter has vectors over the outputs (DoRA, biases), y = gains * y + shifts. The two cost shapes of
// CaraServe's performance models (section 5) exist as variants:
//   kMbgmv  segments at their true rank (S-LoRA's MBGMV): cost ~ sum of ranks
//   kBgmv   every segment padded to the largest rank of the batch (Punica's BGMV): cost ~ segments x maximum rank
// Both give bitwise equal results. Each adapter's rows are read once per call, however many tokens share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/dtype.h"
#include "kernels/kernel_context.h"
#include "kernels/matmul.h"

namespace loramux {

// The padding of ranks in a batch.
enum class LoraVariant { kMbgmv, kBgmv };

// Whether the rows of adapters may have this type in memory.
constexpr bool IsAdapterRowDType(DType dtype) { return IsWeightDType(dtype) || HasRowFactors(dtype); }

// The weights of one adapter for one linear layer. Rows may lie anywhere (pages of the pool); each is contiguous and
// 64-byte aligned. a_rows[j] is row j of A (`in` elements), b_rows[j] is column j of B (`out` elements). Not owning.
struct LoraWeights {
  std::int32_t rank = 0;
  float scale = 0;
  DType dtype = DType::kBF16;  // f32, bf16, f16, i8 or f8_e4m3
  const std::byte* const* a_rows = nullptr;
  const std::byte* const* b_rows = nullptr;
  const float* factors = nullptr;  // [rank]: of the product of row j of A and column j of B; null: all are 1
  const float* gains = nullptr;    // `out` elements each, or null both; 64-byte aligned
  const float* shifts = nullptr;

  // What the dot product with row j of A is multiplied with.
  float Factor(std::int64_t j) const { return factors == nullptr ? scale : scale * factors[j]; }
  // False: this adapter leaves this layer as it is.
  bool changes() const { return rank > 0 || gains != nullptr; }
};

// The token rows [begin, end) of the batch that use one adapter. Segments are disjoint and ascending. Rows outside all
// segments have no adapter.
struct LoraSegment {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  LoraWeights weights;
};

// y[i, :] += sum over j ascending of (scale * factors[j] * dot(x[i, :], A[j, :])) * B[:, j], then y[i, :] = gains *
// y[i, :] + shifts where there are vectors, for i in each segment. x: rows of `in` floats, x_stride apart; y: rows of
// `out` floats, y_stride apart; strides in floats. workspace: at least (largest end)
// * (largest rank) floats.
// The result is bitwise independent of the rest of the batch: the order of a dot product depends on `in` alone.
void LoraMatMul(const KernelContext& context, LoraVariant variant, std::span<const LoraSegment> segments,
                const float* x, std::int64_t x_stride, std::int64_t in, float* y, std::int64_t y_stride,
                std::int64_t out, float* workspace);

// One product of a group that shares x: q, k and v, or gate and up.
struct LoraProjection {
  std::span<const LoraSegment> segments;  // as above; may differ between projections
  float* y = nullptr;                     // rows of `out` floats, y_stride floats apart
  std::int64_t y_stride = 0;
  std::int64_t out = 0;
};

// LoraMatMul of several projections of the same x: bitwise the same as one call each, but in two parallel regions in
// total. The y of different projections must not overlap. workspace: at least the sum over the projections of (largest
// end) * (largest rank) floats.
void LoraMatMul(const KernelContext& context, LoraVariant variant, std::span<const LoraProjection> projections,
                const float* x, std::int64_t x_stride, std::int64_t in, float* workspace);

// A linear layer with adapters: MatMul of `m` rows, then LoraMatMul of projections that are columns of its y, at its
// y_stride. Bitwise the same as the two calls, but in the parallel regions of MatMul alone, unless few rows
// have adapters of high ranks, which are faster in regions of their own. No segment ends beyond m.
// workspace: as LoraMatMul.
void MatMulWithLora(const KernelContext& context, LoraVariant variant, std::span<const LoraProjection> projections,
                    const float* x, std::int64_t x_stride, std::int64_t m, const PackedMatrix& w, const float* bias,
                    float* y, std::int64_t y_stride, float* workspace);

}  // namespace loramux
