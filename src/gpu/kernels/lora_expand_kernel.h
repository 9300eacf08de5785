// The second kernel of the batched LoRA product, y += scale * B v, and gains and shifts; lora.h says what it computes.
// Outputs are independent of each other, and each sums its ranks in ascending order, so that the tiles may be cut as
// the number of rows suggests.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/lora.h"
#include "gpu/kernels/lora_loads.h"

namespace loramux::gpu {

// The work of a block of the expand kernel.
struct LoraExpandPart {
  const LoraModule* module;  // its fields are loaded where they are used, because registers are few
  std::int32_t rank, rows;
  const float* partial;                       // sums of the first row
  std::int64_t partial_stride, split_stride;  // floats between rows, and between splits
  std::int64_t splits;
  float* y;  // output 0 of the first row
  std::int64_t y_stride, out;
};

inline constexpr int kLoraExpandTile = 512;  // outputs of a block
inline constexpr int kLoraFewRows = 8;       // an item of at most this many rows is not cut into quarters
inline constexpr int kLoraFewRanks = 64;     // ranks between two barriers
inline constexpr int kLoraManyRanks = 32;
inline constexpr int kLoraManyOutputs = kLoraExpandTile / 4;

struct LoraFewShared {
  const void* b_rows[kLoraFewRanks];
  float v[kLoraFewRanks][kLoraFewRows];
};
struct LoraManyShared {
  float v[kLoraManyRanks][kLoraItemRows + 4];  // + 4: against bank conflicts
  float b[kLoraManyRanks][kLoraManyOutputs];
};
union LoraExpandShared {
  LoraFewShared few;
  LoraManyShared many;
};

// v[row, rank] of the item; 0 beyond its ranks and rows.
LORAMUX_DEVICE float LoraV(const LoraExpandPart& part, std::int32_t row, std::int32_t rank) {
  if (row >= part.rows || rank >= part.rank) return 0;
  const float* from = part.partial + row * part.partial_stride + rank;
  float sum = Load(from);
  for (std::int64_t split = 1; split < part.splits; ++split) sum += Load(from + split * part.split_stride);
  const float* const factors = Load(&part.module->factors);
  return factors == nullptr ? sum : sum * Load(factors + rank);
}

// What makes an output: of what is there, `y`, and the sum of the ranks.
struct LoraOutputs {
  float scale;
  const float *gains, *shifts;

  LORAMUX_DEVICE explicit LoraOutputs(const LoraModule* module)
      : scale(Load(&module->scale)), gains(Load(&module->gains)), shifts(Load(&module->shifts)) {}
  LORAMUX_DEVICE float Of(std::int64_t o, float sum, float y) const {
    const float whole = Fma(scale, sum, y);
    return gains == nullptr ? whole : Fma(Load(gains + o), whole, Load(shifts + o));
  }
};

// Makes the outputs [o, o + 4) that exist from their sums.
LORAMUX_DEVICE void LoraAddFour(const LoraExpandPart& part, const LoraOutputs& outputs, std::int32_t row,
                                std::int64_t o, const float (&sums)[4]) {
  float* y = part.y + row * part.y_stride + o;
  if (o + 4 <= part.out && reinterpret_cast<std::uintptr_t>(y) % 16 == 0) {
    Vec4* whole = reinterpret_cast<Vec4*>(y);
    const Vec4 old = Load(whole);
    Store(whole,
          Vec4{AsBits(outputs.Of(o, sums[0], AsFloat(old.x))), AsBits(outputs.Of(o + 1, sums[1], AsFloat(old.y))),
               AsBits(outputs.Of(o + 2, sums[2], AsFloat(old.z))), AsBits(outputs.Of(o + 3, sums[3], AsFloat(old.w)))});
    return;
  }
  LORAMUX_UNROLL
  for (int e = 0; e < 4; ++e)
    if (o + e < part.out) Store(y + e, outputs.Of(o + e, sums[e], Load(y + e)));
}

// Few rows: a thread makes 4 outputs of all rows, and reads its part of B into registers, kAhead ranks at once.
template <typename W, int kRows, int kAhead>
struct LoraExpandFew {
  // Adds ranks [begin, end) of what is in shared memory, kGroup at once; `valid` of the four outputs exist. v is 0
  // beyond the ranks: adding zeros changes no bit of a sum.
  template <int kGroup>
  LORAMUX_DEVICE static void Add(const LoraFewShared& shared, std::int32_t ranks, std::int64_t o, std::int64_t valid,
                                 float (&sums)[kRows][4]) {
    for (std::int32_t first = 0; first < ranks; first += kGroup) {
      LoraFour weights[kGroup];
      LORAMUX_UNROLL
      for (int u = 0; u < kGroup; ++u) {
        weights[u] = LoraFour{{0, 0, 0, 0}};
        if (first + u >= ranks) continue;
        const W* from = static_cast<const W*>(shared.b_rows[first + u]) + o;
        weights[u] = kGroup > 1 ? LoraLoadFour<W, true>(from) : LoraLoadUpToFour<W, true>(from, valid);
      }
      LORAMUX_UNROLL
      for (int u = 0; u < kGroup; ++u) {
        LORAMUX_UNROLL
        for (int row = 0; row < kRows; ++row) {
          const float v = shared.v[first + u][row];
          LORAMUX_UNROLL
          for (int e = 0; e < 4; ++e) sums[row][e] = Fma(v, weights[u].value[e], sums[row][e]);
        }
      }
    }
  }

  LORAMUX_DEVICE static void Run(const LoraExpandPart& part, std::int64_t tile_begin) {
    static_assert(kLoraFewRanks % kAhead == 0);
    LoraFewShared& shared = Shared<LoraFewShared>();
    const int thread = static_cast<int>(ThreadIndex()), threads = static_cast<int>(BlockThreads());
    const std::int64_t o = tile_begin + thread * 4;
    float sums[kRows][4] = {};
    for (std::int32_t begin = 0; begin < part.rank; begin += kLoraFewRanks) {
      const std::int32_t ranks = part.rank - begin < kLoraFewRanks ? part.rank - begin : kLoraFewRanks;
      if (begin > 0) SyncBlock();
      const void* const* const b_rows = Load(&part.module->b_rows) + begin;
      for (std::int32_t j = thread; j < ranks; j += threads) shared.b_rows[j] = Load(b_rows + j);
      for (std::int32_t i = thread; i < kLoraFewRanks * kRows; i += threads)
        shared.v[i % kLoraFewRanks][i / kLoraFewRanks] = LoraV(part, i / kLoraFewRanks, begin + i % kLoraFewRanks);
      SyncBlock();
      if (o + 4 <= part.out)
        Add<kAhead>(shared, ranks, o, 4, sums);
      else if (o < part.out)
        Add<1>(shared, ranks, o, part.out - o, sums);
    }
    if (o >= part.out) return;
    const LoraOutputs outputs(part.module);
    LORAMUX_UNROLL
    for (int row = 0; row < kRows; ++row)
      if (row < part.rows) LoraAddFour(part, outputs, row, o, sums[row]);
  }
};

// Many rows: 128 outputs of up to 64 rows. B goes through shared memory as f32; a thread makes 8 outputs of 8 rows.
template <typename W>
struct LoraExpandMany {
  // Brings four outputs of rank begin + j of B to their place; zeros beyond the ranks.
  template <bool kWhole>
  LORAMUX_DEVICE static void LoadPart(LoraManyShared& shared, const LoraExpandPart& part, const void* const* b_rows,
                                      std::int32_t begin, int j, int column, std::int64_t tile_begin) {
    const std::int64_t o = tile_begin + column;
    LoraFour weights = {{0, 0, 0, 0}};
    if (begin + j < part.rank) {
      const W* from = static_cast<const W*>(Load(b_rows + begin + j)) + o;
      weights = kWhole ? LoraLoadFour<W, true>(from) : LoraLoadUpToFour<W, true>(from, part.out - o);
    }
    *reinterpret_cast<LoraFour*>(&shared.b[j][column]) = weights;
  }

  LORAMUX_DEVICE static void Run(const LoraExpandPart& part, std::int64_t tile_begin) {
    LoraManyShared& shared = Shared<LoraExpandShared>().many;
    const int thread = static_cast<int>(ThreadIndex()), warp = thread / 32, lane = thread % 32;
    const int column = thread % 16 * 4, first_row = thread / 16 * 8;
    float sums[8][8] = {};
    for (std::int32_t begin = 0; begin < part.rank; begin += kLoraManyRanks) {
      if (begin > 0) SyncBlock();
      const void* const* const b_rows = Load(&part.module->b_rows);
      if (tile_begin + kLoraManyOutputs <= part.out) {
        LORAMUX_UNROLL
        for (int i = 0; i < kLoraManyRanks / 4; ++i)
          LoadPart<true>(shared, part, b_rows, begin, i * 4 + warp, lane * 4, tile_begin);
      } else {
        for (int i = 0; i < kLoraManyRanks / 4; ++i)
          LoadPart<false>(shared, part, b_rows, begin, i * 4 + warp, lane * 4, tile_begin);
      }
      for (int i = thread; i < kLoraManyRanks * kLoraItemRows; i += kLoraExpandTile / 4)
        shared.v[i % kLoraManyRanks][i / kLoraManyRanks] = LoraV(part, i / kLoraManyRanks, begin + i % kLoraManyRanks);
      SyncBlock();
      const std::int32_t ranks = part.rank - begin < kLoraManyRanks ? part.rank - begin : kLoraManyRanks;
      for (std::int32_t j = 0; j < ranks; ++j) {
        LoraFour b[2], v[2];
        b[0] = *reinterpret_cast<const LoraFour*>(&shared.b[j][column]);
        b[1] = *reinterpret_cast<const LoraFour*>(&shared.b[j][64 + column]);
        v[0] = *reinterpret_cast<const LoraFour*>(&shared.v[j][first_row]);
        v[1] = *reinterpret_cast<const LoraFour*>(&shared.v[j][first_row + 4]);
        LORAMUX_UNROLL
        for (int row = 0; row < 8; ++row) {
          LORAMUX_UNROLL
          for (int e = 0; e < 8; ++e)
            sums[row][e] = Fma(v[row / 4].value[row % 4], b[e / 4].value[e % 4], sums[row][e]);
        }
      }
    }
    const LoraOutputs outputs(part.module);
    LORAMUX_UNROLL
    for (int row = 0; row < 8; ++row) {
      if (first_row + row >= part.rows) break;
      LORAMUX_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float four[4] = {sums[row][half * 4], sums[row][half * 4 + 1], sums[row][half * 4 + 2],
                               sums[row][half * 4 + 3]};
        LoraAddFour(part, outputs, first_row + row, tile_begin + half * 64 + column, four);
      }
    }
  }
};

// The item's rows and a slice; without module if the adapter does not change it, or the processor computes it.
LORAMUX_DEVICE LoraExpandPart LoraExpandPartOf(const LoraExpandArguments& arguments, const LoraItem* item,
                                               std::int32_t slice) {
  const LoraWork& work = arguments.work;
  LoraExpandPart part;
  part.module = Load(&item->modules) + arguments.module[slice];
  const std::int32_t first_row = Load(&item->first_row);
  part.rank = Load(&part.module->rank);
  if ((part.rank == 0 && Load(&part.module->gains) == nullptr) || !LoraIsOnDevice(item)) part.module = nullptr;
  part.rows = Load(&item->rows);
  part.partial_stride = static_cast<std::int64_t>(arguments.slices) * work.max_rank;
  part.split_stride = arguments.partial_rows * part.partial_stride;
  part.splits = (arguments.in + kLoraSplit - 1) / kLoraSplit;
  part.partial = arguments.partial + first_row * part.partial_stride + static_cast<std::int64_t>(slice) * work.max_rank;
  part.y_stride = arguments.y_stride[slice];
  part.y = arguments.y[slice] + first_row * part.y_stride;
  part.out = arguments.out[slice];
  return part;
}

// A tile of the outputs of at most kLoraFewRows rows, 4 for each thread. W: the type of the adapter's rows.
template <typename W>
LORAMUX_DEVICE void LoraExpandFewRows(const LoraExpandPart& part, std::int64_t tile) {
  if (part.rows == 1)
    LoraExpandFew<W, 1, 16>::Run(part, tile);
  else
    LoraExpandFew<W, kLoraFewRows, 8>::Run(part, tile);
}

// One block a tile of outputs (x), expand item (y) and slice (z).
template <typename T>
struct LoraExpandKernel {
  using Arguments = LoraExpandArguments;
  static constexpr int kThreads = kLoraExpandTile / 4;
  static constexpr int kMinBlocks = 4;

  LORAMUX_DEVICE static void Run(const Arguments& arguments) {
    const std::int32_t index = arguments.first_item + static_cast<std::int32_t>(BlockY());
    if (index >= Load(arguments.work.expand_count)) return;
    const LoraItem* item = arguments.work.expand + index;
    const std::int32_t slice = static_cast<std::int32_t>(BlockZ());
    const std::int32_t quarter = Load(&item->part), quarters = Load(&item->parts);
    const std::int64_t tile = static_cast<std::int64_t>(BlockX()) * kLoraExpandTile + quarter * kLoraManyOutputs;
    if (tile >= arguments.out[slice]) return;
    const LoraExpandPart part = LoraExpandPartOf(arguments, item, slice);
    if (part.module == nullptr) return;
    const DType dtype = Load(&item->dtype);
    if (dtype == DType::kF32)
      RunAs<float>(part, tile, quarters);
    else if (dtype == DType::kBF16)
      RunAs<Bf16>(part, tile, quarters);
    else if (dtype == DType::kI8)
      RunAs<std::int8_t>(part, tile, quarters);
    else if (dtype == DType::kF8E4M3)
      RunAs<Float8>(part, tile, quarters);
    else
      RunAs<Half>(part, tile, quarters);
  }

 private:
  template <typename W>
  LORAMUX_DEVICE static void RunAs(const LoraExpandPart& part, std::int64_t tile, std::int32_t quarters) {
    if (quarters > 1)
      LoraExpandMany<W>::Run(part, tile);
    else
      LoraExpandFewRows<W>(part, tile);
  }
};

}  // namespace loramux::gpu
