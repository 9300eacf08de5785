// What the attention kernels share: the warps of a block go over a range of positions, tile by tile.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/attention.h"
#include "gpu/kernels/attention_extents.h"
#include "gpu/kernels/attention_pages.h"
#include "gpu/kernels/attention_products.h"
#include "gpu/kernels/attention_softmax.h"

namespace loramux::gpu {

// Shared memory of the warps of a block.
template <typename T, int kDim, int kWarps>
struct alignas(16) AttentionShared {
  using Extents = ExtentsOf<T, kDim>;

  T queries[kWarps * kAttentionWarpRows][Extents::kStride];
  T keys[Extents::kTile][Extents::kStride];
  T values[Extents::kTile][Extents::kStride];
  TileWeights<T, Extents::kTile> weights[kWarps];
};

// Meets the warps that share tiles.
template <int kWarps>
LORAMUX_DEVICE void SyncWarps() {
  if constexpr (kWarps == 1) {
    SyncWarp();
  } else {
    SyncBlock();
  }
}

// Attends to the positions of `range`. Calls chunk_done(whether it was the last) at the end of each chunk, with the
// state of that chunk alone. The queries are in shared memory. `rows`: the lane's two; the warp's see warp_first to
// warp_last at most, and it skips other tiles, which changes no bit. Keys are copied while values are multiplied, and
// the reverse.
template <typename T, int kDim, int kWarps, typename ChunkDone>
LORAMUX_DEVICE void AttendRange(AttentionShared<T, kDim, kWarps>& shared, const PositionRange& range,
                                const QueryRow (&rows)[2], std::int32_t warp_first, std::int32_t warp_last,
                                const ScoreScale& scale, SoftmaxState<kDim>& state, const ChunkDone& chunk_done) {
  using Extents = ExtentsOf<T, kDim>;
  using Products = AttentionProducts<T, kDim>;
  constexpr int kTile = Extents::kTile, kThreads = 32 * kWarps;
  static_assert(kAttentionChunk % kTile == 0);
  const int thread = static_cast<int>(ThreadIndex()), warp = static_cast<int>(Warp());
  std::int32_t tile = range.begin / kTile * kTile;
  state.Clear();
  LoadTile<T, kDim, kThreads>(shared.keys, range, range.keys, tile, thread);
  CopyAsyncCommit();
  CopyAsyncWait<0>();
  SyncWarps<kWarps>();
  for (; tile < range.end; tile += kTile) {
    const bool seen = tile <= warp_last && tile + kTile > warp_first;
    float scores[kTile / 8][4] = {};
    LoadTile<T, kDim, kThreads>(shared.values, range, range.values, tile, thread);
    CopyAsyncCommit();
    if (seen) {
      Products::Scores(shared.queries + warp * kAttentionWarpRows, shared.keys, scores);
      AddScores<kTile, kDim>(scores, rows, tile, scale, state);
      Products::KeepWeights(shared.weights[warp], scores);
    }
    CopyAsyncWait<0>();
    SyncWarps<kWarps>();  // the values are here, and the keys are no longer read
    if (tile + kTile < range.end) {
      LoadTile<T, kDim, kThreads>(shared.keys, range, range.keys, tile + kTile, thread);
      CopyAsyncCommit();
    }
    if (seen) Products::AddValues(shared.weights[warp], scores, shared.values, state.values);
    if ((tile + kTile) % kAttentionChunk == 0 || tile + kTile >= range.end) {
      state.SumLanes();
      chunk_done(tile + kTile >= range.end);
      state.Clear();
    }
    CopyAsyncWait<0>();
    SyncWarps<kWarps>();  // the next keys are here, and the values are no longer read
  }
}

}  // namespace loramux::gpu
