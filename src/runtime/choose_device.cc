#include "runtime/choose_device.h"

#include <fstream>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "base/machine_memory.h"
#include "gpu/open_device.h"

namespace loramux {

Result<std::shared_ptr<Device>> ChooseDevice(const std::string& name, bool batch_invariant) {
  if (name == "cpu") return std::shared_ptr<Device>();
  if (name != "auto" && name != "cuda" && name != "emulated") {
    return InvalidArgument("--device: expected auto, cpu, cuda or emulated, found '" + name + "'", "--device");
  }
  gpu::OpenDeviceOptions options;
  options.batch_invariant = batch_invariant;
  // The emulated device's memory is this machine's.
  options.memory = MachineMemory();
  Result<std::unique_ptr<Device>> opened = gpu::OpenDevice(name == "auto" ? "cuda" : name, options);
  if (!opened.ok()) {
    if (name != "auto") {
      const std::string instead = name == "cuda" ? " Or run on the processor: --device cpu." : "";
      return Error{opened.error().code, "--device " + name + ": " + opened.error().message + instead, "--device"};
    }
    const std::string& why = opened.error().message;  // its later sentences say what to do about it
    spdlog::info("computing on the CPU (--device auto): {}", why.substr(0, why.find(". ")));
    return std::shared_ptr<Device>();
  }
  const std::shared_ptr<Device> device = std::move(opened).value();
  const DeviceProperties& properties = device->properties();
  spdlog::info("computing on {}: {} of memory, {} free", properties.name, FormatBytes(properties.memory),
               FormatBytes(device->FreeMemory()));
  return device;
}

std::string ProcessorName() {
  std::string line;
  for (std::ifstream file("/proc/cpuinfo"); std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "processor";
}

DeviceNames NamesOfDevice(const Device* device, int threads) {
  const bool emulated = device != nullptr && device->properties().major == 0;
  if (device != nullptr && !emulated) return {"cuda", device->properties().name};
  return {emulated ? "emulated" : "cpu",
          (emulated ? "emulated on " : "") + ProcessorName() + ", " + std::to_string(threads) + " threads"};
}

}  // namespace loramux
