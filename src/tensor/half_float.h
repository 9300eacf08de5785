// Scalar conversions of the 16-bit floating-point types in which weights, adapters and KV are stored. Packing and slow
// paths use them. Kernels have their own vector versions, which are tested against these.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "formats/dtype.h"

namespace loramux {

// bfloat16 is the upper half of a float32, so widening is exact and never changes the value, NaN included.
constexpr float BF16ToF32(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

// Rounds to nearest, ties to even; overflow gives infinity; a NaN stays a (quiet) NaN.
constexpr std::uint16_t F32ToBF16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  // 0x7fff plus the lowest kept bit carries into the kept half exactly when the dropped half is above one half, or is
  // one half and the kept half is odd.
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// IEEE 754 binary16; subnormals, infinities and NaN included. Widening is exact.
float F16ToF32(std::uint16_t bits);
// Rounds to nearest, ties to even; overflow gives infinity; a NaN stays a (quiet) NaN.
std::uint16_t F32ToF16(float value);

// Element `index` of an array of a weight type (f32, bf16, f16); `data` may be unaligned.
float LoadAsF32(DType dtype, const std::byte* data, std::int64_t index);
// Rounds `value` to `dtype` (f32, bf16, f16, i8) and stores it as element `index`; `data` may be unaligned.
void StoreFromF32(DType dtype, std::byte* data, std::int64_t index, float value);

}  // namespace loramux
