// Dense products with weights in their stored type, or quantised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "formats/dtype.h"
#include "kernels/kernel_context.h"
#include "tensor/aligned_buffer.h"
#include "tensor/group_panel.h"
#include "tensor/grouped_rows.h"
#include "tensor/weight_format.h"

namespace loramux {

// A weight matrix W [n, k] repacked for the kernels. It consists of panels of kPanel output rows; the last one is
// filled with zero rows. 64-byte aligned. Immutable after packing; movable; thread-safe to read. This is the CPU's
// layout: a device has one of its own.
//
// Floats keep their stored type and lie k-major within a panel ([k][kPanel]). So neighbouring outputs are neighbouring
// lanes, and each output is a plain sum over k in ascending order. The 32 elements of a panel row are in the order of
// PanelSlot: unchanged for f32 and f16. For bf16, outputs i and 16 + i are neighbours, so that one 32-bit word holds
// both, and a shift and a mask widen a vector of them to float32.
//
// Integers (kQ8, kQ4) lie group by group (tensor/group_panel.h). Their panels may have different formats, as published
// models mix them within q, k and v.
class PackedMatrix {
 public:
  static constexpr std::int64_t kPanel = kPanelOutputs;

  // Rows of one format.
  struct Part {
    std::int64_t rows = 0;
    WeightFormat format = WeightFormat::kBF16;
  };

  PackedMatrix() = default;
  // A zero matrix of the given extents, to be filled by PackRows or PackGroups. REQUIRES: n, k > 0.
  PackedMatrix(std::int64_t n, std::int64_t k, WeightFormat format);
  PackedMatrix(std::int64_t n, std::int64_t k, DType dtype) : PackedMatrix(n, k, FormatOf(dtype)) {}
  // Parts of several formats. REQUIRES: ArePanels(parts).
  PackedMatrix(std::span<const Part> parts, std::int64_t k);
  // Quantised panels as they lie in memory that `owner` keeps, without a copy. REQUIRES: ArePanels(parts), 64-byte
  // aligned, exactly their bytes.
  PackedMatrix(std::span<const Part> parts, std::int64_t k, std::span<const std::byte> panels,
               std::shared_ptr<const void> owner);
  // Whether parts can share a matrix: they have one format, or are quantised and begin at panels.
  static bool ArePanels(std::span<const Part> parts);

  // Copies `rows` rows of a row-major [rows, k] matrix of the same dtype (may be unaligned) to output rows [first_row,
  // first_row + rows). Several layers (q, k, v) can share one packed matrix. REQUIRES: floats.
  void PackRows(std::int64_t first_row, std::int64_t rows, const std::byte* source);
  // Packs all rows of `source` in the same way. REQUIRES: the format of their panels.
  void PackGroups(std::int64_t first_row, const GroupedRows& source);

  // Where output `j` of a panel (0 <= j < kPanel) lies in a panel row of floats.
  static constexpr std::int64_t PanelSlot(DType dtype, std::int64_t j) {
    constexpr std::int64_t kHalf = kPanel / 2;
    return dtype == DType::kBF16 ? (j < kHalf ? 2 * j : 2 * (j - kHalf) + 1) : j;
  }

  // Reads one row back as float32 [k] (embedding lookup of tied weights).
  void UnpackRow(std::int64_t row, float* out) const;

  // The extents, and the packed data with its size in bytes.
  std::int64_t n() const { return n_; }
  std::int64_t k() const { return k_; }
  std::size_t bytes() const { return bytes_; }
  const std::byte* data() const { return data_; }
  std::int64_t panels() const { return (n_ + kPanel - 1) / kPanel; }
  // The format of a panel, and of the first; `quantised`: of all.
  WeightFormat format(std::int64_t panel = 0) const { return runs_[RunOf(panel)].format; }
  bool quantised() const { return IsQuantised(format()); }
  // The type of the floats. REQUIRES: !quantised().
  DType dtype() const { return DTypeOf(format()); }
  const std::byte* panel(std::int64_t p) const {
    const Run& run = runs_[RunOf(p)];
    return data_ + run.offset + (p - run.first_panel) * run.panel_bytes;
  }

 private:
  // Panels of one format.
  struct Run {
    std::int64_t first_panel = 0, offset = 0, panel_bytes = 0;
    WeightFormat format = WeightFormat::kF32;
  };
  std::size_t RunOf(std::int64_t panel) const {
    std::size_t run = 0;
    while (run + 1 < runs_.size() && panel >= runs_[run + 1].first_panel) ++run;
    return run;
  }
  void PlacePanels(std::span<const Part> parts);
  // REQUIRES: its own memory.
  std::byte* MutablePanel(std::int64_t p) { return const_cast<std::byte*>(panel(p)); }

  std::int64_t n_ = 0;
  std::int64_t k_ = 0;
  std::size_t bytes_ = 0;
  std::vector<Run> runs_ = {Run{}};
  const std::byte* data_ = nullptr;
  std::shared_ptr<const void> owner_;  // keeps `data_` alive
};

// y[i, j] = sum over t ascending of x[i, t] * W[j, t] (+ bias[j]), for i < rows, j < w.n(). x: rows of k floats.
// Each y[i, j] is bitwise the same for every number of rows and every i (batch invariance): the sum is one fused
// multiply-add chain in ascending t from zero, with the bias added last. x and y must not overlap.
// With quantised weights, each group of a row of x is rounded to 8 bits and a scale first (RoundRow). The products of a
// group are summed as integers, which is exact; the groups follow each other in one chain of fused multiply-adds.
struct MatMulArguments {
  ConstRows x;
  std::int64_t rows = 0;
  const PackedMatrix& w;
  const float* bias = nullptr;  // n floats, or null
  Rows y;

  void Check() const {
    CHECK_GT(w.n(), 0);
    CHECK_GE(rows, 0);
    CHECK(rows <= 1 || (x.stride >= w.k() && y.stride >= w.n()));
  }
};
LORAMUX_KERNEL(MatMul)

}  // namespace loramux
