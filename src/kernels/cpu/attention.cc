#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "hwy/highway.h"
//
#include <algorithm>
#include <cmath>
#include <limits>

#include "hwy/cache_control.h"
#include "hwy/contrib/math/math-inl.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/widen-inl.h"

// The rows of a tile share the loads of keys and values, and nothing else. Vectors of positions start at multiples of
// their length, so the lane in which a position is summed depends on the position alone. Positions that a row does not
// see are never multiplied in, not even by zero: the rest of a page may hold anything.
HWY_BEFORE_NAMESPACE();
namespace loramux::cpu {
namespace HWY_NAMESPACE {
namespace {

// What all tiles of a call share, with the pages' element type.
template <typename T>
struct Problem {
  const KvLayout& layout;
  std::int64_t layer;
  const PageArena& arena;
  std::int64_t window;
  const float* q;
  std::int64_t q_stride;
  float* out;
  std::int64_t out_stride;
};

// One tile at work.
template <typename T>
struct Work {
  const Problem<T>& problem;
  const AttentionTile& tile;
  float* queries;              // [rows][head_dim]
  float* scores;               // [rows][score_stride], from position `begin` on
  std::int64_t score_stride;
  std::int64_t begin;          // first position that any row sees, rounded down to a whole vector
  std::int64_t end;            // one past the last position that any row sees

  std::int64_t Last(std::int64_t row) const { return tile.sequence->position + tile.Token(row); }
  std::int64_t First(std::int64_t row) const {
    return problem.window > 0 ? std::max<std::int64_t>(0, Last(row) - problem.window + 1) : 0;
  }
  const std::byte* Page(std::int64_t position) const {
    return problem.arena.base +
           tile.sequence->pages[position / problem.layout.page_tokens] * problem.arena.page_stride;
  }
  // Dimension 0 of the key; dimensions are page_tokens elements apart, positions of a page follow each other.
  const T* Keys(std::int64_t position) const {
    const std::byte* keys = Page(position) + problem.layout.KeyOffset(problem.layer, tile.kv_head);
    return reinterpret_cast<const T*>(keys) + position % problem.layout.page_tokens;
  }
  const T* Values(std::int64_t position) const {
    const std::byte* values = Page(position) + problem.layout.ValueOffset(problem.layer, tile.kv_head);
    return reinterpret_cast<const T*>(values) + position % problem.layout.page_tokens * problem.layout.head_dim;
  }
  const float* Query(std::int64_t row) const {
    return problem.q + (tile.sequence->first_row + tile.Token(row)) * problem.q_stride +
           tile.Head(row) * problem.layout.head_dim;
  }
  float* Out(std::int64_t row) const {
    return problem.out + (tile.sequence->first_row + tile.Token(row)) * problem.out_stride +
           tile.Head(row) * problem.layout.head_dim;
  }
};

// Scores of rows [row, row + kRows) at kVectors vectors of positions from `position` on. Lone rows are a decode step's:
// they stream the pages from memory, so the keys of the next block are fetched meanwhile.
template <int kRows, int kVectors, class D, typename T>
HWY_INLINE void ScoreBlock(D d, const Work<T>& work, std::int64_t row, std::int64_t position) {
  constexpr bool kFetch = kRows <= 2;
  const std::int64_t head_dim = work.problem.layout.head_dim;
  const std::int64_t page_tokens = work.problem.layout.page_tokens;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const T* keys[kVectors];
  const T* next[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    keys[v] = work.Keys(position + v * lanes);
    const std::int64_t later = position + (kVectors + v) * lanes;
    next[v] = kFetch && later < work.end ? work.Keys(later) : keys[v];
  }
  const float* HWY_RESTRICT q = work.queries + row * head_dim;
  hn::Vec<D> sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::Zero(d);
  }
  for (std::int64_t t = 0; t < head_dim; ++t) {
    hn::Vec<D> key[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (kFetch) hwy::Prefetch(next[v] + t * page_tokens);
      key[v] = LoadWide(d, keys[v] + t * page_tokens);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const auto value = hn::Set(d, q[i * head_dim + t]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(value, key[v], sum[i][v]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    float* to = work.scores + (row + i) * work.score_stride + position - work.begin;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[i][v], d, to + v * lanes);
  }
}

template <int kRows, class D, typename T>
HWY_NOINLINE void ScoreRows(D d, const Work<T>& work, std::int64_t row) {
  // Few rows make few chains: more vectors at once hide the latency of the multiply-adds.
  constexpr int kVectors = kRows <= 2 ? 4 : 2;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t position = work.begin;
  for (; position + kVectors * lanes <= work.end; position += kVectors * lanes) {
    ScoreBlock<kRows, kVectors>(d, work, row, position);
  }
  for (; position < work.end; position += lanes) ScoreBlock<kRows, 1>(d, work, row, position);
}

// Turns the scores [first, end) of one row (indices from work.begin) into exponentials relative to their maximum, and
// returns their sum, taken lane by lane in order of position.
template <class D>
HWY_NOINLINE float Exponentiate(D d, float scale, float* HWY_RESTRICT scores, std::int64_t first, std::int64_t end) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto index = hn::Iota(d, 0.0f);
  const auto seen = [&](std::int64_t i) HWY_ATTR {
    return hn::And(hn::Ge(index, hn::Set(d, static_cast<float>(first - i))),
                   hn::Lt(index, hn::Set(d, static_cast<float>(end - i))));
  };
  const std::int64_t begin = first / lanes * lanes;
  const auto factor = hn::Set(d, scale);
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  auto maximum = lowest;
  for (std::int64_t i = begin; i < end; i += lanes) {
    auto value = hn::Mul(hn::LoadU(d, scores + i), factor);
    if (i < first || i + lanes > end) value = hn::IfThenElse(seen(i), value, lowest);
    maximum = hn::Max(maximum, value);
    hn::StoreU(value, d, scores + i);
  }
  maximum = hn::MaxOfLanes(d, maximum);
  auto sum = hn::Zero(d);
  for (std::int64_t i = begin; i < end; i += lanes) {
    auto value = hn::Exp(d, hn::Sub(hn::LoadU(d, scores + i), maximum));
    if (i < first || i + lanes > end) value = hn::IfThenElseZero(seen(i), value);
    sum = hn::Add(sum, value);
    hn::StoreU(value, d, scores + i);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// out += weight * V over positions [begin, end), in order, for rows [row, row + kRows) and kVectors vectors of
// dimensions from `dim` on.
template <int kRows, int kVectors, class D, typename T>
HWY_INLINE void AddValueBlock(D d, const Work<T>& work, std::int64_t row, std::int64_t dim, std::int64_t begin,
                              std::int64_t end) {
  constexpr bool kFetch = kRows <= 2;
  const std::int64_t head_dim = work.problem.layout.head_dim;
  const std::int64_t page_tokens = work.problem.layout.page_tokens;
  const std::int64_t score_stride = work.score_stride;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  hn::Vec<D> sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::LoadU(d, work.Out(row + i) + dim + v * lanes);
  }
  for (std::int64_t position = begin; position < end;) {
    const std::int64_t stop = std::min(end, (position / page_tokens + 1) * page_tokens);
    const T* values = work.Values(position) + dim;
    const T* next = kFetch && stop < end ? work.Values(stop) + dim : values;
    const float* HWY_RESTRICT weights = work.scores + row * score_stride + position - work.begin;
    for (; position < stop; ++position, values += head_dim, next += head_dim, ++weights) {
      hn::Vec<D> value[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        if constexpr (kFetch) hwy::Prefetch(next + v * lanes);
        value[v] = LoadWide(d, values + v * lanes);
      }
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const auto weight = hn::Set(d, weights[i * score_stride]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(weight, value[v], sum[i][v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[i][v], d, work.Out(row + i) + dim + v * lanes);
  }
}

// The same for all dimensions.
template <int kRows, typename T>
HWY_NOINLINE void AddValues(const Work<T>& work, std::int64_t row, std::int64_t begin, std::int64_t end) {
  if (begin >= end) return;
  const hn::CappedTag<float, 16> d;
  const hn::CappedTag<float, 1> single;
  constexpr int kVectors = kRows > 4 ? 2 : 4;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t head_dim = work.problem.layout.head_dim;
  std::int64_t dim = 0;
  for (; dim + kVectors * lanes <= head_dim; dim += kVectors * lanes) {
    AddValueBlock<kRows, kVectors>(d, work, row, dim, begin, end);
  }
  for (; dim + lanes <= head_dim; dim += lanes) AddValueBlock<kRows, 1>(d, work, row, dim, begin, end);
  for (; dim < head_dim; ++dim) AddValueBlock<kRows, 1>(single, work, row, dim, begin, end);
}

// Outputs of rows [row, row + kRows) from their exponentials, before the division by the sum. Positions that all rows
// see are taken together; those before and after them, which only some rows see, row by row.
template <int kRows, typename T>
void WeighRows(const Work<T>& work, std::int64_t row) {
  for (int i = 0; i < kRows; ++i) {
    std::fill_n(work.Out(row + i), work.problem.layout.head_dim, 0.0f);
  }
  // Rows are in order of position, hence also in that of the first position that they see.
  const std::int64_t common_begin = work.First(row + kRows - 1);
  const std::int64_t common_end = std::max(common_begin, work.Last(row) + 1);
  for (int i = 0; i + 1 < kRows; ++i) {
    AddValues<1>(work, row + i, work.First(row + i), std::min(common_begin, work.Last(row + i) + 1));
  }
  AddValues<kRows>(work, row, common_begin, common_end);
  for (int i = 0; i < kRows; ++i) AddValues<1>(work, row + i, common_end, work.Last(row + i) + 1);
}

template <int kRows, class D, typename T>
void AttendRows(D d, const Work<T>& work, std::int64_t row) {
  const std::int64_t head_dim = work.problem.layout.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  ScoreRows<kRows>(d, work, row);
  float sums[kRows];
  for (int i = 0; i < kRows; ++i) {
    sums[i] = Exponentiate(d, scale, work.scores + (row + i) * work.score_stride, work.First(row + i) - work.begin,
                           work.Last(row + i) + 1 - work.begin);
  }
  WeighRows<kRows>(work, row);
  for (int i = 0; i < kRows; ++i) {
    float* out = work.Out(row + i);
    for (std::int64_t t = 0; t < head_dim; ++t) out[t] /= sums[i];
  }
}

template <class D, typename T>
void AttendTile(D d, const Problem<T>& problem, const AttentionTile& tile, float* workspace) {
  constexpr std::int64_t kScoreAlign = 16;
  const std::int64_t head_dim = problem.layout.head_dim;
  Work<T> work = {.problem = problem, .tile = tile, .queries = workspace};
  work.begin = work.First(0) / kScoreAlign * kScoreAlign;
  work.end = work.Last(tile.rows - 1) + 1;
  work.scores = workspace + kAttentionTileRows * head_dim;
  // One more vector than needed: with a stride of 4 KiB all rows would compete for the same sets of L1.
  work.score_stride = (work.end - work.begin + kScoreAlign - 1) / kScoreAlign * kScoreAlign + kScoreAlign;
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    std::copy_n(work.Query(row), head_dim, work.queries + row * head_dim);
  }
  std::int64_t row = 0;
  for (; row + 8 <= tile.rows; row += 8) AttendRows<8>(d, work, row);
  for (; row + 4 <= tile.rows; row += 4) AttendRows<4>(d, work, row);
  for (; row + 2 <= tile.rows; row += 2) AttendRows<2>(d, work, row);
  for (; row < tile.rows; ++row) AttendRows<1>(d, work, row);
}

template <class D, typename T>
void Attend(D d, const KernelContext& context, const Problem<T>& problem, std::span<const AttentionSequence> sequences,
            std::int64_t group, float* workspace) {
  const AttentionTiles tiles(sequences, problem.layout.num_kv_heads, group);
  std::int64_t positions = 0;
  for (const AttentionSequence& sequence : sequences) {
    positions = std::max(positions, sequence.position + sequence.num_tokens);
  }
  const std::int64_t per_thread =
      AttentionWorkspaceFloats(problem.layout, problem.layout.num_kv_heads * group, positions, 1);
  // Tiles differ in length: sixteen tasks a thread level that out.
  const std::int64_t count = tiles.Count();
  const std::int64_t tasks = std::min<std::int64_t>(count, context.pool->size() * 16);
  context.pool->Run(tasks, [&](std::int64_t task, int thread) HWY_ATTR {
    tiles.ForEach(count * task / tasks, count * (task + 1) / tasks, [&](const AttentionTile& tile) HWY_ATTR {
      AttendTile(d, problem, tile, workspace + thread * per_thread);
    });
  });
}

template <typename T>
void AttendTyped(const KernelContext& context, const Problem<T>& problem, std::span<const AttentionSequence> sequences,
                 std::int64_t group, float* workspace) {
  // A vector of positions must lie in one page.
  switch (problem.layout.page_tokens) {
    case 4: return Attend(hn::CappedTag<float, 4>(), context, problem, sequences, group, workspace);
    case 8: return Attend(hn::CappedTag<float, 8>(), context, problem, sequences, group, workspace);
    default: return Attend(hn::CappedTag<float, 16>(), context, problem, sequences, group, workspace);
  }
}

void PagedAttention(const KernelContext& context, const KvLayout& layout, std::int64_t layer, const PageArena& arena,
                    std::span<const AttentionSequence> sequences, std::int64_t num_heads, std::int64_t window,
                    const float* q, std::int64_t q_stride, float* out, std::int64_t out_stride, float* workspace) {
  const std::int64_t group = num_heads / layout.num_kv_heads;
  const auto attend = [&](auto element) HWY_ATTR {
    using T = decltype(element);
    const Problem<T> problem = {layout, layer, arena, window, q, q_stride, out, out_stride};
    AttendTyped(context, problem, sequences, group, workspace);
  };
  switch (layout.dtype) {
    case DType::kF32: return attend(float());
    case DType::kF16: return attend(hwy::float16_t());
    default: return attend(hwy::bfloat16_t());
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace loramux::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace loramux::cpu {

HWY_EXPORT(PagedAttention);

void PagedAttention(const KernelContext& context, const KvLayout& layout, std::int64_t layer, const PageArena& arena,
                    std::span<const AttentionSequence> sequences, std::int64_t num_heads, std::int64_t window,
                    const float* q, std::int64_t q_stride, float* out, std::int64_t out_stride, float* workspace) {
  HWY_DYNAMIC_DISPATCH(PagedAttention)
  (context, layout, layer, arena, sequences, num_heads, window, q, q_stride, out, out_stride, workspace);
}

}  // namespace loramux::cpu
#endif
