// The first kernel of the batched LoRA product, v = A x; lora.h says what it computes. A block reads 16 rows of A over
// one split of k. The result of a row depends on its own values, `in` and the types alone: k is divided among the lanes
// in the same way whatever the number of rows, and the parts are summed in the order of the warps, and within a warp as
// the tensor core or SumWarp sums them.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/lora.h"
#include "gpu/kernels/lora_loads.h"

namespace loramux::gpu {

// The work of a block of the shrink kernel.
struct LoraShrinkPart {
  const void* const* a_rows;     // rows of A from the first rank on
  std::int32_t ranks;            // 1 ... kLoraRankTile
  std::int32_t first_row, rows;  // rows of the batch
  std::int64_t begin, end;       // elements of x
  float* partial;                // sum of the first row and the first rank
  std::int64_t partial_stride;   // floats between rows
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

// One lane's work; all of its members are in registers.
template <typename T>
struct LoraTileShrink {
  static constexpr Vec4 kNone = {0, 0, 0, 0};

  const LoraShrinkPart& part;
  LoraTileShared& shared;
  const int warp, lane;
  const int pair_row, quarter;         // the lane's rank (and the one 8 above), or row of x; its 8 of 32 elements
  const int groups;                    // groups of 8 rows of x
  const std::int64_t tail;             // elements beyond a multiple of 8
  const T *top_row, *low_row, *x_row;  // ranks pair_row and pair_row + 8, and the first row of x
  const std::int64_t x_stride;
  int fetched = 0, fetch_step = 0, fetch_group = 0;
  float sums[kLoraRowGroups][4] = {};

  LORAMUX_DEVICE LoraTileShrink(const LoraShrinkPart& work, const T* x, std::int64_t stride)
      : part(work),
        shared(Shared<LoraTileShared>()),
        warp(static_cast<int>(Warp())),
        lane(static_cast<int>(Lane())),
        pair_row(lane / 4),
        quarter(lane % 4),
        groups((part.rows + 7) / 8),
        tail(part.end % 8),
        top_row(static_cast<const T*>(Load(part.a_rows + (pair_row < part.ranks ? pair_row : 0)))),
        low_row(static_cast<const T*>(Load(part.a_rows + (pair_row + 8 < part.ranks ? pair_row + 8 : 0)))),
        x_row(x + part.first_row * stride),
        x_stride(stride) {}

  LORAMUX_DEVICE std::int64_t WholeEnd() const { return part.end - tail; }
  LORAMUX_DEVICE int Steps() const { return static_cast<int>((WholeEnd() - part.begin + kLoraStep - 1) / kLoraStep); }

  // Starts to copy what the next pair of instructions needs: x of one group of rows, and before the first group, A.
  LORAMUX_DEVICE void Fetch() {
    if (fetch_step < Steps()) {
      Vec4(&slot)[3][32] = shared.ring[warp][fetched % kLoraRing];
      const std::int64_t at = part.begin + warp * 32 + quarter * 8 + fetch_step * kLoraStep;
      const bool there = at < WholeEnd();
      if (fetch_group == 0) {
        CopyAsync16(&slot[0][lane], top_row + (there ? at : 0), there && pair_row < part.ranks);
        CopyAsync16(&slot[1][lane], low_row + (there ? at : 0), there && pair_row + 8 < part.ranks);
      }
      const int row = fetch_group * 8 + pair_row;
      const bool valid = there && row < part.rows;
      CopyAsync16(&slot[2][lane], valid ? x_row + row * x_stride + at : x_row, valid);
      if (++fetch_group == groups) {
        fetch_group = 0;
        ++fetch_step;
      }
    }
    ++fetched;
    CopyAsyncCommit();
  }

  LORAMUX_DEVICE static void Multiply(float (&sum)[4], const Vec4& top, const Vec4& low, const Vec4& x) {
    MultiplyTile<T>(sum, top.x, low.x, top.y, low.y, x.x, x.y);
    MultiplyTile<T>(sum, top.z, low.z, top.w, low.w, x.z, x.w);
  }

  LORAMUX_DEVICE void MultiplyWhole() {
    for (int i = 0; i < kLoraRing - 1; ++i) Fetch();
    const int steps = Steps();
    int used = 0;
    for (int step = 0; step < steps; ++step) {
      Vec4 top = kNone, low = kNone;
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
        Multiply(sums[group], top, low, slot[2][lane]);
        Fetch();
      }
    }
    CopyAsyncWait<0>();
  }

  // The `tail` elements at `from`, then zeros.
  LORAMUX_DEVICE Vec4 LoadTail(const T* from) const {
    std::uint32_t words[4] = {0, 0, 0, 0};
    LORAMUX_UNROLL
    for (int i = 0; i < 7; ++i) {
      if (i >= tail) break;
      const std::uint32_t bits = Load(reinterpret_cast<const std::uint16_t*>(from + i));
      words[i / 2] |= bits << (16 * (i % 2));
    }
    return Vec4{words[0], words[1], words[2], words[3]};
  }

  // The last elements, by the first warp. The others' elements of these instructions are zeros.
  LORAMUX_DEVICE void MultiplyTail() {
    const bool mine = quarter == 0;
    const Vec4 top = mine && pair_row < part.ranks ? LoadTail(top_row + WholeEnd()) : kNone;
    const Vec4 low = mine && pair_row + 8 < part.ranks ? LoadTail(low_row + WholeEnd()) : kNone;
    for (int group = 0; group < groups; ++group) {  // a loop of its own, so that there is one copy of the loads
      const int row = group * 8 + pair_row;
      shared.ring[0][group][2][lane] = mine && row < part.rows ? LoadTail(x_row + row * x_stride + WholeEnd()) : kNone;
    }
    LORAMUX_UNROLL
    for (int group = 0; group < kLoraRowGroups; ++group) {
      if (group >= groups) break;
      Multiply(sums[group], top, low, shared.ring[0][group][2][lane]);
    }
  }

  // Adds the warps' sums in their order. Every thread of the block calls it.
  LORAMUX_DEVICE void StoreSums() {
    SyncBlock();  // the sums lie where the rings were
    LORAMUX_UNROLL
    for (int group = 0; group < kLoraRowGroups; ++group) {
      if (group >= groups) break;
      float(&rows)[kLoraItemRows][kLoraRankTile + 1] = shared.sums[warp];
      rows[group * 8 + 2 * quarter][pair_row] = sums[group][0];
      rows[group * 8 + 2 * quarter + 1][pair_row] = sums[group][1];
      rows[group * 8 + 2 * quarter][pair_row + 8] = sums[group][2];
      rows[group * 8 + 2 * quarter + 1][pair_row + 8] = sums[group][3];
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

  LORAMUX_DEVICE static void Run(const LoraShrinkPart& part, const T* x, std::int64_t x_stride) {
    LoraTileShrink lane(part, x, x_stride);
    lane.MultiplyWhole();
    if (lane.tail > 0 && lane.warp == 0) lane.MultiplyTail();
    lane.StoreSums();
  }
};

// The shrink of any pair of types: x of X, rows of A of W. A warp has 4 of the ranks. It holds 512 elements of each in
// registers, 16 a lane, and passes over the rows; the sums over the lanes gather in shared memory, where only one lane
// touches each.
inline constexpr int kLoraLoads = 4;  // loads of 4 elements
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

// One unit of the shrink: the item `index`, a split of k and a slice. Every thread of a block of 128 calls it. Nothing
// to do where there is no such item, or no such rank of the item's module.
template <typename T>
LORAMUX_DEVICE void LoraShrinkUnit(const LoraShrinkArguments& arguments, std::int32_t index, std::int64_t split,
                                   std::int32_t slice) {
  const LoraWork& work = arguments.work;
  if (index >= Load(work.shrink_count)) return;
  const LoraItem* item = work.shrink + index;
  if (!LoraIsOnDevice(item)) return;
  const LoraModule* module = Load(&item->modules) + arguments.module[slice];
  const std::int32_t first_rank = Load(&item->first_rank);
  const std::int32_t rank = Load(&module->rank);
  if (first_rank >= rank) return;
  LoraShrinkPart part;
  part.a_rows = Load(&module->a_rows) + first_rank;
  part.ranks = rank - first_rank < kLoraRankTile ? rank - first_rank : kLoraRankTile;
  part.first_row = Load(&item->first_row);
  part.rows = Load(&item->rows);
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
  else if (dtype == DType::kI8)
    LoraPlainShrink<T, std::int8_t>::Run(part, x, arguments.x_stride);
  else if (dtype == DType::kF8E4M3)
    LoraPlainShrink<T, Float8>::Run(part, x, arguments.x_stride);
  else
    LoraPlainShrink<T, Half>::Run(part, x, arguments.x_stride);
}

// One block a shrink item (x), split of k (y) and slice (z).
template <typename T>
struct LoraShrinkKernel {
  using Arguments = LoraShrinkArguments;
  static constexpr int kThreads = 32 * kLoraWarps;
  static constexpr int kMinBlocks = 4;

  LORAMUX_DEVICE static void Run(const Arguments& arguments) {
    LoraShrinkUnit<T>(arguments, static_cast<std::int32_t>(BlockX()), BlockY(), static_cast<std::int32_t>(BlockZ()));
  }
};

}  // namespace loramux::gpu
