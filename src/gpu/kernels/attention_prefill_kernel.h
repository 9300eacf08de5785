// Attention of the rows of prompts.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/attention.h"
#include "gpu/kernels/attention_tile.h"

namespace loramux::gpu {

// Shared memory of a block.
template <typename T, int kDim>
struct PrefillShared {
  AttentionShared<T, kDim, ExtentsOf<T, kDim>::kWarps> tiles;
  // The merged values of earlier chunks. Each thread has its own, so that they need no barrier.
  float totals[kDim / 2][ExtentsOf<T, kDim>::kThreads];
};

// A block: 16 rows a warp of one tile of queries and one head of keys and values. Its rows are pairs (row of the batch,
// query head that shares the keys), heads fastest, so that short prompts fill tiles too. Grid: tiles, heads of keys and
// values, blocks that a full tile's pairs need.
template <typename T>
struct AttentionPrefillKernel : KernelOfHeadDims<AttentionPrefillKernel<T>, AttentionArguments> {
  using Arguments = AttentionArguments;
  static constexpr int kThreads = 128;
  static constexpr int kMinBlocks = 2;

  template <int kDim>
  LORAMUX_DEVICE static void AtWidth(const Arguments& arguments) {
    const std::int32_t num_tiles = Load(arguments.work.num_tiles);
    if (static_cast<std::int32_t>(BlockX()) < num_tiles) Attend<kDim>(arguments);
  }

 private:
  template <int kDim>
  LORAMUX_DEVICE static void Attend(const Arguments& arguments) {
    using Extents = ExtentsOf<T, kDim>;
    constexpr int kWarps = Extents::kWarps;
    const PrefillTile tile = Load(arguments.work.tiles + BlockX());
    const SequenceOnDevice sequence = Load(arguments.sequences + tile.sequence);
    const int num_kv_heads = arguments.pages.num_kv_heads, group = arguments.num_heads / num_kv_heads;
    const int kv_head = static_cast<int>(BlockY()), first_pair = static_cast<int>(BlockZ()) * Extents::kBlockRows;
    const int lane = static_cast<int>(Lane()), warp = static_cast<int>(Warp());
    const std::int32_t tile_rows =
        sequence.rows - tile.first_row < kPrefillTile ? sequence.rows - tile.first_row : kPrefillTile;
    const int pairs = tile_rows * group;
    if (first_pair >= pairs) return;

    const std::int32_t first_row = sequence.first_row + tile.first_row, position = sequence.position + tile.first_row;
    const auto row_of = [&](int pair) {
      const std::int32_t row = pair / group, last = pair < pairs ? position + row : -1;
      return QueryRow{FirstVisible(position + row, arguments.form.window), last, first_row + row,
                      kv_head * group + pair % group};
    };
    const int warp_pair = first_pair + warp * kAttentionWarpRows;
    const QueryRow rows[2] = {row_of(warp_pair + lane / 4), row_of(warp_pair + lane / 4 + 8)};
    const auto last_of = [&](int pair) { return position + (pair < pairs ? pair : pairs - 1) / group; };

    PrefillShared<T, kDim>& block = Shared<PrefillShared<T, kDim>>();
    AttentionShared<T, kDim, kWarps>& shared = block.tiles;
    float* const totals = &block.totals[0][ThreadIndex()];
    for (int i = 0; i < kAttentionWarpRows; ++i) {
      LoadQuery<T, kDim>(shared.queries[warp * kAttentionWarpRows + i], arguments, row_of(warp_pair + i));
    }
    const PositionRange range = RangeOf<T>(arguments, sequence.first_page, kv_head,
                                           FirstVisible(position + first_pair / group, arguments.form.window),
                                           last_of(first_pair + Extents::kBlockRows - 1) + 1);
    const std::int32_t warp_last = warp_pair < pairs ? last_of(warp_pair + kAttentionWarpRows - 1) : -1;
    const std::int32_t warp_first = FirstVisible(position + warp_pair / group, arguments.form.window);
    SoftmaxState<kDim> state;
    float maximum[2], sum[2];
    bool merged = false;
    AttendRange<T, kDim, kWarps>(shared, range, rows, warp_first, warp_last, ScaleOf(arguments), state, [&](bool done) {
      if (merged) Merge(state, totals, maximum, sum);
      if (done) {
        LORAMUX_UNROLL
        for (int i = 0; i < 2; ++i) {
          if (rows[i].last >= 0) StoreResult(arguments, rows[i], i, state);
        }
        return;
      }
      LORAMUX_UNROLL
      for (int n = 0; n < kDim / 8; ++n) {
        LORAMUX_UNROLL
        for (int c = 0; c < 4; ++c) totals[(n * 4 + c) * Extents::kThreads] = state.values[n][c];
      }
      LORAMUX_UNROLL
      for (int i = 0; i < 2; ++i) {
        maximum[i] = state.maximum[i];
        sum[i] = state.sum[i];
      }
      merged = true;
    });
  }

  // state = the earlier chunks' totals, merged with state.
  template <int kDim>
  LORAMUX_DEVICE static void Merge(SoftmaxState<kDim>& state, const float* totals, float (&maximum)[2],
                                   float (&sum)[2]) {
    LORAMUX_UNROLL
    for (int i = 0; i < 2; ++i) {
      const SoftmaxMerge merge(maximum[i], sum[i], state.maximum[i], state.sum[i]);
      LORAMUX_UNROLL
      for (int n = 0; n < kDim / 8; ++n) {
        LORAMUX_UNROLL
        for (int c = 2 * i; c < 2 * i + 2; ++c) {
          state.values[n][c] = merge(totals[(n * 4 + c) * ExtentsOf<T, kDim>::kThreads], state.values[n][c]);
        }
      }
      state.maximum[i] = maximum[i];
      state.sum[i] = sum[i];
    }
  }
};

}  // namespace loramux::gpu
