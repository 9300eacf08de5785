#include <vector>

#include "gpu/cuda/kernel_entry.h"
#include "gpu/kernels/kernel_list.h"

namespace loramux::gpu {

std::span<const KernelEntry> AssistEntries() {
  static const std::vector<KernelEntry> entries = {LORAMUX_ASSIST_KERNELS(LORAMUX_CUDA_ENTRIES)
                                                       LORAMUX_ASSIST_F32_KERNELS(LORAMUX_CUDA_F32_ENTRIES)};
  return entries;
}

}  // namespace loramux::gpu
