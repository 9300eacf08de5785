// Kernels as nvcc's entry points, and the table that a CudaStream launches from. Each .cu file has the entries of one
// header of kernels, so that they compile side by side.
#pragma once

#include <cstddef>
#include <span>

#include "formats/dtype.h"
#include "gpu/kernel_id.h"

namespace loramux::gpu {

// One instance of a kernel.
struct KernelEntry {
  Kernel kernel;
  DType dtype;
  const void* function;  // for cudaLaunchKernelExC
  std::size_t argument_bytes;
  int max_threads;  // of a block
};

std::span<const KernelEntry> ElementwiseEntries();
std::span<const KernelEntry> LoraEntries();
std::span<const KernelEntry> AttentionEntries();
std::span<const KernelEntry> SamplingEntries();

}  // namespace loramux::gpu

#ifdef __CUDACC__
#include "gpu/kernel_api.h"

namespace loramux::gpu {

// The grid's size comes from the launch; everything else from the kernel's struct. `arguments` stay in constant memory.
template <typename K>
__global__ void __launch_bounds__(K::kThreads, K::kMinBlocks)
    Entry(const __grid_constant__ typename K::Arguments arguments) {
  K::Run(arguments);
}

template <typename K>
KernelEntry EntryOf(Kernel kernel, DType dtype) {
  return {kernel, dtype, reinterpret_cast<const void*>(&Entry<K>), sizeof(typename K::Arguments), K::kThreads};
}

}  // namespace loramux::gpu

// Lines of a table of KernelEntry, for the lists of kernel_list.h.
#define LORAMUX_CUDA_ENTRIES(name)                                \
  EntryOf<name##Kernel<float>>(Kernel::k##name, DType::kF32),     \
      EntryOf<name##Kernel<Bf16>>(Kernel::k##name, DType::kBF16), \
      EntryOf<name##Kernel<Half>>(Kernel::k##name, DType::kF16),
#define LORAMUX_CUDA_F32_ENTRIES(name) EntryOf<name##Kernel<float>>(Kernel::k##name, DType::kF32),
#endif
