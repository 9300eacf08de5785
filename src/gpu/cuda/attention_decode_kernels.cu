#include <vector>

#include "gpu/cuda/kernel_entry.h"
#include "gpu/kernels/kernel_list.h"

namespace loramux::gpu {

std::span<const KernelEntry> AttentionDecodeEntries() {
  static const std::vector<KernelEntry> entries = {LORAMUX_CUDA_ENTRIES(QkvPost) LORAMUX_CUDA_ENTRIES(AttentionDecode)
                                                       LORAMUX_CUDA_ENTRIES(AttentionCombine)};
  return entries;
}

}  // namespace loramux::gpu
