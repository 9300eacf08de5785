#include <vector>

#include "gpu/cuda/kernel_entry.h"
#include "gpu/kernels/kernel_list.h"

namespace loramux::gpu {

std::span<const KernelEntry> StatesEntries() {
  static const std::vector<KernelEntry> entries = {
      LORAMUX_STATES_KERNELS(LORAMUX_CUDA_ENTRIES) LORAMUX_STATES_F32_KERNELS(LORAMUX_CUDA_F32_ENTRIES)};
  return entries;
}

}  // namespace loramux::gpu
