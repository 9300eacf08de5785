#include "tools/inspect_devices.h"

#include <string>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include "gpu/cuda_plugin.h"
#include "gpu/open_device.h"
#include "runtime/choose_device.h"

namespace loramux {
namespace {

using nlohmann::ordered_json;

void AddProcessor(Report& report) {
  const std::string name = ProcessorName();
  const std::int64_t processors = std::thread::hardware_concurrency();
  const std::int64_t memory = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  Add(report, "cpu", "cpu", ordered_json{{"name", name}, {"processors", processors}, {"memory_bytes", memory}},
      fmt::format("{}, {} processors, {}", name, processors, FormatBytes(memory)));
}

// A device that cannot be used, and the sentence that says why.
void AddMissing(Report& report, const std::string& key, const std::string& label, const std::string& problem) {
  Add(report, key, label, ordered_json{{"available", false}, {"problem", problem}}, "none: " + problem);
}

void AddEmulated(Report& report) {
  const auto device = gpu::OpenDevice("emulated", {.memory = std::int64_t{1} << 20});
  if (!device.ok()) return AddMissing(report, "emulated", "emulated", device.error().message);
  AddText(report, "emulated", "emulated", "the processor plays a GPU, for tests");
}

void AddGpus(Report& report) {
  const auto gpus = gpu::FindCudaGpus();
  if (!gpus.ok()) return AddMissing(report, "cuda", "cuda", gpus.error().message);
  for (std::size_t i = 0; i < gpus->size(); ++i) {
    const gpu::CudaGpu& gpu = gpus->at(i);
    const std::string capability = fmt::format("{}.{}", gpu.major, gpu.minor);
    Add(report, fmt::format("cuda:{}", i), fmt::format("cuda {}", i),
        ordered_json{{"name", gpu.name}, {"memory_bytes", gpu.memory}, {"compute_capability", capability}},
        fmt::format("{}, {}, compute capability {}", gpu.name, FormatBytes(gpu.memory), capability));
  }
  const auto plugin = gpu::FindCudaPlugin();
  if (!plugin.ok()) return AddMissing(report, "cuda_plugin", "cuda plugin", plugin.error().message);
  AddText(report, "cuda_plugin", "cuda plugin", *plugin);
}

}  // namespace

Report InspectDevices() {
  Report report;
  AddText(report, "kind", "kind", "devices");
  AddProcessor(report);
  AddEmulated(report);
  AddGpus(report);
  return report;
}

}  // namespace loramux
