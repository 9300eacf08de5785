#include "kernels/matmul.h"

#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/reference/kernels.h"
#include "tensor/half_float.h"

namespace loramux {

PackedMatrix::PackedMatrix(std::int64_t n, std::int64_t k, DType dtype) : n_(n), k_(k), dtype_(dtype) {
  CHECK_GT(n, 0);
  CHECK_GT(k, 0);
  CHECK(IsWeightDType(dtype));
  bytes_ = static_cast<std::size_t>(panels() * kPanel * k) * DTypeSize(dtype);
  data_.reset(AllocateAligned(bytes_));
  std::memset(data_.get(), 0, bytes_);
}

namespace {

// Element (row, t) of a panel goes to [t][slot]; one row of the source at a time, since it may be a mapped file.
template <typename T>
void ScatterRow(const std::byte* source, std::int64_t k, std::int64_t slot, std::byte* panel) {
  T* to = reinterpret_cast<T*>(panel) + slot;
  for (std::int64_t t = 0; t < k; ++t) std::memcpy(to + t * PackedMatrix::kPanel, source + t * sizeof(T), sizeof(T));
}

}  // namespace

void PackedMatrix::PackRows(std::int64_t first_row, std::int64_t rows, const std::byte* source) {
  CHECK_GE(first_row, 0);
  CHECK_GE(rows, 0);
  CHECK_LE(first_row + rows, n_);
  const std::size_t row_bytes = static_cast<std::size_t>(k_) * DTypeSize(dtype_);
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t row = first_row + r;
    const std::int64_t slot = PanelSlot(dtype_, row % kPanel);
    std::byte* to = const_cast<std::byte*>(panel(row / kPanel));
    const std::byte* from = source + static_cast<std::size_t>(r) * row_bytes;
    if (dtype_ == DType::kF32) {
      ScatterRow<std::uint32_t>(from, k_, slot, to);
    } else {
      ScatterRow<std::uint16_t>(from, k_, slot, to);
    }
  }
}

void PackedMatrix::UnpackRow(std::int64_t row, float* out) const {
  CHECK_GE(row, 0);
  CHECK_LT(row, n_);
  const std::byte* from = panel(row / kPanel);
  const std::int64_t slot = PanelSlot(dtype_, row % kPanel);
  for (std::int64_t t = 0; t < k_; ++t) out[t] = LoadAsF32(dtype_, from, t * kPanel + slot);
}

void MatMul(const KernelContext& context, const float* x, std::int64_t x_stride, std::int64_t m,
            const PackedMatrix& w, const float* bias, float* y, std::int64_t y_stride) {
  CHECK(context.pool != nullptr);
  CHECK_GT(w.n(), 0);
  CHECK_GE(m, 0);
  if (m == 0) return;
  CHECK(m == 1 || (x_stride >= w.k() && y_stride >= w.n()));
  const auto implementation = context.backend == Backend::kReference ? reference::MatMul : cpu::MatMul;
  implementation(context, x, x_stride, m, w, bias, y, y_stride);
}

}  // namespace loramux
