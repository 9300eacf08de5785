// Random quantised matrices in the form of packed.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/prng.h"
#include "gpu/device_arrays_for_test.h"
#include "gpu/kernels/packed.h"
#include "tensor/half_float.h"

namespace loramux::gpu {

struct PackedKind {
  WeightFormat format;
  std::int32_t group_shift;

  std::string Name() const {
    return std::string(WeightFormatName(format)) + ", groups of 2^" + std::to_string(group_shift);
  }
};
inline constexpr PackedKind kPackedKinds[] = {
    {WeightFormat::kQ8, 5},         {WeightFormat::kQ4, 5}, {WeightFormat::kMx4, 5}, {WeightFormat::kQ4, 7},
    {WeightFormat::kF8, kWholeRow}, {WeightFormat::kF8, 7}, {WeightFormat::kQ8, 6},  {WeightFormat::kQ8, kWholeRow},
};

struct PackedForTest {
  PackedKind kind;
  GroupedRows rows;
  std::vector<std::byte> codes, scales;

  PackedForTest(PackedKind of_kind, std::int64_t n, std::int64_t k, Prng& random)
      : kind(of_kind), rows(kind.format, n, k) {
    const bool four_bits = CodeBits(kind.format) == 4;
    for (std::uint8_t& code : rows.codes) {
      do {
        code = static_cast<std::uint8_t>(random.NextBelow(four_bits ? 16 : 256));
      } while (kind.format == WeightFormat::kF8 && (code & 0x7f) == 0x7f);
      if (kind.format == WeightFormat::kMx4) code = kMx4Codes[code];
    }
    const std::int64_t of_group = std::int64_t{1} << (kind.group_shift - 5);
    for (std::int64_t row = 0; row < n; ++row)
      for (std::int64_t g = 0; g < rows.groups(); ++g) SetScale(row, g, g % of_group == 0, random);
    codes.resize(static_cast<std::size_t>(PackedCodeBytes(kind.format, n, k)));
    scales.resize(static_cast<std::size_t>(PackedScaleBytes(kind.format, kind.group_shift, n, k)));
    PackTiles(rows, kind.group_shift, codes.data(), scales.data());
  }

  // The weights in float32, row by row.
  std::vector<float> Floats() const {
    std::vector<float> out(static_cast<std::size_t>(rows.rows * rows.columns));
    for (std::int64_t row = 0; row < rows.rows; ++row) rows.ReadRow(row, out.data() + row * rows.columns);
    return out;
  }

  // The form with the scales on a device.
  PackedForm Upload(DeviceArrays& arrays) const {
    return {reinterpret_cast<const std::uint8_t*>(arrays.Upload(scales)), kind.format, kind.group_shift};
  }

 private:
  void SetScale(std::int64_t row, std::int64_t g, bool begins, Prng& random) {
    float &scale = rows.ScalesOf(row)[g], &minimum = rows.MinimumsOf(row)[g];
    if (!begins) {
      scale = rows.ScalesOf(row)[g - 1];
      minimum = rows.MinimumsOf(row)[g - 1];
      return;
    }
    const auto half = [&](double size) {
      return F16ToF32(F32ToF16(static_cast<float>((random.NextDouble() - 0.3) * size)));
    };
    scale = half(0.01);
    minimum = half(0.1);
    if (kind.format == WeightFormat::kF8) scale *= 0.37f;  // needs more bits than a half has
    if (kind.format == WeightFormat::kMx4) scale = std::ldexp(1.0f, -static_cast<int>(random.NextBelow(8)));
  }
};

}  // namespace loramux::gpu
