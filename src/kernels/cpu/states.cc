#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/states.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "hwy/highway.h"
//
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/vectors-inl.h"
#include "kernels/states.h"

#ifndef LORAMUX_KERNELS_CPU_STATES_ONCE_
#define LORAMUX_KERNELS_CPU_STATES_ONCE_
namespace loramux::cpu {

inline constexpr std::int64_t kConvBlock = 128;  // channels of a task
inline constexpr std::int64_t kConvWidth = 8;    // the widest convolution
inline constexpr std::int64_t kScanRows = 4;     // rows of a state, in registers while the tokens of a tile pass

// `count` channels of a sequence's rows.
struct ConvPiece {
  std::int64_t rows = 0, count = 0, channels = 0, width = 0;
  const float* weights = nullptr;
  const float* bias = nullptr;
  ConstRows x;
  Rows y;
};

// A value head's rows.
struct DeltaPiece {
  std::int64_t rows = 0, key_dim = 0, value_dim = 0;
  ConstRows q, k, v, b, a;
  float rate = 0, bias = 0;
  Rows out;
};

// A value head's rows of the scan.
struct ScanPiece {
  std::int64_t rows = 0, key_dim = 0, value_dim = 0;
  ConstRows q, k, v, steps;
  float rate = 0, bias = 0, skip = 0, least_step = 0, most_step = 0;
  Rows out;
};

// How a row's heads are normed.
struct GatedHead {
  const float* weight = nullptr;
  float eps = 0;
  const float* z = nullptr;
  std::int64_t dim = 0;
  bool gate_first = false;
};

}  // namespace loramux::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace loramux::cpu {
namespace HWY_NAMESPACE {
namespace {

template <class D, class V = hn::Vec<D>>
HWY_INLINE V SigmoidOf(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  return hn::Div(one, hn::Add(one, Exp(d, hn::Neg(x))));
}

// The order depends on n alone.
float SquaresOf(const float* x, std::int64_t n) {
  const DF d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  VF sum = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const VF value = hn::LoadU(d, x + i);
    sum = hn::MulAdd(value, value, sum);
  }
  float squares = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < n; ++i) squares += x[i] * x[i];
  return squares;
}

// `state`: [width - 1, kConvBlock], the rows before; then the last ones.
void ConvRows(const ConvPiece& piece, float* state) {
  const std::int64_t before = piece.width - 1;
  const float* rows[kConvWidth];  // in view of a row, the earliest first
  for (std::int64_t j = 0; j < before; ++j) rows[j] = state + j * kConvBlock;
  for (std::int64_t t = 0; t < piece.rows; ++t) {
    rows[before] = piece.x[t];
    float* const y = piece.y[t];
    ForEachVector(piece.count, [&](auto d, std::int64_t c) HWY_ATTR {
      auto sum = piece.bias == nullptr ? hn::Zero(d) : hn::LoadU(d, piece.bias + c);
      for (std::int64_t j = 0; j <= before; ++j) {
        sum = hn::MulAdd(hn::LoadU(d, piece.weights + j * piece.channels + c), hn::LoadU(d, rows[j] + c), sum);
      }
      hn::StoreU(hn::Mul(sum, SigmoidOf(d, sum)), d, y + c);
    });
    for (std::int64_t j = 0; j < before; ++j) rows[j] = rows[j + 1];
  }
  // The earliest first: a row of the state goes to an earlier place, if it stays.
  for (std::int64_t j = 0; j < before; ++j) {
    if (rows[j] != state + j * kConvBlock) std::copy_n(rows[j], piece.count, state + j * kConvBlock);
  }
}

void Normalise(const float* x, std::int64_t n, float scale, float* y) {
  const float factor = scale / std::sqrt(SquaresOf(x, n) + 1e-6f);
  ForEachVector(n, [&](auto d, std::int64_t i)
                       HWY_ATTR { hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, factor)), d, y + i); });
}

// What one token does to a value head.
struct DeltaToken {
  const float *q, *k, *v;
  float decay, beta;
  float *state, *out;
};

// `kVectors` vectors of a value head's columns from `column` on, of one token: they take the state twice through the
// registers, first for what it knows of the key, then for what it becomes.
template <int kVectors, class D>
HWY_INLINE void DeltaColumns(D d, const DeltaPiece& piece, const DeltaToken& token, std::int64_t column) {
  using V = hn::Vec<D>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t key_dim = piece.key_dim, value_dim = piece.value_dim;
  const float *const q = token.q, *const k = token.k;
  float* const state = token.state + column;
  const V by = hn::Set(d, token.decay);
  V sums[kVectors], changes[kVectors];
  for (int t = 0; t < kVectors; ++t) sums[t] = hn::Zero(d);
  for (std::int64_t i = 0; i < key_dim; ++i) {
    const V key = hn::Set(d, k[i]);
    for (int t = 0; t < kVectors; ++t) {
      float* const at = state + i * value_dim + t * lanes;
      const V decayed = hn::Mul(hn::LoadU(d, at), by);
      hn::StoreU(decayed, d, at);
      sums[t] = hn::MulAdd(decayed, key, sums[t]);
    }
  }
  for (int t = 0; t < kVectors; ++t) {
    changes[t] = hn::Mul(hn::Sub(hn::LoadU(d, token.v + column + t * lanes), sums[t]), hn::Set(d, token.beta));
    sums[t] = hn::Zero(d);
  }
  for (std::int64_t i = 0; i < key_dim; ++i) {
    const V key = hn::Set(d, k[i]), query = hn::Set(d, q[i]);
    for (int t = 0; t < kVectors; ++t) {
      float* const at = state + i * value_dim + t * lanes;
      const V now = hn::MulAdd(key, changes[t], hn::LoadU(d, at));
      hn::StoreU(now, d, at);
      sums[t] = hn::MulAdd(now, query, sums[t]);
    }
  }
  for (int t = 0; t < kVectors; ++t) hn::StoreU(sums[t], d, token.out + column + t * lanes);
}

// `q` and `k`: room for [key_dim] each.
void DeltaRows(const DeltaPiece& piece, float* state, float* q, float* k) {
  const DF d;
  const hn::CappedTag<float, 1> one;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t dk = piece.key_dim, dv = piece.value_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dk));
  for (std::int64_t row = 0; row < piece.rows; ++row) {
    Normalise(piece.q[row], dk, scale, q);
    Normalise(piece.k[row], dk, 1.0f, k);
    const float a = *piece.a[row] + piece.bias;
    const float softplus = a > 20.0f ? a : std::log1p(std::exp(a));
    const float decay = std::exp(piece.rate * softplus);
    const float beta = 1.0f / (1.0f + std::exp(-*piece.b[row]));
    const DeltaToken token = {q, k, piece.v[row], decay, beta, state, piece.out[row]};
    std::int64_t j = 0;
    for (; j + 4 * lanes <= dv; j += 4 * lanes) DeltaColumns<4>(d, piece, token, j);
    for (; j + lanes <= dv; j += lanes) DeltaColumns<1>(d, piece, token, j);
    for (; j < dv; ++j) DeltaColumns<1>(one, piece, token, j);
  }
}

// The rows of a tile, one after the other: elsewhere they lie as far apart as rows of the batch, which caches dislike.
struct ScanRowsOfTile {
  float *k, *q, *v, *out;
};

// A tile's tokens through `kRows` rows of the state from `first` on, and `kVectors` vectors of columns from `column`
// on. Each output is one chain over the rows of the state, so that it has the same bits whatever is in registers.
template <int kRows, int kVectors, class D>
HWY_INLINE void ScanBlock(D d, const ScanPiece& piece, const ScanRowsOfTile& tile, const float* decays,
                          std::int64_t first, std::int64_t column, float* state) {
  using V = hn::Vec<D>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  V kept[kRows * kVectors];
  float* const at = state + first * piece.value_dim + column;
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kVectors; ++t) kept[r * kVectors + t] = hn::LoadU(d, at + r * piece.value_dim + t * lanes);
  }
  for (std::int64_t row = 0; row < piece.rows; ++row) {
    const V decay = hn::Set(d, decays[row]);
    const float *const k = tile.k + row * piece.key_dim + first, *const q = tile.q + row * piece.key_dim + first;
    const float* const v = tile.v + row * piece.value_dim + column;
    float* const out = tile.out + row * piece.value_dim + column;
    V added[kVectors], sums[kVectors];
    for (int t = 0; t < kVectors; ++t) {
      added[t] = hn::LoadU(d, v + t * lanes);
      sums[t] = hn::LoadU(d, out + t * lanes);
    }
    for (int r = 0; r < kRows; ++r) {
      const V key = hn::Set(d, k[r]), query = hn::Set(d, q[r]);
      for (int t = 0; t < kVectors; ++t) {
        V& now = kept[r * kVectors + t];
        now = hn::MulAdd(key, added[t], hn::Mul(now, decay));
        sums[t] = hn::MulAdd(now, query, sums[t]);
      }
    }
    for (int t = 0; t < kVectors; ++t) hn::StoreU(sums[t], d, out + t * lanes);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kVectors; ++t) hn::StoreU(kept[r * kVectors + t], d, at + r * piece.value_dim + t * lanes);
  }
}

template <int kVectors, class D>
HWY_INLINE void ScanColumns(D d, const ScanPiece& piece, const ScanRowsOfTile& tile, const float* decays,
                            std::int64_t column, float* state) {
  std::int64_t i = 0;
  for (; i + kScanRows <= piece.key_dim; i += kScanRows) {
    ScanBlock<kScanRows, kVectors>(d, piece, tile, decays, i, column, state);
  }
  for (; i < piece.key_dim; ++i) ScanBlock<1, kVectors>(d, piece, tile, decays, i, column, state);
}

// `piece`: the rows of a tile; `tile`: room for them. v is multiplied by the step there.
void ScanTile(const ScanPiece& piece, const ScanRowsOfTile& tile, float* state) {
  const DF d;
  const hn::CappedTag<float, 1> one;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  float decays[kStateTile];
  const std::int64_t dk = piece.key_dim, dv = piece.value_dim;
  for (std::int64_t row = 0; row < piece.rows; ++row) {
    const float x = *piece.steps[row] + piece.bias;
    const float softplus = x > 20.0f ? x : std::log1p(std::exp(x));
    const float step = std::min(std::max(softplus, piece.least_step), piece.most_step);
    decays[row] = std::exp(piece.rate * step);
    std::copy_n(piece.k[row], dk, tile.k + row * dk);
    std::copy_n(piece.q[row], dk, tile.q + row * dk);
    std::fill_n(tile.out + row * dv, dv, 0.0f);
    ForEachVector(dv, [&](auto v, std::int64_t i) HWY_ATTR {
      hn::StoreU(hn::Mul(hn::Set(v, step), hn::LoadU(v, piece.v[row] + i)), v, tile.v + row * dv + i);
    });
  }
  std::int64_t j = 0;
  for (; j + 2 * lanes <= dv; j += 2 * lanes) ScanColumns<2>(d, piece, tile, decays, j, state);
  for (; j + lanes <= dv; j += lanes) ScanColumns<1>(d, piece, tile, decays, j, state);
  for (; j < dv; ++j) ScanColumns<1>(one, piece, tile, decays, j, state);
  for (std::int64_t row = 0; row < piece.rows; ++row) {
    ForEachVector(dv, [&](auto v, std::int64_t i) HWY_ATTR {
      const auto sum = hn::LoadU(v, tile.out + row * dv + i);
      hn::StoreU(hn::MulAdd(hn::Set(v, piece.skip), hn::LoadU(v, piece.v[row] + i), sum), v, piece.out[row] + i);
    });
  }
}

// `state`: the head's, with room for a tile's rows behind it.
void ScanHead(const ScanPiece& head, float* state) {
  float* const rows = state + head.key_dim * head.value_dim;
  float* const values = rows + 2 * kStateTile * head.key_dim;
  const ScanRowsOfTile room = {rows, rows + kStateTile * head.key_dim, values, values + kStateTile * head.value_dim};
  for (std::int64_t row = 0; row < head.rows; row += kStateTile) {
    ScanPiece tile = head;
    tile.rows = std::min(kStateTile, head.rows - row);
    tile.q = head.q.Below(row);
    tile.k = head.k.Below(row);
    tile.v = head.v.Below(row);
    tile.steps = head.steps.Below(row);
    tile.out = head.out.Below(row);
    ScanTile(tile, room, state);
  }
}

void GatedNormHead(const GatedHead& head, float* y) {
  const auto gate_of = [&](auto d, std::int64_t i) HWY_ATTR {
    const auto gate = hn::LoadU(d, head.z + i);
    return hn::Mul(gate, SigmoidOf(d, gate));
  };
  if (head.gate_first) {
    ForEachVector(head.dim, [&](auto d, std::int64_t i)
                                HWY_ATTR { hn::StoreU(hn::Mul(hn::LoadU(d, y + i), gate_of(d, i)), d, y + i); });
  }
  const float inverse = 1.0f / std::sqrt(SquaresOf(y, head.dim) / static_cast<float>(head.dim) + head.eps);
  ForEachVector(head.dim, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto normed = hn::Mul(hn::Mul(hn::LoadU(d, y + i), hn::Set(d, inverse)), hn::LoadU(d, head.weight + i));
    hn::StoreU(head.gate_first ? normed : hn::Mul(normed, gate_of(d, i)), d, y + i);
  });
}

void MulSigmoidRow(const float* gate, std::int64_t n, float* y) {
  ForEachVector(n, [&](auto d, std::int64_t i) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::LoadU(d, y + i), SigmoidOf(d, hn::LoadU(d, gate + i))), d, y + i);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace loramux::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace loramux::cpu {
namespace {

HWY_EXPORT(ConvRows);
HWY_EXPORT(DeltaRows);
HWY_EXPORT(ScanHead);
HWY_EXPORT(GatedNormHead);
HWY_EXPORT(MulSigmoidRow);

// Calls fn(task) for all tasks, by all threads if the work of so many elements is worth waking them.
template <typename F>
void ForEachStateTask(const KernelContext& context, std::int64_t tasks, std::int64_t elements, const F& fn) {
  constexpr std::int64_t kMinElements = std::int64_t{48} << 10;
  if (elements >= kMinElements) return context.pool->Run(tasks, fn);
  for (std::int64_t task = 0; task < tasks; ++task) fn(task, 0);
}

std::int64_t RowsOfAll(std::span<const StateSequence> sequences) {
  std::int64_t rows = 0;
  for (const StateSequence& sequence : sequences) rows += sequence.num_tokens;
  return rows;
}

// The task of a value head of a sequence: `pass`(sequence, head, its key head, state) lets the sequence's rows pass the
// state. The workspace has room for more behind it.
template <typename Arguments, typename Pass>
void ForEachHead(const KernelContext& context, const Arguments& a, const Pass& pass) {
  const DeltaShape& shape = a.shape;
  const std::int64_t heads = shape.value_heads, floats = shape.HeadFloats();
  const auto sequences = static_cast<std::int64_t>(a.sequences.size());
  const std::int64_t work = (RowsOfAll(a.sequences) + sequences) * heads * floats;
  ForEachStateTask(context, sequences * heads, work, [&](std::int64_t task, int thread) {
    const StateSequence& sequence = a.sequences[static_cast<std::size_t>(task / heads)];
    const std::int64_t head = task % heads;
    float* const state = a.workspace + thread * DeltaWorkspaceFloats(shape);
    a.place.Read(sequence, head * floats, floats, state);
    pass(sequence, head, head / (heads / shape.key_heads), state);
    a.place.Write(sequence, head * floats, floats, state);
  });
}

}  // namespace

void CausalConv(const KernelContext& context, const CausalConvArguments& a) {
  CHECK_LE(a.width, kConvWidth);
  const auto conv = HWY_DYNAMIC_DISPATCH(ConvRows);
  const std::int64_t channels = a.channels, width = a.width, blocks = (channels + kConvBlock - 1) / kConvBlock;
  const auto tasks = static_cast<std::int64_t>(a.sequences.size()) * blocks;
  ForEachStateTask(context, tasks, RowsOfAll(a.sequences) * channels * width, [&](std::int64_t task, int) {
    const StateSequence& sequence = a.sequences[static_cast<std::size_t>(task / blocks)];
    const std::int64_t first = task % blocks * kConvBlock, count = std::min(kConvBlock, channels - first);
    float state[(kConvWidth - 1) * kConvBlock];
    for (std::int64_t j = 0; j + 1 < width; ++j) {
      a.place.Read(sequence, j * channels + first, count, state + j * kConvBlock);
    }
    conv({.rows = sequence.num_tokens,
          .count = count,
          .channels = channels,
          .width = width,
          .weights = a.weights + first,
          .bias = a.bias == nullptr ? nullptr : a.bias + first,
          .x = a.x.Below(sequence.first_row).From(first),
          .y = a.y.Below(sequence.first_row).From(first)},
         state);
    for (std::int64_t j = 0; j + 1 < width; ++j) {
      a.place.Write(sequence, j * channels + first, count, state + j * kConvBlock);
    }
  });
}

void DeltaRule(const KernelContext& context, const DeltaRuleArguments& a) {
  const auto rule = HWY_DYNAMIC_DISPATCH(DeltaRows);
  const DeltaShape& shape = a.shape;
  const std::int64_t dk = shape.key_dim, dv = shape.value_dim;
  ForEachHead(context, a, [&](const StateSequence& sequence, std::int64_t head, std::int64_t key_head, float* state) {
    const ConstRows x = a.x.Below(sequence.first_row), gates = a.gates.Below(sequence.first_row);
    const DeltaPiece piece = {.rows = sequence.num_tokens,
                              .key_dim = dk,
                              .value_dim = dv,
                              .q = x.From(key_head * dk),
                              .k = x.From(shape.Keys() + key_head * dk),
                              .v = x.From(2 * shape.Keys() + head * dv),
                              .b = gates.From(head),
                              .a = gates.From(shape.value_heads + head),
                              .rate = a.rate[head],
                              .bias = a.bias[head],
                              .out = a.out.Below(sequence.first_row).From(head * dv)};
    rule(piece, state, state + dk * dv, state + dk * dv + dk);
  });
}

void SelectiveScan(const KernelContext& context, const SelectiveScanArguments& a) {
  const auto scan = HWY_DYNAMIC_DISPATCH(ScanHead);
  const DeltaShape& shape = a.shape;
  const std::int64_t dk = shape.key_dim, dv = shape.value_dim;
  ForEachHead(context, a, [&](const StateSequence& sequence, std::int64_t head, std::int64_t key_head, float* state) {
    const ConstRows x = a.x.Below(sequence.first_row);
    scan({.rows = sequence.num_tokens,
          .key_dim = dk,
          .value_dim = dv,
          .q = x.From(shape.Values() + shape.Keys() + key_head * dk),
          .k = x.From(shape.Values() + key_head * dk),
          .v = x.From(head * dv),
          .steps = a.steps.Below(sequence.first_row).From(head),
          .rate = a.rate[head],
          .bias = a.bias[head],
          .skip = a.skip[head],
          .least_step = a.least_step,
          .most_step = a.most_step,
          .out = a.out.Below(sequence.first_row).From(head * dv)},
         state);
  });
}

void GatedRmsNorm(const KernelContext& context, const GatedRmsNormArguments& a) {
  const auto norm = HWY_DYNAMIC_DISPATCH(GatedNormHead);
  ForEachStateTask(context, a.rows, a.rows * a.heads * a.head_dim, [&](std::int64_t i, int) {
    for (std::int64_t head = 0; head < a.heads; ++head) {
      const std::int64_t at = head * a.head_dim;
      norm({a.weight + head * a.weight_stride, a.eps, a.z[i] + at, a.head_dim, a.gate_first}, a.y[i] + at);
    }
  });
}

void MulSigmoid(const KernelContext& context, const MulSigmoidArguments& a) {
  const auto row = HWY_DYNAMIC_DISPATCH(MulSigmoidRow);
  ForEachStateTask(context, a.rows, a.rows * a.width, [&](std::int64_t i, int) { row(a.gate[i], a.width, a.y[i]); });
}

}  // namespace loramux::cpu
#endif
