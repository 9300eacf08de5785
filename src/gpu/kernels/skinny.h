// The products of a decode step: for few rows, a matrix of the base model and the LoRA shrink of the same input in one
// launch. Each byte of the weights is read once, whatever the number of rows, and the blocks that would wait at the end
// of one product do the other.
#pragma once

#include <cstdint>

#include "formats/dtype.h"
#include "gpu/device.h"
#include "gpu/kernels/lora.h"

namespace loramux::gpu {

// The most rows of x.
inline constexpr std::int32_t kSkinnyRows = 64;

// y[i, j] = sum over t of x[i, t] * w[j, t] (+ bias[j]), for i < rows, j < n, t < k = lora.in; and what LoraShrink does
// with `lora`, bit by bit. Instance: the type of x and w. 16-bit types use the tensor cores, f32 does not; sums are
// f32. k is divided among the threads in one way, whatever the rows are, so a row's bits depend on itself alone.
struct SkinnyMatMulLoraArguments {
  LoraShrinkArguments lora;  // x, its stride and k too; slices 0: no LoRA
  const void* w;             // [n, k], contiguous
  std::int64_t n;
  const float* bias;  // [n], or null
  float* y;           // [rows, n], rows y_stride apart
  std::int64_t y_stride;
  const std::int32_t* rows;  // in device memory; at most max_rows
  std::int32_t max_rows;     // at most kSkinnyRows
};

// The most rows for which it is used. On hardware beyond one group of 8 rows it is slower than cuBLASLt and a launch
// for the shrink (docs/results/gpu.md); the emulated device takes as many as it can, so that tests run it.
inline std::int64_t MostSkinnyRows(const DeviceProperties& device) {
  if (device.batch_invariant) return 0;
  return device.major > 0 ? 8 : kSkinnyRows;
}

// Whether such a product can be done: rows of w begin at multiples of 16 bytes.
bool IsSkinny(DType dtype, std::int64_t max_rows, std::int64_t k);
// `multiprocessors`: of the device; the grid has as many blocks as they hold at once, or fewer if there is less work.
// REQUIRES: IsSkinny; x and w are 16-byte aligned, x_stride is a multiple of 8.
void SkinnyMatMulLora(DeviceStream& stream, DType dtype, int multiprocessors,
                      const SkinnyMatMulLoraArguments& arguments);

}  // namespace loramux::gpu
