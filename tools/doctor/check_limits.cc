#include <algorithm>

#include <fmt/format.h>

#include "base/bytes.h"
#include "tools/doctor/checks.h"

namespace loramux {
namespace {

constexpr std::int64_t kConnections = 4096;  // --max-connections by default
constexpr std::int64_t kFilesBeside = 256;   // weights, adapters, logs, workers
constexpr std::int64_t kLeastFiles = 64;     // without these not even one client is served
constexpr std::int64_t kLeastCacheBytes = std::int64_t{4} << 30;
constexpr std::int64_t kThreadsBeside = 32;  // the engine, the loader, connections, workers

// Whether the machine has a display controller of NVIDIA's, with or without its driver.
bool HasNvidiaCard(const SystemFiles& files) {
  for (const std::string& device : files.Names("/sys/bus/pci/devices")) {
    const std::string folder = "/sys/bus/pci/devices/" + device;
    if (files.FirstLine(folder + "/vendor") != "0x10de") continue;
    if (files.FirstLine(folder + "/class").value_or("").starts_with("0x03")) return true;
  }
  return false;
}

}  // namespace

Finding CheckOpenFiles(const SystemFiles& files) {
  const std::string limits = files.Read("/proc/self/limits").value_or("");
  const std::string_view line = ValueOf(limits, "Max open files").value_or("");
  std::vector<std::string_view> words = Pieces(line, ' ');
  std::erase(words, std::string_view());
  if (words.size() < 2) return {.name = "open files", .found = "unknown: /proc/self/limits cannot be read"};
  if (words[1] == "unlimited") return {.name = "open files", .found = "unlimited"};
  const std::int64_t hard = CountOf(words[1]).value_or(0);
  Finding finding{.name = "open files", .found = fmt::format("up to {}", hard)};
  if (hard < kLeastFiles) {
    finding.verdict = CheckVerdict::kWrong;
    finding.advice = fmt::format("raise the limit (ulimit -Hn {}): every connection is an open file", 65536);
  } else if (hard < kConnections + kFilesBeside) {
    finding.verdict = CheckVerdict::kBetter;
    finding.advice = fmt::format(
        "raise the limit (ulimit -Hn 65536; LimitNOFILE= of a systemd unit): the default --max-connections {} needs "
        "{}, and beyond the limit connections are refused",
        kConnections, kConnections + kFilesBeside);
  }
  return finding;
}

Finding CheckTasks(const SystemFiles& files, const CgroupLimits& limits) {
  if (!limits.tasks) return {.name = "tasks", .found = "no limit of the cgroup"};
  const std::int64_t needed = AllowedProcessors(files) + kThreadsBeside;
  Finding finding{.name = "tasks", .found = fmt::format("the cgroup allows {}", *limits.tasks)};
  if (*limits.tasks < needed) {
    finding.verdict = CheckVerdict::kWrong;
    finding.advice = fmt::format(
        "raise pids.max (Docker: --pids-limit) to at least {}: a server has up to that many "
        "threads",
        needed);
  }
  return finding;
}

Finding CheckGpu(const SystemFiles& files, const MachineFacts& facts) {
  Finding finding{.name = "GPU"};
  if (facts.gpus.empty()) {
    finding.found = "none: the server computes on the processor";
    if (!HasNvidiaCard(files)) return finding;
    finding.verdict = CheckVerdict::kBetter;
    finding.found = "an NVIDIA card that cannot be used: " + facts.gpu_problem;
    finding.advice = "install NVIDIA's driver, and in a container pass the GPU (docker run --gpus all)";
    return finding;
  }
  finding.found = facts.gpus.front();
  if (facts.gpus.size() > 1) finding.found += fmt::format(" and {} more", facts.gpus.size() - 1);
  if (!facts.plugin.empty()) return finding;
  finding.verdict = CheckVerdict::kBetter;
  finding.found += "; without its plugin";
  finding.advice =
      "build the plugin (`make cuda`) and put libloramux_cuda.so beside the program: " + facts.plugin_problem;
  return finding;
}

Finding CheckAddress(const MachineFacts& facts) {
  if (facts.address_problem.empty()) return {.name = "port", .found = facts.address + " is free"};
  return {.name = "port",
          .verdict = CheckVerdict::kWrong,
          .found = facts.address_problem,
          .advice =
              "choose another port (loramux serve --port 8001; 0 takes a free one), or end what uses it (`ss -ltnp` "
              "names it)"};
}

Finding CheckCache(const MachineFacts& facts) {
  Finding finding{.name = "model cache", .found = facts.cache};
  if (facts.cache_free) finding.found += ", " + FormatBytes(*facts.cache_free) + " free";
  if (!facts.cache_writable) {
    finding.verdict = CheckVerdict::kBetter;
    finding.found += ", not writable";
    finding.advice =
        "set HF_HOME or --download-dir to a folder that this user may write: models by name are kept there";
  } else if (facts.cache_free && *facts.cache_free < kLeastCacheBytes) {
    finding.verdict = CheckVerdict::kBetter;
    finding.advice = fmt::format(
        "set HF_HOME or --download-dir to a larger disk: a model of one billion parameters takes "
        "some {}",
        FormatBytes(kLeastCacheBytes / 2));
  }
  return finding;
}

}  // namespace loramux
