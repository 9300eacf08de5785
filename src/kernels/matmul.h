// Dense products with weights in their stored type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "formats/dtype.h"
#include "kernels/kernel_context.h"
#include "tensor/aligned_buffer.h"
#include "tensor/weight_format.h"

namespace loramux {

// A weight matrix W [n, k] repacked for the kernels, in its stored type (f32, bf16 or f16). It consists of panels of
// kPanel output rows, k-major within a panel ([k][kPanel]). So neighbouring outputs are neighbouring lanes, and each
// output is a plain sum over k in ascending order. The last panel is filled with zero rows. 64-byte aligned.
// The 32 elements of a panel row are in the order of PanelSlot: unchanged for f32 and f16. For bf16, outputs i and 16 +
// i are neighbours, so that one 32-bit word holds both, and a shift and a mask widen a vector of them to float32.
// Immutable after packing; movable; thread-safe to read. This is the CPU's layout: a device has one of its own.
class PackedMatrix {
 public:
  static constexpr std::int64_t kPanel = 32;

  PackedMatrix() = default;
  // A zero matrix of the given extents, to be filled by PackRows. REQUIRES: n, k > 0; IsWeightDType(dtype).
  PackedMatrix(std::int64_t n, std::int64_t k, DType dtype);

  // Copies `rows` rows of a row-major [rows, k] matrix of the same dtype (may be unaligned) to output rows [first_row,
  // first_row + rows). Several layers (q, k, v) can share one packed matrix.
  void PackRows(std::int64_t first_row, std::int64_t rows, const std::byte* source);

  // Where output `j` of a panel (0 <= j < kPanel) lies in a panel row.
  static constexpr std::int64_t PanelSlot(DType dtype, std::int64_t j) {
    constexpr std::int64_t kHalf = kPanel / 2;
    return dtype == DType::kBF16 ? (j < kHalf ? 2 * j : 2 * (j - kHalf) + 1) : j;
  }

  // Reads one row back as float32 [k] (embedding lookup of tied weights).
  void UnpackRow(std::int64_t row, float* out) const;

  // The extents, the type, and the packed data with its size in bytes.
  std::int64_t n() const { return n_; }
  std::int64_t k() const { return k_; }
  DType dtype() const { return dtype_; }
  WeightFormat format() const { return WeightFormat::Of(dtype_); }
  std::size_t bytes() const { return bytes_; }
  const std::byte* data() const { return data_.get(); }
  std::int64_t panels() const { return (n_ + kPanel - 1) / kPanel; }
  // Panel `p`: k rows of kPanel elements.
  const std::byte* panel(std::int64_t p) const {
    return data_.get() + p * k_ * kPanel * static_cast<std::int64_t>(DTypeSize(dtype_));
  }

 private:
  std::int64_t n_ = 0;
  std::int64_t k_ = 0;
  DType dtype_ = DType::kF32;
  std::size_t bytes_ = 0;
  std::unique_ptr<std::byte[], AlignedDelete> data_;
};

// y[i, j] = sum over t ascending of x[i, t] * W[j, t] (+ bias[j]), for i < m, j < w.n(). x: m rows of k floats,
// `x_stride` floats apart; y: m rows, `y_stride` floats apart; bias: n floats or null.
// Each y[i, j] is bitwise the same for every m and every i (batch invariance): the sum is one fused multiply-add chain
// in ascending t from zero, with the bias added last. x and y must not overlap.
void MatMul(const KernelContext& context, const float* x, std::int64_t x_stride, std::int64_t m, const PackedMatrix& w,
            const float* bias, float* y, std::int64_t y_stride);

}  // namespace loramux
