#include "kernels/matmul.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/reference/kernels.h"
#include "tensor/half_float.h"

namespace loramux {

PackedMatrix::PackedMatrix(std::int64_t n, std::int64_t k, DType dtype) : n_(n), k_(k), dtype_(dtype) {
  CHECK_GT(n, 0);
  CHECK_GT(k, 0);
  CHECK(IsWeightDType(dtype));
  bytes_ = static_cast<std::size_t>(panels() * kPanel) * format().RowBytes(k);
  data_.reset(AllocateAligned(bytes_));
  std::memset(data_.get(), 0, bytes_);
}

namespace {

// Rows of a source [rows, k] that go to one panel.
struct PanelRows {
  const std::byte* source;
  std::int64_t first_slot;  // output in the panel of the first row
  std::int64_t rows;
};

// Moves element (row, t) to [t][slot]. Works on a block of t at a time; its part of the panel (64 x 32 elements) stays
// in L1 for all rows. Elements are copied as bytes, since the source may be a mapped file at any address.
template <typename T>
void ScatterRows(const PanelRows& from, DType dtype, std::int64_t k, std::byte* panel) {
  constexpr std::int64_t kBlock = 64;
  for (std::int64_t begin = 0; begin < k; begin += kBlock) {
    const std::int64_t end = std::min(k, begin + kBlock);
    for (std::int64_t r = 0; r < from.rows; ++r) {
      const std::byte* row = from.source + r * k * static_cast<std::int64_t>(sizeof(T));
      T* to = reinterpret_cast<T*>(panel) + PackedMatrix::PanelSlot(dtype, from.first_slot + r);
      for (std::int64_t t = begin; t < end; ++t) {
        std::memcpy(to + t * PackedMatrix::kPanel, row + t * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
      }
    }
  }
}

}  // namespace

void PackedMatrix::PackRows(std::int64_t first_row, std::int64_t rows, const std::byte* source) {
  CHECK_GE(first_row, 0);
  CHECK_GE(rows, 0);
  CHECK_LE(first_row + rows, n_);
  const std::int64_t row_bytes = k_ * static_cast<std::int64_t>(DTypeSize(dtype_));
  for (std::int64_t r = 0; r < rows;) {
    const std::int64_t row = first_row + r;
    const PanelRows from = {source + r * row_bytes, row % kPanel, std::min(rows - r, kPanel - row % kPanel)};
    std::byte* to = const_cast<std::byte*>(panel(row / kPanel));
    if (dtype_ == DType::kF32) {
      ScatterRows<std::uint32_t>(from, dtype_, k_, to);
    } else {
      ScatterRows<std::uint16_t>(from, dtype_, k_, to);
    }
    r += from.rows;
  }
}

void PackedMatrix::UnpackRow(std::int64_t row, float* out) const {
  CHECK_GE(row, 0);
  CHECK_LT(row, n_);
  const std::byte* from = panel(row / kPanel);
  const std::int64_t slot = PanelSlot(dtype_, row % kPanel);
  for (std::int64_t t = 0; t < k_; ++t) out[t] = LoadAsF32(dtype_, from, t * kPanel + slot);
}

void MatMul(const KernelContext& context, const float* x, std::int64_t x_stride, std::int64_t m, const PackedMatrix& w,
            const float* bias, float* y, std::int64_t y_stride) {
  CHECK(context.pool != nullptr);
  CHECK_GT(w.n(), 0);
  CHECK_GE(m, 0);
  if (m == 0) return;
  CHECK(m == 1 || (x_stride >= w.k() && y_stride >= w.n()));
  const auto implementation = context.backend == Backend::kReference ? reference::MatMul : cpu::MatMul;
  implementation(context, x, x_stride, m, w, bias, y, y_stride);
}

}  // namespace loramux
