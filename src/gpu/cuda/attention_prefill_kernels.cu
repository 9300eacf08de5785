#include <vector>

#include "gpu/cuda/kernel_entry.h"
#include "gpu/kernels/kernel_list.h"

namespace loramux::gpu {

std::span<const KernelEntry> AttentionPrefillEntries() {
  static const std::vector<KernelEntry> entries = {LORAMUX_CUDA_ENTRIES(AttentionPrefill)};
  return entries;
}

}  // namespace loramux::gpu
