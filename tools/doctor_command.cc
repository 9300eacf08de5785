#include "tools/doctor_command.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <unistd.h>

#include <fmt/core.h>

#include "base/bytes.h"
#include "gpu/cuda_plugin.h"
#include "http/bound_port.h"
#include "http/options.h"
#include "tools/doctor/examine.h"
#include "tools/model_flags.h"

namespace loramux {
namespace {

struct DoctorFlags {
  HttpServerOptions http;
  std::string cache;  // HubCacheFolder
  bool json = false;
};

void AskGpus(MachineFacts& facts) {
  const auto gpus = gpu::FindCudaGpus();
  if (!gpus.ok()) {
    facts.gpu_problem = gpus.error().message;
    return;
  }
  for (const gpu::CudaGpu& gpu : *gpus) {
    facts.gpus.push_back(
        fmt::format("{}, {}, compute capability {}.{}", gpu.name, FormatBytes(gpu.memory), gpu.major, gpu.minor));
  }
  const auto plugin = gpu::FindCudaPlugin();
  (plugin.ok() ? facts.plugin : facts.plugin_problem) = plugin.ok() ? *plugin : plugin.error().message;
}

// The cache, or the first folder around it that exists: the cache is made with the first model.
void AskCache(MachineFacts& facts, const std::string& given) {
  std::filesystem::path folder = HubCacheFolder(given);
  facts.cache = folder.string();
  std::error_code error;
  while (!std::filesystem::exists(folder, error) && folder.has_parent_path() && folder != folder.parent_path()) {
    folder = folder.parent_path();
  }
  const std::string existing = folder.empty() ? "." : folder.string();
  facts.cache_writable = access(existing.c_str(), W_OK) == 0;
  const std::filesystem::space_info space = std::filesystem::space(existing, error);
  if (!error) facts.cache_free = static_cast<std::int64_t>(space.available);
}

MachineFacts AskSystem(const DoctorFlags& flags) {
  MachineFacts facts;
  AskGpus(facts);
  facts.address = fmt::format("{}:{}", flags.http.host, flags.http.port);
  const auto bound = BoundPort::Bind(flags.http.host, flags.http.port);
  if (!bound.ok()) facts.address_problem = bound.error().message;
  AskCache(facts, flags.cache);
  return facts;
}

void AddDoctorFlags(CommandLine& line, DoctorFlags& flags) {
  line.Add({.names = "--host",
            .target = &flags.http.host,
            .unit = "ADDRESS",
            .help = "Address that the server would listen on"});
  line.Add({.names = "--port", .target = &flags.http.port, .unit = "PORT", .help = "Its port; 0: any free one"});
  line.Add({.names = "--download-dir",
            .target = &flags.cache,
            .unit = "DIR",
            .help = "Cache of models that would be used",
            .default_text = "HF_HOME/hub, or ~/.cache/huggingface/hub"});
  line.Add({.names = "--json", .target = &flags.json, .help = "Print one JSON object"});
}

int RunDoctor(const DoctorFlags& flags) {
  const std::vector<Finding> findings = Examine(SystemFiles(), AskSystem(flags));
  fmt::print("{}", flags.json ? FindingsAsJson(findings).dump(2) + "\n" : FindingsAsText(findings));
  return PreventsServing(findings) ? kExitFailure : 0;
}

}  // namespace

Command DoctorCommand() {
  const auto flags = std::make_shared<DoctorFlags>();
  Command command{.name = "doctor", .summary = "Look at this machine: can it serve, and what would make it faster"};
  AddDoctorFlags(command.line, *flags);
  command.line.set_footer(
      "Each line is ok, better (the server runs, and the second line says what would be better) or wrong (it does not "
      "run).\nExit status: 0, or 1 if something is wrong.");
  command.run = [flags] { return RunDoctor(*flags); };
  return command;
}

}  // namespace loramux
