#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "tools/doctor/checks.h"

namespace loramux {
namespace {

bool Has(const std::vector<std::string_view>& features, std::string_view feature) {
  return std::find(features.begin(), features.end(), feature) != features.end();
}

// The processor's name, where the system tells it.
std::string NameFrom(std::string_view cpuinfo) {
  for (const char* key : {"model name", "Model", "CPU implementer"}) {
    if (const auto value = ValueOf(cpuinfo, key); value && !value->empty()) return std::string(*value);
  }
  return "a processor without a name";
}

Finding CheckX86(std::string found, const std::vector<std::string_view>& features) {
  Finding finding{.name = "processor"};
  const bool avx2 = Has(features, "avx2") && Has(features, "fma");
  const bool avx512 = avx2 && Has(features, "avx512f") && Has(features, "avx512bw") && Has(features, "avx512vl");
  if (avx512) {
    finding.found = found + (Has(features, "avx512_vnni") ? ", AVX-512 with VNNI" : ", AVX-512");
  } else if (avx2) {
    finding.found = found + ", AVX2";
  } else {
    finding.verdict = CheckVerdict::kBetter;
    finding.found = found + ", without AVX2 and FMA";
    finding.advice =
        "use a processor with AVX2 (Intel and AMD since 2015): it computes several times as fast. In a virtual "
        "machine, let the guest see the host's processor (QEMU: -cpu host)";
  }
  return finding;
}

// The number of cores that share no execution units: as many as there are different lists of siblings. 0: unknown.
std::size_t Cores(const SystemFiles& files) {
  std::set<std::string> cores;
  for (const std::string& name : files.Names("/sys/devices/system/cpu")) {
    if (!name.starts_with("cpu") || !CountOf(name.substr(3))) continue;
    const auto siblings = files.FirstLine("/sys/devices/system/cpu/" + name + "/topology/thread_siblings_list");
    if (siblings) cores.insert(*siblings);
  }
  return cores.size();
}

}  // namespace

std::int64_t AllowedProcessors(const SystemFiles& files) {
  const std::string status = files.Read("/proc/self/status").value_or("");
  const auto list = ValueOf(status, "Cpus_allowed_list");
  return std::max<std::int64_t>(1, CountOfList(list.value_or("")).value_or(1));
}

Finding CheckInstructions(const SystemFiles& files) {
  const std::string cpuinfo = files.Read("/proc/cpuinfo").value_or("");
  const std::string name = NameFrom(cpuinfo);
  if (const auto flags = ValueOf(cpuinfo, "flags")) return CheckX86(name, Pieces(*flags, ' '));
  if (const auto features = ValueOf(cpuinfo, "Features")) {
    return {.name = "processor", .found = name + (Has(Pieces(*features, ' '), "asimd") ? ", NEON" : ", ARM")};
  }
  return {.name = "processor",
          .verdict = CheckVerdict::kBetter,
          .found = name + ", whose instructions /proc/cpuinfo does not list",
          .advice = "mount /proc, so that this check can see them; the server itself asks the processor"};
}

Finding CheckProcessors(const SystemFiles& files, const CgroupLimits& limits) {
  const std::int64_t allowed = AllowedProcessors(files);
  Finding finding{.name = "threads", .found = fmt::format("{} processors", allowed)};
  if (const std::size_t cores = Cores(files); cores > 0)
    finding.found += fmt::format(" (this machine: {} cores)", cores);
  if (limits.processors && *limits.processors < static_cast<double>(allowed)) {
    const auto threads = std::max<std::int64_t>(1, std::llround(std::floor(*limits.processors)));
    finding.verdict = CheckVerdict::kBetter;
    finding.found += fmt::format("; the cgroup allows the time of {:.2f}", *limits.processors);
    finding.advice = fmt::format(
        "raise the cgroup's CPU limit, or give loramux serve --threads {}: with more threads than the limit the kernel "
        "stops all of them in the middle of a step",
        threads);
  } else if (allowed == 1) {
    finding.verdict = CheckVerdict::kBetter;
    finding.advice = "allow more processors (taskset, cpuset): the server computes with one thread a processor";
  }
  return finding;
}

Finding CheckLoad(const SystemFiles& files) {
  const std::string text = files.FirstLine("/proc/loadavg").value_or("");
  const auto hundredths = [&]() -> std::optional<std::int64_t> {  // "2.06 2.22 ...": two digits behind the point
    const std::string_view first = Pieces(text, ' ').front();
    const auto parts = Pieces(first, '.');
    if (parts.size() != 2 || parts[1].size() != 2) return std::nullopt;
    const auto whole = CountOf(parts[0]), rest = CountOf(parts[1]);
    if (!whole || !rest || *whole > 1'000'000) return std::nullopt;
    return *whole * 100 + *rest;
  }();
  if (!hundredths) return {.name = "load", .found = "unknown: /proc/loadavg cannot be read"};
  const double load = static_cast<double>(*hundredths) / 100;
  const std::int64_t allowed = AllowedProcessors(files);
  Finding finding{.name = "load", .found = fmt::format("{:.2f} in the last minute", load)};
  if (load > static_cast<double>(allowed) / 2) {
    finding.verdict = CheckVerdict::kBetter;
    finding.advice = fmt::format(
        "end other programs, or give the server processors of its own (taskset): each step waits for its slowest "
        "thread, and {} processors are in use by others",
        *hundredths / 100 + (*hundredths % 100 > 0 ? 1 : 0));
  }
  return finding;
}

Finding CheckFrequency(const SystemFiles& files) {
  const auto governor = files.FirstLine("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  if (!governor) return {.name = "frequency", .found = "set by the machine or its host"};
  Finding finding{.name = "frequency", .found = *governor};
  if (*governor == "powersave" || *governor == "conservative") {
    finding.verdict = CheckVerdict::kBetter;
    finding.advice = "run `cpupower frequency-set -g performance` as root: this governor keeps the processors slow";
  }
  return finding;
}

Finding CheckNuma(const SystemFiles& files) {
  const auto nodes = CountOfList(files.FirstLine("/sys/devices/system/node/online").value_or("0"));
  if (!nodes || *nodes <= 1) return {.name = "NUMA", .found = "one node"};
  return {.name = "NUMA",
          .verdict = CheckVerdict::kBetter,
          .found = fmt::format("{} nodes", *nodes),
          .advice =
              "run one server a node (numactl --cpunodebind=0 --membind=0 loramux serve ...) behind `loramux "
              "route`: weights in another node's memory are read at about half the speed"};
}

}  // namespace loramux
