#include "gpu/kernels/packed.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>

#include "base/ceil_divide.h"
#include "base/check.h"
#include "gpu/kernels/packed_kernel.h"
#include "tensor/half_float.h"

namespace loramux::gpu {
namespace {

std::uint32_t ScaleBits(WeightFormat format, float scale, float minimum) {
  if (format == WeightFormat::kF8) return std::bit_cast<std::uint32_t>(scale);
  if (format == WeightFormat::kMx4) return std::bit_cast<std::uint32_t>(scale) >> 23 & 0xff;
  const std::uint32_t low = F32ToF16(scale);
  return format == WeightFormat::kQ4 ? low | static_cast<std::uint32_t>(F32ToF16(minimum)) << 16 : low;
}

void PackRow(const GroupedRows& rows, std::int64_t row, std::byte* codes) {
  const std::uint8_t* const from = rows.CodesOf(row);
  const WeightFormat format = rows.format;
  for (std::int64_t column = 0; column < rows.columns; column += 4) {
    std::byte* const to = codes + PackedOffset(format, rows.columns, row, column);
    if (CodeBits(format) == 8) {
      std::memcpy(to, from + column, 4);
      continue;
    }
    const auto code = [&](std::int64_t at) -> unsigned {
      if (format == WeightFormat::kQ4) return from[at];
      return static_cast<unsigned>(std::ranges::find(kMx4Codes, from[at]) - std::begin(kMx4Codes)) & 0xf;
    };
    for (std::int64_t i = 0; i < 2; ++i)
      to[i] = static_cast<std::byte>(code(column + 2 * i) | code(column + 2 * i + 1) << 4);
  }
}

}  // namespace

void WidenPacked(DeviceStream& stream, DType dtype, const WidenPackedArguments& a) {
  CHECK(CanPack(a.k) && a.first_row % kPackedTile == 0);
  CHECK_EQ(reinterpret_cast<std::uintptr_t>(a.y) % 16, 0u);
  const std::int64_t parts = CeilDivide(PackedChunks(a.form.format, a.k), WidenPackedKernel<float>::kThreads / 32);
  CHECK_LE(parts, 65535);  // CUDA's limit
  Launch(stream, Kernel::kWidenPacked, dtype,
         {static_cast<std::uint32_t>(CeilDivide(a.rows, kPackedTile)), static_cast<std::uint32_t>(parts), 1},
         WidenPackedKernel<float>::kThreads, 0, a);
}

std::int64_t PackedCodeBytes(WeightFormat format, std::int64_t n, std::int64_t k) {
  return CeilDivide(n, kPackedTile) * PackedChunks(format, k) * kPackedChunkBytes;
}

std::int64_t PackedScaleBytes(WeightFormat format, std::int32_t group_shift, std::int64_t n, std::int64_t k) {
  return (CeilDivide(n, kPackedTile) * PackedGroups(group_shift, k) * kPackedTile) << ScaleShift(format);
}

void PackTiles(const GroupedRows& rows, std::int32_t group_shift, std::byte* codes, std::byte* scales) {
  const std::int64_t k = rows.columns;
  CHECK(CanPack(k));
  std::memset(codes, 0, static_cast<std::size_t>(PackedCodeBytes(rows.format, rows.rows, k)));
  std::memset(scales, 0, static_cast<std::size_t>(PackedScaleBytes(rows.format, group_shift, rows.rows, k)));
  const int shift = ScaleShift(rows.format);
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    PackRow(rows, row, codes);
    for (std::int64_t g = 0; g < PackedGroups(group_shift, k); ++g) {
      const std::int64_t column = g << group_shift, of_32 = column / kWeightGroup;
      float scale = rows.ScalesOf(row)[of_32];
      const std::int64_t end = std::min(rows.groups(), (column >> 5) + (std::int64_t{1} << (group_shift - 5)));
      for (std::int64_t i = of_32; i < end; ++i) {  // one that is no number makes all of the group none
        if (std::isnan(rows.ScalesOf(row)[i])) scale = rows.ScalesOf(row)[i];
      }
      const std::uint32_t bits = ScaleBits(rows.format, scale, rows.MinimumsOf(row)[of_32]);
      std::memcpy(scales + (PackedScaleIndex(group_shift, k, row, column) << shift), &bits, std::size_t{1} << shift);
    }
  }
}

void UnpackTileRow(const PackedForm& form, const std::byte* codes, std::int64_t row, std::int64_t k, float* out) {
  const int shift = ScaleShift(form.format);
  for (std::int64_t column = 0; column < k; column += 8) {
    std::uint32_t words[2] = {}, bits = 0;
    std::memcpy(words, codes + PackedOffset(form.format, k, row, column), CodeBits(form.format) == 8 ? 8 : 4);
    std::memcpy(&bits, form.scales + (PackedScaleIndex(form.group_shift, k, row, column) << shift),
                std::size_t{1} << shift);
    float values[8];
    WidenEight(form.format, DecodeScale(form.format, bits), words[0], words[1], values);
    std::copy_n(values, 8, out + column);
  }
}

}  // namespace loramux::gpu
