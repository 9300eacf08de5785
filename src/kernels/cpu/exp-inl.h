// The exponential function on float32 vectors, once per instruction set (included under foreach_target).
#if defined(LORAMUX_KERNELS_CPU_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LORAMUX_KERNELS_CPU_EXP_INL_H_
#undef LORAMUX_KERNELS_CPU_EXP_INL_H_
#else
#define LORAMUX_KERNELS_CPU_EXP_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace loramux::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// e^x to about 2 units in the last place. x is first clamped to [-87, 88], where the result is a normal number. NaN
// stays NaN. Every lane is computed in the same way.
//
// x = n ln 2 + r with |r| <= ln 2 / 2, so e^x = 2^n e^r. ln 2 is split in two parts, the first so short that n times it
// is exact. e^r = 1 + r + r^2 q(r) with the minimax polynomial q of Cephes' expf.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  const hn::RebindToSigned<D> di;
  x = hn::Min(hn::Set(d, 88.0f), hn::Max(hn::Set(d, -87.0f), x));  // x86's Max(constant, NaN) is the NaN
  const auto n = hn::NearestInt(hn::Mul(x, hn::Set(d, 1.44269504088896341f)));
  const auto nf = hn::ConvertTo(d, n);
  V r = hn::NegMulAdd(nf, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(nf, hn::Set(d, -2.12194440e-4f), r);
  V q = hn::Set(d, 1.9875691500e-4f);
  q = hn::MulAdd(q, r, hn::Set(d, 1.3981999507e-3f));
  q = hn::MulAdd(q, r, hn::Set(d, 8.3334519073e-3f));
  q = hn::MulAdd(q, r, hn::Set(d, 4.1665795894e-2f));
  q = hn::MulAdd(q, r, hn::Set(d, 1.6666665459e-1f));
  q = hn::MulAdd(q, r, hn::Set(d, 5.0000001201e-1f));
  const V e = hn::Add(hn::MulAdd(q, hn::Mul(r, r), r), hn::Set(d, 1.0f));
  const auto power = hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127)));
  return hn::Mul(e, hn::BitCast(d, power));
}

// erf with an absolute error of 1.5e-7 (Abramowitz and Stegun 7.1.26): 1 - (a1 t + ... + a5 t^5) e^(-x^2) with t = 1 /
// (1 + p |x|).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Erf(D d, V x) {
  const V size = hn::Abs(x);
  const V t = hn::Div(hn::Set(d, 1.0f), hn::MulAdd(hn::Set(d, 0.3275911f), size, hn::Set(d, 1.0f)));
  V p = hn::Set(d, 1.061405429f);
  p = hn::MulAdd(p, t, hn::Set(d, -1.453152027f));
  p = hn::MulAdd(p, t, hn::Set(d, 1.421413741f));
  p = hn::MulAdd(p, t, hn::Set(d, -0.284496736f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.254829592f));
  const V erf = hn::NegMulAdd(hn::Mul(p, t), Exp(d, hn::Neg(hn::Mul(size, size))), hn::Set(d, 1.0f));
  return hn::CopySign(erf, x);
}

// tanh(x), to about 2e-7 of itself: near 0, where (1 - e^-2x) / (1 + e^-2x) cancels, by its series.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Tanh(D d, V x) {
  const V one = hn::Set(d, 1.0f), s = hn::Mul(x, x);
  V series = hn::MulAdd(hn::Set(d, 0.0218694885f), s, hn::Set(d, -0.0539682540f));
  series = hn::MulAdd(series, s, hn::Set(d, 0.133333333f));
  series = hn::MulAdd(series, s, hn::Set(d, -0.333333333f));
  series = hn::MulAdd(hn::Mul(series, s), x, x);
  const V e = Exp(d, hn::Mul(hn::Set(d, -2.0f), hn::Abs(x)));
  const V whole = hn::CopySign(hn::Div(hn::Sub(one, e), hn::Add(one, e)), x);
  return hn::IfThenElse(hn::Lt(s, hn::Set(d, 0.09f)), series, whole);
}

}  // namespace HWY_NAMESPACE
}  // namespace loramux::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
