#include <vector>

#include "gpu/cuda/kernel_entry.h"
#include "gpu/kernels/kernel_list.h"

namespace loramux::gpu {

std::span<const KernelEntry> ElementwiseEntries() {
  static const std::vector<KernelEntry> entries = {LORAMUX_ELEMENTWISE_KERNELS(LORAMUX_CUDA_ENTRIES)
                                                       LORAMUX_ELEMENTWISE_F32_KERNELS(LORAMUX_CUDA_F32_ENTRIES)
                                                           LORAMUX_MEASURING_F32_KERNELS(LORAMUX_CUDA_F32_ENTRIES)};
  return entries;
}

}  // namespace loramux::gpu
