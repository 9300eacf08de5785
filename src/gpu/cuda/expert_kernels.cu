#include <vector>

#include "gpu/cuda/kernel_entry.h"
#include "gpu/kernels/kernel_list.h"

namespace loramux::gpu {

std::span<const KernelEntry> ExpertEntries() {
  static const std::vector<KernelEntry> entries = {
      LORAMUX_EXPERT_KERNELS(LORAMUX_CUDA_ENTRIES) LORAMUX_EXPERT_F32_KERNELS(LORAMUX_CUDA_F32_ENTRIES)};
  return entries;
}

}  // namespace loramux::gpu
