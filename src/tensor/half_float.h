// Scalar conversions of the floating-point types of 16 and 8 bits in which weights, adapters and KV are stored. Packing
// and slow paths use them. Kernels have their own vector versions, which are tested against these.
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

// float8_e4m3fn: 4 bits of exponent and 3 of mantissa. There is no infinity; 0x7f and 0xff are no numbers.
enum class F8E4M3 : std::uint8_t {};
inline constexpr float kLargestF8E4M3 = 448;
float F8E4M3ToF32(std::uint8_t bits);
// Rounds to nearest, ties to even; beyond the largest, a number becomes that. A NaN stays one.
std::uint8_t F32ToF8E4M3(float value);

// Element `index` of an array of f32, bf16, f16, i8 or f8_e4m3; `data` may be unaligned.
float LoadAsF32(DType dtype, const std::byte* data, std::int64_t index);
// Rounds `value` to `dtype` (f32, bf16, f16, i8, f8_e4m3) and stores it as element `index`; `data` may be unaligned.
void StoreFromF32(DType dtype, std::byte* data, std::int64_t index, float value);

}  // namespace loramux
