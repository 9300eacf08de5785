#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "hwy/highway.h"
//
#include <algorithm>
#include <cmath>

#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/vectors-inl.h"
#include "kernels/elementwise.h"

HWY_BEFORE_NAMESPACE();
namespace loramux::cpu {
namespace HWY_NAMESPACE {
namespace {

// Four accumulators hide the latency of the multiply-adds; the order of summation depends on n alone.
float SumOfSquares(const float* HWY_RESTRICT x, std::int64_t n) {
  const DF d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  VF a = hn::Zero(d), b = a, c = a, e = a;
  std::int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const VF x0 = hn::LoadU(d, x + i), x1 = hn::LoadU(d, x + i + lanes);
    const VF x2 = hn::LoadU(d, x + i + 2 * lanes), x3 = hn::LoadU(d, x + i + 3 * lanes);
    a = hn::MulAdd(x0, x0, a);
    b = hn::MulAdd(x1, x1, b);
    c = hn::MulAdd(x2, x2, c);
    e = hn::MulAdd(x3, x3, e);
  }
  for (; i + lanes <= n; i += lanes) {
    const VF x0 = hn::LoadU(d, x + i);
    a = hn::MulAdd(x0, x0, a);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e))));
  for (; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

void RmsNormRow(const float* x, std::int64_t n, NormWeights weights, float eps, float* y) {
  const float inverse = 1.0f / std::sqrt(SumOfSquares(x, n) / static_cast<float>(n) + eps);
  ForEachVector(n, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto scaled = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse));
    const auto weight = hn::Add(hn::LoadU(d, weights.weight + i), hn::Set(d, weights.offset));
    hn::StoreU(hn::Mul(scaled, weight), d, y + i);
  });
}

void LayerNormRow(const float* x, std::int64_t n, NormWeights weights, float eps, float* y) {
  const float mean =
      Sum(n, [&](auto d, std::int64_t i) HWY_ATTR { return hn::LoadU(d, x + i); }) / static_cast<float>(n);
  const float squares = Sum(n, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto centered = hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean));
    return hn::Mul(centered, centered);
  });
  const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
  ForEachVector(n, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto centered = hn::Mul(hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean)), hn::Set(d, inverse));
    hn::StoreU(hn::MulAdd(centered, hn::LoadU(d, weights.weight + i), hn::LoadU(d, weights.bias + i)), d, y + i);
  });
}

void RopeHead(float* first, std::int64_t half, const float* cos, const float* sin) {
  float* second = first + half;
  ForEachVector(half, [&](auto d, std::int64_t t) HWY_ATTR {
    const auto c = hn::LoadU(d, cos + t);
    const auto s = hn::LoadU(d, sin + t);
    const auto a = hn::LoadU(d, first + t);
    const auto b = hn::LoadU(d, second + t);
    hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, first + t);
    hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), d, second + t);
  });
}

// Few models have adjacent pairs, and they turn few elements.
void RopeAdjacent(float* pairs, std::int64_t half, const float* cos, const float* sin) {
  for (std::int64_t t = 0; t < half; ++t) {
    const float a = pairs[2 * t], b = pairs[2 * t + 1];
    pairs[2 * t] = a * cos[t] - b * sin[t];
    pairs[2 * t + 1] = b * cos[t] + a * sin[t];
  }
}

void RopeRow(float* x, std::int64_t heads, const RopeShape& shape, const float* cos, const float* sin) {
  const std::int64_t half = shape.rotary_dim / 2;
  for (std::int64_t head = 0; head < heads; ++head) {
    float* const at = x + head * shape.head_dim;
    if (shape.adjacent_pairs) {
      RopeAdjacent(at, half, cos, sin);
    } else {
      RopeHead(at, half, cos, sin);
    }
  }
}

// y = f(gate) * up, or f(gate) without `up`. Vectors of every length are computed alike.
template <typename F>
HWY_INLINE void GateRow(const float* gate, const float* up, std::int64_t n, float* y, const F& f) {
  ForEachVector(n, [&](auto d, std::int64_t i) HWY_ATTR {
    auto value = f(d, hn::LoadU(d, gate + i));
    if (up != nullptr) value = hn::Mul(value, hn::LoadU(d, up + i));
    hn::StoreU(value, d, y + i);
  });
}

// x / (1 + exp(-z)). From exp(88) on, the quotient is zero in float32.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Sigmoid(D d, V x, V z) {
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), Exp(d, hn::Neg(z))));
}

void ClampedSwigluRow(const GateForm& form, const float* gate, const float* up, std::int64_t n, float* y) {
  ForEachVector(n, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto limit = hn::Set(d, form.limit);
    const auto g = hn::Min(hn::LoadU(d, gate + i), limit);
    const auto u = hn::Max(hn::Min(hn::LoadU(d, up + i), limit), hn::Neg(limit));
    const auto glu = Sigmoid(d, g, hn::Mul(hn::Set(d, form.alpha), g));
    hn::StoreU(hn::Mul(glu, hn::Add(u, hn::Set(d, 1.0f))), d, y + i);
  });
}

// `up` null: there is no gate.
void GateMulRow(const GateForm& form, const float* gate, const float* up, std::int64_t n, float* y) {
  switch (form.f) {
    case Activation::kClampedSwiglu:
      return ClampedSwigluRow(form, gate, up, n, y);
    case Activation::kSilu:
      return GateRow(gate, up, n, y, [](auto d, auto x) HWY_ATTR { return Sigmoid(d, x, x); });
    case Activation::kGeluTanh:
      // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)), with u = sqrt(2 / pi) (x + 0.044715 x^3).
      return GateRow(gate, up, n, y, [](auto d, auto x) HWY_ATTR {
        const auto cubic = hn::MulAdd(hn::Mul(x, x), hn::Set(d, 0.0713548163f), hn::Set(d, 1.59576912f));
        return Sigmoid(d, x, hn::Mul(x, cubic));
      });
    case Activation::kGelu:
      return GateRow(gate, up, n, y, [](auto d, auto x) HWY_ATTR {
        const auto half = hn::Mul(hn::Set(d, 0.5f), x);
        return hn::MulAdd(half, Erf(d, hn::Mul(x, hn::Set(d, 0.70710678f))), half);
      });
    case Activation::kRelu:
      return GateRow(gate, up, n, y, [](auto d, auto x) HWY_ATTR { return hn::Max(x, hn::Zero(d)); });
    case Activation::kRelu2:
      return GateRow(gate, up, n, y, [](auto d, auto x) HWY_ATTR {
        const auto positive = hn::Max(x, hn::Zero(d));
        return hn::Mul(positive, positive);
      });
  }
}

void AddRow(float factor, const float* x, std::int64_t n, float* y) {
  ForEachVector(n, [&](auto d, std::int64_t i) HWY_ATTR {
    hn::StoreU(hn::MulAdd(hn::Set(d, factor), hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, y + i);
  });
}

void ScaleRow(float factor, float cap, std::int64_t n, float* x) {
  ForEachVector(n, [&](auto d, std::int64_t i) HWY_ATTR {
    auto value = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, factor));
    if (cap > 0) {
      const auto capped = hn::Mul(hn::Set(d, cap), Tanh(d, hn::Mul(value, hn::Set(d, 1.0f / cap))));
      value = hn::IfThenElse(hn::IsFinite(value), capped, value);
    }
    hn::StoreU(value, d, x + i);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace loramux::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace loramux::cpu {
namespace {

HWY_EXPORT(RmsNormRow);
HWY_EXPORT(LayerNormRow);
HWY_EXPORT(RopeRow);
HWY_EXPORT(GateMulRow);
HWY_EXPORT(AddRow);
HWY_EXPORT(ScaleRow);

// Calls fn(row) for all rows. Runs in parallel only if that saves more than waking a thread costs (2 us); an element
// takes about a tenth of a nanosecond.
template <typename F>
void ForEachRow(const KernelContext& context, std::int64_t m, std::int64_t n, const F& fn) {
  constexpr std::int64_t kMinElements = std::int64_t{48} << 10;
  if (m * n < kMinElements) {
    for (std::int64_t i = 0; i < m; ++i) fn(i);
    return;
  }
  const std::int64_t tasks = std::min<std::int64_t>(m, context.pool->size() * 4);
  context.pool->Run(tasks, [&](std::int64_t task, int) {
    for (std::int64_t i = m * task / tasks; i < m * (task + 1) / tasks; ++i) fn(i);
  });
}

}  // namespace

void NormRows(const KernelContext& context, const NormRowsArguments& a) {
  const auto row = a.weights.bias == nullptr ? HWY_DYNAMIC_DISPATCH(RmsNormRow) : HWY_DYNAMIC_DISPATCH(LayerNormRow);
  ForEachRow(context, a.rows, a.width, [&](std::int64_t i) { row(a.x[i], a.width, a.weights, a.eps, a.y[i]); });
}

void Rope(const KernelContext& context, const RopeArguments& a) {
  const auto row = HWY_DYNAMIC_DISPATCH(RopeRow);
  const std::int64_t half = a.shape.rotary_dim / 2;
  ForEachRow(context, a.rows, a.heads * a.shape.head_dim,
             [&](std::int64_t i) { row(a.x[i], a.heads, a.shape, a.cos + i * half, a.sin + i * half); });
}

void GateMul(const KernelContext& context, const GateMulArguments& a) {
  const auto row = HWY_DYNAMIC_DISPATCH(GateMulRow);
  ForEachRow(context, a.rows, 2 * a.width,
             [&](std::int64_t i) { row(a.form, a.x[i], a.form.gated ? a.x[i] + a.width : nullptr, a.width, a.y[i]); });
}

void AddRows(const KernelContext& context, const AddRowsArguments& a) {
  const auto row = HWY_DYNAMIC_DISPATCH(AddRow);
  ForEachRow(context, a.rows, a.width, [&](std::int64_t i) { row(a.factor, a.x[i], a.width, a.y[i]); });
}

void ScaleRows(const KernelContext& context, const ScaleRowsArguments& a) {
  const auto row = HWY_DYNAMIC_DISPATCH(ScaleRow);
  ForEachRow(context, a.rows, a.width, [&](std::int64_t i) { row(a.factor, a.cap, a.width, a.x[i]); });
}

}  // namespace loramux::cpu
#endif
