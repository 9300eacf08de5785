// Keys and values in 8 bits: how the head_dim floats of one token and head become integers and one scale.
//
//   scale = max |x| / 127, rounded up to bf16      integer = x / scale, rounded to nearest, ties to even
//
// The scale is symmetric: keys and values of a head scatter about zero, and a zero point would cost two more bytes and
// a second sum. bf16 has float's range, so no key is too large or too small for its scale. Its rounding costs at most
// 2^-7 of a step and no error of its own, because the integers are made for the rounded scale. So each element is off
// by at most half a step, scale / 2 (a few units in the last place more, because x is multiplied by 1 / scale).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tensor/half_float.h"

namespace loramux {

inline constexpr int kInt8KvMost = 127;  // integers are from -127 to 127

// The scale of a head of one token.
struct Int8KvScale {
  std::uint16_t bf16 = 0;  // as stored
  float inverse = 0;       // what ToInt8Kv multiplies by
};

// The bits of |x|. The largest of them belongs to the largest |x|, and to a NaN if there is one.
constexpr std::int32_t MagnitudeBits(float x) {
  return static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(x) & 0x7fffffffu);
}

// The scale for elements of which `most` is the largest MagnitudeBits. If an element is infinite or NaN the scale is
// NaN, so that what is computed from the token shows it. A head whose scale would be subnormal becomes zero.
constexpr Int8KvScale ScaleOfInt8Kv(std::int32_t most) {
  if (most >= 0x7f800000) return {F32ToBF16(std::numeric_limits<float>::quiet_NaN()), 0};
  const auto exact = std::bit_cast<std::uint32_t>(std::bit_cast<float>(most) / kInt8KvMost);
  const std::uint32_t up = (exact + 0xffffu) & 0xffff0000u;
  if (up < 0x00800000u) return {};
  return {static_cast<std::uint16_t>(up >> 16), 1 / std::bit_cast<float>(up)};
}

// The integer of one element. `inverse` is that of the head's scale.
constexpr std::int8_t ToInt8Kv(float x, float inverse) {
  if (inverse == 0) return 0;
  // |x * inverse| <= 127 and a few units in the last place. Adding 1.5 * 2^23 rounds to an integer in the low bits.
  const float shifted = x * inverse + 0x1.8p23f;
  return static_cast<std::int8_t>(std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(0x1.8p23f));
}

}  // namespace loramux
