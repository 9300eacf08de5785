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

// One product of a group that shares x: q, k and v, or gate and up.
struct LoraProjection {
  std::span<const LoraSegment> segments;  // may differ between projections
  Rows y;                                 // rows of `out` floats
  std::int64_t out = 0;
};

// For each projection: y[i, :] += sum over j ascending of (scale * factors[j] * dot(x[i, :], A[j, :])) * B[:, j], then
// y[i, :] = gains * y[i, :] + shifts where there are vectors, for i in each segment. The y of different projections
// must not overlap. Together they take two parallel regions, and have the bits of one call each.
// The result is bitwise independent of the rest of the batch: the order of a dot product depends on `in` alone.
struct LoraMatMulArguments {
  LoraVariant variant = LoraVariant::kMbgmv;
  std::span<const LoraProjection> projections;
  ConstRows x;  // rows of `in` floats
  std::int64_t in = 0;
  float* workspace = nullptr;  // the sum over the projections of (largest end) * (largest rank) floats

  void Check() const;
};
LORAMUX_KERNEL(LoraMatMul)

// A linear layer with adapters: MatMul, then LoraMatMul of projections that are columns of its y, at its stride.
// Bitwise the same as the two calls, but in the parallel regions of MatMul alone, unless few rows have adapters of high
// ranks, which are faster in regions of their own. No segment ends beyond the product's rows.
struct MatMulWithLoraArguments {
  MatMulArguments product;  // at least one row
  LoraVariant variant = LoraVariant::kMbgmv;
  std::span<const LoraProjection> projections;
  float* workspace = nullptr;  // as LoraMatMul's

  LoraMatMulArguments Lora() const { return {variant, projections, product.x, product.w.k(), workspace}; }
  void Check() const;
};
LORAMUX_KERNEL(MatMulWithLora)

}  // namespace loramux
