// Kernels as nvcc's entry points, and the table that a CudaStream launches from. The .cu files share the kernels among
// them, so that they compile side by side.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "formats/dtype.h"
#include "gpu/kernel_id.h"

namespace loramux::gpu {

inline constexpr int kMaxVariants = 12;

// One instance of a kernel.
struct KernelEntry {
  Kernel kernel;
  DType dtype;
  std::array<const void*, kMaxVariants> functions;  // a function for each variant (cudaLaunchKernelExC); null: no more
  int (*variant_of)(const void* arguments);
  std::size_t argument_bytes;
  int max_threads;  // most threads of a block
};

std::span<const KernelEntry> ElementwiseEntries();
std::span<const KernelEntry> LoraEntries();
std::span<const KernelEntry> SkinnyEntries();
std::span<const KernelEntry> LoraFusedEntries();
std::span<const KernelEntry> ExpertEntries();
std::span<const KernelEntry> AssistEntries();
std::span<const KernelEntry> AttentionDecodeEntries();
std::span<const KernelEntry> AttentionPrefillEntries();
std::span<const KernelEntry> StatesEntries();
std::span<const KernelEntry> SamplingEntries();

}  // namespace loramux::gpu

#ifdef __CUDACC__
#include <utility>

#include "gpu/kernel_api.h"

namespace loramux::gpu {

template <typename K>
concept HasVariants = requires {
  K::kVariants;
};

// Blocks that a multiprocessor should hold.
template <typename K>
constexpr int MinBlocksOf(int variant) {
  if constexpr (requires { K::MinBlocks(variant); }) {
    return K::MinBlocks(variant);
  } else {
    return K::kMinBlocks;
  }
}

// The grid's size comes from the launch; everything else from the kernel's struct. `arguments` stay in constant memory.
template <typename K, int kVariant>
__global__ void __launch_bounds__(K::kThreads, MinBlocksOf<K>(kVariant))
    Entry(const __grid_constant__ typename K::Arguments arguments) {
  if constexpr (HasVariants<K>) {
    K::template RunVariant<kVariant>(arguments);
  } else {
    K::Run(arguments);
  }
}

template <typename K, int... kVariants>
KernelEntry EntryOf(Kernel kernel, DType dtype, std::integer_sequence<int, kVariants...>) {
  const auto variant_of = [](const void* arguments) {
    if constexpr (HasVariants<K>) return K::VariantOf(*static_cast<const typename K::Arguments*>(arguments));
    return 0;
  };
  return {kernel,
          dtype,
          {reinterpret_cast<const void*>(&Entry<K, kVariants>)...},
          variant_of,
          sizeof(typename K::Arguments),
          K::kThreads};
}
template <typename K>
KernelEntry EntryOf(Kernel kernel, DType dtype) {
  if constexpr (HasVariants<K>) {
    static_assert(K::kVariants <= kMaxVariants);
    return EntryOf<K>(kernel, dtype, std::make_integer_sequence<int, K::kVariants>());
  } else {
    return EntryOf<K>(kernel, dtype, std::make_integer_sequence<int, 1>());
  }
}

}  // namespace loramux::gpu

// Lines of a table of KernelEntry, for the lists of kernel_list.h.
#define LORAMUX_CUDA_ENTRIES(name)                                \
  EntryOf<name##Kernel<float>>(Kernel::k##name, DType::kF32),     \
      EntryOf<name##Kernel<Bf16>>(Kernel::k##name, DType::kBF16), \
      EntryOf<name##Kernel<Half>>(Kernel::k##name, DType::kF16),
#define LORAMUX_CUDA_F32_ENTRIES(name) EntryOf<name##Kernel<float>>(Kernel::k##name, DType::kF32),
#endif
