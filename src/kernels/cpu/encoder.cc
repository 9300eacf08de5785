#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/encoder.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "hwy/highway.h"
//
#include <algorithm>
#include <cmath>

#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/vectors-inl.h"
#include "kernels/encoder.h"

HWY_BEFORE_NAMESPACE();
namespace loramux::cpu {
namespace HWY_NAMESPACE {
namespace {

// One head of one row. `weights`: scratch, one float per row.
void AttendRow(const EncoderAttentionArguments& a, std::int64_t row, std::int64_t head, float* weights) {
  const std::int64_t offset = head * a.head_dim, rows = a.rows;
  const float* q = a.q[row] + offset;
  for (std::int64_t j = 0; j < rows; ++j) {
    const float* k = a.k[j] + offset;
    weights[j] = Sum(
        a.head_dim, [&](auto d, std::int64_t i) HWY_ATTR { return hn::Mul(hn::LoadU(d, q + i), hn::LoadU(d, k + i)); });
  }
  const float most = *std::max_element(weights, weights + rows);
  const float scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  const float sum = Sum(rows, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto value = Exp(d, hn::Mul(hn::Set(d, scale), hn::Sub(hn::LoadU(d, weights + i), hn::Set(d, most))));
    hn::StoreU(value, d, weights + i);
    return value;
  });
  const float inverse = 1.0f / sum;
  const ConstRows v = a.v.From(offset);
  float* const out = a.out[row] + offset;
  ForEachVector(a.head_dim, [&](auto d, std::int64_t i) HWY_ATTR {
    auto value = hn::Zero(d);
    for (std::int64_t j = 0; j < rows; ++j) {
      value = hn::MulAdd(hn::Set(d, weights[j]), hn::LoadU(d, v[j] + i), value);
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

HWY_EXPORT(AttendRow);

}  // namespace

void EncoderAttention(const KernelContext& context, const EncoderAttentionArguments& a) {
  const auto row = HWY_DYNAMIC_DISPATCH(AttendRow);
  const std::int64_t tasks = a.rows * a.num_heads;
  const auto attend = [&](std::int64_t task, int thread) {
    row(a, task / a.num_heads, task % a.num_heads, a.workspace + thread * a.rows);
  };
  // In parallel only if that saves more than the few microseconds of waking threads.
  constexpr std::int64_t kMinElements = std::int64_t{48} << 10;
  if (context.pool->size() > 1 && tasks * a.rows * a.head_dim >= kMinElements) return context.pool->Run(tasks, attend);
  for (std::int64_t task = 0; task < tasks; ++task) attend(task, 0);
}

}  // namespace loramux::cpu
#endif
