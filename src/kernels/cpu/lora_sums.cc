#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/lora_sums.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "hwy/highway.h"
//
#include <algorithm>
#include <cstring>

#include "kernels/cpu/widen-inl.h"
#include "kernels/lora_sums.h"

// A lane of the device's warp is a lane of the vectors here. It has 4 neighbouring elements of every 128: so x and the
// rows of A are widened and deinterleaved, [128 elements] to [4][32 lanes], and whole vectors are multiplied.
HWY_BEFORE_NAMESPACE();
namespace loramux::cpu {
namespace HWY_NAMESPACE {
namespace {

using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;
constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(DF()));
constexpr std::int64_t kWarp = 32;
constexpr std::int64_t kGroup = 128;  // elements that the warp reads at once
constexpr std::int64_t kBlock = 512, kSplit = 2048;
constexpr int kRanks = 4;  // rows of A at a time

// kTile accumulators for each of 4 rows, 4 widened rows and a product: as many as there are registers.
constexpr bool kManyRegisters = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64;
constexpr int kTile = kManyRegisters ? 4 : 2;

template <bool kFused>
HWY_INLINE VF MultiplyAdd(VF a, VF b, VF c) {
  return kFused ? hn::MulAdd(a, b, c) : hn::Add(hn::Mul(a, b), c);
}

// [128] to [4][32].
HWY_INLINE void Deinterleave(const float* HWY_RESTRICT from, float* HWY_RESTRICT to) {
  for (std::int64_t lane = 0; lane < kWarp; lane += kLanes) {
    VF v0, v1, v2, v3;
    hn::LoadInterleaved4(DF(), from + 4 * lane, v0, v1, v2, v3);
    hn::StoreU(v0, DF(), to + lane);
    hn::StoreU(v1, DF(), to + kWarp + lane);
    hn::StoreU(v2, DF(), to + 2 * kWarp + lane);
    hn::StoreU(v3, DF(), to + 3 * kWarp + lane);
  }
}
// A word has two elements; bf16 is the upper half of a float.
HWY_INLINE void Deinterleave(const hwy::bfloat16_t* HWY_RESTRICT from, float* HWY_RESTRICT to) {
  const hn::RebindToUnsigned<DF> du;
  const auto* words = reinterpret_cast<const std::uint32_t*>(from);
  const auto upper = hn::Set(du, 0xffff0000u);
  for (std::int64_t lane = 0; lane < kWarp; lane += kLanes) {
    hn::Vec<decltype(du)> low, high;
    hn::LoadInterleaved2(du, words + 2 * lane, low, high);
    hn::StoreU(hn::BitCast(DF(), hn::ShiftLeft<16>(low)), DF(), to + lane);
    hn::StoreU(hn::BitCast(DF(), hn::And(low, upper)), DF(), to + kWarp + lane);
    hn::StoreU(hn::BitCast(DF(), hn::ShiftLeft<16>(high)), DF(), to + 2 * kWarp + lane);
    hn::StoreU(hn::BitCast(DF(), hn::And(high, upper)), DF(), to + 3 * kWarp + lane);
  }
}
template <typename T>
HWY_INLINE void DeinterleaveWide(const T* HWY_RESTRICT from, float* HWY_RESTRICT to) {
  HWY_ALIGN float wide[kGroup];
  for (std::int64_t t = 0; t < kGroup; t += kLanes) hn::StoreU(LoadWide(DF(), from + t), DF(), wide + t);
  Deinterleave(wide, to);
}
HWY_INLINE void Deinterleave(const hwy::float16_t* HWY_RESTRICT from, float* HWY_RESTRICT to) {
  DeinterleaveWide(from, to);
}
HWY_INLINE void Deinterleave(const std::int8_t* HWY_RESTRICT from, float* HWY_RESTRICT to) {
  DeinterleaveWide(from, to);
}
HWY_INLINE void Deinterleave(const F8E4M3* HWY_RESTRICT from, float* HWY_RESTRICT to) { DeinterleaveWide(from, to); }

// The elements [begin, end) of a row, padded with zeros to a multiple of 128.
template <typename T>
HWY_INLINE void DeinterleaveRow(const T* row, std::int64_t begin, std::int64_t end, float* to) {
  for (; begin + kGroup <= end; begin += kGroup, to += kGroup) Deinterleave(row + begin, to);
  if (begin == end) return;
  HWY_ALIGN T rest[kGroup];
  std::memset(rest, 0, sizeof(rest));
  std::memcpy(rest, row + begin, static_cast<std::size_t>(end - begin) * sizeof(T));
  Deinterleave(rest, to);
}

// lanes[i][j][32] = the lanes' sums over `groups` groups of 128 of x[i] * a[j], for kTokens tokens; kVectors vectors of
// lanes at a time.
template <bool kFused, int kTokens, int kVectors>
HWY_INLINE void MultiplyBlock(const float* HWY_RESTRICT x, std::int64_t x_stride, const float* HWY_RESTRICT a,
                              std::int64_t groups, float* HWY_RESTRICT lanes) {
  for (std::int64_t lane = 0; lane < kWarp; lane += kVectors * kLanes) {
    VF sum[kTokens][kVectors][kRanks];
#pragma GCC unroll 4
    for (int i = 0; i < kTokens; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
        for (int j = 0; j < kRanks; ++j) sum[i][v][j] = hn::Zero(DF());
      }
    }
    for (std::int64_t t = lane; t < groups * kGroup; t += kWarp) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        VF row[kRanks];
#pragma GCC unroll 4
        for (int j = 0; j < kRanks; ++j) row[j] = hn::LoadU(DF(), a + j * kBlock + t + v * kLanes);
#pragma GCC unroll 4
        for (int i = 0; i < kTokens; ++i) {
          const VF value = hn::LoadU(DF(), x + i * x_stride + t + v * kLanes);
#pragma GCC unroll 4
          for (int j = 0; j < kRanks; ++j) sum[i][v][j] = MultiplyAdd<kFused>(value, row[j], sum[i][v][j]);
        }
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kTokens; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
        for (int j = 0; j < kRanks; ++j)
          hn::StoreU(sum[i][v][j], DF(), lanes + (i * kRanks + j) * kWarp + lane + v * kLanes);
      }
    }
  }
}

// Into L2, where it waits until a later pass reads it.
template <typename T>
HWY_INLINE void FetchIntoL2(const T* from, std::int64_t elements) {
  for (std::int64_t at = 0; at < elements; at += 64 / static_cast<std::int64_t>(sizeof(T))) {
    __builtin_prefetch(from + at, 0, 2);
  }
}

// Adds the upper half of the lanes to the lower half until one is left.
template <class D>
HWY_INLINE float AddHalves(D d, hn::Vec<D> v) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (hn::MaxLanes(D()) > 1) {
    const hn::Half<D> half;
    return AddHalves(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
#endif
  return hn::GetLane(v);
}
HWY_INLINE float AddLanes(const float* HWY_RESTRICT lanes) {
  constexpr int kVectors = static_cast<int>(kWarp / kLanes);
  VF v[kVectors];
#pragma GCC unroll 32
  for (int i = 0; i < kVectors; ++i) v[i] = hn::LoadU(DF(), lanes + i * kLanes);
#pragma GCC unroll 8
  for (int distance = kVectors / 2; distance > 0; distance /= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < distance; ++i) v[i] = hn::Add(v[i], v[i + distance]);
  }
  return AddHalves(DF(), v[0]);
}

// The running sums of the rows of A in hand.
struct Totals {
  float* split;  // [row][kRanks]
  float* v;      // [row][stride], of the first rank
  std::int64_t stride;
  int ranks;         // ranks that exist
  bool first_block;  // the block is the first of the split
  bool last_block;   // the block is the last of the split
  bool first_split;
};

HWY_INLINE void AddToTotals(const Totals& totals, std::int64_t row, int j, float block) {
  float& split = totals.split[row * kRanks + j];
  split = totals.first_block ? block : split + block;
  if (!totals.last_block) return;
  float& v = totals.v[row * totals.stride + j];
  v = totals.first_split ? split : v + split;
}

// x: deinterleaved, from the block on.
template <bool kFused, int kTokens>
HWY_NOINLINE void ShrinkTokens(ConstRows x, const float* a, std::int64_t groups, const Totals& totals,
                               std::int64_t row) {
  constexpr int kVectors = std::min<int>(kTile / kTokens, static_cast<int>(kWarp / kLanes));
  HWY_ALIGN float lanes[kTokens * kRanks * kWarp];
  MultiplyBlock<kFused, kTokens, kVectors>(x[row], x.stride, a, groups, lanes);
  for (int i = 0; i < kTokens; ++i) {
    for (int j = 0; j < totals.ranks; ++j) AddToTotals(totals, row + i, j, AddLanes(lanes + (i * kRanks + j) * kWarp));
  }
}

// v = A x, four rows of A at a time. x: deinterleaved.
template <bool kFused, typename T>
void ShrinkAll(const LoraSumsArguments& input, const LoraWeights& weights, ConstRows x, Rows v) {
  constexpr std::int64_t kMostRows = 64;
  HWY_ALIGN float a[kRanks * kBlock] = {};
  float split[kMostRows * kRanks];
  for (std::int64_t first_row = 0; first_row < input.rows; first_row += kMostRows) {
    const std::int64_t rows = std::min(kMostRows, input.rows - first_row);
    for (std::int32_t rank = 0; rank < weights.rank; rank += kRanks) {
      Totals totals = {split, v[first_row] + rank, v.stride, std::min<int>(kRanks, weights.rank - rank)};
      for (std::int64_t begin = 0; begin < input.in; begin += kBlock) {
        const std::int64_t end = std::min(begin + kBlock, input.in);
        for (int j = 0; j < totals.ranks; ++j) {
          const int later = std::min(rank + kRanks + j, weights.rank - 1);
          FetchIntoL2(reinterpret_cast<const T*>(weights.a_rows[later]) + begin, end - begin);
          DeinterleaveRow(reinterpret_cast<const T*>(weights.a_rows[rank + j]), begin, end, a + j * kBlock);
        }
        totals.first_block = begin % kSplit == 0;
        totals.last_block = end % kSplit == 0 || end == input.in;
        totals.first_split = begin < kSplit;
        const ConstRows block = x.Below(first_row).From(begin);
        const std::int64_t groups = (end - begin + kGroup - 1) / kGroup;
        std::int64_t row = 0;
        for (; row + kTile <= rows; row += kTile) {
          ShrinkTokens<kFused, kTile>(block, a, groups, totals, row);
        }
        for (; row < rows; ++row) ShrinkTokens<kFused, 1>(block, a, groups, totals, row);
      }
    }
  }
}

// One vector's lanes, or the rest one by one.
template <bool kFused, class D, typename T>
HWY_INLINE hn::Vec<D> AddRow(D d, float v, const T* row, hn::Vec<D> sum) {
  const auto b = LoadWide(d, row);
  return kFused ? hn::MulAdd(hn::Set(d, v), b, sum) : hn::Add(hn::Mul(hn::Set(d, v), b), sum);
}

// sums of kTokens tokens and kVectors vectors of outputs, in registers over the whole rank.
template <bool kFused, int kTokens, int kVectors, class D, typename T>
HWY_NOINLINE void ExpandTokens(D d, const LoraSumsOutput& output, ConstRows v, std::int64_t token,
                               std::int64_t column) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  hn::Vec<D> sum[kTokens][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kTokens; ++i) {
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n) sum[i][n] = hn::Zero(d);
  }
  for (std::int32_t j = 0; j < output.weights.rank; ++j) {
    const T* row = reinterpret_cast<const T*>(output.weights.b_rows[j]) + output.first_out + column;
    hn::Vec<D> b[kVectors];
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n) b[n] = LoadWide(d, row + n * lanes);
    if (token == 0) FetchIntoL2(row + kVectors * lanes, kVectors * lanes);  // may be beyond the row: no harm
#pragma GCC unroll 8
    for (int i = 0; i < kTokens; ++i) {
      const auto factor = hn::Set(d, v[token + i][j]);
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n)
        sum[i][n] = kFused ? hn::MulAdd(factor, b[n], sum[i][n]) : hn::Add(hn::Mul(factor, b[n]), sum[i][n]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kTokens; ++i) {
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n)
      hn::StoreU(sum[i][n], d, output.sums + (token + i) * output.stride + column + n * lanes);
  }
}

template <bool kFused, int kVectors, typename T, class D>
void ExpandColumns(D d, const LoraSumsOutput& output, ConstRows v, std::int64_t rows, std::int64_t column) {
  std::int64_t token = 0;
  for (; token + kTile <= rows; token += kTile) {
    ExpandTokens<kFused, kTile, kVectors, D, T>(d, output, v, token, column);
  }
  for (; token < rows; ++token) ExpandTokens<kFused, 1, kVectors, D, T>(d, output, v, token, column);
}

// For few tokens: along the rows of B, four at a time, with the sums in the cache.
template <bool kFused, typename T>
void ExpandAlongRows(const LoraSumsOutput& output, ConstRows v, std::int64_t rows) {
  constexpr std::int64_t kColumns = 2048;
  for (std::int64_t begin = 0; begin < output.out; begin += kColumns) {
    const std::int64_t columns = std::min(kColumns, output.out - begin);
    for (std::int64_t i = 0; i < rows; ++i) std::fill_n(output.sums + i * output.stride + begin, columns, 0.0f);
    for (std::int32_t j = 0; j < output.weights.rank; j += kRanks) {
      const T* row[kRanks];
      const int ranks = std::min<int>(kRanks, output.weights.rank - j);
      for (int r = 0; r < kRanks; ++r) {
        const int later = std::min(j + kRanks + r, output.weights.rank - 1);
        FetchIntoL2(reinterpret_cast<const T*>(output.weights.b_rows[later]) + output.first_out + begin, columns);
        row[r] =
            reinterpret_cast<const T*>(output.weights.b_rows[j + std::min(r, ranks - 1)]) + output.first_out + begin;
      }
      for (std::int64_t i = 0; i < rows; ++i) {
        float* HWY_RESTRICT sums = output.sums + i * output.stride + begin;
        const float* factors = v[i] + j;
        std::int64_t c = 0;
        if (ranks == kRanks) {
          for (; c + kLanes <= columns; c += kLanes) {
            VF sum = hn::LoadU(DF(), sums + c);
#pragma GCC unroll 4
            for (int r = 0; r < kRanks; ++r) sum = AddRow<kFused>(DF(), factors[r], row[r] + c, sum);
            hn::StoreU(sum, DF(), sums + c);
          }
        }
        const hn::CappedTag<float, 1> single;
        for (; c < columns; ++c) {
          auto sum = hn::LoadU(single, sums + c);
          for (int r = 0; r < ranks; ++r) sum = AddRow<kFused>(single, factors[r], row[r] + c, sum);
          hn::StoreU(sum, single, sums + c);
        }
      }
    }
  }
}

template <bool kFused, typename T>
void ExpandAll(const LoraSumsOutput& output, ConstRows v, std::int64_t rows) {
  constexpr int kVectors = 4;
  if (rows < kTile) return ExpandAlongRows<kFused, T>(output, v, rows);
  std::int64_t column = 0;
  for (; column + kVectors * kLanes <= output.out; column += kVectors * kLanes) {
    ExpandColumns<kFused, kVectors, T>(DF(), output, v, rows, column);
  }
  for (; column + kLanes <= output.out; column += kLanes) {
    ExpandColumns<kFused, 1, T>(DF(), output, v, rows, column);
  }
  for (; column < output.out; ++column) {
    ExpandColumns<kFused, 1, T>(hn::CappedTag<float, 1>(), output, v, rows, column);
  }
}

template <bool kFused, typename T>
void SumsOfOutput(const LoraSumsArguments& input, const LoraSumsOutput& output, ConstRows x, float* workspace) {
  const Rows v = {workspace, (output.weights.rank + 15) / 16 * 16};
  ShrinkAll<kFused, T>(input, output.weights, x, v);
  if (output.weights.factors != nullptr) {
    for (std::int64_t row = 0; row < input.rows; ++row) {
      for (std::int32_t j = 0; j < output.weights.rank; ++j) v[row][j] *= output.weights.factors[j];
    }
  }
  ExpandAll<kFused, T>(output, v, input.rows);
}

template <typename T>
void DeinterleaveInput(const LoraSumsArguments& input, Rows to) {
  for (std::int64_t row = 0; row < input.rows; ++row) {
    DeinterleaveRow(static_cast<const T*>(input.x) + row * input.x_stride, 0, input.in, to[row]);
  }
}

template <bool kFused>
void SumsOfOutputs(const LoraSumsArguments& input) {
  const Rows x = {input.workspace, (input.in + kGroup - 1) / kGroup * kGroup};
  float* const v = x[input.rows];
  if (input.dtype == DType::kF32) {
    DeinterleaveInput<float>(input, x);
  } else if (input.dtype == DType::kF16) {
    DeinterleaveInput<hwy::float16_t>(input, x);
  } else {
    DeinterleaveInput<hwy::bfloat16_t>(input, x);
  }
  for (const LoraSumsOutput& output : input.outputs) {
    if (output.weights.dtype == DType::kF32) {
      SumsOfOutput<kFused, float>(input, output, x, v);
    } else if (output.weights.dtype == DType::kF16) {
      SumsOfOutput<kFused, hwy::float16_t>(input, output, x, v);
    } else if (output.weights.dtype == DType::kI8) {
      SumsOfOutput<kFused, std::int8_t>(input, output, x, v);
    } else if (output.weights.dtype == DType::kF8E4M3) {
      SumsOfOutput<kFused, F8E4M3>(input, output, x, v);
    } else {
      SumsOfOutput<kFused, hwy::bfloat16_t>(input, output, x, v);
    }
  }
}

void ComputeLoraSums(const LoraSumsArguments& input) {
  if (input.fused) {
    SumsOfOutputs<true>(input);
  } else {
    SumsOfOutputs<false>(input);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace loramux::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace loramux::cpu {

HWY_EXPORT(ComputeLoraSums);

void LoraSums(const KernelContext&, const LoraSumsArguments& arguments) {
  HWY_DYNAMIC_DISPATCH(ComputeLoraSums)(arguments);
}

}  // namespace loramux::cpu
#endif
