// What the plugin libloramux_cuda.so offers to the program: one C function, kCudaPluginFunction. Both are built from
// the same headers, which the version proves.
#pragma once

#include <memory>

#include "base/result.h"
#include "gpu/device.h"
#include "gpu/open_device.h"

namespace loramux::gpu {

// The version of the project and a digest of the headers that program and plugin share.
inline constexpr const char* kCudaPluginVersion = LORAMUX_GPU_INTERFACE;
inline constexpr const char* kCudaPluginFunction = "loramux_cuda_plugin";

// `version` comes first in every version, so that a reader of any version can compare it.
struct CudaPlugin {
  const char* version;  // kCudaPluginVersion; if it differs, nothing else may be used
  // Opens GPU `options.index`. Errors: kUnavailable (it does not start), kUnsupported (too old).
  Result<std::unique_ptr<Device>> (*open)(const OpenDeviceOptions& options);
};
using CudaPluginFunction = const CudaPlugin* (*)();

}  // namespace loramux::gpu
