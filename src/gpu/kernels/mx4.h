// MXFP4: 32 neighbouring elements share a scale that is a power of two.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"

namespace loramux::gpu {

inline constexpr std::int64_t kMx4Group = 32;

// The scale is that of twice the elements, which then are whole numbers: the float with this exponent, or 0.
LORAMUX_DEVICE float Mx4Scale(std::uint32_t exponent) { return AsFloat(exponent << 23); }
// Twice the element of a code: 0, 1, 2, 3, 4, 6, 8, 12, and the same below zero.
LORAMUX_DEVICE float Mx4Twice(std::uint32_t code) {
  const std::uint32_t magnitude = code & 7;
  const std::uint32_t whole = magnitude < 2 ? magnitude : (2 | (magnitude & 1)) << (magnitude / 2 - 1);
  const auto value = static_cast<float>(whole);
  return (code & 8) != 0 ? -value : value;
}

// Neighbouring elements of one group: 8 for types of 16 bits, 4 for f32; 16 bytes when they are widened.
template <int kElements>
struct Mx4Codes {
  std::uint32_t bits = 0, exponent = 0;

  // Two of them share a byte, the first in its low half.
  LORAMUX_DEVICE void Load(const std::uint8_t* from) {
    if constexpr (kElements == 8)
      bits = LoadOnce(reinterpret_cast<const std::uint32_t*>(from));
    else
      bits = LoadOnce(reinterpret_cast<const std::uint16_t*>(from));
  }
  // Exact in f32 and bf16; in f16 as far as it holds the scale.
  template <typename T>
  LORAMUX_DEVICE Vec4 Widen() const {
    const float scale = Mx4Scale(exponent);
    float values[kElements];
    LORAMUX_UNROLL
    for (int i = 0; i < kElements; ++i) values[i] = scale * Mx4Twice(bits >> (4 * i));
    if constexpr (kElements == 8)
      return Vec4{Pack<T>(values[0], values[1]), Pack<T>(values[2], values[3]), Pack<T>(values[4], values[5]),
                  Pack<T>(values[6], values[7])};
    else
      return Vec4{AsBits(values[0]), AsBits(values[1]), AsBits(values[2]), AsBits(values[3])};
  }
};

}  // namespace loramux::gpu
