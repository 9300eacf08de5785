// The device of the kernel tests: the emulated one, or what LORAMUX_TEST_DEVICE names (cuda).
#pragma once

#include <cstdlib>
#include <memory>
#include <utility>

#include "base/check.h"
#include "gpu/open_device.h"

namespace loramux::gpu {

// Opened once for each process. REQUIRES: it can be opened; aborts with the reason.
inline Device& DeviceForTest() {
  static const std::unique_ptr<Device> device = [] {
    const char* name = std::getenv("LORAMUX_TEST_DEVICE");
    Result<std::unique_ptr<Device>> opened = OpenDevice(name == nullptr ? "emulated" : name, {});
    if (!opened.ok()) CheckFailed(__FILE__, __LINE__, opened.error().message);
    return std::move(opened).value();
  }();
  return *device;
}

}  // namespace loramux::gpu
