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

}  // namespace loramux::gpu
