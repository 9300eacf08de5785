// The kernel of skinny.h. Blocks take units of work by a fixed stride: first rows of w, then the units of the shrink.
#pragma once

#include <cstdint>
#include <type_traits>

#include "gpu/kernel_api.h"
#include "gpu/kernels/lora_shrink_kernel.h"
#include "gpu/kernels/mx4.h"
#include "gpu/kernels/skinny.h"

namespace loramux::gpu {

// What the number of rows of x decides; variants by it. More rows read x more often from the L2 cache than w from
// memory, so a unit then has more rows of w for each row of x. The order of sums is the same in all of them.
inline constexpr int kSkinnyVariants = 4;
struct SkinnyExtent {
  int groups;  // most groups of 8 rows of x
  int tiles;   // tiles of 16 rows of w that a unit has
  int depth;   // steps of k in the ring
  int blocks;  // blocks that a multiprocessor holds: bounds the registers
};
template <typename T>
inline constexpr SkinnyExtent kSkinnyExtents[kSkinnyVariants] = {
    {1, 1, 8, 3}, {2, 1, 6, 3}, {4, 2, 4, 3}, {8, 2, 3, 2}};
// Without tensor cores a thread has the sums of all rows of x in registers.
template <>
inline constexpr SkinnyExtent kSkinnyExtents<float>[kSkinnyVariants] = {
    {1, 1, 8, 3}, {2, 1, 6, 3}, {4, 1, 4, 3}, {8, 1, 3, 2}};

inline constexpr int SkinnyVariant(std::int32_t max_rows) {
  return max_rows <= 8 ? 0 : max_rows <= 16 ? 1 : max_rows <= 32 ? 2 : 3;
}

// The rows of w, [unit * kUnitRows, ...). Rows of w are M (16 a tile), rows of x are N (8 a group); a step of k is 16
// bytes for each lane, 4 lanes a row, 4 warps side by side. As in LoraTileShrink a lane copies what it multiplies, so k
// is permuted alike for both operands, and copies run several steps ahead, into the next unit too. Without tensor cores
// a lane multiplies its two rows of w with all rows of x, at its own quarter of the step. With kMx4, w has 4 bits: a
// lane holds the codes of the next step, and widens them into the ring.
template <typename T, int kVariant, bool kMx4 = false>
struct SkinnyProduct {
  static constexpr SkinnyExtent kExtent = kSkinnyExtents<T>[kVariant];
  static constexpr int kGroups = kExtent.groups, kTiles = kExtent.tiles, kDepth = kExtent.depth;
  static constexpr bool kTensor = sizeof(T) == 2;
  static constexpr int kElements = 16 / static_cast<int>(sizeof(T));  // elements of a lane's copy
  static constexpr int kWarpStep = 4 * kElements;
  static constexpr int kStep = kLoraWarps * kWarpStep;
  static constexpr int kUnitRows = 16 * kTiles;
  static constexpr int kParts = kTensor ? kLoraWarps : 4 * kLoraWarps;  // parts of a sum, added in order at the end
  // Sums of a lane for a group. Tensor cores: of rows of x 2 quarter, + 1; others: of all 8, for the lane's quarter of
  // k.
  static constexpr int kLaneSums = kTensor ? 4 : 16;

  struct Slot {
    Vec4 w[2 * kTiles][32];  // rows lane / 4 and lane / 4 + 8 of each tile
    Vec4 x[kGroups][32];     // row lane / 4 of each group
  };
  struct Memory {
    Slot ring[kLoraWarps][kDepth];
    float sums[2][kParts][8][kUnitRows + 1];  // + 1: against bank conflicts
  };

  const SkinnyMatMulLoraArguments& arguments;
  Memory& shared;
  const int warp, lane, pair_row, quarter;
  const std::int32_t rows;
  const int groups;
  const std::int64_t k, units;
  const T* const x;                  // the lane's row in the first group
  const std::uint8_t* const scales;  // MXFP4's scales
  std::int64_t fetch_unit, fetch_at;
  int fetch_slot = 0, use_slot = 0, exchange = 0;
  Mx4Codes<kElements> codes[kMx4 ? 2 * kTiles : 1];  // codes of the rows and columns that Fetch brings next
  float sums[kTiles][kGroups][kLaneSums] = {};

  LORAMUX_DEVICE SkinnyProduct(const SkinnyMatMulLoraArguments& a, std::int32_t num_rows,
                               const std::uint8_t* mx4_scales = nullptr)
      : arguments(a),
        shared(Shared<Memory>()),
        warp(static_cast<int>(Warp())),
        lane(static_cast<int>(Lane())),
        pair_row(lane / 4),
        quarter(lane % 4),
        rows(num_rows),
        groups((num_rows + 7) / 8),
        k(a.lora.in),
        units(Units(a.n)),
        x(static_cast<const T*>(a.lora.x) + pair_row * a.lora.x_stride),
        scales(mx4_scales),
        fetch_unit(BlockX()),
        fetch_at(FirstAt()) {
    if constexpr (kMx4) LoadCodes();
  }

  LORAMUX_DEVICE static std::int64_t Units(std::int64_t n) { return (n + kUnitRows - 1) / kUnitRows; }
  LORAMUX_DEVICE std::int64_t FirstAt() const { return warp * kWarpStep + quarter * kElements; }
  LORAMUX_DEVICE std::int64_t Steps() const { return (k + kStep - 1) / kStep; }

  // Starts to copy the next step, of the block's next unit after a unit's last.
  LORAMUX_DEVICE void Fetch() {
    if (fetch_unit < units) {
      Slot& slot = shared.ring[warp][fetch_slot];
      const bool there = fetch_at < k;
      if constexpr (kMx4) {
        LORAMUX_UNROLL
        for (int half = 0; half < 2 * kTiles; ++half) slot.w[half][lane] = codes[half].template Widen<T>();
      } else {
        const T* w = static_cast<const T*>(arguments.w);
        LORAMUX_UNROLL
        for (int half = 0; half < 2 * kTiles; ++half) {
          const std::int64_t row = fetch_unit * kUnitRows + half * 8 + pair_row;
          const bool valid = there && row < arguments.n;
          CopyAsync16(&slot.w[half][lane], valid ? w + row * k + fetch_at : w, valid);
        }
      }
      LORAMUX_UNROLL
      for (int group = 0; group < kGroups; ++group) {
        if (group >= groups) break;
        const bool valid = there && group * 8 + pair_row < rows;
        CopyAsync16(&slot.x[group][lane], valid ? x + group * 8 * arguments.lora.x_stride + fetch_at : x, valid);
      }
      fetch_at += kStep;
      if (fetch_at - FirstAt() >= k) {
        fetch_at = FirstAt();
        fetch_unit += GridX();
      }
      if constexpr (kMx4) LoadCodes();
    }
    fetch_slot = fetch_slot + 1 == kDepth ? 0 : fetch_slot + 1;
    CopyAsyncCommit();
  }

  // The four lanes of a row share a group of MXFP4, or two of them without tensor cores.
  LORAMUX_DEVICE void LoadCodes() {
    const auto* from = static_cast<const std::uint8_t*>(arguments.w);
    LORAMUX_UNROLL
    for (int half = 0; half < 2 * kTiles; ++half) {
      const std::int64_t row = fetch_unit * kUnitRows + half * 8 + pair_row;
      const bool valid = fetch_unit < units && fetch_at < k && row < arguments.n;
      codes[half] = {};
      if (valid) codes[half].Load(from + row * (k / 2) + fetch_at / 2);
      std::uint32_t exponent = valid && quarter == 0 ? LoadOnce(scales + (row * k + fetch_at) / kMx4Group) : 0;
      exponent = Shuffle(exponent, static_cast<std::uint32_t>(lane - quarter));
      codes[half].exponent = exponent;
    }
  }

  LORAMUX_DEVICE void MultiplyStep(const Slot& slot) {
    if constexpr (kTensor) {
      LORAMUX_UNROLL
      for (int group = 0; group < kGroups; ++group) {
        if (group >= groups) break;
        const Vec4 right = slot.x[group][lane];
        LORAMUX_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) {
          const Vec4 top = slot.w[2 * tile][lane], low = slot.w[2 * tile + 1][lane];
          MultiplyTile<T>(sums[tile][group], top.x, low.x, top.y, low.y, right.x, right.y);
          MultiplyTile<T>(sums[tile][group], top.z, low.z, top.w, low.w, right.z, right.w);
        }
      }
    } else {
      const Vec4 w[2] = {slot.w[0][lane], slot.w[1][lane]};
      LORAMUX_UNROLL
      for (int group = 0; group < kGroups; ++group) {
        if (group >= groups) break;
        LORAMUX_UNROLL
        for (int row = 0; row < 8; ++row) {
          const Vec4 right = slot.x[group][row * 4 + quarter];
          LORAMUX_UNROLL
          for (int half = 0; half < 2; ++half) {
            float& sum = sums[0][group][half * 8 + row];
            sum = Fma(AsFloat(w[half].x), AsFloat(right.x), sum);
            sum = Fma(AsFloat(w[half].y), AsFloat(right.y), sum);
            sum = Fma(AsFloat(w[half].z), AsFloat(right.z), sum);
            sum = Fma(AsFloat(w[half].w), AsFloat(right.w), sum);
          }
        }
      }
    }
  }

  // Brings a group's sums of this lane to where the block adds them, and forgets them.
  LORAMUX_DEVICE void PutSums(int group, float (&to)[kParts][8][kUnitRows + 1]) {
    LORAMUX_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      float(&mine)[kLaneSums] = sums[tile][group];
      LORAMUX_UNROLL
      for (int i = 0; i < kLaneSums; ++i) {
        const int part = kTensor ? warp : warp * 4 + quarter;
        const int row = kTensor ? 2 * quarter + i % 2 : i % 8;
        const int half = kTensor ? i / 2 : i / 8;
        to[part][row][tile * 16 + half * 8 + pair_row] = mine[i];
        mine[i] = 0;
      }
    }
  }

  // Adds the parts of the unit's sums in their order and stores them. Two buffers, so that one barrier a group
  // suffices: no thread is more than one ahead.
  LORAMUX_DEVICE void StoreSums(std::int64_t unit) {
    LORAMUX_UNROLL
    for (int group = 0; group < kGroups; ++group) {
      if (group >= groups) break;
      float(&parts)[kParts][8][kUnitRows + 1] = shared.sums[exchange];
      exchange ^= 1;
      PutSums(group, parts);
      SyncBlock();
      for (int i = static_cast<int>(ThreadIndex()); i < 8 * kUnitRows; i += 32 * kLoraWarps) {
        const int row = i / kUnitRows, column = i % kUnitRows;
        const std::int64_t output = unit * kUnitRows + column;
        if (group * 8 + row >= rows || output >= arguments.n) continue;
        float sum = parts[0][row][column];
        LORAMUX_UNROLL
        for (int part = 1; part < kParts; ++part) sum += parts[part][row][column];
        if (arguments.bias != nullptr) sum += Load(arguments.bias + output);
        Store(arguments.y + (group * 8 + row) * arguments.y_stride + output, sum);
      }
    }
  }

  LORAMUX_DEVICE void Run() {
    for (int i = 0; i < kDepth - 1; ++i) Fetch();
    const std::int64_t steps = Steps();
    for (std::int64_t unit = BlockX(); unit < units; unit += GridX()) {
      for (std::int64_t step = 0; step < steps; ++step) {
        CopyAsyncWait<kDepth - 2>();
        // The other lanes' copies, where a lane multiplies them; and all have read the slot that is filled next.
        if constexpr (!kTensor) SyncWarp();
        Fetch();
        MultiplyStep(shared.ring[warp][use_slot]);
        use_slot = use_slot + 1 == kDepth ? 0 : use_slot + 1;
      }
      StoreSums(unit);
    }
    CopyAsyncWait<0>();
  }
};

template <typename T>
struct SkinnyMatMulLoraKernel {
  using Arguments = SkinnyMatMulLoraArguments;
  static constexpr int kThreads = 32 * kLoraWarps;
  static constexpr int kMinBlocks = 2;
  static constexpr int kVariants = kSkinnyVariants;
  static constexpr int MinBlocks(int variant) { return kSkinnyExtents<T>[variant].blocks; }
  static int VariantOf(const Arguments& arguments) { return SkinnyVariant(arguments.max_rows); }

  // Shared memory; the shrink's units lie where the product's ring was.
  template <int kVariant>
  static constexpr std::size_t SharedBytes() {
    constexpr std::size_t product = sizeof(typename SkinnyProduct<T, kVariant>::Memory);
    constexpr std::size_t shrink = sizeof(T) == 2 ? sizeof(LoraTileShared) : sizeof(LoraPlainShared);
    return product > shrink ? product : shrink;
  }

  LORAMUX_DEVICE static void Run(const Arguments& arguments) {
    switch (SkinnyVariant(arguments.max_rows)) {
      case 0:
        return RunVariant<0>(arguments);
      case 1:
        return RunVariant<1>(arguments);
      case 2:
        return RunVariant<2>(arguments);
      default:
        return RunVariant<3>(arguments);
    }
  }

  template <int kVariant>
  LORAMUX_DEVICE static void RunVariant(const Arguments& arguments) {
    using Product = SkinnyProduct<T, kVariant>;
    const std::int32_t rows = Load(arguments.rows);
    if (rows == 0) return;
    const std::int64_t units = Product::Units(arguments.n);
    if (BlockX() < units) Product(arguments, rows).Run();
    RunShrink(arguments, units);
  }

 private:
  // The block's units beyond the first `before`.
  LORAMUX_DEVICE static void RunShrink(const Arguments& arguments, std::int64_t before) {
    const LoraShrinkArguments& lora = arguments.lora;
    if (lora.slices == 0) return;
    const std::int64_t items = Load(lora.work.shrink_count);
    const std::int64_t splits = (lora.in + kLoraSplit - 1) / kLoraSplit;
    const std::int64_t count = items * splits * lora.slices;
    const std::int64_t rounds = before <= BlockX() ? 0 : (before - BlockX() + GridX() - 1) / GridX();
    for (std::int64_t unit = BlockX() + rounds * GridX() - before; unit < count; unit += GridX()) {
      SyncBlock();  // what lay in shared memory has been read
      const std::int64_t rest = unit / items;
      LoraShrinkUnit<T>(lora, static_cast<std::int32_t>(unit % items), rest % splits,
                        static_cast<std::int32_t>(rest / splits));
    }
  }
};

}  // namespace loramux::gpu
