// The batched LoRA product on a device: y += scale * B (A x) for the rows of a mixed batch, each adapter at its true
// rank, in two launches for a group of linear layers that share x. Each adapter byte is read once for 64 adjacent rows
// of one adapter.
#pragma once

#include <cstdint>

#include "formats/dtype.h"
#include "gpu/device.h"

namespace loramux::gpu {

// One linear layer of one adapter, in device memory. Rows are contiguous and 64-byte aligned, anywhere in the pages.
struct LoraModule {
  const void* const* a_rows;  // [rank]: rows of A, `in` elements each
  const void* const* b_rows;  // [rank]: columns of B, `out` elements each
  std::int32_t rank;          // 0: the adapter does not change this layer
  float scale;
};

// Rows that one item of work covers at most.
inline constexpr std::int32_t kLoraItemRows = 64;
// Rows of A that one block of the shrink kernel reads.
inline constexpr std::int32_t kLoraRankTile = 16;

// Adjacent rows of one adapter, and a part of its ranks.
struct LoraItem {
  const LoraModule* modules;     // of the adapter: [layers * 7 + 1], as LoraView::modules
  std::int32_t first_row, rows;  // rows: 1 ... kLoraItemRows
  std::int32_t first_rank;       // shrink: a multiple of kLoraRankTile; blocks beyond a module's rank do nothing
  std::int32_t max_rank;         // the largest of the adapter's modules
};

// The work of a step, the same for every layer; items in the order of their rows. All in device memory.
struct LoraWork {
  const LoraItem* shrink;  // one for each item of `expand` and rank tile
  const LoraItem* expand;  // first_rank is 0
  const std::int32_t* shrink_count;
  const std::int32_t* expand_count;
  std::int32_t max_shrink, max_expand;  // bound the counts, and size the grids
  std::int32_t max_rank;                // of any adapter of the step: the width of `partial`'s slices
};

// The most linear layers that share an input.
inline constexpr int kMaxLoraSlices = 3;
// Elements of x that one block of the shrink kernel reads: the split depends on `in` alone.
inline constexpr std::int64_t kLoraSplit = 2048;

struct LoraShrinkArguments {
  const void* x;  // [rows, in], of the instance's type, as the adapters' rows
  std::int64_t x_stride, in;
  LoraWork work;
  std::int32_t module[kMaxLoraSlices];  // index in LoraItem::modules
  std::int32_t slices;
  float* partial;             // [split][row][slice][work.max_rank]
  std::int64_t partial_rows;  // rows that `partial` has room for
};

struct LoraExpandArguments {
  LoraWork work;
  std::int32_t module[kMaxLoraSlices];
  std::int32_t slices;
  const float* partial;
  std::int64_t partial_rows;
  std::int64_t splits;       // of `in`
  float* y[kMaxLoraSlices];  // [rows, out]
  std::int64_t y_stride[kMaxLoraSlices], out[kMaxLoraSlices];
};

// Floats of `partial`.
std::int64_t LoraPartialFloats(std::int64_t rows, std::int64_t in, std::int32_t slices, std::int32_t max_rank);
void LoraShrink(DeviceStream& stream, DType dtype, const LoraShrinkArguments& arguments);
// Instance: the type of the adapters' rows.
void LoraExpand(DeviceStream& stream, DType dtype, const LoraExpandArguments& arguments);

}  // namespace loramux::gpu
