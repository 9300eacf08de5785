#include "gpu/emulated/emulated_kernels.h"

#include <array>

#include "base/check.h"
#include "gpu/kernel_api.h"
#include "gpu/kernels/kernel_list.h"

namespace loramux::gpu {
namespace {

using Table = std::array<std::array<EmulatedKernel, 3>, kNumKernels>;

Table MakeTable() {
  Table table;
#define LORAMUX_ENTRY(name)                                    \
  table[static_cast<std::size_t>(Kernel::k##name)] = {         \
      EmulatedKernelOf<name##Kernel<float>>(#name " for f32"), \
      EmulatedKernelOf<name##Kernel<Bf16>>(#name " for bf16"), \
      EmulatedKernelOf<name##Kernel<Half>>(#name " for f16"),  \
  };
  LORAMUX_KERNELS(LORAMUX_ENTRY)
#undef LORAMUX_ENTRY
#define LORAMUX_ENTRY(name) \
  table[static_cast<std::size_t>(Kernel::k##name)][0] = EmulatedKernelOf<name##Kernel<float>>(#name);
  LORAMUX_F32_KERNELS(LORAMUX_ENTRY)
#undef LORAMUX_ENTRY
  return table;
}

}  // namespace

const EmulatedKernel& FindEmulatedKernel(Kernel kernel, DType dtype) {
  static const Table table = MakeTable();
  CHECK(kernel < Kernel::kCount);
  CHECK(IsWeightDType(dtype));
  return table[static_cast<std::size_t>(kernel)][static_cast<std::size_t>(dtype)];
}

}  // namespace loramux::gpu
