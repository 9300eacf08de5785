// The batched LoRA product on a device: y += scale * B (A x) for the rows of a mixed batch, each adapter at its true
// rank, and y = gains * y + shifts where it has vectors over the outputs (DoRA, biases), in two launches for a group of
// linear layers that share x. Each adapter byte is read once for 64 adjacent rows of one adapter.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/dtype.h"
#include "gpu/device.h"

namespace loramux::gpu {

// One linear layer of one adapter, in device memory. Rows are contiguous and 64-byte aligned, anywhere in the pages.
struct LoraModule {
  const void* const* a_rows;  // [rank]: rows of A, `in` elements each
  const void* const* b_rows;  // [rank]: columns of B, `out` elements each
  std::int32_t rank;          // 0: no rows
  float scale;
  const float* gains = nullptr;  // [out] each, or null both
  const float* shifts = nullptr;
  const float* factors = nullptr;  // [rank]: of the product of row j of A and column j of B; null: all are 1
};

// Rows that one item of work covers at most.
inline constexpr std::int32_t kLoraItemRows = 64;
// Rows of A that one block of the shrink kernel reads.
inline constexpr std::int32_t kLoraRankTile = 16;

// Adjacent rows of one adapter, and a part of its work on them.
struct LoraItem {
  const LoraModule* modules;     // modules of the adapter, or of one of its experts
  std::int32_t first_row, rows;  // rows: 1 ... kLoraItemRows
  std::int32_t first_rank;       // shrink: a multiple of kLoraRankTile; blocks beyond a module's rank do nothing
  std::int16_t part, parts;      // expand: the item makes quarter `part` of each tile of outputs; or (0, 1): all
  DType dtype;                   // type of the adapter's rows: f32, bf16, f16 or i8
  // Null, or in device memory: the item is left out unless this is kAssistOnDevice (assist.h) when it is its turn.
  const std::uint32_t* gate;
};

// The work of a step, the same for every layer; items in the order of their rows. All in device memory.
struct LoraWork {
  const LoraItem* shrink;
  const LoraItem* expand;
  const std::int32_t* shrink_count;
  const std::int32_t* expand_count;
  std::int32_t max_shrink, max_expand;  // bound the counts, and size the grids
  std::int32_t max_rank;                // at least any module's rank: the width of `partial`'s slices
  // In a batch of few rows: all of its rows, adapters or not, for the kernels of lora_fused.h.
  const LoraItem* pieces;
  const std::int32_t* piece_count;
  std::int32_t max_pieces;  // 0: there are none
};

// Appends the items of the rows [first_row, first_row + rows) of the batch, which use one adapter. `modules` is in
// device memory; `max_rank` is the largest rank of its modules. Ranges are appended in the order of their rows. `gate`:
// as LoraItem::gate.
void AppendLoraItems(const LoraModule* modules, DType dtype, std::int32_t max_rank, std::int32_t first_row,
                     std::int32_t rows, std::vector<LoraItem>& shrink, std::vector<LoraItem>& expand,
                     const std::uint32_t* gate = nullptr);
// Appends pieces of the rows [first_row, first_row + rows): of at most 8 rows that use one adapter, or of one row
// without adapter (`modules` null). `gate`: as LoraItem::gate.
void AppendLoraPieces(const LoraModule* modules, DType dtype, std::int32_t first_row, std::int32_t rows,
                      std::vector<LoraItem>& pieces, const std::uint32_t* gate = nullptr);
// The most items that AppendLoraItems makes for ranges of `rows` rows in total, in at most `ranges` ranges.
struct LoraItemBounds {
  std::int32_t shrink, expand;
};
LoraItemBounds MaxLoraItems(std::int32_t rows, std::int32_t ranges, std::int32_t max_rank);

// The most linear layers that share an input.
inline constexpr int kMaxLoraSlices = 3;
// Elements of x that one block of the shrink kernel reads: the split depends on `in` alone.
inline constexpr std::int64_t kLoraSplit = 2048;

// partial[split][row][slice][j] = sum over the split's elements t of x[row, t] * A[j, t]. Instance: the type of x. Rows
// of the same 16-bit type use the tensor cores; other types are converted to f32.
// REQUIRES: x is 16-byte aligned, x_stride is a multiple of 8.
struct LoraShrinkArguments {
  const void* x;  // [rows, in]
  std::int64_t x_stride, in;
  LoraWork work;
  std::int32_t module[kMaxLoraSlices];  // index in LoraItem::modules
  std::int32_t slices;
  float* partial;             // LoraPartialFloats(...) floats; content arbitrary
  std::int64_t partial_rows;  // rows that `partial` has room for
};

// y[row, o] += scale * sum over j ascending of v[row, j] * B[j][o], v = the sum of `partial` over the splits,
// ascending, times the factors; then y[row, o] = gains[o] * y[row, o] + shifts[o] where there are vectors. Everything
// is f32. The sizes of tiles and items do not change a row's bits.
struct LoraExpandArguments {
  LoraWork work;
  std::int32_t module[kMaxLoraSlices];
  std::int32_t slices;
  const float* partial;
  std::int64_t partial_rows;
  std::int64_t in;           // as in the shrink
  float* y[kMaxLoraSlices];  // [rows, out]; fastest if 16-byte aligned with strides that are multiples of 4
  std::int64_t y_stride[kMaxLoraSlices], out[kMaxLoraSlices];
  std::int32_t first_item = 0;  // where the launch begins: LoraExpand sets it if there are more items than a grid holds
};

// Floats of `partial`.
std::int64_t LoraPartialFloats(std::int64_t rows, std::int64_t in, std::int32_t slices, std::int32_t max_rank);
void LoraShrink(DeviceStream& stream, DType x_dtype, const LoraShrinkArguments& arguments);
void LoraExpand(DeviceStream& stream, const LoraExpandArguments& arguments);

}  // namespace loramux::gpu
