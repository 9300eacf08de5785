// The two kernels of the batched LoRA product; lora.h says what they compute.
//
// Shrink: a block reads 16 rows of A over one split of k. The result of a row depends on its own values, `in` and the
// types alone: k is divided among the lanes in the same way whatever the number of rows, and the parts are summed in
// the order of the splits, of the warps, and as the tensor core or the warp sums them.
// Expand: outputs are independent of each other, and each sums its ranks in ascending order, so that the tiles may be
// cut as the number of rows suggests.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/lora.h"

namespace loramux::gpu {

// The DType of an element type.
template <typename T>
inline constexpr DType kLoraDType = DType::kF32;
template <>
inline constexpr DType kLoraDType<Bf16> = DType::kBF16;
template <>
inline constexpr DType kLoraDType<Half> = DType::kF16;

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

// The same where only the first `valid` elements exist (none if it is negative); the others are 0.
template <typename T, bool kOnce>
LORAMUX_DEVICE LoraFour LoraLoadUpToFour(const T* from, std::int64_t valid) {
  if (valid >= 4) return LoraLoadFour<T, kOnce>(from);
  LoraFour four = {{0, 0, 0, 0}};
  LORAMUX_UNROLL
  for (int i = 0; i < 3; ++i)
    if (i < valid) four.value[i] = ToFloat(kOnce ? LoadOnce(from + i) : Load(from + i));
  return four;
}

// The work of a block of the shrink kernel.
struct LoraShrinkPart {
  const void* const* a_rows;     // of the first rank
  std::int32_t ranks;            // 1 ... kLoraRankTile
  std::int32_t first_row, rows;  // of the batch
  std::int64_t begin, end;       // elements of x
  float* partial;                // of the first row and rank
  std::int64_t partial_stride;   // between rows
};

// The tensor cores' shrink: T is Bf16 or Half, as the rows. Ranks are M (16), rows N (8 at a time), and k goes in steps
// of 128 elements, 32 a warp. A lane's 16 bytes are 8 consecutive elements of one row of A or x, the same 8 for both,
// and serve two instructions: k is permuted alike for both operands. So each lane copies for itself alone, several
// steps ahead, and no barrier is needed.
inline constexpr int kLoraRing = 8;
inline constexpr int kLoraWarps = 4;
inline constexpr int kLoraRowGroups = kLoraItemRows / 8;
inline constexpr std::int64_t kLoraStep = 32 * kLoraWarps;

struct LoraTileShared {
  union {
    Vec4 ring[kLoraWarps][kLoraRing][3][32];                   // [2]: x; [0], [1]: ranks 0-7 and 8-15
    float sums[kLoraWarps][kLoraItemRows][kLoraRankTile + 1];  // + 1: against bank conflicts
  };
};

template <typename T>
struct LoraTileShrink {
  // The first `valid` elements (1 to 7) at `from`, then zeros.
  LORAMUX_DEVICE static Vec4 LoadTail(const T* from, std::int64_t valid) {
    std::uint32_t words[4] = {0, 0, 0, 0};
    LORAMUX_UNROLL
    for (int i = 0; i < 7; ++i) {
      if (i >= valid) break;
      const std::uint32_t bits = Load(reinterpret_cast<const std::uint16_t*>(from + i));
      words[i / 2] |= bits << (16 * (i % 2));
    }
    return Vec4{words[0], words[1], words[2], words[3]};
  }

  LORAMUX_DEVICE static void Run(const LoraShrinkPart& part, const T* x, std::int64_t x_stride) {
    LoraTileShared& shared = Shared<LoraTileShared>();
    const int warp = static_cast<int>(Warp()), lane = static_cast<int>(Lane()), group_row = lane / 4,
              quarter = lane % 4;
    const T* top_row = static_cast<const T*>(Load(part.a_rows + (group_row < part.ranks ? group_row : 0)));
    const T* low_row = static_cast<const T*>(Load(part.a_rows + (group_row + 8 < part.ranks ? group_row + 8 : 0)));
    const int groups = (part.rows + 7) / 8;
    const std::int64_t tail = part.end % 8, whole_end = part.end - tail;
    const int steps = static_cast<int>((whole_end - part.begin + kLoraStep - 1) / kLoraStep);
    const int iterations = steps * groups;
    const std::int64_t first = part.begin + warp * 32 + quarter * 8;

    const T* row_zero = x + part.first_row * x_stride;
    int fetched = 0, fetch_step = 0, fetch_group = 0;
    const auto fetch = [&] {
      if (fetched < iterations) {
        Vec4(&slot)[3][32] = shared.ring[warp][fetched % kLoraRing];
        const std::int64_t at = first + fetch_step * kLoraStep;
        const bool there = at < whole_end;
        if (fetch_group == 0) {
          CopyAsync16(&slot[0][lane], top_row + (there ? at : 0), there && group_row < part.ranks);
          CopyAsync16(&slot[1][lane], low_row + (there ? at : 0), there && group_row + 8 < part.ranks);
        }
        const int row = fetch_group * 8 + group_row;
        const bool valid = there && row < part.rows;
        CopyAsync16(&slot[2][lane], valid ? row_zero + row * x_stride + at : row_zero, valid);
        if (++fetch_group == groups) {
          fetch_group = 0;
          ++fetch_step;
        }
      }
      ++fetched;
      CopyAsyncCommit();
    };

    float sums[kLoraRowGroups][4];
    LORAMUX_UNROLL
    for (int group = 0; group < kLoraRowGroups; ++group) {
      LORAMUX_UNROLL
      for (int i = 0; i < 4; ++i) sums[group][i] = 0;
    }
    for (int i = 0; i < kLoraRing - 1; ++i) fetch();
    int used = 0;
    for (int step = 0; step < steps; ++step) {
      Vec4 top = {0, 0, 0, 0}, low = {0, 0, 0, 0};
      LORAMUX_UNROLL
      for (int group = 0; group < kLoraRowGroups; ++group) {
        if (group >= groups) break;
        CopyAsyncWait<kLoraRing - 2>();
        const Vec4(&slot)[3][32] = shared.ring[warp][used % kLoraRing];
        ++used;
        if (group == 0) {
          top = slot[0][lane];
          low = slot[1][lane];
        }
        const Vec4 mine = slot[2][lane];
        MultiplyTile<T>(sums[group], top.x, low.x, top.y, low.y, mine.x, mine.y);
        MultiplyTile<T>(sums[group], top.z, low.z, top.w, low.w, mine.z, mine.w);
        fetch();
      }
    }
    CopyAsyncWait<0>();
    if (tail > 0 && warp == 0) {  // the last elements, as one more step of 16
      const bool mine = quarter == 0;
      const Vec4 none = {0, 0, 0, 0};
      const Vec4 top = mine && group_row < part.ranks ? LoadTail(top_row + whole_end, tail) : none;
      const Vec4 low = mine && group_row + 8 < part.ranks ? LoadTail(low_row + whole_end, tail) : none;
      for (int group = 0; group < groups; ++group) {
        const int row = group * 8 + group_row;
        shared.ring[0][group][2][lane] =
            mine && row < part.rows ? LoadTail(row_zero + row * x_stride + whole_end, tail) : none;
      }
      LORAMUX_UNROLL
      for (int group = 0; group < kLoraRowGroups; ++group) {
        if (group >= groups) break;
        const Vec4 x_tail = shared.ring[0][group][2][lane];
        MultiplyTile<T>(sums[group], top.x, low.x, top.y, low.y, x_tail.x, x_tail.y);
        MultiplyTile<T>(sums[group], top.z, low.z, top.w, low.w, x_tail.z, x_tail.w);
      }
    }
    SyncBlock();  // the sums lie where the rings were
    LORAMUX_UNROLL
    for (int group = 0; group < kLoraRowGroups; ++group) {
      if (group >= groups) break;
      float(&rows)[kLoraItemRows][kLoraRankTile + 1] = shared.sums[warp];
      rows[group * 8 + 2 * quarter][group_row] = sums[group][0];
      rows[group * 8 + 2 * quarter + 1][group_row] = sums[group][1];
      rows[group * 8 + 2 * quarter][group_row + 8] = sums[group][2];
      rows[group * 8 + 2 * quarter + 1][group_row + 8] = sums[group][3];
    }
    SyncBlock();
    for (int i = static_cast<int>(ThreadIndex()); i < part.rows * kLoraRankTile; i += 32 * kLoraWarps) {
      const int row = i / kLoraRankTile, rank = i % kLoraRankTile;
      if (rank >= part.ranks) continue;
      float sum = shared.sums[0][row][rank];
      LORAMUX_UNROLL
      for (int from = 1; from < kLoraWarps; ++from) sum += shared.sums[from][row][rank];
      Store(part.partial + row * part.partial_stride + rank, sum);
    }
  }
};

// The shrink of any pair of types: x of X, rows of A of W. A warp has 4 of the ranks. It holds 512 elements of each in
// registers, 16 a lane, and passes over the rows; the sums over the lanes gather in shared memory, where only one lane
// touches each.
inline constexpr int kLoraLoads = 4;  // of 4 elements
inline constexpr int kLoraWarpRanks = kLoraRankTile / kLoraWarps;

struct LoraPlainShared {
  float sums[kLoraItemRows][kLoraRankTile];
};

template <typename X, typename W>
struct LoraPlainShrink {
  LORAMUX_DEVICE static void Run(const LoraShrinkPart& part, const X* x, std::int64_t x_stride) {
    LoraPlainShared& shared = Shared<LoraPlainShared>();
    const int lane = static_cast<int>(Lane()), first_rank = static_cast<int>(Warp()) * kLoraWarpRanks;
    if (first_rank >= part.ranks) return;
    const W* a[kLoraWarpRanks];
    LORAMUX_UNROLL
    for (int r = 0; r < kLoraWarpRanks; ++r)
      a[r] = static_cast<const W*>(Load(part.a_rows + (first_rank + r < part.ranks ? first_rank + r : 0)));
    for (std::int64_t begin = part.begin; begin < part.end; begin += kLoraLoads * 128) {
      LoraFour weights[kLoraWarpRanks][kLoraLoads];
      LORAMUX_UNROLL
      for (int r = 0; r < kLoraWarpRanks; ++r) {
        LORAMUX_UNROLL
        for (int i = 0; i < kLoraLoads; ++i) {
          const std::int64_t at = begin + i * 128 + lane * 4;
          const std::int64_t valid = first_rank + r < part.ranks ? part.end - at : 0;
          weights[r][i] = LoraLoadUpToFour<W, true>(a[r] + at, valid);
        }
      }
      for (int row = 0; row < part.rows; ++row) {
        const X* from = x + (part.first_row + row) * x_stride;
        float sums[kLoraWarpRanks] = {};
        LORAMUX_UNROLL
        for (int i = 0; i < kLoraLoads; ++i) {
          const std::int64_t at = begin + i * 128 + lane * 4;
          const LoraFour mine = LoraLoadUpToFour<X, false>(from + at, part.end - at);
          LORAMUX_UNROLL
          for (int r = 0; r < kLoraWarpRanks; ++r) {
            LORAMUX_UNROLL
            for (int e = 0; e < 4; ++e) sums[r] = Fma(mine.value[e], weights[r][i].value[e], sums[r]);
          }
        }
        LORAMUX_UNROLL
        for (int r = 0; r < kLoraWarpRanks; ++r) {
          const float sum = SumWarp(sums[r]);
          if (lane != r || first_rank + r >= part.ranks) continue;
          float& total = shared.sums[row][first_rank + r];
          total = begin == part.begin ? sum : total + sum;
          if (begin + kLoraLoads * 128 >= part.end)
            Store(part.partial + row * part.partial_stride + first_rank + r, total);
        }
      }
    }
  }
};

// One block a shrink item (x), split of k (y) and slice (z).
template <typename T>
struct LoraShrinkKernel {
  using Arguments = LoraShrinkArguments;
  static constexpr int kThreads = 32 * kLoraWarps;
  static constexpr int kMinBlocks = 4;

  LORAMUX_DEVICE static void Run(const Arguments& arguments) {
    const LoraWork& work = arguments.work;
    const std::int32_t index = static_cast<std::int32_t>(BlockX());
    if (index >= Load(work.shrink_count)) return;
    const LoraItem* item = work.shrink + index;
    const std::int32_t slice = static_cast<std::int32_t>(BlockZ());
    const LoraModule* module = Load(&item->modules) + arguments.module[slice];
    const std::int32_t first_rank = Load(&item->first_rank);
    const std::int32_t rank = Load(&module->rank);
    if (first_rank >= rank) return;
    LoraShrinkPart part;
    part.a_rows = Load(&module->a_rows) + first_rank;
    part.ranks = rank - first_rank < kLoraRankTile ? rank - first_rank : kLoraRankTile;
    part.first_row = Load(&item->first_row);
    part.rows = Load(&item->rows);
    const std::int64_t split = BlockY();
    part.begin = split * kLoraSplit;
    part.end = part.begin + kLoraSplit < arguments.in ? part.begin + kLoraSplit : arguments.in;
    part.partial_stride = static_cast<std::int64_t>(arguments.slices) * work.max_rank;
    part.partial = arguments.partial + (split * arguments.partial_rows + part.first_row) * part.partial_stride +
                   static_cast<std::int64_t>(slice) * work.max_rank + first_rank;
    const T* x = static_cast<const T*>(arguments.x);
    const DType dtype = Load(&item->dtype);
    if constexpr (sizeof(T) == 2) {
      if (dtype == kLoraDType<T>) return LoraTileShrink<T>::Run(part, x, arguments.x_stride);
    }
    if (dtype == DType::kF32)
      LoraPlainShrink<T, float>::Run(part, x, arguments.x_stride);
    else if (dtype == DType::kBF16)
      LoraPlainShrink<T, Bf16>::Run(part, x, arguments.x_stride);
    else
      LoraPlainShrink<T, Half>::Run(part, x, arguments.x_stride);
  }
};

// The work of a block of the expand kernel.
struct LoraExpandPart {
  const void* const* b_rows;
  std::int32_t rank, rows;
  float scale;
  const float* partial;                       // of the first row
  std::int64_t partial_stride, split_stride;  // between rows, and between splits
  std::int64_t splits;
  float* y;  // of the first row and output 0
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
  return sum;
}

// y[o, o + 4) += scale * sums, for the outputs that exist.
LORAMUX_DEVICE void LoraAddFour(const LoraExpandPart& part, std::int32_t row, std::int64_t o, const float (&sums)[4]) {
  float* y = part.y + row * part.y_stride + o;
  if (o + 4 <= part.out && reinterpret_cast<std::uintptr_t>(y) % 16 == 0) {
    Vec4* whole = reinterpret_cast<Vec4*>(y);
    const Vec4 old = Load(whole);
    Store(whole,
          Vec4{AsBits(Fma(part.scale, sums[0], AsFloat(old.x))), AsBits(Fma(part.scale, sums[1], AsFloat(old.y))),
               AsBits(Fma(part.scale, sums[2], AsFloat(old.z))), AsBits(Fma(part.scale, sums[3], AsFloat(old.w)))});
    return;
  }
  LORAMUX_UNROLL
  for (int e = 0; e < 4; ++e)
    if (o + e < part.out) Store(y + e, Fma(part.scale, sums[e], Load(y + e)));
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
    LoraFewShared& shared = Shared<LoraExpandShared>().few;
    const int thread = static_cast<int>(ThreadIndex());
    const std::int64_t o = tile_begin + thread * 4;
    float sums[kRows][4] = {};
    for (std::int32_t begin = 0; begin < part.rank; begin += kLoraFewRanks) {
      const std::int32_t ranks = part.rank - begin < kLoraFewRanks ? part.rank - begin : kLoraFewRanks;
      if (begin > 0) SyncBlock();
      for (std::int32_t j = thread; j < ranks; j += kLoraExpandTile / 4)
        shared.b_rows[j] = Load(part.b_rows + begin + j);
      for (std::int32_t i = thread; i < kLoraFewRanks * kRows; i += kLoraExpandTile / 4)
        shared.v[i % kLoraFewRanks][i / kLoraFewRanks] = LoraV(part, i / kLoraFewRanks, begin + i % kLoraFewRanks);
      SyncBlock();
      if (o + 4 <= part.out)
        Add<kAhead>(shared, ranks, o, 4, sums);
      else if (o < part.out)
        Add<1>(shared, ranks, o, part.out - o, sums);
    }
    if (o >= part.out) return;
    LORAMUX_UNROLL
    for (int row = 0; row < kRows; ++row)
      if (row < part.rows) LoraAddFour(part, row, o, sums[row]);
  }
};

// Many rows: 128 outputs of up to 64 rows. B goes through shared memory as f32; a thread makes 8 outputs of 8 rows.
template <typename W>
struct LoraExpandMany {
  // Brings four outputs of rank begin + j of B to their place; zeros beyond the ranks.
  template <bool kWhole>
  LORAMUX_DEVICE static void LoadPart(LoraManyShared& shared, const LoraExpandPart& part, std::int32_t begin, int j,
                                      int column, std::int64_t tile_begin) {
    const std::int64_t o = tile_begin + column;
    LoraFour weights = {{0, 0, 0, 0}};
    if (begin + j < part.rank) {
      const W* from = static_cast<const W*>(Load(part.b_rows + begin + j)) + o;
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
      if (tile_begin + kLoraManyOutputs <= part.out) {
        LORAMUX_UNROLL
        for (int i = 0; i < kLoraManyRanks / 4; ++i)
          LoadPart<true>(shared, part, begin, i * 4 + warp, lane * 4, tile_begin);
      } else {
        for (int i = 0; i < kLoraManyRanks / 4; ++i)
          LoadPart<false>(shared, part, begin, i * 4 + warp, lane * 4, tile_begin);
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
    LORAMUX_UNROLL
    for (int row = 0; row < 8; ++row) {
      if (first_row + row >= part.rows) break;
      LORAMUX_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float four[4] = {sums[row][half * 4], sums[row][half * 4 + 1], sums[row][half * 4 + 2],
                               sums[row][half * 4 + 3]};
        LoraAddFour(part, first_row + row, tile_begin + half * 64 + column, four);
      }
    }
  }
};

// One block a tile of outputs (x), expand item (y) and slice (z).
template <typename T>
struct LoraExpandKernel {
  using Arguments = LoraExpandArguments;
  static constexpr int kThreads = kLoraExpandTile / 4;
  static constexpr int kMinBlocks = 4;

  LORAMUX_DEVICE static void Run(const Arguments& arguments) {
    const LoraWork& work = arguments.work;
    const std::int32_t index = static_cast<std::int32_t>(BlockY());
    if (index >= Load(work.expand_count)) return;
    const LoraItem* item = work.expand + index;
    const std::int32_t slice = static_cast<std::int32_t>(BlockZ());
    const std::int32_t quarter = Load(&item->part), quarters = Load(&item->parts);
    const std::int64_t tile = static_cast<std::int64_t>(BlockX()) * kLoraExpandTile + quarter * kLoraManyOutputs;
    LoraExpandPart part;
    part.out = arguments.out[slice];
    if (tile >= part.out) return;
    const LoraModule* module = Load(&item->modules) + arguments.module[slice];
    part.rank = Load(&module->rank);
    if (part.rank == 0) return;
    const std::int32_t first_row = Load(&item->first_row);
    part.b_rows = Load(&module->b_rows);
    part.scale = Load(&module->scale);
    part.rows = Load(&item->rows);
    part.partial_stride = static_cast<std::int64_t>(arguments.slices) * work.max_rank;
    part.split_stride = arguments.partial_rows * part.partial_stride;
    part.splits = (arguments.in + kLoraSplit - 1) / kLoraSplit;
    part.partial =
        arguments.partial + first_row * part.partial_stride + static_cast<std::int64_t>(slice) * work.max_rank;
    part.y_stride = arguments.y_stride[slice];
    part.y = arguments.y[slice] + first_row * part.y_stride;
    const DType dtype = Load(&item->dtype);
    if (dtype == DType::kF32)
      RunAs<float>(part, tile, quarters);
    else if (dtype == DType::kBF16)
      RunAs<Bf16>(part, tile, quarters);
    else
      RunAs<Half>(part, tile, quarters);
  }

 private:
  template <typename W>
  LORAMUX_DEVICE static void RunAs(const LoraExpandPart& part, std::int64_t tile, std::int32_t quarters) {
    if (quarters > 1)
      LoraExpandMany<W>::Run(part, tile);
    else if (part.rows == 1)
      LoraExpandFew<W, 1, 16>::Run(part, tile);
    else
      LoraExpandFew<W, kLoraFewRows, 8>::Run(part, tile);
  }
};

}  // namespace loramux::gpu
