// Reading what packed.h describes.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/lora_loads.h"
#include "gpu/kernels/mx4.h"
#include "gpu/kernels/packed.h"

namespace loramux::gpu {

inline constexpr std::int64_t kPackedChunkBytes = 512;
LORAMUX_DEVICE bool HasEightBits(WeightFormat format) {
  return format == WeightFormat::kQ8 || format == WeightFormat::kF8;
}
// Chunks of a tile.
LORAMUX_DEVICE std::int64_t PackedChunks(WeightFormat format, std::int64_t k) {
  const std::int64_t blocks = k / kWeightGroup, rest = blocks % 8;
  return HasEightBits(format) ? blocks : blocks / 8 * 4 + (rest < 4 ? rest : 4);
}
// Bytes from the first code to that of an input of an output; `column` is a multiple of 4.
LORAMUX_DEVICE std::int64_t PackedOffset(WeightFormat format, std::int64_t k, std::int64_t row, std::int64_t column) {
  const std::int64_t block = column / kWeightGroup, lane = row % 8 * 4 + column % 32 / 8, half = row % 16 / 8;
  const std::int64_t tile = row / kPackedTile * PackedChunks(format, k);
  if (HasEightBits(format)) return ((tile + block) * 32 + lane) * 16 + half * 8 + column % 8;
  return ((tile + block / 8 * 4 + block % 4) * 32 + lane) * 16 + block % 8 / 4 * 8 + half * 4 + column % 8 / 2;
}

LORAMUX_DEVICE int ShiftOfScale(WeightFormat format) {
  return format == WeightFormat::kMx4 ? 0 : format == WeightFormat::kQ8 ? 1 : 2;
}
LORAMUX_DEVICE std::int64_t PackedGroups(std::int32_t group_shift, std::int64_t k) {
  return (k + (std::int64_t{1} << group_shift) - 1) >> group_shift;
}
// Which scale an output has for an input.
LORAMUX_DEVICE std::int64_t PackedScaleIndex(std::int32_t group_shift, std::int64_t k, std::int64_t row,
                                             std::int64_t column) {
  return (row / kPackedTile * PackedGroups(group_shift, k) + (column >> group_shift)) * kPackedTile + row % kPackedTile;
}

struct PackedScale {
  float scale, minimum;
};
LORAMUX_DEVICE PackedScale DecodeScale(WeightFormat format, std::uint32_t bits) {
  if (format == WeightFormat::kF8) return {AsFloat(bits), 0};
  if (format == WeightFormat::kMx4) return {Mx4Scale(bits), 0};
  const Pair halves = Unpack<Half>(bits);
  return {halves.low, format == WeightFormat::kQ4 ? halves.high : 0.0f};
}
LORAMUX_DEVICE PackedScale LoadScale(const PackedForm& form, std::int64_t index) {
  const int shift = ShiftOfScale(form.format);
  const std::uint8_t* const at = form.scales + (index << shift);
  const std::uint32_t bits = shift == 0   ? Load(at)
                             : shift == 1 ? Load(reinterpret_cast<const std::uint16_t*>(at))
                                          : Load(reinterpret_cast<const std::uint32_t*>(at));
  return DecodeScale(form.format, bits);
}

template <WeightFormat kFormat>
inline constexpr int kScaleShift = ScaleShift(kFormat);
// The same of 16 outputs that lie in shared memory.
template <WeightFormat kFormat>
LORAMUX_DEVICE PackedScale SharedScale(const Vec4 (&scales)[4], int row) {
  constexpr int kShift = kScaleShift<kFormat>;
  const void* const at = &scales[0];
  return DecodeScale(kFormat, kShift == 0   ? static_cast<const std::uint8_t*>(at)[row]
                              : kShift == 1 ? static_cast<const std::uint16_t*>(at)[row]
                                            : static_cast<const std::uint32_t*>(at)[row]);
}

// A whole number below 2^23.
LORAMUX_DEVICE float SmallToFloat(std::uint32_t value) { return AsFloat(0x4b000000u | value) - 8388608.0f; }

// Eight neighbouring weights, rounded once: scale * (code - zero) is exact in float32. 8 bits: four codes a word; 4
// bits: all in `low`.
LORAMUX_DEVICE void WidenEight(WeightFormat format, PackedScale scale, std::uint32_t low, std::uint32_t high,
                               float (&values)[8]) {
  if (format == WeightFormat::kQ8) {
    LORAMUX_UNROLL
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t code = (i < 4 ? low : high) >> (8 * (i % 4)) & 0xff;
      values[i] = scale.scale * (AsFloat(0x4b000000u | code) - (8388608.0f + 128.0f));
    }
  } else if (format == WeightFormat::kF8) {
    LORAMUX_UNROLL
    for (int i = 0; i < 8; i += 2) {
      const Pair pair = LoraUnpackFloat8((i < 4 ? low : high) >> (8 * (i % 4)));
      values[i] = pair.low * scale.scale;
      values[i + 1] = pair.high * scale.scale;
    }
  } else if (format == WeightFormat::kQ4) {
    LORAMUX_UNROLL
    for (int i = 0; i < 8; ++i) values[i] = Fma(scale.scale, SmallToFloat(low >> (4 * i) & 0xf), scale.minimum);
  } else {
    LORAMUX_UNROLL
    for (int i = 0; i < 8; ++i) values[i] = scale.scale * Mx4Twice(low >> (4 * i));
  }
}
template <typename T>
LORAMUX_DEVICE Vec4 PackEight(const float (&values)[8]) {
  return Vec4{Pack<T>(values[0], values[1]), Pack<T>(values[2], values[3]), Pack<T>(values[4], values[5]),
              Pack<T>(values[6], values[7])};
}
template <typename T, WeightFormat kFormat>
LORAMUX_DEVICE Vec4 WidenAndPack(PackedScale scale, std::uint32_t low, std::uint32_t high) {
  float values[8];
  WidenEight(kFormat, scale, low, high, values);
  return PackEight<T>(values);
}

// The same for any place in global memory; `column` is a multiple of 8.
LORAMUX_DEVICE void LoadEight(const PackedForm& form, const void* codes, std::int64_t k, std::int64_t row,
                              std::int64_t column, float (&values)[8]) {
  const auto* const from = reinterpret_cast<const std::uint32_t*>(static_cast<const std::uint8_t*>(codes) +
                                                                  PackedOffset(form.format, k, row, column));
  const std::uint32_t low = Load(from), high = HasEightBits(form.format) ? Load(from + 1) : 0;
  const PackedScale scale = LoadScale(form, PackedScaleIndex(form.group_shift, k, row, column));
  WidenEight(form.format, scale, low, high, values);
}
// Four of them, each byte read once; `column` is a multiple of 4.
LORAMUX_DEVICE Vec4 LoadFour(WeightFormat format, const PackedForm& form, const void* codes, std::int64_t k,
                             std::int64_t row, std::int64_t column) {
  const std::uint8_t* const from = static_cast<const std::uint8_t*>(codes) + PackedOffset(format, k, row, column);
  const std::uint32_t four = HasEightBits(format) ? LoadOnce(reinterpret_cast<const std::uint32_t*>(from))
                                                  : LoadOnce(reinterpret_cast<const std::uint16_t*>(from));
  const PackedScale scale = LoadScale(form, PackedScaleIndex(form.group_shift, k, row, column));
  float values[8];
  WidenEight(format, scale, four, 0, values);
  return Vec4{AsBits(values[0]), AsBits(values[1]), AsBits(values[2]), AsBits(values[3])};
}

// Grid: tiles; groups of chunks, one for each warp.
template <typename T>
struct WidenPackedKernel {
  using Arguments = WidenPackedArguments;
  static constexpr int kThreads = 128, kMinBlocks = 4;

  LORAMUX_DEVICE static void Run(const Arguments& a) {
    const bool wide = HasEightBits(a.form.format);
    const std::int64_t chunks = PackedChunks(a.form.format, a.k), tile = a.first_row / kPackedTile + BlockX();
    const std::int64_t chunk = static_cast<std::int64_t>(BlockY()) * (kThreads / 32) + Warp(), lane = Lane();
    if (chunk >= chunks) return;
    const auto* const from = reinterpret_cast<const Vec4*>(static_cast<const std::uint8_t*>(a.w) +
                                                           (tile * chunks + chunk) * kPackedChunkBytes);
    const Vec4 bits = LoadOnce(from + lane);
    const std::uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
    LORAMUX_UNROLL
    for (int part = 0; part < 4; ++part) {  // in 8 bits two words at a time
      if (wide && part % 2 == 1) continue;
      const int half = wide ? part / 2 : part % 2, step = wide ? 0 : part / 2;
      const std::int64_t block = wide ? chunk : chunk / 4 * 8 + chunk % 4 + step * 4;
      const std::int64_t column = block * kWeightGroup + lane % 4 * 8;
      const std::int64_t row = BlockX() * kPackedTile + half * 8 + lane / 4;
      if (column >= a.k || row >= a.rows) continue;
      float values[8];
      WidenEight(a.form.format, LoadScale(a.form, PackedScaleIndex(a.form.group_shift, a.k, a.first_row + row, column)),
                 words[part], words[part | 1], values);
      Vec4* const to = reinterpret_cast<Vec4*>(static_cast<T*>(a.y) + row * a.k + column);
      if constexpr (sizeof(T) == 2) {
        Store(to, PackEight<T>(values));
      } else {
        Store(to, Vec4{AsBits(values[0]), AsBits(values[1]), AsBits(values[2]), AsBits(values[3])});
        Store(to + 1, Vec4{AsBits(values[4]), AsBits(values[5]), AsBits(values[6]), AsBits(values[7])});
      }
    }
  }
};

}  // namespace loramux::gpu
