// Loops over whole vectors and what is left, once per instruction set (included under foreach_target).
#if defined(LORAMUX_KERNELS_CPU_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LORAMUX_KERNELS_CPU_VECTORS_INL_H_
#undef LORAMUX_KERNELS_CPU_VECTORS_INL_H_
#else
#define LORAMUX_KERNELS_CPU_VECTORS_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace loramux::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

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

}  // namespace HWY_NAMESPACE
}  // namespace loramux::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
