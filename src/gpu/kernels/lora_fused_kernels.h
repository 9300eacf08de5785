// The kernels of lora_fused.h. A block adds the LoRA product to its rows and columns of y, in place; then its threads
// meet, and it does what follows with them.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/elementwise_kernels.h"
#include "gpu/kernels/lora_expand_kernel.h"
#include "gpu/kernels/lora_fused.h"
#include "gpu/kernels/norm_rows_kernel.h"
#include "gpu/kernels/qkv_post_kernel.h"

namespace loramux::gpu {

// The block's piece of the batch. No rows: the block has no work.
struct LoraPiece {
  const LoraItem* item;
  bool has_adapter;
  std::int32_t first_row, rows;

  LORAMUX_DEVICE explicit LoraPiece(const LoraWork& work) : item(nullptr), has_adapter(false), first_row(0), rows(0) {
    const auto index = static_cast<std::int32_t>(BlockY());
    if (index >= Load(work.piece_count)) return;
    item = work.pieces + index;
    has_adapter = Load(&item->modules) != nullptr;
    first_row = Load(&item->first_row);
    rows = Load(&item->rows);
  }

  // Adds outputs [begin, end) of the slice to y. All threads come; `begin` is a multiple of 4.
  LORAMUX_DEVICE void Expand(const LoraExpandArguments& arguments, std::int32_t slice, std::int64_t begin,
                             std::int64_t end) const {
    if (!has_adapter) return;
    LoraExpandPart part = LoraExpandPartOf(arguments, item, slice);
    if (part.module == nullptr) return;
    part.out = end;
    const DType dtype = Load(&item->dtype);
    for (std::int64_t tile = begin; tile < end; tile += BlockThreads() * 4) {
      SyncBlock();  // what lies in shared memory has been read
      if (dtype == DType::kF32)
        LoraExpandFewRows<float>(part, tile);
      else if (dtype == DType::kBF16)
        LoraExpandFewRows<Bf16>(part, tile);
      else if (dtype == DType::kI8)
        LoraExpandFewRows<std::int8_t>(part, tile);
      else if (dtype == DType::kF8E4M3)
        LoraExpandFewRows<Float8>(part, tile);
      else
        LoraExpandFewRows<Half>(part, tile);
    }
  }
};

// Grid: tiles of heads of q, then of k, then of v; pieces.
template <typename T>
struct LoraQkvPostKernel {
  using Arguments = LoraQkvPostArguments;
  static constexpr int kThreads = kLoraExpandTile / 4;
  static constexpr int kMinBlocks = 4;

  LORAMUX_DEVICE static void Run(const Arguments& a) {
    const LoraPiece piece(a.expand.work);
    if (piece.rows == 0) return;
    const int head_dim = a.qkv.pages.head_dim, of_tile = a.heads_of_tile;
    int tile = static_cast<int>(BlockX()), first = 0, heads = a.qkv.num_heads;  // heads of q, then of k, then of v
    while (tile >= (heads + of_tile - 1) / of_tile) {
      tile -= (heads + of_tile - 1) / of_tile;
      first += heads;
      heads = a.qkv.pages.num_kv_heads;
    }
    const int begin = tile * of_tile, end = begin + of_tile < heads ? begin + of_tile : heads;
    const float* const y = a.qkv.qkv + static_cast<std::int64_t>(first) * head_dim;
    for (std::int32_t slice = 0; slice < a.expand.slices; ++slice) {
      if (a.expand.y[slice] == y)
        piece.Expand(a.expand, slice, static_cast<std::int64_t>(begin) * head_dim,
                     static_cast<std::int64_t>(end) * head_dim);
    }
    SyncBlock();
    for (std::int32_t row = piece.first_row; row < piece.first_row + piece.rows; ++row)
      for (int head = begin + static_cast<int>(Warp()); head < end; head += kThreads / 32)
        QkvPostKernel<T>::template Head</*kGates=*/false>(a.qkv, row, first + head);
  }
};

// Grid: tiles of columns; pieces.
template <typename T>
struct LoraGateMulKernel {
  using Arguments = LoraGateMulArguments;
  static constexpr int kThreads = kLoraExpandTile / 4;
  static constexpr int kMinBlocks = 4;

  LORAMUX_DEVICE static void Run(const Arguments& a) {
    const LoraPiece piece(a.expand.work);
    if (piece.rows == 0) return;
    const std::int64_t begin = static_cast<std::int64_t>(BlockX()) * kLoraExpandTile, width = a.gate.width;
    const std::int64_t end = begin + kLoraExpandTile < width ? begin + kLoraExpandTile : width;
    for (std::int32_t slice = 0; slice < a.expand.slices; ++slice) piece.Expand(a.expand, slice, begin, end);
    SyncBlock();
    constexpr int kGroupsOfRow = kLoraExpandTile / static_cast<int>(kGroup);
    for (int i = static_cast<int>(ThreadIndex()); i < piece.rows * kGroupsOfRow; i += kThreads) {
      const std::int64_t column = begin + i % kGroupsOfRow * kGroup;
      if (column < end) GateMulKernel<T>::Group(a.gate, piece.first_row + i / kGroupsOfRow, column);
    }
  }
};

// Grid: 1; pieces. A norm needs its whole row, so a block makes all outputs of its rows.
template <typename T>
struct LoraNormRowsKernel {
  using Arguments = LoraNormRowsArguments;
  static constexpr int kThreads = NormRowsKernel<T>::kThreads;
  static constexpr int kMinBlocks = 1;  // there are at most as many blocks as rows

  LORAMUX_DEVICE static void Run(const Arguments& a) {
    const LoraPiece piece(a.expand.work);
    if (piece.rows == 0) return;
    piece.Expand(a.expand, 0, 0, a.norm.width);
    for (std::int32_t row = piece.first_row; row < piece.first_row + piece.rows; ++row) {
      SyncBlock();  // all of the row is there, and the sums of the row before have been read
      NormRowsKernel<T>::Row(a.norm, row);
    }
  }
};

}  // namespace loramux::gpu
