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
#include "tensor/half_float.h"

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

// As halves, whose exponent is 8 less.
template <class D>
HWY_INLINE hn::Vec<D> LoadWide(D df, const F8E4M3* HWY_RESTRICT from) {
  const hn::Rebind<std::uint16_t, D> d16;
  const auto* codes = reinterpret_cast<const std::uint8_t*>(from);
  const auto bits = hn::PromoteTo(d16, hn::LoadU(hn::Rebind<std::uint8_t, D>(), codes));
  const auto sign = hn::ShiftLeft<8>(hn::And(bits, hn::Set(d16, std::uint16_t{0x80})));
  const auto magnitude = hn::ShiftLeft<7>(hn::And(bits, hn::Set(d16, std::uint16_t{0x7f})));
  const auto half = hn::BitCast(hn::Rebind<hwy::float16_t, D>(), hn::Or(sign, magnitude));
  return hn::Mul(hn::PromoteTo(df, half), hn::Set(df, 256.0f));
}

}  // namespace HWY_NAMESPACE
}  // namespace loramux::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
