// Interleaves four rows, once per instruction set (included under foreach_target). A tile that broadcasts one element
// of each row at every step then reads from one address per four rows instead of one per row; there are not enough
// address registers for twelve.
#if defined(LORAMUX_KERNELS_CPU_INTERLEAVE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LORAMUX_KERNELS_CPU_INTERLEAVE_INL_H_
#undef LORAMUX_KERNELS_CPU_INTERLEAVE_INL_H_
#else
#define LORAMUX_KERNELS_CPU_INTERLEAVE_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace loramux::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows in a group.
constexpr std::int64_t kGroupRows = 4;

// to[4 * t + i] = rows[i][t] for t < n and i < `rows` (1 to 4). With fewer than four rows, the rest of `to` stays
// unchanged.
HWY_INLINE void InterleaveRows(const float* const (&from)[kGroupRows], std::int64_t rows, std::int64_t n,
                               float* HWY_RESTRICT to) {
  std::int64_t t = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<float, 16> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (; rows == kGroupRows && t + lanes <= n; t += lanes) {
    hn::StoreInterleaved4(hn::LoadU(d, from[0] + t), hn::LoadU(d, from[1] + t), hn::LoadU(d, from[2] + t),
                          hn::LoadU(d, from[3] + t), d, to + t * kGroupRows);
  }
#endif
  for (; t < n; ++t) {
    for (std::int64_t i = 0; i < rows; ++i) to[t * kGroupRows + i] = from[i][t];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace loramux::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
