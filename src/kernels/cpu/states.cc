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
#include "kernels/cpu/states.h"

#ifndef LORAMUX_KERNELS_CPU_STATES_ONCE_
#define LORAMUX_KERNELS_CPU_STATES_ONCE_
namespace loramux::cpu {

inline constexpr std::int64_t kConvBlock = 128;  // channels of a task
inline constexpr std::int64_t kConvWidth = 8;    // the widest convolution

// Channels of a sequence's rows.
struct ConvPiece {
  std::int64_t rows = 0, count = 0, channels = 0, width = 0;  // of `channels`, `count` are computed
  const float* weights = nullptr;
  const float* x = nullptr;
  std::int64_t x_stride = 0;
  float* y = nullptr;
  std::int64_t y_stride = 0;
};

// A value head's rows.
struct DeltaPiece {
  std::int64_t rows = 0, key_dim = 0, value_dim = 0;
  const float *q = nullptr, *k = nullptr, *v = nullptr;
  std::int64_t x_stride = 0;
  const float *b = nullptr, *a = nullptr;
  std::int64_t gates_stride = 0;
  float rate = 0, bias = 0;
  float* out = nullptr;
  std::int64_t out_stride = 0;
};

}  // namespace loramux::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace loramux::cpu {
namespace HWY_NAMESPACE {
namespace {

using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;

// Calls fn(tag, index) for whole vectors over [0, n), then for single elements.
template <typename F>
HWY_INLINE void ForEachVector(std::int64_t n, const F& fn) {
  const DF d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) fn(d, i);
  for (; i < n; ++i) fn(hn::CappedTag<float, 1>(), i);
}

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
    rows[before] = piece.x + t * piece.x_stride;
    float* const y = piece.y + t * piece.y_stride;
    ForEachVector(piece.count, [&](auto d, std::int64_t c) HWY_ATTR {
      auto sum = hn::Zero(d);
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

// `kVectors` vectors of a value head's columns, of one token: they take the state twice through the registers, first
// for what it knows of the key, then for what it becomes.
template <int kVectors, class D>
HWY_INLINE void DeltaColumns(D d, const float* q, const float* k, const float* v, std::int64_t key_dim,
                             std::int64_t value_dim, float decay, float beta, float* state, float* out) {
  using V = hn::Vec<D>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const V by = hn::Set(d, decay);
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
    changes[t] = hn::Mul(hn::Sub(hn::LoadU(d, v + t * lanes), sums[t]), hn::Set(d, beta));
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
  for (int t = 0; t < kVectors; ++t) hn::StoreU(sums[t], d, out + t * lanes);
}

// `q` and `k`: room for [key_dim] each.
void DeltaRows(const DeltaPiece& piece, float* state, float* q, float* k) {
  const DF d;
  const hn::CappedTag<float, 1> one;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t dk = piece.key_dim, dv = piece.value_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dk));
  for (std::int64_t row = 0; row < piece.rows; ++row) {
    Normalise(piece.q + row * piece.x_stride, dk, scale, q);
    Normalise(piece.k + row * piece.x_stride, dk, 1.0f, k);
    const float* const v = piece.v + row * piece.x_stride;
    float* const out = piece.out + row * piece.out_stride;
    const float a = piece.a[row * piece.gates_stride] + piece.bias;
    const float softplus = a > 20.0f ? a : std::log1p(std::exp(a));
    const float decay = std::exp(piece.rate * softplus);
    const float beta = 1.0f / (1.0f + std::exp(-piece.b[row * piece.gates_stride]));
    std::int64_t j = 0;
    for (; j + 4 * lanes <= dv; j += 4 * lanes)
      DeltaColumns<4>(d, q, k, v + j, dk, dv, decay, beta, state + j, out + j);
    for (; j + lanes <= dv; j += lanes) DeltaColumns<1>(d, q, k, v + j, dk, dv, decay, beta, state + j, out + j);
    for (; j < dv; ++j) DeltaColumns<1>(one, q, k, v + j, dk, dv, decay, beta, state + j, out + j);
  }
}

void GatedNormHead(const float* weight, float eps, const float* z, std::int64_t dim, float* y) {
  const float inverse = 1.0f / std::sqrt(SquaresOf(y, dim) / static_cast<float>(dim) + eps);
  ForEachVector(dim, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto normed = hn::Mul(hn::Mul(hn::LoadU(d, y + i), hn::Set(d, inverse)), hn::LoadU(d, weight + i));
    const auto gate = hn::LoadU(d, z + i);
    hn::StoreU(hn::Mul(normed, hn::Mul(gate, SigmoidOf(d, gate))), d, y + i);
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
HWY_EXPORT(GatedNormHead);
HWY_EXPORT(MulSigmoidRow);

// Calls fn(task) for all tasks, by all threads if the work of so many elements is worth waking them.
template <typename F>
void ForEachStateTask(const KernelContext& context, std::int64_t tasks, std::int64_t elements, const F& fn) {
  constexpr std::int64_t kMinElements = std::int64_t{48} << 10;
  if (elements >= kMinElements) return context.pool->Run(tasks, fn);
  for (std::int64_t task = 0; task < tasks; ++task) fn(task, 0);
}

std::int64_t RowsOf(std::span<const StateSequence> sequences) {
  std::int64_t rows = 0;
  for (const StateSequence& sequence : sequences) rows += sequence.num_tokens;
  return rows;
}

}  // namespace

void CausalConv(const KernelContext& context, std::int64_t channels, std::int64_t width, const float* weights,
                const StatePlace& place, std::span<const StateSequence> sequences, const float* x,
                std::int64_t x_stride, float* y, std::int64_t y_stride) {
  CHECK_LE(width, kConvWidth);
  const auto conv = HWY_DYNAMIC_DISPATCH(ConvRows);
  const std::int64_t blocks = (channels + kConvBlock - 1) / kConvBlock;
  const auto tasks = static_cast<std::int64_t>(sequences.size()) * blocks;
  ForEachStateTask(context, tasks, RowsOf(sequences) * channels * width, [&](std::int64_t task, int) {
    const StateSequence& sequence = sequences[static_cast<std::size_t>(task / blocks)];
    const std::int64_t first = task % blocks * kConvBlock, count = std::min(kConvBlock, channels - first);
    float state[(kConvWidth - 1) * kConvBlock];
    for (std::int64_t j = 0; j + 1 < width; ++j) {
      place.Read(sequence, j * channels + first, count, state + j * kConvBlock);
    }
    const ConvPiece piece = {sequence.num_tokens,
                             count,
                             channels,
                             width,
                             weights + first,
                             x + sequence.first_row * x_stride + first,
                             x_stride,
                             y + sequence.first_row * y_stride + first,
                             y_stride};
    conv(piece, state);
    for (std::int64_t j = 0; j + 1 < width; ++j) {
      place.Write(sequence, j * channels + first, count, state + j * kConvBlock);
    }
  });
}

void DeltaRule(const KernelContext& context, const DeltaShape& shape, const DeltaGates& form, const StatePlace& place,
               std::span<const StateSequence> sequences, const float* x, std::int64_t x_stride, const float* gates,
               std::int64_t gates_stride, float* out, std::int64_t out_stride, float* workspace) {
  const auto rule = HWY_DYNAMIC_DISPATCH(DeltaRows);
  const std::int64_t heads = shape.value_heads, dk = shape.key_dim, dv = shape.value_dim;
  const auto tasks = static_cast<std::int64_t>(sequences.size()) * heads;
  const std::int64_t work = (RowsOf(sequences) + static_cast<std::int64_t>(sequences.size())) * heads * dk * dv;
  ForEachStateTask(context, tasks, work, [&](std::int64_t task, int thread) {
    const StateSequence& sequence = sequences[static_cast<std::size_t>(task / heads)];
    const std::int64_t head = task % heads, key_head = head / (heads / shape.key_heads);
    float* const state = workspace + thread * DeltaWorkspaceFloats(shape);
    const float* const of_rows = x + sequence.first_row * x_stride;
    const float* const gates_of_rows = gates + sequence.first_row * gates_stride;
    const DeltaPiece piece = {.rows = sequence.num_tokens,
                              .key_dim = dk,
                              .value_dim = dv,
                              .q = of_rows + key_head * dk,
                              .k = of_rows + shape.Keys() + key_head * dk,
                              .v = of_rows + 2 * shape.Keys() + head * dv,
                              .x_stride = x_stride,
                              .b = gates_of_rows + head,
                              .a = gates_of_rows + heads + head,
                              .gates_stride = gates_stride,
                              .rate = form.rate[head],
                              .bias = form.bias[head],
                              .out = out + sequence.first_row * out_stride + head * dv,
                              .out_stride = out_stride};
    place.Read(sequence, head * dk * dv, dk * dv, state);
    rule(piece, state, state + dk * dv, state + dk * dv + dk);
    place.Write(sequence, head * dk * dv, dk * dv, state);
  });
}

void GatedRmsNorm(const KernelContext& context, std::int64_t heads, std::int64_t dim, const float* weight, float eps,
                  const float* z, std::int64_t z_stride, std::int64_t m, float* y, std::int64_t y_stride) {
  const auto norm = HWY_DYNAMIC_DISPATCH(GatedNormHead);
  ForEachStateTask(context, m, m * heads * dim, [&](std::int64_t i, int) {
    for (std::int64_t head = 0; head < heads; ++head) {
      norm(weight, eps, z + i * z_stride + head * dim, dim, y + i * y_stride + head * dim);
    }
  });
}

void MulSigmoid(const KernelContext& context, const float* gate, std::int64_t gate_stride, std::int64_t m,
                std::int64_t n, float* y, std::int64_t y_stride) {
  const auto row = HWY_DYNAMIC_DISPATCH(MulSigmoidRow);
  ForEachStateTask(context, m, m * n, [&](std::int64_t i, int) { row(gate + i * gate_stride, n, y + i * y_stride); });
}

}  // namespace loramux::cpu
#endif
