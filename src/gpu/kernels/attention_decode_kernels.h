// Attention of single rows, split over chunks of positions, and the merge of the chunks.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/attention.h"
#include "gpu/kernels/attention_tile.h"

namespace loramux::gpu {

// Floats of a chunk's result for one head: head_dim values, then (16-byte aligned) maximum and sum.
LORAMUX_DEVICE std::int32_t PartialMaximumAt(std::int32_t head_dim) { return (head_dim + 3) / 4 * 4; }
LORAMUX_DEVICE std::int32_t PartialStride(std::int32_t head_dim) { return PartialMaximumAt(head_dim) + 4; }

// The chunks of a row that a layer reads.
struct ChunksOfRow {
  std::int32_t first, last;

  LORAMUX_DEVICE ChunksOfRow(std::int32_t position, std::int32_t window)
      : first(FirstVisible(position, window) / kAttentionChunk), last(position / kAttentionChunk) {}
  // Then there is nothing to merge, and the decode kernel writes the result.
  LORAMUX_DEVICE bool Single() const { return first == last; }
};

// One warp: one chunk of one row, for up to 16 query heads that share a head of keys and values. Grid: chunks, heads of
// keys and values times parts of 16 of their query heads.
template <typename T>
struct AttentionDecodeKernel : KernelOfHeadDims<AttentionDecodeKernel<T>, AttentionArguments> {
  using Arguments = AttentionArguments;
  static constexpr int kThreads = 32;
  static constexpr int kMinBlocks = 8;

  template <int kDim>
  LORAMUX_DEVICE static void AtWidth(const Arguments& arguments) {
    const std::int32_t num_chunks = Load(arguments.work.num_chunks);
    for (auto item = static_cast<std::int32_t>(BlockX()); item < num_chunks;
         item += static_cast<std::int32_t>(GridX())) {
      Attend<kDim>(arguments, item);
    }
  }

 private:
  template <int kDim>
  LORAMUX_DEVICE static void Attend(const Arguments& arguments, std::int32_t item) {
    const DecodeChunk chunk = Load(arguments.work.chunks + item);
    const std::int32_t position = Load(arguments.row_position + chunk.row);
    const ChunksOfRow chunks(position, arguments.form.window);
    if (chunk.chunk < chunks.first || chunk.chunk > chunks.last) return;

    const int num_kv_heads = arguments.pages.num_kv_heads, group = arguments.num_heads / num_kv_heads;
    const int kv_head = static_cast<int>(BlockY()) % num_kv_heads;
    const int first_in_group = static_cast<int>(BlockY()) / num_kv_heads * kAttentionWarpRows;
    const int heads = group - first_in_group < kAttentionWarpRows ? group - first_in_group : kAttentionWarpRows;
    const std::int32_t first_visible = FirstVisible(position, arguments.form.window);
    const auto row_of = [&](int i) {
      const std::int32_t last = i < heads ? position : -1;
      return QueryRow{first_visible, last, chunk.row, kv_head * group + first_in_group + i};
    };
    const int lane = static_cast<int>(Lane());
    const QueryRow rows[2] = {row_of(lane / 4), row_of(lane / 4 + 8)};

    using Shared1 = AttentionShared<T, kDim, 1>;
    Shared1& shared = Shared<Shared1>();
    for (int i = 0; i < kAttentionWarpRows; ++i) LoadQuery<T, kDim>(shared.queries[i], arguments, row_of(i));

    const std::int32_t sequence = Load(arguments.row_sequence + chunk.row);
    const std::int32_t first_page = Load(&arguments.sequences[sequence].first_page);
    const std::int32_t chunk_first = chunk.chunk * kAttentionChunk, chunk_end = chunk_first + kAttentionChunk;
    const PositionRange range =
        RangeOf<T>(arguments, first_page, kv_head, first_visible > chunk_first ? first_visible : chunk_first,
                   position + 1 < chunk_end ? position + 1 : chunk_end);
    SoftmaxState<kDim> state;
    AttendRange<T, kDim, 1>(shared, range, rows, range.begin, position, ScaleOf(arguments), state, [&](bool) {
      LORAMUX_UNROLL
      for (int i = 0; i < 2; ++i) {
        if (rows[i].last < 0) continue;
        if (chunks.Single()) {
          StoreResult(arguments, rows[i], i, state);
        } else {
          StorePartial(arguments, item, rows[i], i, state);
        }
      }
    });
  }

  template <int kDim>
  LORAMUX_DEVICE static void StorePartial(const Arguments& arguments, std::int32_t item, const QueryRow& row, int i,
                                          const SoftmaxState<kDim>& state) {
    const std::int32_t head_dim = arguments.pages.head_dim;
    float* to = NoEarlier(arguments.partial +
                          (static_cast<std::int64_t>(item) * arguments.num_heads + row.head) * PartialStride(head_dim));
    LORAMUX_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      const int d = n * 8 + static_cast<int>(Lane()) % 4 * 2;
      if (d < head_dim)
        Store(reinterpret_cast<Pair*>(to + d), Pair{state.values[n][2 * i], state.values[n][2 * i + 1]});
    }
    if (Lane() % 4 == 0) {
      Store(reinterpret_cast<Pair*>(to + PartialMaximumAt(head_dim)), Pair{state.maximum[i], state.sum[i]});
    }
  }
};

// Merges the chunks of a row in ascending order. A thread makes two neighbouring values of one head. Grid: rows, heads.
template <typename T>
struct AttentionCombineKernel {
  using Arguments = AttentionArguments;
  static constexpr int kThreads = 128;
  static constexpr int kMinBlocks = 8;

  LORAMUX_DEVICE static void Run(const Arguments& arguments) {
    if (static_cast<std::int32_t>(BlockX()) >= Load(arguments.work.num_decode_rows)) return;
    const DecodeRow* const decode_row = arguments.work.decode_rows + BlockX();
    const DecodeRow item = {Load(&decode_row->row), Load(&decode_row->first_item), Load(&decode_row->first_chunk)};
    const ChunksOfRow chunks(Load(arguments.row_position + item.row), arguments.form.window);
    const std::int32_t head_dim = arguments.pages.head_dim, head = static_cast<std::int32_t>(BlockY());
    const std::int32_t d = 2 * static_cast<std::int32_t>(ThreadIndex());
    if (chunks.Single() || d >= head_dim) return;

    const std::int64_t chunk_stride = static_cast<std::int64_t>(arguments.num_heads) * PartialStride(head_dim);
    const float* from = arguments.partial + (item.first_item + chunks.first - item.first_chunk) * chunk_stride +
                        static_cast<std::int64_t>(head) * PartialStride(head_dim);
    Pair values = Load(reinterpret_cast<const Pair*>(from + d));
    const Pair start = Load(reinterpret_cast<const Pair*>(from + PartialMaximumAt(head_dim)));
    float maximum = start.low, sum = start.high;
    for (std::int32_t chunk = chunks.first + 1; chunk <= chunks.last; ++chunk) {
      from += chunk_stride;
      const Pair later = Load(reinterpret_cast<const Pair*>(from + d));
      const Pair later_state = Load(reinterpret_cast<const Pair*>(from + PartialMaximumAt(head_dim)));
      const SoftmaxMerge merge(maximum, sum, later_state.low, later_state.high);
      values = {merge(values.low, later.low), merge(values.high, later.high)};
    }
    const float inverse = 1.0f / WithSink(arguments, head, maximum, sum);
    StorePairAs(arguments.out_dtype, arguments.out, item.row * arguments.out_stride + head * head_dim + d,
                Normalised(values.low, inverse), Normalised(values.high, inverse));
  }
};

}  // namespace loramux::gpu
