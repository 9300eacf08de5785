// Conversions and functions of numbers for kernels on the emulated device: inline, without branches where the compiler
// shall use vectors.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "gpu/kernel_api.h"

namespace loramux::gpu {

inline float AsFloat(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline std::uint32_t AsBits(float value) { return std::bit_cast<std::uint32_t>(value); }

inline float ToFloat(float value) { return value; }
inline float ToFloat(Bf16 value) { return AsFloat(static_cast<std::uint32_t>(value.bits) << 16); }
// The bits moved to a float's place are 2^112 times too small, subnormals included; infinities and NaN need the largest
// exponent.
inline float ToFloat(Half value) {
  const std::uint32_t magnitude = static_cast<std::uint32_t>(value.bits & 0x7fffu) << 13;
  const std::uint32_t bits = AsBits(AsFloat(magnitude) * 0x1p112f) | (magnitude >= 0x0f800000u ? 0x7f800000u : 0u);
  return AsFloat(bits | static_cast<std::uint32_t>(value.bits & 0x8000u) << 16);
}

// Rounds to nearest, ties to even; overflow gives infinity.
template <typename T>
inline T FromFloat(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else if constexpr (std::is_same_v<T, Bf16>) {
    const std::uint32_t bits = AsBits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>(bits >> 16 | 0x40u)};
    return {static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
  } else {
    static_assert(std::is_same_v<T, Half>);
    const std::uint32_t sign = AsBits(value) >> 16 & 0x8000u;
    const std::uint32_t magnitude = AsBits(value) & 0x7fffffffu;
    std::uint32_t bits = 0;
    if (magnitude > 0x7f800000u) {
      bits = 0x7e00u | (magnitude >> 13 & 0x3ffu);  // NaN
    } else if (magnitude >= 0x477ff000u) {
      bits = 0x7c00u;  // 65,520 and above are nearer to 2^16 than to 65,504
    } else if (magnitude < 0x38800000u) {
      bits = AsBits(AsFloat(magnitude) + 0.5f) - 0x3f000000u;  // subnormal: the sum rounds to units of 2^-24
    } else {
      bits = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    }
    return {static_cast<std::uint16_t>(sign | bits)};
  }
}

// Two 16-bit elements of one word; the first is the lower half.
template <typename T>
inline Pair Unpack(std::uint32_t word) {
  return {ToFloat(T{static_cast<std::uint16_t>(word)}), ToFloat(T{static_cast<std::uint16_t>(word >> 16)})};
}
template <typename T>
inline std::uint32_t Pack(float low, float high) {
  return FromFloat<T>(low).bits | static_cast<std::uint32_t>(FromFloat<T>(high).bits) << 16;
}

// The build forbids fused operations.
inline float AddRounded(float a, float b) { return a + b; }
inline float MulRounded(float a, float b) { return a * b; }
inline float DivRounded(float a, float b) { return a / b; }
inline float Exp(float value) { return std::exp(value); }
inline float Erf(float value) { return std::erf(value); }
inline float Log1p(float value) { return std::log1p(value); }
inline float Exp2(float value) { return std::exp2(value); }
inline float ReciprocalSqrt(float value) { return 1.0f / std::sqrt(value); }
// Rounds twice, where a GPU rounds once: not every processor has the instruction.
inline float Fma(float a, float b, float c) { return a * b + c; }
// The other operand if one is NaN.
inline float Max(float a, float b) { return a > b || b != b ? a : b; }
inline float Min(float a, float b) { return a < b || b != b ? a : b; }

}  // namespace loramux::gpu
