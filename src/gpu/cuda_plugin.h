// The CUDA backend as a plugin, libloramux_cuda.so: the program itself needs no library of NVIDIA's, and says what is
// missing where there is no GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "gpu/device.h"
#include "gpu/open_device.h"

namespace loramux::gpu {

// The libraries that are opened. Tests put others in their place.
struct CudaLibraries {
  std::string driver = "libcuda.so.1";
  // Empty: what the environment variable LORAMUX_CUDA_PLUGIN names; else libloramux_cuda.so beside the program, or in
  // ../lib/loramux from there, or where the system looks.
  std::string plugin;
};

// A GPU as the driver describes it.
struct CudaGpu {
  std::string name;
  std::int64_t memory = 0;   // bytes
  int major = 0, minor = 0;  // compute capability
};

// The GPUs that the driver shows; at least one. Needs no plugin. Error (kUnavailable): no GPU, no driver, or one that
// is too old or does not start; says what to do.
Result<std::vector<CudaGpu>> FindCudaGpus(const CudaLibraries& libraries = {});

// Loads the plugin, and gives the file or name that it was found by. Errors: no plugin, or one of another build.
Result<std::string> FindCudaPlugin(const CudaLibraries& libraries = {});

// Opens a GPU through the plugin, which stays loaded. Errors: those of FindCudaGpus; no plugin, or one of another
// build; no GPU of this index; it does not start.
Result<std::unique_ptr<Device>> OpenCudaPlugin(const OpenDeviceOptions& options, const CudaLibraries& libraries = {});

}  // namespace loramux::gpu
