// What the attention kernels share: the softmax of one warp's 16 rows of queries over a range of positions, tile by
// tile. Fragments are those of m16n8k16 for all types: lane 4 g + t holds columns 2 t and 2 t + 1 of rows g and g + 8
// of each 16 x 8 tile, at [0], [1] and [2], [3].
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/attention.h"
#include "gpu/kernels/attention_extents.h"

namespace loramux::gpu {

template <typename T, int kDim>
using ExtentsOf = AttentionExtents<static_cast<int>(sizeof(T)), kDim>;

inline constexpr float kMinusInfinity = -__builtin_inff();

// The softmax's numerators of a tile, for the rows of one warp. Tensor cores take them from registers; f32 passes them
// through shared memory.
template <typename T, int kTile>
struct TileWeights {};
template <int kTile>
struct TileWeights<float, kTile> {
  float row[kAttentionWarpRows][kTile + 4];
};

// Shared memory of the warps of a block.
template <typename T, int kDim, int kWarps>
struct alignas(16) AttentionShared {
  using Extents = ExtentsOf<T, kDim>;

  T queries[kWarps * kAttentionWarpRows][Extents::kStride];
  T keys[Extents::kTile][Extents::kStride];
  T values[Extents::kTile][Extents::kStride];
  TileWeights<T, Extents::kTile> weights[kWarps];
};

// Positions [begin, end) of one head of one sequence, not empty.
struct PositionRange {
  const std::byte *keys, *values;  // of the head in page 0
  const std::uint32_t* table;      // pages of positions [0, T), [T, 2T), ...
  std::uint32_t page_stride;
  std::int32_t page_shift, row_bytes, begin, end;

  // A position's row of `base`, which is keys or values.
  LORAMUX_DEVICE const std::byte* Row(const std::byte* base, std::int32_t position) const {
    const std::int32_t slot = position & ((1 << page_shift) - 1);
    return base + static_cast<std::uint64_t>(Load(table + (position >> page_shift))) * page_stride + slot * row_bytes;
  }
};

template <typename T>
LORAMUX_DEVICE PositionRange RangeOf(const AttentionArguments& arguments, std::int32_t first_page, int kv_head,
                                     std::int32_t begin, std::int32_t end) {
  const PagesOnDevice& pages = arguments.pages;
  PositionRange range;
  range.row_bytes = pages.head_dim * static_cast<std::int32_t>(sizeof(T));
  range.page_shift = 0;
  while ((1 << range.page_shift) < pages.page_tokens) ++range.page_shift;
  const std::int64_t head_bytes = static_cast<std::int64_t>(range.row_bytes) * pages.page_tokens;
  range.keys = pages.base + arguments.layer_offset + kv_head * head_bytes;
  range.values = range.keys + pages.num_kv_heads * head_bytes;
  range.table = arguments.page_tables + first_page;
  range.page_stride = static_cast<std::uint32_t>(pages.page_stride);
  range.begin = begin;
  range.end = end;
  return range;
}

// A row of queries: what it sees, and where it comes from and goes to.
struct QueryRow {
  std::int32_t first, last;  // positions; last < 0: the row does not exist
  std::int32_t row, head;
};

// What a product of q and k is multiplied by, so that its power of 2 is the softmax's numerator.
LORAMUX_DEVICE float ScaleOf(const AttentionArguments& arguments) {
  constexpr float kLog2E = 1.44269504f;
  return kLog2E * ReciprocalSqrt(static_cast<float>(arguments.pages.head_dim));
}

// The first position that a row at `position` sees.
LORAMUX_DEVICE std::int32_t FirstVisible(std::int32_t position, std::int32_t window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

// 16 bytes from `from` of which `bytes` exist; the rest is 0. For rows that are not made of whole 16 bytes.
LORAMUX_DEVICE Vec4 LoadWords(const std::byte* from, std::int32_t bytes) {
  Vec4 words = {0, 0, 0, 0};
  const auto* word = reinterpret_cast<const std::uint32_t*>(from);
  if (bytes > 0) words.x = Load(word);
  if (bytes > 4) words.y = Load(word + 1);
  if (bytes > 8) words.z = Load(word + 2);
  if (bytes > 12) words.w = Load(word + 3);
  return words;
}

// A row of a tile in shared memory.
template <typename T, int kDim>
using TileRow = T[ExtentsOf<T, kDim>::kStride];

// Starts copying positions [first, first + kTile) to shared memory; zeros where the range has none.
template <typename T, int kDim, int kThreads>
LORAMUX_DEVICE void LoadTile(TileRow<T, kDim>* tile, const PositionRange& range, const std::byte* base,
                             std::int32_t first, int thread) {
  constexpr int kPieceElements = 16 / static_cast<int>(sizeof(T));
  constexpr int kPieces = kDim / kPieceElements;
  constexpr int kRounds = ExtentsOf<T, kDim>::kTile * kPieces / kThreads;
  constexpr int kWanted = kDim > 128 ? 4 : 8;  // wide rows leave fewer registers
  constexpr int kAtOnce = kRounds % kWanted == 0 ? kWanted : kRounds;
  static_assert(kRounds * kThreads == ExtentsOf<T, kDim>::kTile * kPieces && kRounds % kAtOnce == 0);
  const bool whole = range.row_bytes % 16 == 0;
  const int rounds = NoEarlier(kRounds);
  for (int start = 0; start < rounds; start += kAtOnce) {
    const int first_piece = NoEarlier(start * kThreads + thread);
    // First the addresses of all, so that their pages are looked up at the same time.
    const std::byte* from[kAtOnce];
    std::int32_t bytes[kAtOnce];  // that exist; 16 are enough
    LORAMUX_UNROLL
    for (int round = 0; round < kAtOnce; ++round) {
      const int i = round * kThreads + first_piece;
      const std::int32_t position = first + i / kPieces, offset = i % kPieces * 16;
      // Without a branch: an address of the range, even if nothing is read there.
      const std::int32_t there = position < range.begin ? range.begin : position < range.end ? position : range.end - 1;
      from[round] = range.Row(base, there) + offset;
      bytes[round] = there == position ? range.row_bytes - offset : 0;
    }
    LORAMUX_UNROLL
    for (int round = 0; round < kAtOnce; ++round) {
      const int i = round * kThreads + first_piece;
      T* to = &tile[i / kPieces][i % kPieces * kPieceElements];
      if (whole) {
        CopyAsync16(to, from[round], bytes[round] > 0);
      } else {
        *reinterpret_cast<Vec4*>(to) = LoadWords(from[round], bytes[round]);
      }
    }
  }
}

// Rounds one row of q to T.
template <typename T, int kDim>
LORAMUX_DEVICE void LoadQuery(T* to, const AttentionArguments& arguments, const QueryRow& query) {
  const std::int32_t head_dim = arguments.pages.head_dim;
  const float* from = arguments.q + query.row * arguments.q_stride + query.head * head_dim;
  for (int d = 2 * static_cast<int>(Lane()); d < kDim; d += 64) {
    const bool valid = query.last >= 0 && d < head_dim;
    const Pair pair = valid ? Load(reinterpret_cast<const Pair*>(from + d)) : Pair{0, 0};
    to[d] = FromFloat<T>(pair.low);
    to[d + 1] = FromFloat<T>(pair.high);
  }
}

// An online softmax over some positions, of the rows g and g + 8 of a lane: values are not yet divided by the sum.
template <int kDim>
struct SoftmaxState {
  float values[kDim / 8][4];
  float maximum[2];  // of the scores times ScaleOf; -inf: no position so far
  float sum[2];

  LORAMUX_DEVICE void Clear() {
    LORAMUX_UNROLL
    for (int n = 0; n < kDim / 8; ++n) values[n][0] = values[n][1] = values[n][2] = values[n][3] = 0;
    maximum[0] = maximum[1] = kMinusInfinity;
    sum[0] = sum[1] = 0;
  }
  // Sums over the lanes of a row. To be called once, at the end of a chunk.
  LORAMUX_DEVICE void SumLanes() {
    LORAMUX_UNROLL
    for (int i = 0; i < 2; ++i) {
      sum[i] += ShuffleXor(sum[i], 1);
      sum[i] += ShuffleXor(sum[i], 2);
    }
  }
};

// How two softmaxes over adjacent ranges become one. All products are explicit, so that both kernels round alike.
struct SoftmaxMerge {
  float before, after;  // factors of the sums and values of the two

  // Merges maximum and sum of the later range into those of the earlier.
  LORAMUX_DEVICE SoftmaxMerge(float& maximum, float& sum, float later_maximum, float later_sum) {
    const float merged = Max(maximum, later_maximum);
    const float reference = merged == kMinusInfinity ? 0.0f : merged;
    before = Exp2(maximum - reference);
    after = Exp2(later_maximum - reference);
    maximum = merged;
    sum = Fma(sum, before, later_sum * after);
  }
  LORAMUX_DEVICE float operator()(float value, float later_value) const {
    return Fma(value, before, later_value * after);
  }
};

// A result. The addition makes -0 of the values +0: whether they are depends on masked positions.
LORAMUX_DEVICE float Normalised(float value, float inverse_sum) { return Fma(value, inverse_sum, 0.0f); }

// Stores two neighbouring elements.
LORAMUX_DEVICE void StorePairAs(DType dtype, void* base, std::int64_t index, float low, float high) {
  if (dtype == DType::kF32) {
    Store(reinterpret_cast<Pair*>(static_cast<float*>(base) + index), Pair{low, high});
  } else {
    const std::uint32_t pair = dtype == DType::kBF16 ? Pack<Bf16>(low, high) : Pack<Half>(low, high);
    Store(reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(base) + index), pair);
  }
}

// Divides and stores one row of a state, the i-th of the lane's two.
template <int kDim>
LORAMUX_DEVICE void StoreResult(const AttentionArguments& arguments, const QueryRow& row, int i,
                                const SoftmaxState<kDim>& state) {
  const std::int32_t head_dim = arguments.pages.head_dim;
  const std::int64_t at = NoEarlier(row.row * arguments.out_stride + row.head * head_dim);
  const float inverse = NoEarlier(1.0f / state.sum[i]);
  LORAMUX_UNROLL
  for (int n = 0; n < kDim / 8; ++n) {
    const int d = n * 8 + static_cast<int>(Lane()) % 4 * 2;
    if (d < head_dim) {
      StorePairAs(arguments.out_dtype, arguments.out, at + d, Normalised(state.values[n][2 * i], inverse),
                  Normalised(state.values[n][2 * i + 1], inverse));
    }
  }
}

// The products of a tile. scores: [16 rows][kTile positions]; sums over d ascending.
template <typename T, int kDim>
struct AttentionProducts {
  using Extents = ExtentsOf<T, kDim>;
  static constexpr int kTile = Extents::kTile;

  LORAMUX_DEVICE static void Scores(const T (*queries)[Extents::kStride], const T (*keys)[Extents::kStride],
                                    float (&scores)[kTile / 8][4]) {
    const int lane = static_cast<int>(Lane());
    LORAMUX_UNROLL
    for (int k = 0; k < kDim; k += 16) {
      std::uint32_t a[4];
      LoadMatrices(a, &queries[lane % 16][k + lane / 16 * 8]);
      LORAMUX_UNROLL
      for (int n = 0; n < kTile; n += 16) {
        std::uint32_t b[4];
        LoadMatrices(b, &keys[n + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]);
        MultiplyTile<T>(scores[n / 8], a[0], a[1], a[2], a[3], b[0], b[1]);
        MultiplyTile<T>(scores[n / 8 + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
  }

  // Nothing to keep: the weights' fragments of the scores are those that AddValues multiplies.
  LORAMUX_DEVICE static void KeepWeights(TileWeights<T, kTile>&, const float (&)[kTile / 8][4]) {}

  LORAMUX_DEVICE static void AddValues(const TileWeights<T, kTile>&, const float (&weights)[kTile / 8][4],
                                       const T (*values)[Extents::kStride], float (&sums)[kDim / 8][4]) {
    const int lane = static_cast<int>(Lane());
    LORAMUX_UNROLL
    for (int k = 0; k < kTile; k += 16) {
      const float(&low)[4] = weights[k / 8];
      const float(&high)[4] = weights[k / 8 + 1];
      const std::uint32_t a[4] = {Pack<T>(low[0], low[1]), Pack<T>(low[2], low[3]), Pack<T>(high[0], high[1]),
                                  Pack<T>(high[2], high[3])};
      LORAMUX_UNROLL
      for (int n = 0; n < kDim; n += 16) {
        std::uint32_t b[4];
        LoadMatricesTransposed(b, &values[k + lane % 16][n + lane / 16 * 8]);
        MultiplyTile<T>(sums[n / 8], a[0], a[1], a[2], a[3], b[0], b[1]);
        MultiplyTile<T>(sums[n / 8 + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
  }
};

// The same fragments without tensor cores.
template <int kDim>
struct AttentionProducts<float, kDim> {
  using Extents = ExtentsOf<float, kDim>;
  static constexpr int kTile = Extents::kTile;
  struct alignas(16) Four {
    float x[4];
  };

  LORAMUX_DEVICE static void Scores(const float (*queries)[Extents::kStride], const float (*keys)[Extents::kStride],
                                    float (&scores)[kTile / 8][4]) {
    const int g = static_cast<int>(Lane()) / 4, t = static_cast<int>(Lane()) % 4;
    for (int d = 0; d < kDim; d += 4) {
      const Four top = *reinterpret_cast<const Four*>(&queries[g][d]);
      const Four low = *reinterpret_cast<const Four*>(&queries[g + 8][d]);
      LORAMUX_UNROLL
      for (int n = 0; n < kTile / 8; ++n) {
        LORAMUX_UNROLL
        for (int c = 0; c < 2; ++c) {
          const Four key = *reinterpret_cast<const Four*>(&keys[n * 8 + 2 * t + c][d]);
          LORAMUX_UNROLL
          for (int i = 0; i < 4; ++i) {
            scores[n][c] = Fma(top.x[i], key.x[i], scores[n][c]);
            scores[n][2 + c] = Fma(low.x[i], key.x[i], scores[n][2 + c]);
          }
        }
      }
    }
  }

  LORAMUX_DEVICE static void KeepWeights(TileWeights<float, kTile>& kept, const float (&weights)[kTile / 8][4]) {
    const int g = static_cast<int>(Lane()) / 4, t = static_cast<int>(Lane()) % 4;
    LORAMUX_UNROLL
    for (int n = 0; n < kTile / 8; ++n) {
      LORAMUX_UNROLL
      for (int c = 0; c < 2; ++c) {
        kept.row[g][n * 8 + 2 * t + c] = weights[n][c];
        kept.row[g + 8][n * 8 + 2 * t + c] = weights[n][2 + c];
      }
    }
  }

  LORAMUX_DEVICE static void AddValues(const TileWeights<float, kTile>& kept, const float (&)[kTile / 8][4],
                                       const float (*values)[Extents::kStride], float (&sums)[kDim / 8][4]) {
    const int g = static_cast<int>(Lane()) / 4, t = static_cast<int>(Lane()) % 4;
    for (int p = 0; p < kTile; ++p) {
      const float top = kept.row[g][p], low = kept.row[g + 8][p];
      LORAMUX_UNROLL
      for (int n = 0; n < kDim / 8; ++n) {
        LORAMUX_UNROLL
        for (int c = 0; c < 2; ++c) {
          const float value = values[p][n * 8 + 2 * t + c];
          sums[n][c] = Fma(top, value, sums[n][c]);
          sums[n][2 + c] = Fma(low, value, sums[n][2 + c]);
        }
      }
    }
  }
};

// Turns a tile's scores into weights relative to the running maximum, and brings the state up to it.
template <int kTile, int kDim>
LORAMUX_DEVICE void AddScores(float (&scores)[kTile / 8][4], const QueryRow (&rows)[2], std::int32_t tile, float scale,
                              SoftmaxState<kDim>& state) {
  LORAMUX_UNROLL
  for (int i = 0; i < 2; ++i) {
    float maximum = kMinusInfinity;
    LORAMUX_UNROLL
    for (int n = 0; n < kTile / 8; ++n) {
      LORAMUX_UNROLL
      for (int c = 0; c < 2; ++c) {
        const std::int32_t position = tile + n * 8 + static_cast<int>(Lane()) % 4 * 2 + c;
        float& score = scores[n][2 * i + c];
        if (position < rows[i].first || position > rows[i].last) score = kMinusInfinity;
        maximum = Max(maximum, score);
      }
    }
    maximum = Max(maximum, ShuffleXor(maximum, 1));
    maximum = Max(maximum, ShuffleXor(maximum, 2));
    const float merged = Max(state.maximum[i], maximum * scale);
    const float reference = merged == kMinusInfinity ? 0.0f : merged;
    const float before = Exp2(state.maximum[i] - reference);
    state.maximum[i] = merged;
    float sum = 0;
    LORAMUX_UNROLL
    for (int n = 0; n < kTile / 8; ++n) {
      LORAMUX_UNROLL
      for (int c = 0; c < 2; ++c) {
        float& score = scores[n][2 * i + c];
        score = Exp2(Fma(score, scale, -reference));
        sum += score;
      }
    }
    state.sum[i] = Fma(state.sum[i], before, sum);
    LORAMUX_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      state.values[n][2 * i] *= before;
      state.values[n][2 * i + 1] *= before;
    }
  }
}

template <int kWarps>
LORAMUX_DEVICE void SyncWarps() {
  if constexpr (kWarps == 1) {
    SyncWarp();
  } else {
    SyncBlock();
  }
}

// Attends to the positions of `range`. Calls chunk_done(first position of the chunk's last tile) at the end of each
// chunk, with the state of that chunk alone. The queries are in shared memory. `rows`: the lane's two. Copies of keys
// overlap with products of values and the reverse. Warps skip tiles that none of their rows sees, which changes no bit.
template <typename T, int kDim, int kWarps, typename ChunkDone>
LORAMUX_DEVICE void AttendRange(AttentionShared<T, kDim, kWarps>& shared, const PositionRange& range,
                                const QueryRow (&rows)[2], std::int32_t warp_first, std::int32_t warp_last, float scale,
                                SoftmaxState<kDim>& state, const ChunkDone& chunk_done) {
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
    SyncWarps<kWarps>();  // the values are here, and nobody reads the keys any more
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
    SyncWarps<kWarps>();  // the next keys are here, and nobody reads the values any more
  }
}

}  // namespace loramux::gpu
