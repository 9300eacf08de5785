// The device that the user asks for.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "gpu/device.h"

namespace loramux {

// "cpu": null. "cuda", "emulated": that device, or the error of gpu::OpenDevice. "auto": a GPU if there is one that
// works, otherwise null; writes to the log which it is. `batch_invariant`: gpu::OpenDeviceOptions. Error
// (kInvalidArgument): another name.
Result<std::shared_ptr<Device>> ChooseDevice(const std::string& name, bool batch_invariant);

// The model of the processor as the system names it; "processor" if it does not.
std::string ProcessorName();

// What a device is called. `kind` is what users choose: "cpu", "cuda" or "emulated". `description` says which of that
// kind, as far as times depend on it: the driver's name of a GPU, otherwise the processor and its threads.
struct DeviceNames {
  std::string kind, description;
};
// Names of `device`; null: those of the CPU with `threads` kernel threads.
DeviceNames NamesOfDevice(const Device* device, int threads);

}  // namespace loramux
