#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/group_matmul.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "hwy/highway.h"
//
#include <algorithm>
#include <cstring>
#include <limits>

#include "hwy/cache_control.h"
#include "kernels/cpu/group_dot-inl.h"
#include "kernels/cpu/lora_rider.h"
#include "kernels/cpu/widen-inl.h"
#include "kernels/matmul.h"
#include "kernels/round_row.h"

// A tile is a few rows of x times a panel. Each group's codes are loaded (and 4-bit ones unpacked) once for all rows of
// the tile. Every output is one chain over the groups, the same in every tile, so the result has the same bits for
// every m.
HWY_BEFORE_NAMESPACE();
namespace loramux::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr std::int64_t kPanel = PackedMatrix::kPanel;

using DotFloats = hn::Rebind<float, DotTag>;
using DotFloat = hn::Vec<DotFloats>;
constexpr int kDotLanes = static_cast<int>(hn::MaxLanes(DotTag()));
constexpr int kDotVectors = static_cast<int>(kPanel) / kDotLanes;  // vectors of a panel
// Vectors of outputs that share the loads of x. With 32 registers, 6 rows x 2 vectors take 12 integer and 12 float
// accumulators; with 16, 3 rows x 2 vectors take 6, and the floats stay in L1.
constexpr int kAtOnce = kDotVectors < 2 ? kDotVectors : 2;
constexpr bool kManyDotRegisters = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64;
constexpr int kMaxDotRows = kManyDotRegisters ? 6 : 4;

// How far ahead weights are fetched: see matmul.cc.
constexpr std::int64_t kDotFetchAhead = 8192;

// A group of a row of x.
struct RoundedGroup {
  std::int8_t codes[kWeightGroup];
  float scale;
  float sum;           // sum of the codes
  std::int32_t total;  // the same as an integer
  std::int32_t unused;
};

// The arguments of one call of GroupTile.
struct GroupTileWork {
  const RoundedGroup* x = nullptr;  // [rows][groups]
  std::int64_t groups = 0;
  const std::byte* panel = nullptr;
  float* y = nullptr;  // row 0, output 0 of the panel
  std::int64_t y_stride = 0;
  std::int64_t columns = 0;     // outputs that exist
  const float* bias = nullptr;  // bias of output 0, or null
};

// kWide: zero has a code of its own in the middle, and codes need 8 bits when they are multiplied.
template <WeightFormat kFormat>
constexpr bool kWide = IsCentred(kFormat);

template <WeightFormat kFormat>
constexpr std::int64_t PanelGroupBytes() {
  if (kFormat == WeightFormat::kMx4) return kMx4PanelGroupBytes;
  return kFormat == WeightFormat::kQ8 ? kQ8PanelGroupBytes : kQ4PanelGroupBytes;
}

// The codes of kQ8 for codes of kMx4, one a byte.
HWY_INLINE DotVec LookUpMx4(DotVec codes) {
#if HWY_TARGET == HWY_SCALAR
  const auto four = static_cast<std::uint32_t>(hn::GetLane(codes));
  std::uint32_t found = 0;
  for (unsigned shift = 0; shift < 32; shift += 8) {
    found |= static_cast<std::uint32_t>(kMx4Codes[four >> shift & 0xf]) << shift;
  }
  return hn::Set(DotTag(), static_cast<std::int32_t>(found));
#else
  const auto table = hn::LoadDup128(DotBytes(), kMx4Codes);
  return hn::BitCast(DotTag(), hn::TableLookupBytes(table, hn::BitCast(DotBytes(), codes)));
#endif
}

// Codes of 4 bits, one a byte, as they are multiplied.
template <WeightFormat kFormat>
HWY_INLINE QuadCodes PrepareNibbles(DotVec codes) {
  if constexpr (kFormat == WeightFormat::kMx4) codes = LookUpMx4(codes);
  return PrepareCodes<kWide<kFormat>>(codes);
}

HWY_INLINE DotVec LoadCodes(const std::byte* codes, int vector) {
  return hn::Load(DotTag(), reinterpret_cast<const std::int32_t*>(codes) + vector * kDotLanes);
}

HWY_INLINE DotVec BroadcastQuad(const RoundedGroup& x, std::int64_t quad) {
  std::int32_t four;
  std::memcpy(&four, x.codes + quad * kQuad, sizeof(four));
  return hn::Set(DotTag(), four);
}

// Adds the products of one quad to the sums of all rows.
template <WeightFormat kFormat, int kRows>
HWY_INLINE void AddQuad(const RoundedGroup* const (&x)[kRows], std::int64_t quad, const QuadCodes (&w)[kAtOnce],
                        DotVec (&dot)[kRows][kAtOnce]) {
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    const DotVec four = BroadcastQuad(*x[i], quad);
#pragma GCC unroll 8
    for (int v = 0; v < kAtOnce; ++v) dot[i][v] = AddDot<kWide<kFormat>>(dot[i][v], w[v], four);
  }
}

// The integer sums of a group for outputs of vectors [first, first + kAtOnce).
template <WeightFormat kFormat, int kRows>
HWY_INLINE void DotGroup(const RoundedGroup* const (&x)[kRows], const std::byte* codes, int first,
                         DotVec (&dot)[kRows][kAtOnce]) {
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kAtOnce; ++v) dot[i][v] = StartDot<kWide<kFormat>>(x[i]->total);
  }
  QuadCodes w[kAtOnce];
  if constexpr (kFormat == WeightFormat::kQ8) {
#pragma GCC unroll 8
    for (std::int64_t quad = 0; quad < kQuads; ++quad, codes += kQuadBytes) {
#pragma GCC unroll 8
      for (int v = 0; v < kAtOnce; ++v) w[v] = PrepareCodes<true>(LoadCodes(codes, first + v));
      AddQuad<kFormat>(x, quad, w, dot);
    }
  } else {
    const auto low = hn::Set(DotTag(), 0x0f0f0f0f);
#pragma GCC unroll 8
    for (std::int64_t quad = 0; quad < kQuads; quad += 2, codes += kQuadBytes) {
      DotVec both[kAtOnce];
#pragma GCC unroll 8
      for (int v = 0; v < kAtOnce; ++v) {
        both[v] = LoadCodes(codes, first + v);
        w[v] = PrepareNibbles<kFormat>(hn::And(both[v], low));
      }
      AddQuad<kFormat>(x, quad, w, dot);
#pragma GCC unroll 8
      for (int v = 0; v < kAtOnce; ++v) w[v] = PrepareNibbles<kFormat>(hn::And(hn::ShiftRight<4>(both[v]), low));
      AddQuad<kFormat>(x, quad + 1, w, dot);
    }
  }
}

// Adds one group to the outputs of vectors [first, first + kAtOnce).
template <WeightFormat kFormat, int kRows>
HWY_INLINE void AddGroup(const RoundedGroup* const (&x)[kRows], const std::byte* group, int first,
                         DotFloat (&sum)[kRows][kDotVectors]) {
  DotVec dot[kRows][kAtOnce];
  constexpr bool kCentred = kWide<kFormat>;
  DotGroup<kFormat>(x, group + (kCentred ? 1 : 2) * kHalfsBytes, first, dot);
  const auto* const halves = reinterpret_cast<const hwy::float16_t*>(group);
#pragma GCC unroll 8
  for (int v = 0; v < kAtOnce; ++v) {
    const DotFloat scale = LoadWide(DotFloats(), halves + (first + v) * kDotLanes);
    const DotFloat minimum = LoadWide(DotFloats(), halves + (kCentred ? 0 : kPanel) + (first + v) * kDotLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const DotFloat product = hn::ConvertTo(DotFloats(), FinishDot<kCentred>(dot[i][v]));
      const DotFloat value = kCentred ? hn::Mul(scale, product)
                                      : hn::MulAdd(scale, product, hn::Mul(minimum, hn::Set(DotFloats(), x[i]->sum)));
      sum[i][first + v] = hn::MulAdd(hn::Set(DotFloats(), x[i]->scale), value, sum[i][first + v]);
    }
  }
}

template <WeightFormat kFormat, int kRows, bool kFetch>
HWY_NOINLINE void GroupTile(const GroupTileWork& work) {
  DotFloat sum[kRows][kDotVectors];
  const RoundedGroup* x[kRows];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    x[i] = work.x + i * work.groups;
#pragma GCC unroll 8
    for (int v = 0; v < kDotVectors; ++v) sum[i][v] = hn::Zero(DotFloats());
  }
  const std::byte* group = work.panel;
  for (std::int64_t g = 0; g < work.groups; ++g, group += PanelGroupBytes<kFormat>()) {
    if constexpr (kFetch) {
      for (std::int64_t line = 0; line < PanelGroupBytes<kFormat>(); line += 64) {
        hwy::Prefetch(group + kDotFetchAhead + line);
      }
    }
#pragma GCC unroll 8
    for (int first = 0; first < kDotVectors; first += kAtOnce) AddGroup<kFormat>(x, group, first, sum);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) ++x[i];
  }
  HWY_ALIGN float bias[kPanel] = {};
  if (work.bias != nullptr) std::memcpy(bias, work.bias, static_cast<std::size_t>(work.columns) * sizeof(float));
  for (int i = 0; i < kRows; ++i) {
    HWY_ALIGN float row[kPanel];
    float* const to = work.columns == kPanel ? work.y + i * work.y_stride : row;
    for (int v = 0; v < kDotVectors; ++v) {
      const DotFloat value = hn::Add(sum[i][v], hn::Load(DotFloats(), bias + v * kDotLanes));
      hn::StoreU(work.bias == nullptr ? sum[i][v] : value, DotFloats(), to + v * kDotLanes);
    }
    if (to == row) std::memcpy(work.y + i * work.y_stride, row, static_cast<std::size_t>(work.columns) * sizeof(float));
  }
}

// Computes `rows` (1 to kRows) rows of a panel.
template <WeightFormat kFormat, bool kFetch, int kRows = kMaxDotRows>
HWY_INLINE void TileOfGroups(std::int64_t rows, const GroupTileWork& work) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return TileOfGroups<kFormat, kFetch, kRows - 1>(rows, work);
  }
  GroupTile<kFormat, kRows, kFetch>(work);
}

// As loramux::RoundRow, for one group of `x`.
HWY_INLINE void RoundGroup(const float* HWY_RESTRICT x, RoundedGroup& out) {
  const DotTag d;
  const DotFloats df;
  constexpr int kParts = static_cast<int>(kWeightGroup) / kDotLanes;
  auto bits = hn::Zero(d);
  for (int part = 0; part < kParts; ++part) {
    const auto value = hn::BitCast(d, hn::LoadU(df, x + part * kDotLanes));
    bits = hn::Max(bits, hn::And(value, hn::Set(d, 0x7fffffff)));
  }
  // Magnitudes have the order of their bits; those of infinities and NaN are the largest.
  const std::int32_t largest_bits = hn::GetLane(hn::MaxOfLanes(d, bits));
  float largest;
  std::memcpy(&largest, &largest_bits, sizeof(largest));
  const bool finite = largest_bits < 0x7f800000;
  const bool some = finite && largest >= kSmallestActivation;
  const auto inverse = hn::Set(df, some ? 127.0f / largest : 0.0f);
  auto sum = hn::Zero(d);
  for (int part = 0; part < kParts; ++part) {
    auto code = hn::NearestInt(hn::Mul(hn::LoadU(df, x + part * kDotLanes), inverse));
    if (!some) code = hn::Zero(d);
    sum = hn::Add(sum, code);
    const hn::Rebind<std::int8_t, DotTag> db;
    hn::StoreU(hn::DemoteTo(db, code), db, out.codes + part * kDotLanes);
  }
  out.total = hn::GetLane(hn::SumOfLanes(d, sum));
  out.sum = static_cast<float>(out.total);
  out.scale = some ? largest / 127.0f : finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
}

void RoundRowOf(const float* x, std::int64_t k, RoundedGroup* out) {
  const std::int64_t whole = k / kWeightGroup;
  for (std::int64_t g = 0; g < whole; ++g) RoundGroup(x + g * kWeightGroup, out[g]);
  if (whole * kWeightGroup == k) return;
  float rest[kWeightGroup] = {};
  std::memcpy(rest, x + whole * kWeightGroup, static_cast<std::size_t>(k % kWeightGroup) * sizeof(float));
  RoundGroup(rest, out[whole]);
}

// Rounds all rows into the calling thread's scratch memory, which grows to the largest x and stays allocated.
const RoundedGroup* RoundRows(const KernelContext& context, ConstRows x, std::int64_t m, std::int64_t k) {
  thread_local AlignedBuffer<float> scratch;
  const std::int64_t groups = WeightGroups(k);
  scratch.Reserve(m * groups * static_cast<std::int64_t>(sizeof(RoundedGroup) / sizeof(float)));
  auto* const out = reinterpret_cast<RoundedGroup*>(scratch.data());
  // Below 32 Ki elements, waking the other threads costs as much as it saves.
  if (m * k < (std::int64_t{32} << 10)) {
    for (std::int64_t i = 0; i < m; ++i) RoundRowOf(x[i], k, out + i * groups);
  } else {
    context.pool->Run(m, [=](std::int64_t i, int) HWY_ATTR { RoundRowOf(x[i], k, out + i * groups); });
  }
  return out;
}

// All rows of a panel, tile by tile. The first tile reads the weights from memory and fetches ahead.
template <WeightFormat kFormat>
void MultiplyPanel(std::int64_t m, GroupTileWork work) {
  const std::int64_t tiles = (m + kMaxDotRows - 1) / kMaxDotRows;
  const RoundedGroup* const x = work.x;
  float* const y = work.y;
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    const std::int64_t row = m * tile / tiles, rows = m * (tile + 1) / tiles - row;
    work.x = x + row * work.groups;
    work.y = y + row * work.y_stride;
    if (tile == 0) {
      TileOfGroups<kFormat, true>(rows, work);
    } else {
      TileOfGroups<kFormat, false>(rows, work);
    }
  }
}

void MultiplyGroups(const KernelContext& context, const MatMulArguments& a, const LoraRider& rider) {
  const PackedMatrix& w = a.w;
  const std::int64_t m = a.rows;
  const RoundedGroup* const rounded = RoundRows(context, a.x, m, w.k());
  const std::int64_t panels = w.panels(), threads = context.pool->size();
  // Even parts of at most 16 panels, and enough that a thread that loses its core for a while delays the others little.
  const std::int64_t rounds = std::max<std::int64_t>((panels + threads * 16 - 1) / (threads * 16), 4);
  const std::int64_t tasks = std::min(panels, threads * rounds);
  rider.RunWith(*context.pool, tasks, [&](std::int64_t task) HWY_ATTR {
    const std::int64_t first = panels * task / tasks, end = panels * (task + 1) / tasks;
    const IndexRange columns = {first * kPanel, std::min(end * kPanel, w.n())};
    rider.Fetch(columns);
    for (std::int64_t p = first; p < end; ++p) {
      const GroupTileWork work = {.x = rounded,
                                  .groups = WeightGroups(w.k()),
                                  .panel = w.panel(p),
                                  .y = a.y.data + p * kPanel,
                                  .y_stride = a.y.stride,
                                  .columns = std::min(kPanel, w.n() - p * kPanel),
                                  .bias = a.bias == nullptr ? nullptr : a.bias + p * kPanel};
      switch (w.format(p)) {
        case WeightFormat::kQ8:
          MultiplyPanel<WeightFormat::kQ8>(m, work);
          break;
        case WeightFormat::kMx4:
          MultiplyPanel<WeightFormat::kMx4>(m, work);
          break;
        default:
          MultiplyPanel<WeightFormat::kQ4>(m, work);
      }
    }
    rider.Expand({0, m}, columns);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace loramux::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace loramux::cpu {

HWY_EXPORT(MultiplyGroups);

void RiddenGroupMatMul(const KernelContext& context, const MatMulArguments& arguments, const LoraRider& rider) {
  HWY_DYNAMIC_DISPATCH(MultiplyGroups)(context, arguments, rider);
}

}  // namespace loramux::cpu
#endif
