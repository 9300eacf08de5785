// The products of skinny.h. Blocks take units of work by a fixed stride.
#pragma once

#include <cstdint>
#include <type_traits>

#include "gpu/kernel_api.h"
#include "gpu/kernels/lora_shrink_kernel.h"
#include "gpu/kernels/packed_kernel.h"
#include "gpu/kernels/skinny.h"
#include "gpu/kernels/skinny_extents.h"

namespace loramux::gpu {

// The rows of w, [unit * kUnitRows, ...). Rows of w are M (16 a tile), rows of x are N (8 a group); a step of k is 16
// bytes for each lane, 4 lanes a row, 4 warps side by side. As in LoraTileShrink a lane copies what it multiplies, so k
// is permuted alike for both operands, and copies run several steps ahead, into the next unit too. Without tensor cores
// a lane multiplies its two rows of w with all rows of x, at its own quarter of the step. With kFormat, w is a
// PackedForm: the ring has its bytes, and a lane widens them where it multiplies; without tensor cores it widens them
// into the ring.
template <typename T, int kVariant, WeightFormat kFormat = WeightFormat::kF32>
struct SkinnyProduct {
  static constexpr SkinnyExtent kExtent = kSkinnyExtents<T>[kVariant];
  static constexpr int kBits = kFormat == WeightFormat::kF32 ? 0 : CodeBits(kFormat);
  static constexpr bool kTensor = sizeof(T) == 2, kPackedRing = kTensor && kBits > 0;
  static constexpr int kGroups = kExtent.groups, kTiles = kExtent.tiles;
  static constexpr int kSteps = kPackedRing ? 2 : 1;  // steps of k that a slot has
  static constexpr int kChunks = kBits == 8 ? 2 : 1;  // chunks of a tile that a packed slot has
  static constexpr int kDepth = kPackedRing ? kPackedDepths[kBits / 8][kVariant] : kExtent.depth;
  static constexpr int kElements = 16 / static_cast<int>(sizeof(T));  // elements of a lane's copy
  static constexpr int kWarpStep = 4 * kElements;
  static constexpr int kStep = kLoraWarps * kWarpStep;
  static constexpr int kUnitRows = 16 * kTiles;
  static constexpr int kParts = kTensor ? kLoraWarps : 4 * kLoraWarps;  // parts of a sum, added in order at the end
  // Sums of a lane for a group. Tensor cores: of rows of x 2 quarter, + 1; others: of all 8, for its quarter of k.
  static constexpr int kLaneSums = kTensor ? 4 : 16;

  struct FloatSlot {
    Vec4 w[2 * kTiles][32];  // rows lane / 4 and lane / 4 + 8 of each tile
    Vec4 x[1][kGroups][32];  // row lane / 4 of each group
  };
  struct PackedSlot {
    Vec4 w[kTiles][kChunks][32];
    Vec4 scales[kTiles][kSteps][4];  // those of its 16 rows
    Vec4 x[kSteps][kGroups][32];
  };
  using Slot = std::conditional_t<kPackedRing, PackedSlot, FloatSlot>;
  struct Memory {
    Slot ring[kLoraWarps][kDepth];
    float sums[2][kParts][8][kUnitRows + 1];  // + 1: against bank conflicts
  };

  const SkinnyMatMulLoraArguments& arguments;
  Memory& shared;
  const int warp, lane, pair_row, quarter;
  const std::int32_t rows;
  const int groups;
  const std::int32_t k;
  const std::int64_t units;
  const T* const x;  // the lane's row in the first group
  // What Fetch reads next: the unit and the lane's first input; where its row of w, or its part of a chunk, is; where
  // scales are that it brings; the rows that the unit has from the lane's on.
  std::int64_t fetch_unit;
  std::int32_t fetch_at, fetch_rows;
  const std::uint8_t *fetch_w = nullptr, *fetch_scales = nullptr;
  int fetch_slot = 0, use_slot = 0, exchange = 0;
  float sums[kTiles][kGroups][kLaneSums] = {};

  LORAMUX_DEVICE SkinnyProduct(const SkinnyMatMulLoraArguments& a, std::int32_t num_rows)
      : arguments(a),
        shared(Shared<Memory>()),
        warp(static_cast<int>(Warp())),
        lane(static_cast<int>(Lane())),
        pair_row(lane / 4),
        quarter(lane % 4),
        rows(num_rows),
        groups((num_rows + 7) / 8),
        k(static_cast<std::int32_t>(a.lora.in)),
        units(Units(a.n)),
        x(static_cast<const T*>(a.lora.x) + pair_row * a.lora.x_stride),
        fetch_unit(BlockX()) {
    BeginUnit();
  }

  LORAMUX_DEVICE static std::int64_t Units(std::int64_t n) { return (n + kUnitRows - 1) / kUnitRows; }
  static constexpr std::int64_t kWarpChunks = kLoraWarps * kPackedChunkBytes;  // from a chunk of a warp to its next
  LORAMUX_DEVICE std::int32_t FirstAt() const { return warp * kWarpStep + quarter * kElements; }

  // The lane's part of the scales of a slot: those of a step and a tile are one, two or four copies.
  static constexpr int kScaleCopies = kPackedRing ? 1 << ScaleShift(kFormat) : 1;
  LORAMUX_DEVICE int ScaleTile() const { return lane / kScaleCopies / kSteps; }
  LORAMUX_DEVICE int ScaleStep() const { return lane / kScaleCopies % kSteps; }

  LORAMUX_DEVICE void BeginUnit() {
    const std::int64_t left = arguments.n - fetch_unit * kUnitRows;
    fetch_rows = (left < kUnitRows ? static_cast<std::int32_t>(left) : kUnitRows) - pair_row;
    fetch_at = FirstAt();
    const auto* const w = static_cast<const std::uint8_t*>(arguments.w);
    if constexpr (kPackedRing) {
      const std::int64_t tile = fetch_unit * kTiles;
      fetch_w = w + (tile * PackedChunks(kFormat, k) + warp) * kPackedChunkBytes + lane * 16;
      fetch_scales = arguments.form.scales + lane % kScaleCopies * 16 +
                     (tile + ScaleTile()) * PackedGroups(arguments.form.group_shift, k) * (16 * kScaleCopies);
    } else if constexpr (kBits == 0) {
      fetch_w = w + ((fetch_unit * kUnitRows + pair_row) * k + fetch_at) * static_cast<std::int64_t>(sizeof(T));
    }
  }

  // Starts to copy the next slot, of the block's next unit after a unit's last.
  LORAMUX_DEVICE void Fetch() {
    if (fetch_unit < units) {
      Slot& slot = shared.ring[warp][fetch_slot];
      if constexpr (kPackedRing)
        FetchChunks(slot);
      else
        FetchRows(slot);
      LORAMUX_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        const T* from = x + fetch_at + step * kStep;
        LORAMUX_UNROLL
        for (int group = 0; group < kGroups; ++group) {
          if (group >= groups) break;
          const bool valid = fetch_at + step * kStep < k && group * 8 + pair_row < rows;
          CopyAsync16(&slot.x[step][group][lane], valid ? from : x, valid);
          from += 8 * arguments.lora.x_stride;
        }
      }
      fetch_at += kSteps * kStep;
      if constexpr (kPackedRing || kBits == 0)
        fetch_w += kPackedRing ? kChunks * kWarpChunks : kStep * static_cast<int>(sizeof(T));
      if (fetch_at - FirstAt() >= k) {
        fetch_unit += GridX();
        BeginUnit();
      }
    }
    fetch_slot = fetch_slot + 1 == kDepth ? 0 : fetch_slot + 1;
    CopyAsyncCommit();
  }

  // Rows of floats, or what they are widened to.
  LORAMUX_DEVICE void FetchRows(FloatSlot& slot) {
    const std::uint8_t* from = fetch_w;
    LORAMUX_UNROLL
    for (int half = 0; half < 2 * kTiles; ++half) {
      const bool valid = fetch_at < k && half * 8 < fetch_rows;
      if constexpr (kBits > 0) {
        const std::int64_t row = fetch_unit * kUnitRows + half * 8 + pair_row;
        slot.w[half][lane] =
            valid ? LoadFour(kFormat, arguments.form, arguments.w, k, row, fetch_at) : Vec4{0, 0, 0, 0};
      } else {
        CopyAsync16(&slot.w[half][lane], valid ? from : arguments.w, valid);
        from += 8 * static_cast<std::int64_t>(k) * static_cast<std::int64_t>(sizeof(T));
      }
    }
  }

  LORAMUX_DEVICE void FetchChunks(PackedSlot& slot) {
    const std::int32_t at = fetch_at - quarter * kElements;  // the warp's first input
    const std::int32_t tile_rows = fetch_rows + pair_row;
    const std::uint8_t* from = fetch_w;
    LORAMUX_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      LORAMUX_UNROLL
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        const bool valid = at + chunk * kStep < k && tile * 16 < tile_rows;
        CopyAsync16(&slot.w[tile][chunk][lane], valid ? from + chunk * kWarpChunks : arguments.w, valid);
      }
      from += PackedChunks(kFormat, k) * kPackedChunkBytes;
    }
    if (ScaleTile() >= kTiles) return;
    const std::int32_t column = at + ScaleStep() * kStep;
    const bool valid = column < k && ScaleTile() * 16 < tile_rows;
    const std::int32_t group = column >> arguments.form.group_shift;
    CopyAsync16(&slot.scales[ScaleTile()][ScaleStep()][lane % kScaleCopies],
                valid ? fetch_scales + group * (16 * kScaleCopies) : arguments.form.scales, valid);
  }

  // Weights of a row of a tile, as the tensor cores take them.
  LORAMUX_DEVICE static Vec4 Widen(const Vec4 (&scales)[4], int row, std::uint32_t low, std::uint32_t high) {
    return WidenAndPack<T, kFormat>(SharedScale<kFormat>(scales, row), low, high);
  }

  LORAMUX_DEVICE void MultiplyChunks(const PackedSlot& slot, std::int32_t first) {
    LORAMUX_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      if (first + step * kStep >= k) break;
      LORAMUX_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        const Vec4 bits = slot.w[tile][step % kChunks][lane];
        const bool second = kBits == 4 && step == 1;
        const Vec4(&scales)[4] = slot.scales[tile][step];
        const Vec4 top = Widen(scales, pair_row, second ? bits.z : bits.x, bits.y);
        const Vec4 low = Widen(scales, pair_row + 8, kBits == 8 ? bits.z : second ? bits.w : bits.y, bits.w);
        LORAMUX_UNROLL
        for (int group = 0; group < kGroups; ++group) {
          if (group >= groups) break;
          const Vec4 right = slot.x[step][group][lane];
          MultiplyTile<T>(sums[tile][group], top.x, low.x, top.y, low.y, right.x, right.y);
          MultiplyTile<T>(sums[tile][group], top.z, low.z, top.w, low.w, right.z, right.w);
        }
      }
    }
  }

  LORAMUX_DEVICE void MultiplyRows(const FloatSlot& slot) {
    if constexpr (kTensor) {
      LORAMUX_UNROLL
      for (int group = 0; group < kGroups; ++group) {
        if (group >= groups) break;
        const Vec4 right = slot.x[0][group][lane];
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
          const Vec4 right = slot.x[0][group][row * 4 + quarter];
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
    const int part = kTensor ? warp : warp * 4 + quarter;
    LORAMUX_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      float(&mine)[kLaneSums] = sums[tile][group];
      LORAMUX_UNROLL
      for (int i = 0; i < kLaneSums; ++i) {
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
    const std::int32_t slots = (k + kSteps * kStep - 1) / (kSteps * kStep);
    for (std::int64_t unit = BlockX(); unit < units; unit += GridX()) {
      for (std::int32_t at = 0; at < slots; ++at) {
        CopyAsyncWait<kDepth - 2>();
        // The other lanes' copies, where a lane multiplies them; and all have read the slot that is filled next.
        if constexpr (!kTensor || kPackedRing) SyncWarp();
        Fetch();
        if constexpr (kPackedRing)
          MultiplyChunks(shared.ring[warp][use_slot], at * kSteps * kStep);
        else
          MultiplyRows(shared.ring[warp][use_slot]);
        use_slot = use_slot + 1 == kDepth ? 0 : use_slot + 1;
      }
      StoreSums(unit);
    }
    CopyAsyncWait<0>();
  }
};

}  // namespace loramux::gpu
