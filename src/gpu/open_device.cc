#include "gpu/open_device.h"

#include <string>
#include <utility>

#include "gpu/cuda_plugin.h"
#ifdef LORAMUX_EMULATED_DEVICE
#include "gpu/emulated/emulated_device.h"
#endif

namespace loramux::gpu {
namespace {

Result<std::unique_ptr<Device>> OpenEmulated([[maybe_unused]] const OpenDeviceOptions& options) {
#ifdef LORAMUX_EMULATED_DEVICE
  EmulatedDeviceOptions emulated;
  if (options.memory > 0) emulated.memory = options.memory;
  emulated.seed = options.seed;
  emulated.batch_invariant = options.batch_invariant;
  return std::unique_ptr<Device>(MakeEmulatedDevice(emulated));
#else
  return Unavailable("this build has no emulated device; build with -DLORAMUX_BUILD_EMULATED_DEVICE=ON");
#endif
}

}  // namespace

Result<std::unique_ptr<Device>> OpenDevice(std::string_view name, const OpenDeviceOptions& options) {
  if (name == "cuda") return OpenCudaPlugin(options);
  if (name == "emulated") return OpenEmulated(options);
  return InvalidArgument("there is no device \"" + std::string(name) + "\"; devices are: cuda, emulated");
}

}  // namespace loramux::gpu
