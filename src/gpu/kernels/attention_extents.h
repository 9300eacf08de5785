// Extents of attention's tiles.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/kernel_api.h"

namespace loramux::gpu {

// Rows of a warp's tile of queries: the M of the tensor cores' product. A row is a query head of a row of the batch.
inline constexpr int kAttentionWarpRows = 16;

// For heads of at most kDim elements of kElementBytes. Wide rows take smaller tiles, so that a block stays below 99 KB
// of shared memory and a thread below 255 registers.
template <int kElementBytes, int kDim>
struct AttentionExtents {
  static constexpr int kRowBytes = kElementBytes * kDim;
  // Warps of a block of the prefill kernel.
  static constexpr int kWarps = kRowBytes <= 256 ? 4 : kRowBytes <= 512 ? 2 : 1;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBlockRows = kAttentionWarpRows * kWarps;
  // Positions of a tile of keys and values; divides kAttentionChunk. Online softmax proceeds by tiles, so it decides
  // bits: both kernels use the same.
  static constexpr int kTile = kBlockRows;
  // Elements from row to row in shared memory: 16 bytes more than a row, so that eight rows lie in different banks.
  static constexpr int kStride = kDim + 16 / kElementBytes;
};

template <typename T, int kDim>
using ExtentsOf = AttentionExtents<static_cast<int>(sizeof(T)), kDim>;

// The widths that the kernels are built for: their variants.
inline constexpr int kHeadDims[] = {32, 64, 96, 128, 256};
inline constexpr int kHeadDimVariants = 5;
// The variant for heads of this size; for the host.
inline int HeadDimVariant(std::int32_t head_dim) {
  int variant = 0;
  while (kHeadDims[variant] < head_dim) ++variant;
  return variant;
}

// Calls visit.template operator()<kDim>() with the smallest kDim that the kernels are built for and that holds
// head_dim.
template <typename Visit>
LORAMUX_DEVICE auto VisitHeadDim(std::int32_t head_dim, const Visit& visit) {
  if (head_dim <= 32) return visit.template operator()<32>();
  if (head_dim <= 64) return visit.template operator()<64>();
  if (head_dim <= 96) return visit.template operator()<96>();
  if (head_dim <= 128) return visit.template operator()<128>();
  return visit.template operator()<256>();
}

// The entries of a kernel whose variants are these widths: `Kernel` has AtWidth<kDim>(arguments), one thread.
template <typename Kernel, typename KernelArguments>
struct KernelOfHeadDims {
  using Arguments = KernelArguments;
  static constexpr int kVariants = kHeadDimVariants;
  static int VariantOf(const Arguments& arguments) { return HeadDimVariant(arguments.pages.head_dim); }
  LORAMUX_DEVICE static void Run(const Arguments& arguments) {
    VisitHeadDim(arguments.pages.head_dim, Visit{arguments});
  }
  template <int kVariant>
  LORAMUX_DEVICE static void RunVariant(const Arguments& arguments) {
    Kernel::template AtWidth<kHeadDims[kVariant]>(arguments);
  }

 private:
  struct Visit {
    const Arguments& arguments;
    template <int kDim>
    LORAMUX_DEVICE void operator()() const {
      Kernel::template AtWidth<kDim>(arguments);
    }
  };
};

}  // namespace loramux::gpu
