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

}  // namespace loramux
