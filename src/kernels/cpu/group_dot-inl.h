// Integer dot products of quads: in each 32-bit lane, the sum of four products of an unsigned byte (a weight's code)
// and a signed one (an activation's). Every sum is exact: no instruction saturates on the values that occur.
#include <cstdint>

#include "hwy/highway.h"

#if defined(LORAMUX_GROUP_DOT_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef LORAMUX_GROUP_DOT_INL
#undef LORAMUX_GROUP_DOT_INL
#else
#define LORAMUX_GROUP_DOT_INL
#endif

HWY_BEFORE_NAMESPACE();
namespace loramux::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using DotTag = hn::CappedTag<std::int32_t, 16>;
using DotVec = hn::Vec<DotTag>;
using DotBytes = hn::Repartition<std::uint8_t, DotTag>;

// The codes of a quad, ready for products with several rows.
#if HWY_TARGET == HWY_AVX2
struct QuadCodes {
  DotVec codes;
  DotVec magnitudes;  // magnitudes of 8-bit codes: |code - 128|
};
#else
// No struct: GCC compiles its implicit constructor without the instructions of NEON's target, and then refuses it.
using QuadCodes = DotVec;
#endif

#if HWY_TARGET == HWY_AVX3_DL

// Four products and their sum to 32 bits in one instruction.
template <bool kWide>
HWY_INLINE QuadCodes PrepareCodes(DotVec codes) {
  return codes;
}
template <bool kWide>
HWY_INLINE DotVec StartDot(std::int32_t sum) {
  return kWide ? hn::Set(DotTag(), -128 * sum) : hn::Zero(DotTag());
}
template <bool kWide>
HWY_INLINE DotVec AddDot(DotVec dot, const QuadCodes& w, DotVec x) {
  // Not the intrinsic: Highway 1.0 enables the 256-bit form (avxvnni) for this target in place of avx512vnni, for whose
  // presence it checks at run time.
  asm("vpdpbusd %2, %1, %0" : "+v"(dot.raw) : "v"(w.raw), "v"(x.raw));
  return dot;
}
template <bool kWide>
HWY_INLINE DotVec FinishDot(DotVec dot) {
  return dot;
}

#elif HWY_TARGET == HWY_AVX2

// maddubs adds two products to 16 bits and saturates. 4-bit codes: eight quads of two products are at most 8 * 2 * 15 *
// 127 = 30,480, so a whole group fits 16 bits. 8-bit codes: as magnitude and sign, two products are at most 2 * 127 *
// 127 = 32,258. (A code of 0 has the magnitude 128; quantisers do not write it, and 2 * 128 * 127 = 32,512 fits too.)
template <bool kWide>
HWY_INLINE QuadCodes PrepareCodes(DotVec codes) {
  if constexpr (!kWide) return {codes, codes};
  const auto centred = hn::Xor(codes, hn::Set(DotTag(), static_cast<std::int32_t>(0x80808080u)));
  return {centred, DotVec{_mm256_abs_epi8(centred.raw)}};
}
template <bool kWide>
HWY_INLINE DotVec StartDot(std::int32_t /*sum*/) {
  return hn::Zero(DotTag());
}
template <bool kWide>
HWY_INLINE DotVec AddDot(DotVec dot, const QuadCodes& w, DotVec x) {
  if constexpr (kWide) {
    const auto pairs = _mm256_maddubs_epi16(w.magnitudes.raw, _mm256_sign_epi8(x.raw, w.codes.raw));
    return DotVec{_mm256_add_epi32(dot.raw, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
  } else {
    return DotVec{_mm256_add_epi16(dot.raw, _mm256_maddubs_epi16(w.codes.raw, x.raw))};
  }
}
template <bool kWide>
HWY_INLINE DotVec FinishDot(DotVec dot) {
  if constexpr (kWide) return dot;
  return DotVec{_mm256_madd_epi16(dot.raw, _mm256_set1_epi16(1))};
}

#else

// Any other instruction set: byte by byte in 32-bit lanes; with ARM's dot products where the compiler may use them.
template <bool kWide>
HWY_INLINE QuadCodes PrepareCodes(DotVec codes) {
#if HWY_ARCH_ARM && defined(__ARM_FEATURE_DOTPROD)
  if constexpr (kWide) return hn::Xor(codes, hn::Set(DotTag(), static_cast<std::int32_t>(0x80808080u)));
#endif
  return codes;
}
template <bool kWide>
HWY_INLINE DotVec StartDot(std::int32_t sum) {
#if HWY_ARCH_ARM && defined(__ARM_FEATURE_DOTPROD)
  return hn::Zero(DotTag());
#else
  return kWide ? hn::Set(DotTag(), -128 * sum) : hn::Zero(DotTag());
#endif
}
template <bool kWide>
HWY_INLINE DotVec AddDot(DotVec dot, const QuadCodes& w, DotVec x) {
#if HWY_ARCH_ARM && defined(__ARM_FEATURE_DOTPROD)
  return DotVec{vdotq_s32(dot.raw, vreinterpretq_s8_s32(w.raw), vreinterpretq_s8_s32(x.raw))};
#else
  const auto mask = hn::Set(DotTag(), 0xff);
  dot = hn::Add(dot, hn::Mul(hn::And(w, mask), hn::ShiftRight<24>(hn::ShiftLeft<24>(x))));
  dot = hn::Add(dot, hn::Mul(hn::And(hn::ShiftRight<8>(w), mask), hn::ShiftRight<24>(hn::ShiftLeft<16>(x))));
  dot = hn::Add(dot, hn::Mul(hn::And(hn::ShiftRight<16>(w), mask), hn::ShiftRight<24>(hn::ShiftLeft<8>(x))));
  return hn::Add(dot, hn::Mul(hn::And(hn::ShiftRight<24>(w), mask), hn::ShiftRight<24>(x)));
#endif
}
template <bool kWide>
HWY_INLINE DotVec FinishDot(DotVec dot) {
  return dot;
}

#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace loramux::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
