// How the LoRA kernels read elements of any type, four neighbours at once, as floats; and which items they leave out.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/assist.h"
#include "gpu/kernels/lora.h"

namespace loramux::gpu {

// Whether the device computes the item now. The same for all threads of a launch.
LORAMUX_DEVICE bool LoraIsOnDevice(const LoraItem* item) {
  const std::uint32_t* gate = Load(&item->gate);
  return gate == nullptr || Load(gate) == kAssistOnDevice;
}

// The DType of an element type.
template <typename T>
inline constexpr DType kLoraDType = DType::kF32;
template <>
inline constexpr DType kLoraDType<Bf16> = DType::kBF16;
template <>
inline constexpr DType kLoraDType<Half> = DType::kF16;

template <>
inline constexpr DType kLoraDType<std::int8_t> = DType::kI8;

// A code of float8_e4m3fn; tensor/half_float.h has its conversions.
struct Float8 {
  std::uint8_t bits;
};
template <>
inline constexpr DType kLoraDType<Float8> = DType::kF8E4M3;

// The two codes in the low half of `word`: as halves, whose exponent is 8 less.
LORAMUX_DEVICE Pair LoraUnpackFloat8(std::uint32_t word) {
  const std::uint32_t apart = (word & 0xffu) | (word & 0xff00u) << 8;
  const Pair halves = Unpack<Half>((apart & 0x800080u) << 8 | (apart & 0x7f007fu) << 7);
  return {halves.low * 256.0F, halves.high * 256.0F};
}

// Four neighbouring elements as floats.
struct alignas(16) LoraFour {
  float value[4];
};

// The four elements at `from`, which is aligned to four elements.
template <typename T, bool kOnce>
LORAMUX_DEVICE LoraFour LoraLoadFour(const T* from) {
  LoraFour four;
  if constexpr (sizeof(T) == 4) {
    const Vec4* whole = reinterpret_cast<const Vec4*>(from);
    const Vec4 bits = kOnce ? LoadOnce(whole) : Load(whole);
    four.value[0] = AsFloat(bits.x);
    four.value[1] = AsFloat(bits.y);
    four.value[2] = AsFloat(bits.z);
    four.value[3] = AsFloat(bits.w);
  } else if constexpr (sizeof(T) == 1) {
    const std::uint32_t* whole = reinterpret_cast<const std::uint32_t*>(from);
    const std::uint32_t bits = kOnce ? LoadOnce(whole) : Load(whole);
    if constexpr (kLoraDType<T> == DType::kF8E4M3) {
      const Pair low = LoraUnpackFloat8(bits), high = LoraUnpackFloat8(bits >> 16);
      four = {{low.low, low.high, high.low, high.high}};
    } else {
      LORAMUX_UNROLL
      for (int i = 0; i < 4; ++i) four.value[i] = static_cast<float>(static_cast<std::int8_t>(bits >> (8 * i)));
    }
  } else {
    const std::uint64_t* whole = reinterpret_cast<const std::uint64_t*>(from);
    const std::uint64_t bits = kOnce ? LoadOnce(whole) : Load(whole);
    const Pair low = Unpack<T>(static_cast<std::uint32_t>(bits));
    const Pair high = Unpack<T>(static_cast<std::uint32_t>(bits >> 32));
    four.value[0] = low.low;
    four.value[1] = low.high;
    four.value[2] = high.low;
    four.value[3] = high.high;
  }
  return four;
}

template <typename T>
LORAMUX_DEVICE float LoraToFloat(T value) {
  return ToFloat(value);
}
LORAMUX_DEVICE float LoraToFloat(std::int8_t value) { return static_cast<float>(value); }
LORAMUX_DEVICE float LoraToFloat(Float8 value) { return LoraUnpackFloat8(value.bits).low; }

// The same where only the first `valid` elements exist (none if it is negative); the others are 0.
template <typename T, bool kOnce>
LORAMUX_DEVICE LoraFour LoraLoadUpToFour(const T* from, std::int64_t valid) {
  if (valid >= 4) return LoraLoadFour<T, kOnce>(from);
  LoraFour four = {{0, 0, 0, 0}};
  LORAMUX_UNROLL
  for (int i = 0; i < 3; ++i)
    if (i < valid) four.value[i] = LoraToFloat(kOnce ? LoadOnce(from + i) : Load(from + i));
  return four;
}

}  // namespace loramux::gpu
