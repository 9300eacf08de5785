// Matrices that stay quantised in a device's memory: where their codes and scales lie.
//
// A tile has 16 outputs; tiles follow each other. A tile is a row of chunks of 512 bytes, of which each lane of a warp
// has 16: lane 4 r + q has outputs r and r + 8. A chunk of 8 bits has 32 inputs, block b of them: the lane's first 8
// bytes are inputs 32 b + 8 q ... + 7 of output r, the others those of output r + 8. A chunk of 4 bits has two such
// blocks, 128 inputs apart: chunk 4 j + w has the blocks 8 j + w and, if it exists, 8 j + w + 4. The lane's words are
// output r and output r + 8 of the first, then of the second; the first input is in the low bits. So a warp reads what
// it multiplies in one load of 16 bytes a lane, in the order of the product of floats (skinny_product.h): the bits of a
// product are those of the same weights in floats.
//
// Scales lie tile by tile, for each group of inputs those of the 16 outputs: kQ8 a float16, kQ4 a float16 and a float16
// minimum, kMx4 the exponent of twice the elements' scale (Mx4Scale), kF8 a float32. What fills tiles and chunks has
// zeros.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/dtype.h"
#include "gpu/device.h"
#include "tensor/grouped_rows.h"
#include "tensor/weight_format.h"

namespace loramux::gpu {

// Outputs of a tile.
inline constexpr std::int64_t kPackedTile = 16;
// The group that all inputs of an output are in.
inline constexpr std::int32_t kWholeRow = 30;

// How a matrix of a kernel's arguments is kept. Its codes are where floats would be.
struct PackedForm {
  const std::uint8_t* scales = nullptr;  // null: the matrix has floats
  WeightFormat format = WeightFormat::kF32;
  std::int32_t group_shift = 0;  // 2^group_shift neighbouring inputs share a scale; at least 5
};

// Bits of a code. REQUIRES: IsQuantised(format).
constexpr int CodeBits(WeightFormat format) {
  return format == WeightFormat::kQ8 || format == WeightFormat::kF8 ? 8 : 4;
}
// A scale is 2^ScaleShift bytes.
constexpr int ScaleShift(WeightFormat format) {
  return format == WeightFormat::kMx4 ? 0 : format == WeightFormat::kQ8 ? 1 : 2;
}
// Whether the form can hold a matrix of `k` inputs: chunks have whole blocks of 32.
constexpr bool CanPack(std::int64_t k) { return k > 0 && k % kWeightGroup == 0; }
// Bytes of the codes and of the scales of a matrix [n, k]; multiples of 16. REQUIRES: CanPack(k).
std::int64_t PackedCodeBytes(WeightFormat format, std::int64_t n, std::int64_t k);
std::int64_t PackedScaleBytes(WeightFormat format, std::int32_t group_shift, std::int64_t n, std::int64_t k);

// y[i, :] = w[first_row + i, :] for i < rows, as products multiply them. Instance: the type of y.
struct WidenPackedArguments {
  const void* w;  // the codes of `form`, [n, k]
  PackedForm form;
  std::int64_t k, first_row, rows;  // first_row is a multiple of kPackedTile
  void* y;                          // [rows, k], 16-byte aligned
};
void WidenPacked(DeviceStream& stream, DType dtype, const WidenPackedArguments& arguments);

// Writes rows as tiles, the last of which may be part of one. Of each group the first scale counts. REQUIRES:
// CanPack(rows.columns).
void PackTiles(const GroupedRows& rows, std::int32_t group_shift, std::byte* codes, std::byte* scales);
// The weights of output `row` of what such tiles hold, as float32: what products multiply before they round them to
// the type of their inputs. `form.scales` and `codes` are the host's.
void UnpackTileRow(const PackedForm& form, const std::byte* codes, std::int64_t row, std::int64_t k, float* out);

}  // namespace loramux::gpu
