// The kernels as the host's compiler made them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "formats/dtype.h"
#include "gpu/kernel_id.h"

namespace loramux::gpu {

// One instance of a kernel.
struct EmulatedKernel {
  std::string_view name;               // name of the kernel; must outlive its launches
  void (*run)(const void*) = nullptr;  // what one thread does; null: there is no such instance
  std::uint32_t max_threads = 0;       // most threads of a block
  std::size_t argument_bytes = 0;
};

// REQUIRES: IsWeightDType(dtype).
const EmulatedKernel& FindEmulatedKernel(Kernel kernel, DType dtype);

// The instance of a kernel struct (kernel_api.h). Tests launch their own by it.
template <typename KernelStruct>
EmulatedKernel EmulatedKernelOf(std::string_view name) {
  using Arguments = typename KernelStruct::Arguments;
  return {name, [](const void* arguments) { KernelStruct::Run(*static_cast<const Arguments*>(arguments)); },
          KernelStruct::kThreads, sizeof(Arguments)};
}

}  // namespace loramux::gpu
