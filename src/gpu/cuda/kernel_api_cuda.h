// What kernels may use (gpu/kernel_api.h, which includes this file), for nvcc.
//
// Loads and stores are volatile assembler: the compiler then keeps them where a kernel wrote them, in the global
// address space. (As plain C++ they sink to their first use, and fewer of them are in flight.) ptxas still schedules
// them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#define LORAMUX_DEVICE __device__ __forceinline__
#define LORAMUX_UNROLL _Pragma("unroll")

namespace loramux::gpu {

// The value, which the compiler must not compute, nor what follows from it, before this point.
template <typename T>
LORAMUX_DEVICE T NoEarlier(T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  if constexpr (std::is_same_v<T, float>) {
    asm volatile("" : "+f"(value));
  } else if constexpr (sizeof(T) == 4) {
    asm volatile("" : "+r"(value));
  } else {
    asm volatile("" : "+l"(value));
  }
  return value;
}

// --- where a thread is ---
LORAMUX_DEVICE std::uint32_t ThreadIndex() { return threadIdx.x; }
LORAMUX_DEVICE std::uint32_t BlockThreads() { return blockDim.x; }
LORAMUX_DEVICE std::uint32_t Lane() { return threadIdx.x % 32; }
LORAMUX_DEVICE std::uint32_t Warp() { return threadIdx.x / 32; }
LORAMUX_DEVICE std::uint32_t BlockX() { return blockIdx.x; }
LORAMUX_DEVICE std::uint32_t BlockY() { return blockIdx.y; }
LORAMUX_DEVICE std::uint32_t BlockZ() { return blockIdx.z; }
LORAMUX_DEVICE std::uint32_t GridX() { return gridDim.x; }
LORAMUX_DEVICE std::uint32_t GridY() { return gridDim.y; }
LORAMUX_DEVICE std::uint32_t GridZ() { return gridDim.z; }

// --- meeting ---
inline constexpr unsigned kAllLanes = 0xffffffffu;
LORAMUX_DEVICE void SyncBlock() { __syncthreads(); }
LORAMUX_DEVICE void SyncWarp() { __syncwarp(); }
template <typename T>
LORAMUX_DEVICE T Shuffle(T value, std::uint32_t lane) {
  return __shfl_sync(kAllLanes, value, static_cast<int>(lane));
}
template <typename T>
LORAMUX_DEVICE T ShuffleXor(T value, std::uint32_t mask) {
  return __shfl_xor_sync(kAllLanes, value, static_cast<int>(mask));
}
// T: float, double or std::uint32_t.
template <typename T>
LORAMUX_DEVICE T SumWarp(T value) {
  LORAMUX_UNROLL
  for (std::uint32_t mask = 16; mask > 0; mask /= 2) value += ShuffleXor(value, mask);
  return value;
}
LORAMUX_DEVICE float MaxWarp(float value) {
  LORAMUX_UNROLL
  for (std::uint32_t mask = 16; mask > 0; mask /= 2) value = fmaxf(value, ShuffleXor(value, mask));
  return value;
}
LORAMUX_DEVICE std::uint64_t MaxWarp(std::uint64_t value) {
  LORAMUX_UNROLL
  for (std::uint32_t mask = 16; mask > 0; mask /= 2) {
    const std::uint64_t other = ShuffleXor(value, mask);
    value = other > value ? other : value;
  }
  return value;
}

// --- shared memory ---
template <typename T>
LORAMUX_DEVICE T& Shared() {
  static_assert(alignof(T) <= 16);
  extern __shared__ uint4 loramux_shared_memory[];
  return *reinterpret_cast<T*>(loramux_shared_memory);
}
LORAMUX_DEVICE std::uint32_t SharedAddress(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

LORAMUX_DEVICE std::uint32_t AtomicAddShared(std::uint32_t* word, std::uint32_t value) {
  return atomicAdd(word, value);
}
LORAMUX_DEVICE void AtomicOrShared(std::uint32_t* word, std::uint32_t value) { atomicOr(word, value); }

// --- global memory ---
template <typename T>
concept Loadable = std::is_trivially_copyable_v<T> &&
    (sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
// The bits of a value in the register that assembler takes.
template <typename T, typename Bits>
LORAMUX_DEVICE T FromBits(const Bits& bits) {
  T value;
  memcpy(&value, &bits, sizeof(T));
  return value;
}

// One load for each size; `kind` is the rest of the instruction's name.
#define LORAMUX_LOAD_FUNCTION(Name, kind)                                    \
  template <Loadable T>                                                      \
  LORAMUX_DEVICE T Name(const T* from) {                                     \
    if constexpr (sizeof(T) == 16) {                                         \
      uint4 v;                                                               \
      asm volatile("ld.global" kind ".v4.u32 {%0, %1, %2, %3}, [%4];"        \
                   : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)              \
                   : "l"(from));                                             \
      return FromBits<T>(v);                                                 \
    } else if constexpr (sizeof(T) == 8) {                                   \
      unsigned long long v;                                                  \
      asm volatile("ld.global" kind ".u64 %0, [%1];" : "=l"(v) : "l"(from)); \
      return FromBits<T>(v);                                                 \
    } else if constexpr (sizeof(T) == 4) {                                   \
      unsigned v;                                                            \
      asm volatile("ld.global" kind ".u32 %0, [%1];" : "=r"(v) : "l"(from)); \
      return FromBits<T>(v);                                                 \
    } else if constexpr (sizeof(T) == 2) {                                   \
      unsigned short v;                                                      \
      asm volatile("ld.global" kind ".u16 %0, [%1];" : "=h"(v) : "l"(from)); \
      return FromBits<T>(v);                                                 \
    } else {                                                                 \
      unsigned short v;                                                      \
      asm volatile("ld.global" kind ".u8 %0, [%1];" : "=h"(v) : "l"(from));  \
      return FromBits<T>(v);                                                 \
    }                                                                        \
  }
LORAMUX_LOAD_FUNCTION(Load, "")
// REQUIRES: no thread of the launch writes there.
LORAMUX_LOAD_FUNCTION(LoadOnce, ".nc.L1::no_allocate.L2::128B")
#undef LORAMUX_LOAD_FUNCTION

template <Loadable T>
LORAMUX_DEVICE void Store(T* to, const std::type_identity_t<T>& value) {
  if constexpr (sizeof(T) == 16) {
    uint4 v;
    memcpy(&v, &value, 16);
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
  } else if constexpr (sizeof(T) == 8) {
    unsigned long long v;
    memcpy(&v, &value, 8);
    asm volatile("st.global.u64 [%0], %1;" ::"l"(to), "l"(v) : "memory");
  } else if constexpr (sizeof(T) == 4) {
    unsigned v;
    memcpy(&v, &value, 4);
    asm volatile("st.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
  } else {
    unsigned short v = 0;
    memcpy(&v, &value, sizeof(T));
    if constexpr (sizeof(T) == 2) {
      asm volatile("st.global.u16 [%0], %1;" ::"l"(to), "h"(v) : "memory");
    } else {
      asm volatile("st.global.u8 [%0], %1;" ::"l"(to), "h"(v) : "memory");
    }
  }
}

// Past L1, because each byte is read once; L2 fetches whole lines of 128 bytes.
LORAMUX_DEVICE void CopyAsync16(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared)), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
LORAMUX_DEVICE void CopyAsyncCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPendingGroups>
LORAMUX_DEVICE void CopyAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPendingGroups) : "memory");
}

// --- tensor cores ---
template <typename T>
LORAMUX_DEVICE void MultiplyTile(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                                 std::uint32_t b0, std::uint32_t b1) {
  static_assert(std::is_same_v<T, Bf16> || std::is_same_v<T, Half>);
  if constexpr (std::is_same_v<T, Bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}
LORAMUX_DEVICE void LoadMatrices(std::uint32_t (&r)[4], const void* shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(shared_row))
               : "memory");
}
LORAMUX_DEVICE void LoadMatricesTransposed(std::uint32_t (&r)[4], const void* shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(shared_row))
               : "memory");
}

// --- numbers ---
LORAMUX_DEVICE float AsFloat(std::uint32_t bits) { return __uint_as_float(bits); }
LORAMUX_DEVICE std::uint32_t AsBits(float value) { return __float_as_uint(value); }
LORAMUX_DEVICE float ToFloat(float value) { return value; }
LORAMUX_DEVICE float ToFloat(Bf16 value) { return AsFloat(static_cast<std::uint32_t>(value.bits) << 16); }
LORAMUX_DEVICE float ToFloat(Half value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}
// Nearest even.
template <typename T>
LORAMUX_DEVICE T FromFloat(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    T result;
    if constexpr (std::is_same_v<T, Bf16>) {
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    } else {
      static_assert(std::is_same_v<T, Half>);
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    }
    return result;
  }
}
// The two elements of a 32-bit word; the first is in the low half.
template <typename T>
LORAMUX_DEVICE Pair Unpack(std::uint32_t word) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return {AsFloat(word << 16), AsFloat(word & 0xffff0000u)};
  } else {
    static_assert(std::is_same_v<T, Half>);
    return {ToFloat(Half{static_cast<std::uint16_t>(word & 0xffffu)}),
            ToFloat(Half{static_cast<std::uint16_t>(word >> 16)})};
  }
}
template <typename T>
LORAMUX_DEVICE std::uint32_t Pack(float low, float high) {
  std::uint32_t word;
  if constexpr (std::is_same_v<T, Bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    static_assert(std::is_same_v<T, Half>);
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
}
// Never fused with what follows.
LORAMUX_DEVICE float AddRounded(float a, float b) { return __fadd_rn(a, b); }
LORAMUX_DEVICE float MulRounded(float a, float b) { return __fmul_rn(a, b); }
LORAMUX_DEVICE float DivRounded(float a, float b) { return __fdiv_rn(a, b); }
LORAMUX_DEVICE double AddRounded(double a, double b) { return __dadd_rn(a, b); }
LORAMUX_DEVICE double MulRounded(double a, double b) { return __dmul_rn(a, b); }
LORAMUX_DEVICE double DivRounded(double a, double b) { return __ddiv_rn(a, b); }
LORAMUX_DEVICE float Exp(float value) { return expf(value); }
LORAMUX_DEVICE float Erf(float value) { return erff(value); }
LORAMUX_DEVICE float Log1p(float value) { return log1pf(value); }
// One instruction; relative error below 2^-22, and results below 2^-126 are 0.
LORAMUX_DEVICE float Exp2(float value) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
LORAMUX_DEVICE float ReciprocalSqrt(float value) { return rsqrtf(value); }
LORAMUX_DEVICE float Fma(float a, float b, float c) { return fmaf(a, b, c); }
LORAMUX_DEVICE float Max(float a, float b) { return fmaxf(a, b); }
LORAMUX_DEVICE float Min(float a, float b) { return fminf(a, b); }
// REQUIRES: IsWeightDType(dtype).
LORAMUX_DEVICE void StoreAs(DType dtype, void* base, std::int64_t index, float value) {
  switch (dtype) {
    case DType::kBF16:
      Store(static_cast<Bf16*>(base) + index, FromFloat<Bf16>(value));
      break;
    case DType::kF16:
      Store(static_cast<Half*>(base) + index, FromFloat<Half>(value));
      break;
    default:
      Store(static_cast<float*>(base) + index, value);
  }
}

}  // namespace loramux::gpu

#include "gpu/cuda/kernel_flags_cuda.h"
