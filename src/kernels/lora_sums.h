// B (A x) of a few tokens in the order in which the device's LoRA kernels sum (gpu/kernels/lora_shrink_kernel.h,
// lora_expand_kernel.h: those that convert to f32). On the emulated device both have the same bits, with every
// instruction set. For the workers that compute the LoRA of adapters which are not on the device yet.
#pragma once

#include <cstdint>
#include <span>

#include "formats/dtype.h"
#include "kernels/kernel_context.h"
#include "kernels/lora.h"

namespace loramux {

// One linear layer's columns [first_out, first_out + out).
struct LoraSumsOutput {
  LoraWeights weights;  // rank > 0; the scale is not used
  std::int64_t first_out = 0, out = 0;
  float* sums = nullptr;  // [rows, out], rows `stride` floats apart
  std::int64_t stride = 0;
};

// sums[i, o] = sum over j ascending of v[i, j] * B[first_out + o, j], with v = A x,
// multiplied by the factors where there are any:
//   - x is cut into splits of 2,048 elements, whose sums are added in ascending order;
//   - a split is cut into blocks of 512, whose sums are added in ascending order;
//   - in a block 32 lanes have 4 neighbouring elements of every 128, and sum them in ascending order; the lanes are
//     added in pairs: lane ^ 16, 8, 4, 2, 1.
// A row's bits depend on the row alone. The calling thread computes.
struct LoraSumsArguments {
  DType dtype = DType::kBF16;  // type of x: f32, bf16 or f16
  const void* x = nullptr;     // [rows, in]
  std::int64_t x_stride = 0;   // elements
  std::int64_t rows = 0, in = 0;
  std::span<const LoraSumsOutput> outputs;
  // Multiply-adds round once, as on a GPU (where the instruction set has them); else twice, as on the emulated device.
  bool fused = false;
  float* workspace = nullptr;  // LoraSumsFloats floats, aligned to 64 bytes

  void Check() const;
};
LORAMUX_KERNEL(LoraSums)

// Floats of the workspace of LoraSums. `max_rank`: at least any output's.
std::int64_t LoraSumsFloats(std::int64_t rows, std::int64_t in, std::int64_t max_rank);

}  // namespace loramux
