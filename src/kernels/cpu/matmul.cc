#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "hwy/highway.h"
//
#include <algorithm>
#include <cstring>

#include "hwy/cache_control.h"
#include "kernels/cpu/interleave-inl.h"
#include "kernels/cpu/lora_rider.h"
#include "kernels/cpu/widen-inl.h"
#include "kernels/matmul.h"

// Every output is one chain of fused multiply-adds over ascending t, from zero. The chain is the same whichever tile
// computes it, and whether or not the accumulator is stored to y and reloaded between blocks of t. Hence the result has
// the same bits for every m. (Without hardware FMA, the same holds for the chain of multiplications and additions.)
HWY_BEFORE_NAMESPACE();
namespace loramux::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr std::int64_t kPanel = PackedMatrix::kPanel;
constexpr std::int64_t kHalf = kPanel / 2;

// A panel row is read in pairs of vectors: outputs [b, b + lanes) and [16 + b, 16 + b + lanes) (PanelSlot).
using DF = hn::CappedTag<float, kHalf>;
using DU = hn::Rebind<std::uint32_t, DF>;
using VF = hn::Vec<DF>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
constexpr int kPairs = static_cast<int>(kHalf) / kLanes;

// Register budget. 32 registers (AVX-512): tiles of 12 rows x 1 pair take 24 accumulators, 2 weights and a broadcast.
// 24 multiply-adds per step against 14 loads keep both multiplier ports busy (4 cycles of latency x 2 ports need 8). 16
// registers: 3 rows x 2 pairs take 12 accumulators, a broadcast, and one weight at a time.
constexpr bool kManyRegisters = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64;
constexpr int kPairsAtOnce = kPairs < 2 ? kPairs : 2;
constexpr int kMaxRows = kManyRegisters ? 24 / (2 * kPairsAtOnce) : 3;

// Up to this many rows, each row tile widens the weights in registers again: 2 operations to 24 multiply-adds. Beyond,
// a block of the panel is widened once to scratch memory.
constexpr std::int64_t kMaxDirectRows = kManyRegisters ? 3 * kMaxRows : kMaxRows;

// Depth of a block: 256 x 32 floats of widened weights are 32 KiB. They stay in L1 (tuned for cores with 48 KiB) beside
// the rows of x that stream past them.
constexpr std::int64_t kBlockDepth = 256;

// Rows of x per task: 512 x 256 floats are 512 KiB, a part of L2 (1 to 2 MiB).
constexpr std::int64_t kBlockRows = 512;

// How far ahead a lone row tile, which reads weights from memory itself, prefetches them. The hardware's prefetchers
// stop at each 4 KiB page, and memory latency is 400 to 1000 cycles on a busy server. A line takes at least 6 cycles,
// so 64 to 128 lines are needed.
constexpr std::int64_t kFetchAheadBytes = 8192;
constexpr std::int64_t kLineBytes = 64;

HWY_INLINE void LoadPair(const float* HWY_RESTRICT row, int pair, VF& low, VF& high) {
  low = hn::Load(DF(), row + pair * kLanes);
  high = hn::Load(DF(), row + kHalf + pair * kLanes);
}
HWY_INLINE void LoadPair(const hwy::float16_t* HWY_RESTRICT row, int pair, VF& low, VF& high) {
  low = LoadWide(DF(), row + pair * kLanes);
  high = LoadWide(DF(), row + kHalf + pair * kLanes);
}
// The even elements are the low halves of 32-bit words, the odd ones the high halves: bfloat16 is the upper half of a
// float32.
HWY_INLINE void LoadPair(const hwy::bfloat16_t* HWY_RESTRICT row, int pair, VF& low, VF& high) {
  const auto words = hn::Load(DU(), reinterpret_cast<const std::uint32_t*>(row) + pair * kLanes);
  low = hn::BitCast(DF(), hn::ShiftLeft<16>(words));
  high = hn::BitCast(DF(), hn::And(words, hn::Set(DU(), 0xffff0000u)));
}

// What a tile prefetches while it computes, so that memory is never idle. kOwnPanels: a line of each of its panels at
// every step, kFetchAheadBytes ahead. kNext: one line every other step from `fetch` on, of the data used next (into L2:
// a whole panel would fill L1).
enum class Fetch { kNone, kOwnPanels, kNext };

// The arguments of one call of Tile.
template <typename T>
struct TileWork {
  const float* x;           // at the first t: a group of packed rows, [t][4]; of a tile with one row, the row itself
  std::int64_t group_size;  // elements from one group of packed rows to the next
  const T* w;               // panel 0 at the first t
  std::int64_t panel_size;  // elements from one panel to the next
  std::int64_t depth;       // number of t
  float* y;                 // row 0, output 0 of panel 0
  std::int64_t y_stride;
  std::int64_t columns;              // outputs that exist: fewer than panels * 32 in the last panel of a matrix
  const float* bias;                 // bias of output 0; null: none, or added later
  const float* partial = nullptr;    // accumulators of the preceding t, [row][32]; null: start from zero
  const std::byte* fetch = nullptr;  // only with Fetch::kNext
};

// Where the groups of packed rows and the panels of a tile lie, and its first pair of vectors.
struct TilePlace {
  std::int64_t group_size, panel_size;
  int first_pair;
};

// One value of t: adds x[i] * w[v] to each accumulator.
template <int kRows, int kPanels, Fetch kFetch, typename T>
HWY_INLINE void Step(const float* HWY_RESTRICT x, const T* HWY_RESTRICT w, const TilePlace& place,
                     VF (&sum)[kRows][2 * kPairsAtOnce * kPanels]) {
  constexpr int kVectors = 2 * kPairsAtOnce * kPanels;
  VF weight[kVectors];
#pragma GCC unroll 8
  for (int p = 0; p < kPanels; ++p) {
    const T* row = w + p * place.panel_size;
    if constexpr (kFetch == Fetch::kOwnPanels) {
      constexpr auto kElements = static_cast<std::int64_t>(sizeof(T));
      for (std::int64_t line = 0; line < kPanel * kElements; line += kLineBytes) {
        hwy::Prefetch(row + (kFetchAheadBytes + line) / kElements);
      }
    }
#pragma GCC unroll 8
    for (int b = 0; b < kPairsAtOnce; ++b) {
      const int v = 2 * (p * kPairsAtOnce + b);
      LoadPair(row, place.first_pair + b, weight[v], weight[v + 1]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    const VF value = hn::Set(DF(), x[i / kGroupRows * place.group_size + i % kGroupRows]);
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(value, weight[v], sum[i][v]);
  }
}

// Rows [0, kRows) times outputs of pairs [pair, pair + kPairsAtOnce) of kPanels panels, for `depth` values of t.
template <int kRows, int kPanels, Fetch kFetch, typename T>
HWY_NOINLINE void Tile(const TileWork<T>& work, int first_pair) {
  constexpr int kVectors = 2 * kPairsAtOnce * kPanels;
  // The output that lane 0 of vector v computes.
  const auto column = [first_pair](int v) HWY_ATTR {
    const int panel = v / (2 * kPairsAtOnce);
    const int pair = first_pair + v / 2 % kPairsAtOnce;
    return panel * kPanel + v % 2 * kHalf + pair * kLanes;
  };
  VF sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::Zero(DF());
  }
  if (work.partial != nullptr) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::LoadU(DF(), work.partial + i * kPanel + column(v));
    }
  }

  constexpr std::int64_t kXStep = kRows == 1 ? 1 : kGroupRows;
  const float* x = work.x;
  const T* w = work.w;
  const std::byte* fetch = work.fetch;
  const TilePlace place = {work.group_size, work.panel_size, first_pair};
  std::int64_t t = 0;
  for (; t + 2 <= work.depth; t += 2, x += 2 * kXStep, w += 2 * kPanel) {
    if constexpr (kFetch == Fetch::kNext) {
      __builtin_prefetch(fetch, 0, 2);
      fetch += kLineBytes;
    }
    Step<kRows, kPanels, kFetch>(x, w, place, sum);
    Step<kRows, kPanels, kFetch>(x + kXStep, w + kPanel, place, sum);
  }
  if (t < work.depth) Step<kRows, kPanels, kFetch>(x, w, place, sum);

  if (work.bias != nullptr) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const VF bias = hn::LoadU(DF(), work.bias + column(v));
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) sum[i][v] = hn::Add(sum[i][v], bias);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[i][v], DF(), work.y + i * work.y_stride + column(v));
  }
}

template <int kRows, int kPanels, Fetch kFetch, typename T>
HWY_INLINE void TileOfAllPairs(const TileWork<T>& work) {
  for (int pair = 0; pair < kPairs; pair += kPairsAtOnce) Tile<kRows, kPanels, kFetch>(work, pair);
}

// The last panel of a matrix may have more outputs than y and bias; this works on a copy of full width.
template <int kRows, Fetch kFetch, typename T>
HWY_NOINLINE void TileAtEdge(const TileWork<T>& work) {
  HWY_ALIGN float y[kRows * kPanel] = {};
  HWY_ALIGN float bias[kPanel] = {};
  const auto bytes = static_cast<std::size_t>(work.columns) * sizeof(float);
  TileWork<T> full = work;
  full.y = y;
  full.y_stride = kPanel;
  if (work.bias != nullptr) {
    std::memcpy(bias, work.bias, bytes);
    full.bias = bias;
  }
  TileOfAllPairs<kRows, 1, kFetch>(full);
  for (int i = 0; i < kRows; ++i) std::memcpy(work.y + i * work.y_stride, y + i * kPanel, bytes);
}

// Computes `rows` (1 to kRows) rows of kPanels panels; only a single panel may be incomplete.
template <int kPanels, Fetch kFetch, int kRows = kMaxRows, typename T>
HWY_INLINE void TileOfRows(std::int64_t rows, const TileWork<T>& work) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return TileOfRows<kPanels, kFetch, kRows - 1>(rows, work);
  }
  if constexpr (kPanels == 1) {
    if (work.columns < kPanel) return TileAtEdge<kRows, kFetch>(work);
  }
  TileOfAllPairs<kRows, kPanels, kFetch>(work);
}

// Splits [0, total) into `parts` ranges with lengths that differ by at most one.
HWY_INLINE std::int64_t PartBegin(std::int64_t total, std::int64_t parts, std::int64_t part) {
  return total * part / parts;
}

// One product, with the weights' element type.
template <typename T>
struct Product : MatMulArguments {
  const LoraRider& rider;
  const float* packed = nullptr;  // see PackAllRows
  std::int64_t block_depth = 0;   // number of t in a block of packed rows

  std::int64_t row_tiles() const { return (rows + kMaxRows - 1) / kMaxRows; }
  std::int64_t TileRow(std::int64_t tile) const { return PartBegin(rows, row_tiles(), tile); }

  // The work for panel `panel` of row tile `tile` over t in [begin, begin + depth) with weights from `w`.
  template <typename W>
  TileWork<W> Work(std::int64_t tile, std::int64_t panel, std::int64_t begin, std::int64_t depth,
                   const W* weights) const {
    const std::int64_t column = panel * kPanel;
    return {.x = packed == nullptr ? x.data + begin : packed + PackedOffset(tile, begin, depth),
            .group_size = kGroupRows * depth,
            .w = weights,
            .panel_size = w.k() * kPanel,
            .depth = depth,
            .y = y[TileRow(tile)] + column,
            .y_stride = y.stride,
            .columns = w.n() - column,
            .bias = bias != nullptr && begin + depth == w.k() ? bias + column : nullptr};
  }
  // The outputs of panels [first, end).
  IndexRange Columns(std::int64_t first, std::int64_t end) const {
    return {first * kPanel, std::min(end * kPanel, w.n())};
  }
  const T* Weights(std::int64_t panel, std::int64_t t) const {
    return reinterpret_cast<const T*>(w.panel(panel)) + t * kPanel;
  }

  // Rows that a tile takes in `packed`: whole groups.
  static constexpr std::int64_t kTilePackedRows = (kMaxRows + kGroupRows - 1) / kGroupRows * kGroupRows;
  // The offset of the tile's data for t from `begin` on. The layout [block][tile][group][depth][4] makes the data that
  // one block of t needs of all rows contiguous, so that it stays in L2 for any k.
  std::int64_t PackedOffset(std::int64_t tile, std::int64_t begin, std::int64_t depth) const {
    return (begin * row_tiles() + tile * depth) * kTilePackedRows;
  }
  std::int64_t Depth(std::int64_t begin) const { return std::min(block_depth, w.k() - begin); }
};

template <typename T>
void PackTile(const Product<T>& product, std::int64_t tile, float* packed) {
  const std::int64_t end = product.TileRow(tile + 1);
  for (std::int64_t begin = 0; begin < product.w.k(); begin += product.block_depth) {
    const std::int64_t depth = product.Depth(begin);
    float* to = packed + product.PackedOffset(tile, begin, depth);
    for (std::int64_t row = product.TileRow(tile); row < end; row += kGroupRows, to += kGroupRows * depth) {
      const std::int64_t rows = std::min(kGroupRows, end - row);
      const float* from[kGroupRows] = {};
      for (std::int64_t i = 0; i < rows; ++i) from[i] = product.x[row + i] + begin;
      InterleaveRows(from, rows, depth, to);
    }
  }
}

// Packs all rows of x, in interleaved groups of four, into the calling thread's scratch memory, which grows to the
// largest x and stays allocated. (A stride that is a multiple of 4 KiB would put the rows of a tile into one set of
// L1.)
template <typename T>
void PackAllRows(const KernelContext& context, Product<T>& product) {
  thread_local AlignedBuffer<float> scratch;
  const std::int64_t tiles = product.row_tiles();
  scratch.Reserve(tiles * Product<T>::kTilePackedRows * product.w.k());
  float* packed = scratch.data();
  product.packed = packed;
  // An element takes about half a cycle; below 32 Ki elements, waking the other threads costs as much as it saves.
  if (product.rows * product.w.k() < (std::int64_t{32} << 10)) {
    for (std::int64_t tile = 0; tile < tiles; ++tile) PackTile(product, tile, packed);
  } else {
    context.pool->Run(tiles, [&product, packed](std::int64_t tile, int) HWY_ATTR { PackTile(product, tile, packed); });
  }
}

// The number of tasks to divide `panels` into: as even as possible, at most `most` panels each, and enough tasks that a
// thread that loses its core for a while delays the others little.
HWY_INLINE std::int64_t PanelTasks(std::int64_t panels, std::int64_t threads, std::int64_t most) {
  const std::int64_t rounds = std::max<std::int64_t>((panels + threads * most - 1) / (threads * most), 4);
  return std::min(panels, threads * rounds);
}

// One or two rows: weights stream from memory, several panels at once.
template <int kPanels, typename T>
void MultiplyFewRows(const KernelContext& context, const Product<T>& product) {
  const std::int64_t k = product.w.k();
  const std::int64_t groups = (product.w.panels() + kPanels - 1) / kPanels;
  const std::int64_t tasks = PanelTasks(groups, context.pool->size(), 8);
  product.rider.RunWith(*context.pool, tasks, [&](std::int64_t task) HWY_ATTR {
    const std::int64_t first_group = PartBegin(groups, tasks, task), end_group = PartBegin(groups, tasks, task + 1);
    const IndexRange columns = product.Columns(first_group * kPanels, end_group * kPanels);
    for (std::int64_t group = first_group; group < end_group; ++group) {
      const std::int64_t begin = group * kPanels;
      if (product.w.n() - begin * kPanel >= kPanels * kPanel) {
        TileOfRows<kPanels, Fetch::kOwnPanels, kMaxRows / kPanels>(
            product.rows, product.Work(0, begin, 0, k, product.Weights(begin, 0)));
        continue;
      }
      for (std::int64_t panel = begin; panel < product.w.panels(); ++panel) {
        TileOfRows<1, Fetch::kOwnPanels>(product.rows, product.Work(0, panel, 0, k, product.Weights(panel, 0)));
      }
    }
    product.rider.Expand({0, product.rows}, columns);
  });
}

// A few tiles of rows: each tile widens the weights in registers again. The first two tiles of a panel prefetch the two
// halves of the next panel; a lone tile prefetches ahead in its own panel.
template <typename T>
void MultiplyDirect(const KernelContext& context, const Product<T>& product) {
  const std::int64_t k = product.w.k();
  const std::int64_t panels = product.w.panels();
  const std::int64_t row_tiles = product.row_tiles();
  const std::int64_t tasks = PanelTasks(panels, context.pool->size(), 16);
  const auto panel_bytes = static_cast<std::int64_t>(sizeof(T)) * k * kPanel;
  product.rider.RunWith(*context.pool, tasks, [&](std::int64_t task) HWY_ATTR {
    const std::int64_t first_panel = PartBegin(panels, tasks, task), end_panel = PartBegin(panels, tasks, task + 1);
    const IndexRange columns = product.Columns(first_panel, end_panel);
    for (std::int64_t panel = first_panel; panel < end_panel; ++panel) {
      for (std::int64_t tile = 0; tile < row_tiles; ++tile) {
        const std::int64_t rows = product.TileRow(tile + 1) - product.TileRow(tile);
        TileWork<T> work = product.Work(tile, panel, 0, k, product.Weights(panel, 0));
        if (row_tiles == 1) {
          TileOfRows<1, Fetch::kOwnPanels>(rows, work);
        } else {
          const std::int64_t part = std::min<std::int64_t>(tile, 1) * panel_bytes / 2;
          work.fetch = reinterpret_cast<const std::byte*>(work.w) + panel_bytes + part;
          TileOfRows<1, Fetch::kNext>(rows, work);
        }
      }
    }
    product.rider.Expand({0, product.rows}, columns);
  });
}

// Widens `depth` panel rows into natural order.
template <typename T>
HWY_NOINLINE void WidenBlock(const T* HWY_RESTRICT from, std::int64_t depth, float* HWY_RESTRICT to) {
  for (std::int64_t t = 0; t < depth; ++t, from += kPanel, to += kPanel) {
    for (int pair = 0; pair < kPairs; ++pair) {
      VF low, high;
      LoadPair(from, pair, low, high);
      hn::Store(low, DF(), to + pair * kLanes);
      hn::Store(high, DF(), to + kHalf + pair * kLanes);
    }
  }
}

// Many rows: a block of kBlockDepth x 32 weights is widened once and used for all row tiles in [first_tile, end_tile).
// Between blocks of t, the accumulators are kept in scratch memory, tile by tile. The rows of y itself are often a
// multiple of 4 KiB apart; there the accumulators would compete for few sets of the caches.
template <typename T>
void MultiplyBlock(const Product<T>& product, std::int64_t first_tile, std::int64_t end_tile, std::int64_t first_panel,
                   std::int64_t end_panel) {
  thread_local AlignedBuffer<float> partial_sums;
  constexpr std::int64_t kTileSums = kMaxRows * kPanel;
  HWY_ALIGN float scratch[kBlockDepth * kPanel];
  partial_sums.Reserve((end_panel - first_panel) * (end_tile - first_tile) * kTileSums);
  for (std::int64_t begin = 0; begin < product.w.k(); begin += kBlockDepth) {
    const std::int64_t depth = product.Depth(begin);
    float* partial = partial_sums.data();
    for (std::int64_t panel = first_panel; panel < end_panel; ++panel) {
      const float* weights = scratch;
      if constexpr (sizeof(T) == sizeof(float)) {
        weights = product.Weights(panel, begin);
      } else {
        WidenBlock(product.Weights(panel, begin), depth, scratch);
      }
      const bool last = panel + 1 == end_panel;
      const T* next = product.Weights(last ? first_panel : panel + 1, last ? begin + depth : begin);
      for (std::int64_t tile = first_tile; tile < end_tile; ++tile, partial += kTileSums) {
        const std::int64_t rows = product.TileRow(tile + 1) - product.TileRow(tile);
        auto work = product.Work(tile, panel, begin, depth, weights);
        if (begin > 0) work.partial = partial;
        if (begin + depth < product.w.k()) {
          work.y = partial;
          work.y_stride = kPanel;
          work.columns = kPanel;
        }
        // A tile prefetches a line every other step: for 16-bit weights, two tiles prefetch the next block.
        const std::int64_t part = tile - first_tile;
        if (part * depth / 2 * kLineBytes < depth * kPanel * static_cast<std::int64_t>(sizeof(T))) {
          work.fetch = reinterpret_cast<const std::byte*>(next) + part * (depth / 2) * kLineBytes;
          TileOfRows<1, Fetch::kNext>(rows, work);
        } else {
          TileOfRows<1, Fetch::kNone>(rows, work);
        }
      }
    }
  }
}

template <typename T>
void MultiplyBlocked(const KernelContext& context, const Product<T>& product) {
  const std::int64_t panels = product.w.panels();
  const std::int64_t row_blocks = (product.rows + kBlockRows - 1) / kBlockRows;
  // Up to 8 panels per task: x is read from L3 once per task.
  const std::int64_t panel_tasks = PanelTasks(panels, context.pool->size(), 8);
  product.rider.RunWith(*context.pool, row_blocks * panel_tasks, [&](std::int64_t task) HWY_ATTR {
    const std::int64_t block = task / panel_tasks, part = task % panel_tasks;
    const IndexRange tiles = {PartBegin(product.row_tiles(), row_blocks, block),
                              PartBegin(product.row_tiles(), row_blocks, block + 1)};
    const IndexRange of_task = {PartBegin(panels, panel_tasks, part), PartBegin(panels, panel_tasks, part + 1)};
    MultiplyBlock(product, tiles.begin, tiles.end, of_task.begin, of_task.end);
    product.rider.Expand({product.TileRow(tiles.begin), product.TileRow(tiles.end)},
                         product.Columns(of_task.begin, of_task.end));
  });
}

template <typename T>
void Multiply(const KernelContext& context, Product<T> product) {
  const bool blocked = product.rows > kMaxDirectRows;
  product.block_depth = blocked ? kBlockDepth : product.w.k();
  if (product.rows > 1) PackAllRows(context, product);
  if (blocked) return MultiplyBlocked(context, product);
  // Few rows have few accumulators. Several panels at once make enough independent chains to hide the latency of the
  // multiply-adds and of memory.
  if (product.rows == 1) return MultiplyFewRows < kManyRegisters ? 4 : 2 > (context, product);
  if (product.rows <= kMaxRows / 3) return MultiplyFewRows < kManyRegisters ? 3 : 1 > (context, product);
  return MultiplyDirect(context, product);
}

void MultiplyFloats(const KernelContext& context, const MatMulArguments& arguments, const LoraRider& rider) {
  switch (arguments.w.dtype()) {
    case DType::kF32:
      return Multiply(context, Product<float>{arguments, rider});
    case DType::kF16:
      return Multiply(context, Product<hwy::float16_t>{arguments, rider});
    default:
      return Multiply(context, Product<hwy::bfloat16_t>{arguments, rider});
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace loramux::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace loramux::cpu {

HWY_EXPORT(MultiplyFloats);

void RiddenMatMul(const KernelContext& context, const MatMulArguments& arguments, const LoraRider& rider) {
  if (arguments.rows == 0) return;
  if (arguments.w.quantised()) return RiddenGroupMatMul(context, arguments, rider);
  HWY_DYNAMIC_DISPATCH(MultiplyFloats)(context, arguments, rider);
}

void MatMul(const KernelContext& context, const MatMulArguments& arguments) {
  RiddenMatMul(context, arguments, LoraRider());
}

}  // namespace loramux::cpu
#endif
