#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/encoder.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "hwy/highway.h"
//
#include <algorithm>
#include <cmath>

#include "kernels/cpu/encoder.h"
#include "kernels/cpu/exp-inl.h"

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

// The sum of fn(tag, i) over [0, n); its order depends on n alone.
template <typename F>
HWY_INLINE float Sum(std::int64_t n, const F& fn) {
  const DF d;
  VF lanes_sum = hn::Zero(d);
  float rest = 0;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) lanes_sum = hn::Add(lanes_sum, fn(d, i));
  for (; i < n; ++i) rest += hn::GetLane(fn(hn::CappedTag<float, 1>(), i));
  return hn::GetLane(hn::SumOfLanes(d, lanes_sum)) + rest;
}

void LayerNormRow(const float* x, std::int64_t n, const float* weight, const float* bias, float eps, float* y) {
  const float mean =
      Sum(n, [&](auto d, std::int64_t i) HWY_ATTR { return hn::LoadU(d, x + i); }) / static_cast<float>(n);
  const float squares = Sum(n, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto centered = hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean));
    return hn::Mul(centered, centered);
  });
  const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
  ForEachVector(n, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto centered = hn::Mul(hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean)), hn::Set(d, inverse));
    hn::StoreU(hn::MulAdd(centered, hn::LoadU(d, weight + i), hn::LoadU(d, bias + i)), d, y + i);
  });
}

void GeluRow(float* x, std::int64_t n) {
  ForEachVector(n, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto value = hn::LoadU(d, x + i);
    const auto half = hn::Mul(value, hn::Set(d, 0.5f));
    hn::StoreU(hn::MulAdd(half, Erf(d, hn::Mul(value, hn::Set(d, 0.70710678f))), half), d, x + i);
  });
}

// One head of one row. `weights`: scratch, one float per row.
void AttendRow(const EncoderRows& x, std::int64_t row, std::int64_t head, float* out, float* weights) {
  const std::int64_t offset = head * x.head_dim;
  const float* q = x.q + row * x.stride + offset;
  for (std::int64_t j = 0; j < x.rows; ++j) {
    const float* k = x.k + j * x.stride + offset;
    weights[j] = Sum(
        x.head_dim, [&](auto d, std::int64_t i) HWY_ATTR { return hn::Mul(hn::LoadU(d, q + i), hn::LoadU(d, k + i)); });
  }
  const float most = *std::max_element(weights, weights + x.rows);
  const float scale = 1.0f / std::sqrt(static_cast<float>(x.head_dim));
  const float sum = Sum(x.rows, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto value = Exp(d, hn::Mul(hn::Set(d, scale), hn::Sub(hn::LoadU(d, weights + i), hn::Set(d, most))));
    hn::StoreU(value, d, weights + i);
    return value;
  });
  const float inverse = 1.0f / sum;
  ForEachVector(x.head_dim, [&](auto d, std::int64_t i) HWY_ATTR {
    auto value = hn::Zero(d);
    for (std::int64_t j = 0; j < x.rows; ++j) {
      value = hn::MulAdd(hn::Set(d, weights[j]), hn::LoadU(d, x.v + j * x.stride + offset + i), value);
    }
    hn::StoreU(hn::Mul(value, hn::Set(d, inverse)), d, out + i);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace loramux::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace loramux::cpu {
namespace {

HWY_EXPORT(LayerNormRow);
HWY_EXPORT(GeluRow);
HWY_EXPORT(AttendRow);

// Calls fn(task, thread). Runs in parallel only if that saves more than the few microseconds of waking threads.
template <typename F>
void ForEachTask(const KernelContext& context, std::int64_t tasks, std::int64_t elements, const F& fn) {
  constexpr std::int64_t kMinElements = std::int64_t{48} << 10;
  if (context.pool->size() > 1 && elements >= kMinElements) return context.pool->Run(tasks, fn);
  for (std::int64_t task = 0; task < tasks; ++task) fn(task, 0);
}

}  // namespace

void LayerNorm(const KernelContext& context, const float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n,
               const float* weight, const float* bias, float eps, float* y, std::int64_t y_stride) {
  const auto row = HWY_DYNAMIC_DISPATCH(LayerNormRow);
  ForEachTask(context, m, m * n,
              [&](std::int64_t i, int) { row(x + i * x_stride, n, weight, bias, eps, y + i * y_stride); });
}

void Gelu(const KernelContext& context, float* x, std::int64_t x_stride, std::int64_t m, std::int64_t n) {
  const auto row = HWY_DYNAMIC_DISPATCH(GeluRow);
  ForEachTask(context, m, m * n, [&](std::int64_t i, int) { row(x + i * x_stride, n); });
}

void EncoderAttention(const KernelContext& context, const EncoderRows& x, float* out, std::int64_t out_stride,
                      float* workspace) {
  const auto row = HWY_DYNAMIC_DISPATCH(AttendRow);
  const std::int64_t tasks = x.rows * x.num_heads;
  ForEachTask(context, tasks, tasks * x.rows * x.head_dim, [&](std::int64_t task, int thread) {
    const std::int64_t i = task / x.num_heads, head = task % x.num_heads;
    row(x, i, head, out + i * out_stride + head * x.head_dim, workspace + thread * x.rows);
  });
}

}  // namespace loramux::cpu
#endif
