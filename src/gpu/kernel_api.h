// What a kernel may use. The same kernel source is compiled by nvcc (cuda/kernel_api_cuda.h) and, for the emulated
// device, by the host's compiler (emulated/kernel_api_emulated.h): every CUDA thread is then a fiber, and what this
// header offers is checked as hardware would not. A kernel uses nothing else: no <<<>>>, no raw assembler, no static
// shared memory, no direct access to global memory.
//
// A kernel is a struct:
//   template <typename T>                     // the element type: float, Bf16 or Half
//   struct NormRowsKernel {
//     using Arguments = NormRowsArguments;    // plain data, the same for all T
//     static constexpr int kThreads = 256;    // the most threads of a block
//     static constexpr int kMinBlocks = 1;    // blocks that a multiprocessor should hold: bounds the registers
//     LORAMUX_DEVICE static void Run(const Arguments& arguments);   // one thread
//   };
// and a line of kernels/kernel_list.h.
//
// A kernel whose registers depend on an extent may have variants, so that each has no more than it needs:
//     static constexpr int kVariants; static int VariantOf(const Arguments&);     // VariantOf: on the host
//     template <int kVariant> LORAMUX_DEVICE static void RunVariant(const Arguments&);
//     static constexpr int MinBlocks(int variant);   // if it differs: in the place of kMinBlocks
// Run then does what RunVariant of VariantOf does.
//
// Where a thread is (all as in CUDA, one-dimensional blocks):
//   ThreadIndex() BlockThreads() Lane() Warp() BlockX() BlockY() BlockZ() GridX() GridY() GridZ()
// Meeting (every thread of the block or of the warp must come):
//   SyncBlock()  SyncWarp()
//   Shuffle(value, lane)  ShuffleXor(value, mask)      value: float, std::int32_t, std::uint32_t, double, std::uint64_t
//   SumWarp(float)  MaxWarp(float)                     by ShuffleXor 16, 8, 4, 2, 1: the same bits in all lanes
//   SumWarp(double)  SumWarp(std::uint32_t)  MaxWarp(std::uint64_t)   likewise
// Shared memory (dynamic: KernelLaunch::shared_bytes; poisoned when emulated), 16-byte aligned:
//   T& Shared<T>()
//   AtomicAddShared(std::uint32_t*, std::uint32_t)     returns what was there; for counts: the order is arbitrary
//   AtomicOrShared(std::uint32_t*, std::uint32_t)
// Global and pinned memory (bounds, alignment and bytes are checked and counted when emulated):
//   T Load(const T*)        T of 1, 2, 4, 8 or 16 bytes, aligned to its size; read again soon; sees what the block
//                           stored before a SyncBlock
//   T LoadOnce(const T*)    the same, not kept in the caches: weights
//   Store(T*, T)
//   struct Vec4 { std::uint32_t x, y, z, w; }          16 bytes
//   std::uint32_t LoadFlag(const std::uint32_t*)       a word that another stream or the processor writes: what was
//                           written before its StoreFlag is visible after it
//   StoreFlag(std::uint32_t*, std::uint32_t)           what this thread, and before a SyncBlock the block, wrote is
//                           visible to who loads the flag: other streams, and for pinned memory the processor
//   bool WaitFlag(const std::uint32_t* flag, std::uint32_t value, std::uint32_t mask, std::int64_t timeout_ns)
//                           loads the flag until (flag & mask) == value; false: not within the time. Of one thread
//   CopyAsync16(void* shared, const void* global, bool valid)   16 bytes, or zeros; lands at the wait
//   CopyAsyncCommit()  CopyAsyncWait<kPendingGroups>()
// Tensor cores (all 32 lanes; fragments as PTX's m16n8k16; T is Bf16 or Half; d stays f32):
//   MultiplyTile<T>(float (&d)[4], a0, a1, a2, a3, b0, b1)            d[16 x 8] += a[16 x 16] b[16 x 8]
//   LoadMatrices(std::uint32_t (&r)[4], const void* shared_row)       ldmatrix.x4: lane i gives the address of row i
//   LoadMatricesTransposed(...)                                       ldmatrix.x4.trans
// Numbers:
//   float ToFloat(T)  T FromFloat<T>(float) (nearest even)  float2-like Pair { float low, high; }
//   Pair Unpack<T>(std::uint32_t)   std::uint32_t Pack<T>(float low, float high)
//   float AsFloat(std::uint32_t)  std::uint32_t AsBits(float)
//   float AddRounded(a, b)  MulRounded(a, b)  DivRounded(a, b)   rounded by themselves, never fused, as the processor
//   float Exp(float)  float Exp2(float) (one instruction)  float Log1p(float)  float ReciprocalSqrt(float)  float
//   Erf(float) float Fma(a, b, c)  float Max(a, b)  float Min(a, b) StoreAs(DType, void* base, std::int64_t index,
//   float)             one element of a type known at run time
// LORAMUX_UNROLL before a loop unrolls it.
//   T NoEarlier(T)          the value (of 4 or 8 bytes), computed no earlier than here: the compiler else prepares
//                           addresses for all of a loop in advance, and runs out of registers
#pragma once

#include <cstdint>

#include "formats/dtype.h"

namespace loramux::gpu {

// The 16-bit element types; tensor/half_float.h has their conversions.
struct Bf16 {
  std::uint16_t bits;
};
struct Half {
  std::uint16_t bits;
};
// 16 bytes.
struct alignas(16) Vec4 {
  std::uint32_t x, y, z, w;
};
// Two neighbouring elements.
struct Pair {
  float low, high;
};

}  // namespace loramux::gpu

#ifdef __CUDACC__
#include "gpu/cuda/kernel_api_cuda.h"
#else
#include "gpu/emulated/kernel_api_emulated.h"
#endif
