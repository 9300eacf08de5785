#include "tensor/half_float.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace loramux {

float F16ToF32(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in float32
    const float magnitude = static_cast<float>(mantissa) * 0x1.0p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  if (exponent == 0x1f) {
    const std::uint32_t quiet = mantissa != 0 ? 0x400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13) | quiet);
  }
  return std::bit_cast<float>(sign | ((exponent + (127 - 15)) << 23) | (mantissa << 13));
}

std::uint16_t F32ToF16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  // 65520 = 2^16 - 2^4 is half-way between the largest finite value and the next power of two, and ties to "even".
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Below 2^-14 the result is subnormal: adding 0.5 leaves value * 2^24 rounded to nearest even in the low bits,
    // since the unit in the last place of [0.5, 1) is 2^-24.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - ((127u - 15u) << 23)) >> 13));
}

float F8E4M3ToF32(std::uint8_t bits) {
  if ((bits & 0x7fu) == 0x7fu) return std::numeric_limits<float>::quiet_NaN();
  // A half with these bits has an exponent that is 8 less.
  return 256.0f * F16ToF32(static_cast<std::uint16_t>((bits & 0x80u) << 8 | (bits & 0x7fu) << 7));
}

std::uint8_t F32ToF8E4M3(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 24 & 0x80u;
  std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint8_t>(sign | 0x7fu);
  magnitude = std::min(magnitude, std::bit_cast<std::uint32_t>(kLargestF8E4M3));
  if (magnitude < std::bit_cast<std::uint32_t>(0x1.0p-6f)) {
    // Subnormal: the unit in the last place of [2^14, 2^15) is that of the result, 2^-9.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1.0p14f;
    return static_cast<std::uint8_t>(sign |
                                     (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0x1.0p14f)));
  }
  const std::uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  return static_cast<std::uint8_t>(sign | ((rounded - ((127u - 7u) << 23)) >> 20));
}

float LoadAsF32(DType dtype, const std::byte* data, std::int64_t index) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, data + index * 4, 4);
    return value;
  }
  if (dtype == DType::kI8) return static_cast<float>(static_cast<std::int8_t>(data[index]));
  if (dtype == DType::kF8E4M3) return F8E4M3ToF32(static_cast<std::uint8_t>(data[index]));
  std::uint16_t bits;
  std::memcpy(&bits, data + index * 2, 2);
  if (dtype == DType::kBF16) return BF16ToF32(bits);
  CHECK(dtype == DType::kF16);
  return F16ToF32(bits);
}

void StoreFromF32(DType dtype, std::byte* data, std::int64_t index, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(data + index * 4, &value, 4);
    return;
  }
  if (dtype == DType::kI8) {
    data[index] = static_cast<std::byte>(static_cast<std::int8_t>(std::lrintf(value)));
    return;
  }
  if (dtype == DType::kF8E4M3) {
    data[index] = static_cast<std::byte>(F32ToF8E4M3(value));
    return;
  }
  CHECK(dtype == DType::kBF16 || dtype == DType::kF16);
  const std::uint16_t bits = dtype == DType::kBF16 ? F32ToBF16(value) : F32ToF16(value);
  std::memcpy(data + index * 2, &bits, 2);
}

}  // namespace loramux
