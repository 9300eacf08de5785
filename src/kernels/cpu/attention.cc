#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "hwy/highway.h"
//
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "hwy/cache_control.h"
#include "kernels/attention.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/interleave-inl.h"
#include "kernels/cpu/widen-inl.h"

// The rows of a tile share the loads of keys and values, and nothing else. Vectors of positions start at multiples of
// their length, so the lane in which a position is summed depends on the position alone. Positions outside a row's view
// are never multiplied in, not even by zero: the rest of a page may hold anything.
HWY_BEFORE_NAMESPACE();
namespace loramux::cpu {
namespace HWY_NAMESPACE {
namespace {

// Rows with accumulators (two vectors each) in registers at once: 24 of 32 registers, or 8 of 16.
constexpr bool kManyRegisters = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64;
constexpr int kMaxBlockRows = kManyRegisters ? 12 : 4;
static_assert(kAttentionTileRows % kMaxBlockRows == 0);

// Whether pages have scales beside elements of type T. A score is multiplied by the key's scale after its sum, and a
// weight by the value's scale before it, so that the inner loops know integers only.
template <typename T>
constexpr bool kScaled = std::is_same_v<T, std::int8_t>;

// The state of one tile's computation. T: the pages' element type.
template <typename T>
struct Work {
  const AttentionArguments& call;
  const AttentionTile& tile;
  float* queries;  // [group of four rows][head_dim][4], for blocks of whole groups
  float* scores;   // [rows][score_stride], from position `begin` on
  float* weights;  // [group of four rows][score_stride][4]: copy of the weights
  std::int64_t score_stride;
  const std::uint32_t* pages;
  std::size_t page_stride;
  const std::byte* keys;  // where the key-value head begins in page 0
  const std::byte* values;
  int page_shift;  // log2(page_tokens)
  std::int64_t head_dim;
  std::int64_t begin;  // first position in any row's view, rounded down to a whole vector
  std::int64_t end;    // one past the last position in any row's view

  std::int64_t Last(std::int64_t row) const { return tile.sequence->position + tile.Token(row); }
  std::int64_t First(std::int64_t row) const {
    return call.form.window > 0 ? std::max<std::int64_t>(0, Last(row) - call.form.window + 1) : 0;
  }
  // Dimension 0 of the key. Dimensions are page_tokens elements apart; positions of a page are adjacent.
  const T* Keys(std::int64_t position) const {
    return reinterpret_cast<const T*>(keys + pages[position >> page_shift] * page_stride) + Slot(position);
  }
  const T* Values(std::int64_t position) const {
    return reinterpret_cast<const T*>(values + pages[position >> page_shift] * page_stride) + Slot(position) * head_dim;
  }
  // The scale at `position`, if kScaled<T>; those of a page are adjacent.
  const hwy::bfloat16_t* KeyScales(std::int64_t position) const { return Scales(keys, position); }
  const hwy::bfloat16_t* ValueScales(std::int64_t position) const { return Scales(values, position); }
  const hwy::bfloat16_t* Scales(const std::byte* head, std::int64_t position) const {
    const std::byte* page = head + pages[position >> page_shift] * page_stride;
    return reinterpret_cast<const hwy::bfloat16_t*>(page + call.pages.layout.ScalesOffset()) + Slot(position);
  }
  std::int64_t Slot(std::int64_t position) const { return position & ((std::int64_t{1} << page_shift) - 1); }
  std::int64_t PageEnd(std::int64_t position) const { return ((position >> page_shift) + 1) << page_shift; }

  // The interleaved groups that start with `row`, a multiple of four.
  float* Queries(std::int64_t row) const { return queries + row * head_dim; }
  float* Weights(std::int64_t row) const { return weights + row * score_stride; }
  float* Scores(std::int64_t row) const { return scores + row * score_stride; }
  const float* Query(std::int64_t row) const {
    return call.q[tile.sequence->first_row + tile.Token(row)] + tile.Head(row) * head_dim;
  }
  float* Out(std::int64_t row) const {
    return call.out[tile.sequence->first_row + tile.Token(row)] + tile.Head(row) * head_dim;
  }
};

// Blocks of whole groups of rows read the broadcast elements from the interleaved copies, starting with the block's
// first group. Other blocks have one or two rows and read the rows themselves.
template <int kRows>
constexpr bool kInterleaved = kRows % kGroupRows == 0;
template <int kRows>
constexpr std::int64_t kStep = kInterleaved<kRows> ? kGroupRows : 1;

// The element of row i, if the first row's is at `at`. `stride` is the distance between groups of rows, or between
// rows.
template <int kRows>
HWY_INLINE float RowElement(const float* at, std::int64_t stride, int i) {
  return kInterleaved<kRows> ? at[i / kGroupRows * stride + i % kGroupRows] : at[i * stride];
}

template <typename T>
HWY_INLINE void PrefetchScales(const Work<T>& work, std::int64_t position) {
  hwy::Prefetch(work.KeyScales(position));
  hwy::Prefetch(work.ValueScales(position));
}

// The scales at `at()`, and x multiplied by them. Without scales nothing is read and x is returned.
template <typename T, class D, typename At>
HWY_INLINE hn::Vec<D> ScalesOf(D d, const At& at) {
  if constexpr (kScaled<T>) return LoadWide(d, at());
  return hn::Zero(d);
}
template <typename T, class V>
HWY_INLINE V Scaled(V x, V scale) {
  if constexpr (kScaled<T>) return hn::Mul(x, scale);
  return x;
}

// Scores of rows [row, row + kRows) at kVectors vectors of positions from `position` on. In a decode step, pages stream
// from memory in pieces too short for the hardware's prefetchers, so the keys of the next block are prefetched here.
template <int kRows, int kVectors, class D, typename T>
HWY_INLINE void ScoreBlock(D d, const Work<T>& work, std::int64_t row, std::int64_t position) {
  const std::int64_t head_dim = work.head_dim;
  const std::int64_t page_tokens = std::int64_t{1} << work.page_shift;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const T* keys[kVectors];
  const T* next[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    keys[v] = work.Keys(position + v * lanes);
    const std::int64_t later = position + (kVectors + v) * lanes;
    next[v] = later < work.end ? work.Keys(later) : keys[v];
    if constexpr (kScaled<T>) PrefetchScales(work, std::min(later, work.end - 1));
  }
  const float* q = kInterleaved<kRows> ? work.Queries(row) : work.Query(row);
  const std::int64_t q_stride = kInterleaved<kRows> ? kGroupRows * head_dim : work.Query(row + kRows - 1) - q;
  hn::Vec<D> sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::Zero(d);
  }
  for (std::int64_t t = 0; t < head_dim; ++t, q += kStep<kRows>) {
    hn::Vec<D> key[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      hwy::Prefetch(next[v] + t * page_tokens);
      key[v] = LoadWide(d, keys[v] + t * page_tokens);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const auto value = hn::Set(d, RowElement<kRows>(q, q_stride, i));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(value, key[v], sum[i][v]);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    float* to = work.Scores(row) + position - work.begin + v * lanes;
    const auto scale = ScalesOf<T>(d, [&] { return work.KeyScales(position + v * lanes); });
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) hn::StoreU(Scaled<T>(sum[i][v], scale), d, to + i * work.score_stride);
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

// x rounded to bfloat16, nearest even. REQUIRES: finite.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V RoundToBf16(D d, V x) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto carried = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
  return hn::BitCast(d, hn::And(carried, hn::Set(du, 0xffff0000u)));
}

// Adds ALiBi's biases to the scores of one row in its view.
template <class D, typename T>
HWY_NOINLINE void AddBiases(D d, const Work<T>& work, float slope, std::int64_t row) {
  float* HWY_RESTRICT scores = work.Scores(row);
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t first = work.First(row) - work.begin, end = work.Last(row) + 1 - work.begin;
  const bool rounds = work.call.form.rounds_bias;
  const std::int64_t origin = work.begin - (rounds ? 0 : work.Last(row));
  const auto index = hn::Iota(d, 0.0f), factor = hn::Set(d, slope);
  for (std::int64_t i = first / lanes * lanes; i < end; i += lanes) {
    auto bias = hn::Add(index, hn::Set(d, static_cast<float>(origin + i)));
    if (rounds) {
      bias = RoundToBf16(d, hn::Mul(factor, RoundToBf16(d, bias)));
    } else {
      bias = hn::Mul(factor, bias);
    }
    hn::StoreU(hn::Add(hn::LoadU(d, scores + i), bias), d, scores + i);
  }
}

// Replaces the scores of one row in its view by tanh(inner * score).
template <class D, typename T>
HWY_NOINLINE void CapScores(D d, const Work<T>& work, float inner, std::int64_t row) {
  float* HWY_RESTRICT scores = work.Scores(row);
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t first = work.First(row) - work.begin, end = work.Last(row) + 1 - work.begin;
  for (std::int64_t i = first / lanes * lanes; i < end; i += lanes) {
    hn::StoreU(Tanh(d, hn::Mul(hn::Set(d, inner), hn::LoadU(d, scores + i))), d, scores + i);
  }
}

// Replaces the scores of one row in its view by the weights of the values: exponentials relative to the scores'
// maximum, times the values' scales. Returns the sum of the exponentials, taken lane by lane in order of position, and
// of that of the head's sink.
template <class D, typename T>
HWY_NOINLINE float Exponentiate(D d, const Work<T>& work, float scale, std::int64_t row) {
  float* HWY_RESTRICT scores = work.Scores(row);
  const std::int64_t first = work.First(row) - work.begin, end = work.Last(row) + 1 - work.begin;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto index = hn::Iota(d, 0.0f);
  const auto seen = [&](std::int64_t i) HWY_ATTR {
    return hn::And(hn::Ge(index, hn::Set(d, static_cast<float>(first - i))),
                   hn::Lt(index, hn::Set(d, static_cast<float>(end - i))));
  };
  const std::int64_t begin = first / lanes * lanes;
  const auto factor = hn::Set(d, scale);  // positive, so the maximum may be taken before scaling
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  const float* const sinks = work.call.form.sinks;
  const float sink = sinks == nullptr ? 0 : sinks[work.tile.Head(row)] / scale;
  auto maximum = sinks == nullptr ? lowest : hn::Set(d, sink);
  for (std::int64_t i = begin; i < end; i += lanes) {
    auto value = hn::LoadU(d, scores + i);
    if (i < first || i + lanes > end) value = hn::IfThenElse(seen(i), value, lowest);
    maximum = hn::Max(maximum, value);
  }
  maximum = hn::MaxOfLanes(d, maximum);
  auto sum = hn::Zero(d);
  for (std::int64_t i = begin; i < end; i += lanes) {
    auto value = Exp(d, hn::Mul(factor, hn::Sub(hn::LoadU(d, scores + i), maximum)));
    if (i < first || i + lanes > end) value = hn::IfThenElseZero(seen(i), value);
    sum = hn::Add(sum, value);
    const auto scales = ScalesOf<T>(d, [&] { return work.ValueScales(work.begin + i); });
    hn::StoreU(Scaled<T>(value, scales), d, scores + i);
  }
  const float total = hn::GetLane(hn::SumOfLanes(d, sum));
  if (sinks == nullptr) return total;
  return total + hn::GetLane(Exp(d, hn::Mul(factor, hn::Sub(hn::Set(d, sink), maximum))));
}

// How many positions ahead values are prefetched: a position takes about 5 to 15 cycles, memory several hundred.
constexpr std::int64_t kValuesAhead = 64;

// out += weight * V over `positions`, in order, for rows [row, row + kRows) and kVectors vectors of
// dimensions from `dim` on.
template <int kRows, int kVectors, class D, typename T>
HWY_INLINE void AddValueBlock(D d, const Work<T>& work, std::int64_t row, std::int64_t dim, IndexRange positions) {
  const std::int64_t head_dim = work.head_dim;
  const std::int64_t weight_stride = (kInterleaved<kRows> ? kGroupRows : 1) * work.score_stride;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  hn::Vec<D> sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::LoadU(d, work.Out(row + i) + dim + v * lanes);
  }
  const std::int64_t end = positions.end;
  for (std::int64_t position = positions.begin; position < end;) {
    const std::int64_t stop = std::min(end, work.PageEnd(position));
    const T* values = work.Values(position) + dim;
    const T* next = position + kValuesAhead < end ? work.Values(position + kValuesAhead) + dim : values;
    const std::int64_t count = stop - position;
    const float* weights =
        (kInterleaved<kRows> ? work.Weights(row) : work.Scores(row)) + (position - work.begin) * kStep<kRows>;
    position = stop;
    for (std::int64_t p = 0; p < count; ++p, values += head_dim, next += head_dim, weights += kStep<kRows>) {
      hn::Vec<D> value[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        hwy::Prefetch(next + v * lanes);
        value[v] = LoadWide(d, values + v * lanes);
      }
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const auto weight = hn::Set(d, RowElement<kRows>(weights, weight_stride, i));
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
  const std::int64_t head_dim = work.head_dim;
  std::int64_t dim = 0;
  for (; dim + kVectors * lanes <= head_dim; dim += kVectors * lanes) {
    AddValueBlock<kRows, kVectors>(d, work, row, dim, {begin, end});
  }
  for (; dim + lanes <= head_dim; dim += lanes) AddValueBlock<kRows, 1>(d, work, row, dim, {begin, end});
  for (; dim < head_dim; ++dim) AddValueBlock<kRows, 1>(single, work, row, dim, {begin, end});
}

// Adds positions from `begin` on. All rows together take the positions in the first row's view. The rest, in the view
// of later rows only, is taken by the two halves of the rows separately, recursively.
template <int kRows, typename T>
void WeighFrom(const Work<T>& work, std::int64_t row, std::int64_t begin) {
  const std::int64_t end = std::max(begin, work.Last(row) + 1);
  AddValues<kRows>(work, row, begin, end);
  if constexpr (kRows > 1) {
    if (work.Last(row + kRows - 1) < end) return;
    constexpr int kFirst = kRows > 8 ? kRows - 8 : kRows / 2;
    WeighFrom<kFirst>(work, row, end);
    WeighFrom<kRows - kFirst>(work, row + kFirst, end);
  }
}

// Outputs of rows [row, row + kRows) from their weights, before the division by the sum. Rows are in order of
// position, hence also of the first position in their view. Positions before the last row's view are taken row by row.
template <int kRows, typename T>
void WeighRows(const Work<T>& work, std::int64_t row) {
  for (int i = 0; i < kRows; ++i) std::fill_n(work.Out(row + i), work.head_dim, 0.0f);
  const std::int64_t common = work.First(row + kRows - 1);
  for (int i = 0; i + 1 < kRows; ++i) {
    AddValues<1>(work, row + i, work.First(row + i), std::min(common, work.Last(row + i) + 1));
  }
  WeighFrom<kRows>(work, row, common);
}

template <int kRows, typename T>
void InterleaveQueries(const Work<T>& work, std::int64_t row) {
  for (std::int64_t r = row; r < row + kRows; r += kGroupRows) {
    const float* const from[] = {work.Query(r), work.Query(r + 1), work.Query(r + 2), work.Query(r + 3)};
    InterleaveRows(from, kGroupRows, work.head_dim, work.Queries(r));
  }
}

template <int kRows, typename T>
void InterleaveWeights(const Work<T>& work, std::int64_t row) {
  for (std::int64_t r = row; r < row + kRows; r += kGroupRows) {
    const float* const from[] = {work.Scores(r), work.Scores(r + 1), work.Scores(r + 2), work.Scores(r + 3)};
    InterleaveRows(from, kGroupRows, work.end - work.begin, work.Weights(r));
  }
}

template <int kRows, class D, typename T>
void AttendRows(D d, const Work<T>& work, std::int64_t row) {
  const std::int64_t head_dim = work.head_dim;
  const ScoreForm& form = work.call.form;
  const float scale = form.soft_cap > 0 ? form.soft_cap : form.scale;
  if constexpr (kInterleaved<kRows>) InterleaveQueries<kRows>(work, row);
  ScoreRows<kRows>(d, work, row);
  for (int i = 0; form.slopes != nullptr && i < kRows; ++i) {
    AddBiases(d, work, form.slopes[work.tile.Head(row + i)], row + i);
  }
  for (int i = 0; form.soft_cap > 0 && i < kRows; ++i) CapScores(d, work, form.scale / form.soft_cap, row + i);
  float sums[kRows];
  for (int i = 0; i < kRows; ++i) sums[i] = Exponentiate(d, work, scale, row + i);
  if constexpr (kInterleaved<kRows>) InterleaveWeights<kRows>(work, row);
  WeighRows<kRows>(work, row);
  for (int i = 0; i < kRows; ++i) {
    float* out = work.Out(row + i);
    for (std::int64_t t = 0; t < head_dim; ++t) out[t] /= sums[i];
  }
}

template <typename T, class D>
void AttendTile(D d, const AttentionArguments& call, const AttentionTile& tile, float* workspace) {
  constexpr std::int64_t kScoreAlign = 16;
  const PagesOfLayer& pages = call.pages;
  const std::int64_t head_dim = pages.layout.head_dim;
  Work<T> work = {.call = call, .tile = tile, .queries = workspace};
  work.pages = tile.sequence->pages;
  work.page_stride = pages.arena.page_stride;
  work.keys = pages.arena.base + pages.layout.KeyOffset(pages.layer, tile.kv_head);
  work.values = pages.arena.base + pages.layout.ValueOffset(pages.layer, tile.kv_head);
  work.page_shift = std::countr_zero(static_cast<std::uint64_t>(pages.layout.page_tokens));
  work.head_dim = head_dim;
  work.begin = work.First(0) / kScoreAlign * kScoreAlign;
  work.end = work.Last(tile.rows - 1) + 1;
  work.scores = workspace + kAttentionTileRows * head_dim;
  // One vector more than needed: with a stride of 4 KiB, all rows would compete for the same sets of L1.
  work.score_stride = (work.end - work.begin + kScoreAlign - 1) / kScoreAlign * kScoreAlign + kScoreAlign;
  work.weights = work.scores + kAttentionTileRows * work.score_stride;
  std::int64_t row = 0;
  for (; row + kMaxBlockRows <= tile.rows; row += kMaxBlockRows) AttendRows<kMaxBlockRows>(d, work, row);
  if constexpr (kMaxBlockRows > 8) {
    for (; row + 8 <= tile.rows; row += 8) AttendRows<8>(d, work, row);
  }
  for (; row + 4 <= tile.rows; row += 4) AttendRows<4>(d, work, row);
  for (; row + 2 <= tile.rows; row += 2) AttendRows<2>(d, work, row);
  for (; row < tile.rows; ++row) AttendRows<1>(d, work, row);
}

template <typename T, class D>
void Attend(D d, const KernelContext& context, const AttentionArguments& call) {
  const KvLayout& layout = call.pages.layout;
  const AttentionTiles tiles(call.sequences, layout.num_kv_heads, call.num_heads / layout.num_kv_heads);
  std::int64_t positions = 0;
  for (const AttentionSequence& sequence : call.sequences) {
    positions = std::max(positions, sequence.position + sequence.num_tokens);
  }
  const std::int64_t per_thread = AttentionWorkspaceFloats(layout, call.num_heads, positions, 1);
  // Tiles differ in length; sixteen tasks per thread even that out.
  const std::int64_t count = tiles.Count();
  const std::int64_t tasks = std::min<std::int64_t>(count, context.pool->size() * 16);
  context.pool->Run(tasks, [&](std::int64_t task, int thread) HWY_ATTR {
    tiles.ForEach(count * task / tasks, count * (task + 1) / tasks, [&](const AttentionTile& tile) HWY_ATTR {
      AttendTile<T>(d, call, tile, call.workspace + thread * per_thread);
    });
  });
}

template <typename T>
void AttendTyped(const KernelContext& context, const AttentionArguments& call) {
  // A vector of positions must lie in one page.
  switch (call.pages.layout.page_tokens) {
    case 4:
      return Attend<T>(hn::CappedTag<float, 4>(), context, call);
    case 8:
      return Attend<T>(hn::CappedTag<float, 8>(), context, call);
    default:
      return Attend<T>(hn::CappedTag<float, 16>(), context, call);
  }
}

void Attention(const KernelContext& context, const AttentionArguments& call) {
  switch (call.pages.layout.dtype) {
    case DType::kF32:
      return AttendTyped<float>(context, call);
    case DType::kF16:
      return AttendTyped<hwy::float16_t>(context, call);
    case DType::kI8:
      return AttendTyped<std::int8_t>(context, call);
    default:
      return AttendTyped<hwy::bfloat16_t>(context, call);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace loramux::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace loramux::cpu {

HWY_EXPORT(Attention);

void Attention(const KernelContext& context, const AttentionArguments& arguments) {
  HWY_DYNAMIC_DISPATCH(Attention)(context, arguments);
}

}  // namespace loramux::cpu
#endif
