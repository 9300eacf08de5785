#include <vector>

#include "gpu/cuda/kernel_entry.h"
#include "gpu/kernels/kernel_list.h"

namespace loramux::gpu {

std::span<const KernelEntry> LoraFusedEntries() {
  static const std::vector<KernelEntry> entries = {LORAMUX_LORA_FUSED_KERNELS(LORAMUX_CUDA_ENTRIES)};
  return entries;
}

}  // namespace loramux::gpu
