#include "gpu/cuda/plugin.h"

#include "gpu/cuda/cuda_device.h"

extern "C" __attribute__((visibility("default"))) const loramux::gpu::CudaPlugin* loramux_cuda_plugin() {
  static const loramux::gpu::CudaPlugin plugin = {loramux::gpu::kCudaPluginVersion, &loramux::gpu::CudaDevice::Open};
  return &plugin;
}
