// The products of a decode step: for few rows, a matrix of the base model and the LoRA shrink of the same input in one
// launch. Each byte of the weights is read once, whatever the number of rows, and the blocks that would wait at the end
// of one product do the other.
#pragma once

#include <cstdint>

#include "formats/dtype.h"
#include "gpu/device.h"
#include "gpu/kernels/lora.h"
#include "gpu/kernels/packed.h"

namespace loramux::gpu {

// The most rows of x.
inline constexpr std::int32_t kSkinnyRows = 64;

// y[i, j] = sum over t of x[i, t] * w[j, t] (+ bias[j]), for i < rows, j < n, t < k = lora.in; and what LoraShrink does
// with `lora`, bit by bit. Instance: the type of x and w; quantised weights are rounded to it. 16-bit types use the
// tensor cores, f32 does not; sums are f32. k is divided among the threads in one way, whatever the rows are, so a
// row's bits depend on itself alone.
struct SkinnyMatMulLoraArguments {
  LoraShrinkArguments lora;  // x, its stride and k too; slices 0: no LoRA
  const void* w;             // [n, k], contiguous; or the codes of `form`
  PackedForm form;
  std::int64_t n;
  const float* bias;  // [n], or null
  float* y;           // [rows, n], rows y_stride apart
  std::int64_t y_stride;
  const std::int32_t* rows;  // in device memory; those from first_row to first_row + max_rows are computed
  std::int32_t max_rows;     // at most kSkinnyRows
  std::int32_t first_row;    // row of the batch that x and y begin with; not 0: without LoRA
};

// The most rows for which it is used. On hardware beyond one group of 8 rows it is slower than cuBLASLt and a launch
// for the shrink (docs/results/gpu.md), and beyond some groups slower than to widen quantised weights first; the
// emulated device takes as many as it can, so that tests run it. A batch-invariant device takes it for all rows of
// quantised weights, kSkinnyRows at once, and for none of floats.
inline std::int64_t MostSkinnyRows(const DeviceProperties& device, bool quantised) {
  if (device.batch_invariant) return quantised ? kSkinnyRows : 0;
  return device.major == 0 ? kSkinnyRows : quantised ? 32 : 8;
}

// Whether such a product can be done: rows of w begin at multiples of 16 bytes.
bool IsSkinny(DType dtype, std::int64_t max_rows, std::int64_t k);
// `multiprocessors`: of the device; the grid has as many blocks as they hold at once, or fewer if there is less work.
// REQUIRES: IsSkinny; x and w are 16-byte aligned, x_stride is a multiple of 8.
void SkinnyMatMulLora(DeviceStream& stream, DType dtype, int multiprocessors,
                      const SkinnyMatMulLoraArguments& arguments);

}  // namespace loramux::gpu
