#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/lora.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "hwy/highway.h"
//
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/lora_rider.h"
#include "kernels/cpu/lora_work.h"
#include "kernels/cpu/widen-inl.h"
#include "kernels/own_rows.h"

#ifndef LORAMUX_KERNELS_CPU_LORA_ONCE_
#define LORAMUX_KERNELS_CPU_LORA_ONCE_
namespace loramux::cpu {

// Own rows `range` of a segment with all of its rows of the batch: dot products as of shrink, each put into its token's
// column.
struct OwnPiece {
  const OwnProductsArguments& call;
  const OwnSegment& segment;
  IndexRange range;
};

}  // namespace loramux::cpu
#endif

// Shrink: a dot product adds vector by vector into one accumulator, sums its lanes, then adds the rest of `in` one by
// one. The tile that computes it decides only which loads it shares. Expand: y takes one multiply-add for each row of B
// in ascending order, whether y is kept in a register or in memory meanwhile.
HWY_BEFORE_NAMESPACE();
namespace loramux::cpu {
namespace HWY_NAMESPACE {
namespace {

using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;
constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(DF()));

// 4 tokens x 4 rows need 16 accumulators and 4 widened rows: too many for 16 registers.
constexpr bool kManyRegisters = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64;
constexpr int kTileTokens = kManyRegisters ? 4 : 2;
constexpr int kTileVectors = 4;

// With fewer tokens, expand goes along the rows of B, which then stream from memory. With at least this many, it goes
// along the rank, with y in registers.
constexpr std::int64_t kMinTokensToTile = 16;

// How many rows ahead rows are prefetched, for rows of which `elements` are read. Into L2: L1's few miss buffers stay
// free for the current loads.
template <typename T>
HWY_INLINE std::int64_t FetchAhead(std::int64_t elements) {
  const std::int64_t rows = kLoraAheadBytes / (elements * static_cast<std::int64_t>(sizeof(T)));
  return std::clamp<std::int64_t>(rows / 4 * 4, 4, 64);
}

// One prefetch per cache line: elements `at` of rows are reached in ascending order, and rows begin at lines.
template <typename T>
HWY_INLINE void FetchIntoL2(const T* row, std::int64_t at) {
  constexpr std::int64_t kLineElements = 64 / sizeof(T);
  if (at % kLineElements == 0) __builtin_prefetch(row + at, 0, 2);
}

// Rows of dot products, their factors, and rows that are used later.
template <int kRows, typename T>
struct DotRows {
  const T* rows[kRows];
  const T* next[kRows];
  float factors[kRows];
};

// coefficients[i][j] = factors[j] * dot(x[i], rows[j]) for kTokens tokens and kRows rows of `in` elements. With kFetch,
// prefetches `next`.
template <int kTokens, int kRows, bool kFetch, typename T>
HWY_INLINE void Dot(ConstRows x, std::int64_t in, const DotRows<kRows, T>& of, Rows coefficients) {
  VF sum[kTokens][kRows];
#pragma GCC unroll 4
  for (int i = 0; i < kTokens; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kRows; ++j) sum[i][j] = hn::Zero(DF());
  }
  const T* row[kRows];
  const T* ahead[kRows];
  for (int j = 0; j < kRows; ++j) row[j] = of.rows[j];
  for (int j = 0; j < kRows; ++j) ahead[j] = kFetch ? of.next[j] : nullptr;
  std::int64_t t = 0;
  for (; t + kLanes <= in; t += kLanes) {
    VF a[kRows];
#pragma GCC unroll 4
    for (int j = 0; j < kRows; ++j) {
      if constexpr (kFetch) FetchIntoL2(ahead[j], t);
      a[j] = LoadWide(DF(), row[j] + t);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kTokens; ++i) {
      const VF value = hn::LoadU(DF(), x[i] + t);
#pragma GCC unroll 4
      for (int j = 0; j < kRows; ++j) sum[i][j] = hn::MulAdd(value, a[j], sum[i][j]);
    }
  }
  const hn::CappedTag<float, 1> single;
#pragma GCC unroll 4
  for (int i = 0; i < kTokens; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kRows; ++j) {
      float dot = hn::GetLane(hn::SumOfLanes(DF(), sum[i][j]));
      for (std::int64_t rest = t; rest < in; ++rest) {
        dot += x[i][rest] * hn::GetLane(LoadWide(single, row[j] + rest));
      }
      coefficients[i][j] = of.factors[j] * dot;
    }
  }
}

// kRows rows with all tokens of the segment. The first tokens prefetch the rows read later.
template <int kRows, typename T>
HWY_NOINLINE void ShrinkRows(const LoraPiece& piece, const LoraPiece* following, ConstRows x, std::int64_t in,
                             std::int64_t first_row) {
  DotRows<kRows, T> of;
  const std::int64_t ahead = FetchAhead<T>(in);
  for (int j = 0; j < kRows; ++j) {
    of.rows[j] = piece.template ARow<T>(first_row + j);
    of.factors[j] = piece.Factor(first_row + j);
    const std::int64_t later = first_row + ahead + j;
    if (later < piece.end) {
      of.next[j] = piece.template ARow<T>(later);
    } else if (following != nullptr) {
      of.next[j] = following->template ARow<T>(std::min(following->begin + later - piece.end, following->end - 1));
    } else {
      of.next[j] = of.rows[j];
    }
  }
  std::int64_t i = piece.first_row;
  const auto run = [&](auto tokens, auto fetch) HWY_ATTR {
    Dot<decltype(tokens)::value, kRows, decltype(fetch)::value>(x.Below(i), in, of,
                                                                {piece.Coefficients(i) + first_row, piece.stride});
    i += decltype(tokens)::value;
  };
  using Tile = std::integral_constant<int, kTileTokens>;
  using One = std::integral_constant<int, 1>;
  if (i + kTileTokens <= piece.end_row) {
    run(Tile(), std::true_type());
  } else {
    run(One(), std::true_type());
  }
  while (i + kTileTokens <= piece.end_row) run(Tile(), std::false_type());
  while (i < piece.end_row) run(One(), std::false_type());
}

// Rows [piece.begin, piece.end) of A.
template <typename T>
void Shrink(const LoraPiece& piece, const LoraPiece* following, ConstRows x, std::int64_t in) {
  std::int64_t row = piece.begin;
  for (; row + 4 <= piece.end; row += 4) ShrinkRows<4, T>(piece, following, x, in, row);
  for (; row < piece.end; ++row) ShrinkRows<1, T>(piece, following, x, in, row);
}

// y[c] += coefficients[j] * rows[j][c] for kRows rows in ascending order.
template <int kRows, typename T>
HWY_NOINLINE void ExpandRows(const float* coefficients, const T* const* rows, const T* const* next,
                             std::int64_t columns, float* HWY_RESTRICT y) {
  VF factor[kRows];
  const T* row[kRows];
  const T* ahead[kRows];
#pragma GCC unroll 4
  for (int j = 0; j < kRows; ++j) {
    factor[j] = hn::Set(DF(), coefficients[j]);
    row[j] = rows[j];
    ahead[j] = next[j];
  }
  std::int64_t c = 0;
  for (; c + kLanes <= columns; c += kLanes) {
    VF sum = hn::LoadU(DF(), y + c);
#pragma GCC unroll 4
    for (int j = 0; j < kRows; ++j) {
      FetchIntoL2(ahead[j], c);
      sum = hn::MulAdd(factor[j], LoadWide(DF(), row[j] + c), sum);
    }
    hn::StoreU(sum, DF(), y + c);
  }
  const hn::CappedTag<float, 1> single;
  for (; c < columns; ++c) {
    auto sum = hn::LoadU(single, y + c);
    for (int j = 0; j < kRows; ++j) {
      sum = hn::MulAdd(hn::Set(single, coefficients[j]), LoadWide(single, row[j] + c), sum);
    }
    hn::StoreU(sum, single, y + c);
  }
}

// For few tokens: blocks of four rows of B with all tokens, in pieces of columns (four rows of at most 4 KiB) that stay
// in L1 for all tokens.
template <typename T>
void ExpandAlongRows(const LoraPiece& piece, const LoraPiece* following) {
  constexpr std::int64_t kBlockColumns = 1024;
  const std::int64_t rank = piece.rank;
  const std::int64_t ahead = FetchAhead<T>(std::min(kBlockColumns, piece.end - piece.begin));
  for (std::int64_t begin = piece.begin; begin < piece.end; begin += kBlockColumns) {
    const bool last = begin + kBlockColumns >= piece.end;
    // Row `later` of B; indices beyond the rank continue in the next block of columns, then in the following piece.
    const auto row_of_later = [&](std::int64_t later) HWY_ATTR {
      if (later < rank) return piece.template BRow<T>(later) + begin;
      if (!last) return piece.template BRow<T>(std::min(later - rank, rank - 1)) + begin + kBlockColumns;
      if (following == nullptr) return piece.template BRow<T>(rank - 1) + begin;
      return following->template BRow<T>(std::min(later - rank, following->rank - 1)) + following->begin;
    };
    const std::int64_t columns = std::min(kBlockColumns, piece.end - begin);
    std::int64_t j = 0;
    const auto block = [&](auto count) HWY_ATTR {
      constexpr int kRows = decltype(count)::value;
      const T* rows[kRows];
      const T* next[kRows];
      for (int r = 0; r < kRows; ++r) {
        rows[r] = piece.template BRow<T>(j + r) + begin;
        next[r] = row_of_later(j + ahead + r);
      }
      for (std::int64_t i = piece.first_row; i < piece.end_row; ++i) {
        ExpandRows<kRows, T>(piece.Coefficients(i) + j, rows, next, columns, piece.Y(i) + begin);
      }
      j += kRows;
    };
    while (j + 4 <= rank) block(std::integral_constant<int, 4>());
    while (j < rank) block(std::integral_constant<int, 1>());
  }
}

// y of kTokens tokens and kVectors vectors of columns in registers, over the whole rank.
template <int kTokens, int kVectors, class D, typename T>
HWY_NOINLINE void ExpandTile(D d, const LoraPiece& piece, std::int64_t first, std::int64_t column) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t stride = piece.stride;
  const float* coefficients = piece.Coefficients(first);
  hn::Vec<D> sum[kTokens][kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kTokens; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::LoadU(d, piece.Y(first + i) + column + v * lanes);
  }
  for (std::int64_t j = 0; j < piece.rank; ++j) {
    const T* row = piece.template BRow<T>(j) + column;
    hn::Vec<D> b[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) b[v] = LoadWide(d, row + v * lanes);
#pragma GCC unroll 4
    for (int i = 0; i < kTokens; ++i) {
      const auto factor = hn::Set(d, coefficients[i * stride + j]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(factor, b[v], sum[i][v]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kTokens; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[i][v], d, piece.Y(first + i) + column + v * lanes);
  }
}

template <int kVectors, typename T, class D>
void ExpandColumns(D d, const LoraPiece& piece, std::int64_t column) {
  std::int64_t i = piece.first_row;
  for (; i + kTileTokens <= piece.end_row; i += kTileTokens) {
    ExpandTile<kTileTokens, kVectors, D, T>(d, piece, i, column);
  }
  for (; i < piece.end_row; ++i) ExpandTile<1, kVectors, D, T>(d, piece, i, column);
}

// Columns [piece.begin, piece.end) of y.
template <typename T>
void Expand(const LoraPiece& piece, const LoraPiece* following) {
  if (piece.end_row - piece.first_row < kMinTokensToTile) return ExpandAlongRows<T>(piece, following);
  std::int64_t column = piece.begin;
  for (; column + kTileVectors * kLanes <= piece.end; column += kTileVectors * kLanes) {
    ExpandColumns<kTileVectors, T>(DF(), piece, column);
  }
  for (; column + kLanes <= piece.end; column += kLanes) ExpandColumns<1, T>(DF(), piece, column);
  for (; column < piece.end; ++column) ExpandColumns<1, T>(hn::CappedTag<float, 1>(), piece, column);
}

// `following`: the piece that this thread computes next; null: unknown.
void ShrinkPiece(const LoraPiece& piece, const LoraPiece* following, ConstRows x, std::int64_t in) {
  switch (piece.segment->weights.dtype) {
    case DType::kF32:
      return Shrink<float>(piece, following, x, in);
    case DType::kF16:
      return Shrink<hwy::float16_t>(piece, following, x, in);
    case DType::kI8:
      return Shrink<std::int8_t>(piece, following, x, in);
    case DType::kF8E4M3:
      return Shrink<F8E4M3>(piece, following, x, in);
    default:
      return Shrink<hwy::bfloat16_t>(piece, following, x, in);
  }
}

template <class D>
HWY_INLINE void GainAndShift(D d, const LoraWeights& weights, std::int64_t column, float* y) {
  const auto value =
      hn::MulAdd(hn::LoadU(d, weights.gains + column), hn::LoadU(d, y + column), hn::LoadU(d, weights.shifts + column));
  hn::StoreU(value, d, y + column);
}

// y = gains * y + shifts, in the piece's columns of y.
HWY_NOINLINE void GainAndShiftRows(const LoraPiece& piece) {
  for (std::int64_t i = piece.first_row; i < piece.end_row; ++i) {
    std::int64_t column = piece.begin;
    for (; column + kLanes <= piece.end; column += kLanes) {
      GainAndShift(DF(), piece.segment->weights, column, piece.Y(i));
    }
    for (; column < piece.end; ++column) {
      GainAndShift(hn::CappedTag<float, 1>(), piece.segment->weights, column, piece.Y(i));
    }
  }
}

void ExpandOfType(const LoraPiece& piece, const LoraPiece* following) {
  switch (piece.segment->weights.dtype) {
    case DType::kF32:
      return Expand<float>(piece, following);
    case DType::kF16:
      return Expand<hwy::float16_t>(piece, following);
    case DType::kI8:
      return Expand<std::int8_t>(piece, following);
    case DType::kF8E4M3:
      return Expand<F8E4M3>(piece, following);
    default:
      return Expand<hwy::bfloat16_t>(piece, following);
  }
}

template <int kTokens, int kRows, typename T>
HWY_NOINLINE void OwnTile(const OwnPiece& piece, std::int64_t first, std::int64_t row) {
  const OwnRows& own = piece.segment.own;
  const Rows y = piece.call.y.Below(first);
  DotRows<kRows, T> of;
  for (int j = 0; j < kRows; ++j) of.rows[j] = reinterpret_cast<const T*>(own.rows[row + j]);
  std::fill_n(of.factors, kRows, 1.0f);
  float dots[kTokens * kRows];
  Dot<kTokens, kRows, false>(piece.call.x.Below(first), piece.call.in, of, {dots, kRows});
  for (int i = 0; i < kTokens; ++i) {
    for (int j = 0; j < kRows; ++j) y[i][own.tokens[row + j]] = dots[i * kRows + j];
  }
}

template <typename T>
void OwnProductsOfType(const OwnPiece& piece) {
  const auto tokens = [&](auto rows, std::int64_t row) HWY_ATTR {
    constexpr int kRows = decltype(rows)::value;
    std::int64_t i = piece.segment.begin;
    for (; i + kTileTokens <= piece.segment.end; i += kTileTokens) OwnTile<kTileTokens, kRows, T>(piece, i, row);
    for (; i < piece.segment.end; ++i) OwnTile<1, kRows, T>(piece, i, row);
  };
  std::int64_t row = piece.range.begin;
  for (; row + 4 <= piece.range.end; row += 4) tokens(std::integral_constant<int, 4>(), row);
  for (; row < piece.range.end; ++row) tokens(std::integral_constant<int, 1>(), row);
}

void OwnProductsOfPiece(const OwnPiece& piece) {
  switch (piece.segment.own.dtype) {
    case DType::kF32:
      return OwnProductsOfType<float>(piece);
    case DType::kF16:
      return OwnProductsOfType<hwy::float16_t>(piece);
    default:
      return OwnProductsOfType<hwy::bfloat16_t>(piece);
  }
}

void ExpandPiece(const LoraPiece& piece, const LoraPiece* following) {
  const bool has_rows = following != nullptr && following->rank > 0;
  if (piece.rank > 0) ExpandOfType(piece, has_rows ? following : nullptr);
  if (piece.segment->weights.gains != nullptr) GainAndShiftRows(piece);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace loramux::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace loramux::cpu {

HWY_EXPORT(ShrinkPiece);
HWY_EXPORT(ExpandPiece);
HWY_EXPORT(OwnProductsOfPiece);

void LoraMatMul(const KernelContext& context, const LoraMatMulArguments& a) {
  const LoraWork work(a);
  const int threads = context.pool->size();
  const auto shrink = HWY_DYNAMIC_DISPATCH(ShrinkPiece);
  const std::int64_t shrink_tasks = work.Tasks(LoraPhase::kShrink, threads);
  context.pool->Run(shrink_tasks, [&](std::int64_t task, int) {
    work.ForEachPiece(LoraPhase::kShrink, task, shrink_tasks, [&](const LoraPiece& piece, const LoraPiece* following) {
      shrink(piece, following, a.x, a.in);
      work.ClearPadding(piece);
    });
  });
  const auto expand = HWY_DYNAMIC_DISPATCH(ExpandPiece);
  const std::int64_t expand_tasks = work.Tasks(LoraPhase::kExpand, threads);
  context.pool->Run(expand_tasks,
                    [&](std::int64_t task, int) { work.ForEachPiece(LoraPhase::kExpand, task, expand_tasks, expand); });
}

void OwnProducts(const KernelContext& context, const OwnProductsArguments& a) {
  constexpr std::int64_t kTaskRows = 256;
  const auto tasks_of = [](const OwnSegment& segment) {
    return segment.begin == segment.end ? 0 : (segment.own.count + kTaskRows - 1) / kTaskRows;
  };
  std::int64_t tasks = 0;
  for (const OwnSegment& segment : a.segments) tasks += tasks_of(segment);
  const auto compute = HWY_DYNAMIC_DISPATCH(OwnProductsOfPiece);
  context.pool->Run(tasks, [&](std::int64_t task, int) {
    auto segment = a.segments.begin();
    for (; task >= tasks_of(*segment); ++segment) task -= tasks_of(*segment);
    compute({a, *segment, {task * kTaskRows, std::min((task + 1) * kTaskRows, segment->own.count)}});
  });
}

namespace {

constexpr std::int64_t kLineBytes = 64;

// Prefetches lines until their number is used up.
class LineBudget {
 public:
  explicit LineBudget(std::int64_t bytes) : lines_(bytes / kLineBytes) {}

  // Elements `of_row` of the rows of A or B.
  void FetchRows(const LoraWeights& weights, const std::byte* const* rows, IndexRange range, IndexRange of_row) {
    const auto size = static_cast<std::int64_t>(DTypeSize(weights.dtype));
    range.end = std::min<std::int64_t>(range.end, weights.rank);
    for (std::int64_t j = range.begin; j < range.end; ++j) {
      for (std::int64_t at = of_row.begin * size; at < of_row.end * size; at += kLineBytes) {
        if (--lines_ < 0) return;
        __builtin_prefetch(rows[j] + at, 0, 2);
      }
    }
  }

 private:
  std::int64_t lines_;
};

}  // namespace

LoraRider::LoraRider(const LoraWork& work, int threads, const float* y)
    : work_(&work), tasks_(work.RidingTasks(threads)), y_(y) {
  open_.store(static_cast<std::int32_t>(tasks_), std::memory_order_relaxed);
}

void LoraRider::Shrink(std::int64_t task) const {
  const auto shrink = HWY_DYNAMIC_DISPATCH(ShrinkPiece);
  LineBudget lines(kLoraAheadBytes);
  work_->ForEachPiece(LoraPhase::kShrink, task, tasks_, [&](const LoraPiece& piece, const LoraPiece*) {
    lines.FetchRows(piece.segment->weights, piece.segment->weights.a_rows, {piece.begin, piece.end},
                    {0, work_->call().in});
  });
  work_->ForEachPiece(LoraPhase::kShrink, task, tasks_, [&](const LoraPiece& piece, const LoraPiece* following) {
    shrink(piece, following, work_->call().x, work_->call().in);
    work_->ClearPadding(piece);
  });
  if (open_.fetch_sub(1, std::memory_order_acq_rel) == 1) open_.notify_all();
}

void LoraRider::FetchRows(IndexRange columns) const {
  LineBudget lines(kLoraAheadBytes);
  const auto fetch = [&](const LoraPiece& piece, const LoraPiece*) {
    lines.FetchRows(piece.segment->weights, piece.segment->weights.b_rows, {0, piece.rank}, {piece.begin, piece.end});
  };
  work_->ForEachPieceOf(y_, {0, std::numeric_limits<std::int64_t>::max()}, columns, fetch);
}

void LoraRider::ExpandPart(IndexRange rows, IndexRange columns) const {
  // Shrink began before any task of the product, so it has usually ended. If a thread has lost its core, sleep.
  for (std::int32_t open; (open = open_.load(std::memory_order_acquire)) != 0;) open_.wait(open);
  work_->ForEachPieceOf(y_, rows, columns, HWY_DYNAMIC_DISPATCH(ExpandPiece));
}

void MatMulWithLora(const KernelContext& context, const MatMulWithLoraArguments& a) {
  const LoraWork work(a.Lora());
  // With few rows of x and large A and B, reading memory takes the time. LoraMatMul reads whole rows of B, a ridden
  // product reads B by columns. That gains more than the two parallel regions of LoraMatMul cost.
  constexpr std::int64_t kMostToRide = std::int64_t{64} << 10, kMostToRideOfRow = std::int64_t{32} << 10;
  // Without rows of A there is no shrink for the rest to wait for.
  const std::int64_t elements = work.ElementsOfA();
  if (elements == 0 || elements > std::max(kMostToRide, kMostToRideOfRow * a.product.rows)) {
    cpu::MatMul(context, a.product);
    return cpu::LoraMatMul(context, a.Lora());
  }
  RiddenMatMul(context, a.product, LoraRider(work, context.pool->size(), a.product.y.data));
}

}  // namespace loramux::cpu
#endif
