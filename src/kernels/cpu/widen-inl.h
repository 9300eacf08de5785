// Loads of stored element types as float32 vectors, once per instruction set (included under foreach_target). The
// scalar counterpart is tensor/half_float.h.
#if defined(LORAMUX_KERNELS_CPU_WIDEN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LORAMUX_KERNELS_CPU_WIDEN_INL_H_
#undef LORAMUX_KERNELS_CPU_WIDEN_INL_H_
#else
#define LORAMUX_KERNELS_CPU_WIDEN_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace loramux::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Loads Lanes(df) elements from `from`, which may be unaligned, and widens them exactly.
template <class D>
HWY_INLINE hn::Vec<D> LoadWide(D df, const float* HWY_RESTRICT from) {
  return hn::LoadU(df, from);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadWide(D df, const hwy::bfloat16_t* HWY_RESTRICT from) {
  return hn::PromoteTo(df, hn::LoadU(hn::Rebind<hwy::bfloat16_t, D>(), from));
}
template <class D>
HWY_INLINE hn::Vec<D> LoadWide(D df, const hwy::float16_t* HWY_RESTRICT from) {
  return hn::PromoteTo(df, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), from));
}
template <class D>
HWY_INLINE hn::Vec<D> LoadWide(D df, const std::int8_t* HWY_RESTRICT from) {
  return hn::ConvertTo(df, hn::PromoteTo(hn::RebindToSigned<D>(), hn::LoadU(hn::Rebind<std::int8_t, D>(), from)));
}

}  // namespace HWY_NAMESPACE
}  // namespace loramux::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
