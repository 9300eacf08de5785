// The device of the kernel tests: the emulated one, or what LORAMUX_TEST_DEVICE names (cuda).
#pragma once

#include <cstdlib>
#include <memory>
#include <utility>

#include "base/check.h"
#include "gpu/open_device.h"

namespace loramux::gpu {

// A device of the test's own; options of the emulated device do not matter to others. REQUIRES: it can be opened;
// aborts with the reason.
inline std::unique_ptr<Device> OpenDeviceForTest(const OpenDeviceOptions& options) {
  const char* name = std::getenv("LORAMUX_TEST_DEVICE");
  Result<std::unique_ptr<Device>> opened = OpenDevice(name == nullptr ? "emulated" : name, options);
  if (!opened.ok()) CheckFailed(__FILE__, __LINE__, opened.error().message);
  return std::move(opened).value();
}

// Opened once for each process. REQUIRES: as above.
inline Device& DeviceForTest() {
  static const std::unique_ptr<Device> device = OpenDeviceForTest({});
  return *device;
}

}  // namespace loramux::gpu
