#include "gpu/kernels/lora.h"

#include <algorithm>

#include "base/check.h"
#include "gpu/kernels/lora_kernels.h"

namespace loramux::gpu {
namespace {

std::int64_t CeilDivide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

constexpr std::int32_t kMostGridY = 65535;  // CUDA's limit

GridSize Grid(std::int64_t x, std::int64_t y, std::int64_t z) {
  CHECK_LE(y, kMostGridY);
  return {static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(y), static_cast<std::uint32_t>(z)};
}

}  // namespace

void AppendLoraItems(const LoraModule* modules, DType dtype, std::int32_t max_rank, std::int32_t first_row,
                     std::int32_t rows, std::vector<LoraItem>& shrink, std::vector<LoraItem>& expand,
                     const std::uint32_t* gate) {
  CHECK(IsWeightDType(dtype) || HasRowFactors(dtype));
  for (std::int32_t begin = 0; begin < rows && max_rank > 0; begin += kLoraItemRows) {
    LoraItem item = {};
    item.modules = modules;
    item.first_row = first_row + begin;
    item.rows = std::min(rows - begin, kLoraItemRows);
    item.dtype = dtype;
    item.gate = gate;
    item.parts = item.rows > kLoraFewRows ? kLoraExpandTile / kLoraManyOutputs : 1;
    for (std::int16_t part = 0; part < item.parts; ++part) {
      item.part = part;
      expand.push_back(item);
    }
    item.part = 0;
    item.parts = 1;
    for (item.first_rank = 0; item.first_rank < max_rank; item.first_rank += kLoraRankTile) shrink.push_back(item);
  }
}

void AppendLoraPieces(const LoraModule* modules, DType dtype, std::int32_t first_row, std::int32_t rows,
                      std::vector<LoraItem>& pieces, const std::uint32_t* gate) {
  const std::int32_t most = modules == nullptr ? 1 : kLoraFewRows;
  for (std::int32_t begin = 0; begin < rows; begin += most) {
    LoraItem piece = {};
    piece.modules = modules;
    piece.first_row = first_row + begin;
    piece.rows = std::min(rows - begin, most);
    piece.parts = 1;
    piece.dtype = dtype;
    piece.gate = gate;
    pieces.push_back(piece);
  }
}

LoraItemBounds MaxLoraItems(std::int32_t rows, std::int32_t ranges, std::int32_t max_rank) {
  // A range has at most one item that is not full.
  const std::int64_t items = std::min<std::int64_t>(rows, ranges + rows / kLoraItemRows);
  const std::int64_t cut = std::min<std::int64_t>(items, rows / (kLoraFewRows + 1));
  return {static_cast<std::int32_t>(items * CeilDivide(max_rank, kLoraRankTile)),
          static_cast<std::int32_t>(items + cut * (kLoraExpandTile / kLoraManyOutputs - 1))};
}

std::int64_t LoraPartialFloats(std::int64_t rows, std::int64_t in, std::int32_t slices, std::int32_t max_rank) {
  return CeilDivide(in, kLoraSplit) * rows * slices * max_rank;
}

void LoraShrink(DeviceStream& stream, DType x_dtype, const LoraShrinkArguments& arguments) {
  CHECK(arguments.slices >= 1 && arguments.slices <= kMaxLoraSlices);
  CHECK_EQ(reinterpret_cast<std::uintptr_t>(arguments.x) % 16, 0u);
  CHECK_EQ(arguments.x_stride % 8, 0);
  if (arguments.work.max_shrink == 0) return;
  const std::size_t shared_bytes =
      x_dtype == DType::kF32 ? sizeof(LoraPlainShared) : std::max(sizeof(LoraPlainShared), sizeof(LoraTileShared));
  Launch(stream, Kernel::kLoraShrink, x_dtype,
         Grid(arguments.work.max_shrink, CeilDivide(arguments.in, kLoraSplit), arguments.slices), 32 * kLoraWarps,
         shared_bytes, arguments);
}

void LoraExpand(DeviceStream& stream, const LoraExpandArguments& arguments) {
  CHECK(arguments.slices >= 1 && arguments.slices <= kMaxLoraSlices);
  if (arguments.work.max_expand == 0) return;
  const std::int64_t widest = *std::max_element(arguments.out, arguments.out + arguments.slices);
  // A long prompt for adapters of many experts has more items than the grid's second extent may have.
  LoraExpandArguments part = arguments;
  for (part.first_item = 0; part.first_item < arguments.work.max_expand; part.first_item += kMostGridY) {
    const std::int32_t items = std::min(arguments.work.max_expand - part.first_item, kMostGridY);
    Launch(stream, Kernel::kLoraExpand, DType::kF32, Grid(CeilDivide(widest, kLoraExpandTile), items, arguments.slices),
           kLoraExpandTile / 4, sizeof(LoraExpandShared), part);
  }
}

}  // namespace loramux::gpu
