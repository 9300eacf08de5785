// Opens a device by the name that users give.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "base/result.h"
#include "gpu/device.h"

namespace loramux::gpu {

// Options of OpenDevice.
struct OpenDeviceOptions {
  int index = 0;            // number of the GPU, as the driver counts them
  std::int64_t memory = 0;  // emulated: bytes of device memory; 0: 4 GiB
  std::uint64_t seed = 1;   // emulated: order of lanes and blocks; 0: ascending
  // A row of a dense product has the same bits whatever else is in the batch, at some cost: each matrix has one way to
  // sum, and batches of few rows do without SkinnyMatMulLora. (Those of all other kernels do anyway.)
  bool batch_invariant = false;
};

// "cuda": an NVIDIA GPU, through the plugin libloramux_cuda.so. "emulated": the processor plays the device. Error
// (kUnavailable, kInvalidArgument): says which of GPU, driver and plugin is missing and what to do, or which names
// there are.
Result<std::unique_ptr<Device>> OpenDevice(std::string_view name, const OpenDeviceOptions& options);

}  // namespace loramux::gpu
