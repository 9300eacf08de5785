#include <algorithm>

#include <fmt/format.h>

#include "base/bytes.h"
#include "tools/doctor/checks.h"

namespace loramux {
namespace {

// The least memory with which the demo model serves: its weights and small pools.
constexpr std::int64_t kLeastBytes = std::int64_t{256} << 20;
// What each of the two pools takes by default, at most.
constexpr std::int64_t kDefaultPoolBytes = std::int64_t{8} << 30;
constexpr std::int64_t kMaxKiB = std::int64_t{1} << 50;

// The bytes that /proc/meminfo names. 0: unknown.
std::int64_t MeminfoBytes(std::string_view meminfo, std::string_view key) {
  std::string_view value = ValueOf(meminfo, key).value_or("");
  if (!value.ends_with("kB")) return 0;
  value.remove_suffix(2);
  return std::min(CountOf(value).value_or(0), kMaxKiB) * 1024;
}

std::string PoolFlags(std::int64_t usable) {
  const std::string each = fmt::format("{}MiB", std::max<std::int64_t>(usable / 4 >> 20, 16));
  return "--device-memory " + each + " --host-memory " + each;
}

}  // namespace

Finding CheckMemory(const SystemFiles& files, const CgroupLimits& limits) {
  const std::string meminfo = files.Read("/proc/meminfo").value_or("");
  const std::int64_t total = MeminfoBytes(meminfo, "MemTotal");
  std::int64_t usable = MeminfoBytes(meminfo, "MemAvailable");
  if (total == 0) {
    return {.name = "memory",
            .verdict = CheckVerdict::kBetter,
            .found = "unknown: /proc/meminfo cannot be read",
            .advice = "mount /proc, or set the server's pools: --device-memory and --host-memory"};
  }
  Finding finding{.name = "memory", .found = FormatBytes(total) + ", " + FormatBytes(usable) + " available"};
  if (limits.memory_bytes && *limits.memory_bytes < total) {
    finding.found += "; the cgroup allows " + FormatBytes(*limits.memory_bytes);
    usable = std::min(usable, *limits.memory_bytes - std::min(*limits.memory_bytes, limits.memory_used.value_or(0)));
  }
  const std::int64_t pools = 2 * std::min(total / 4, kDefaultPoolBytes);
  if (usable < kLeastBytes) {
    finding.verdict = CheckVerdict::kWrong;
    finding.advice =
        fmt::format("free memory, or raise the cgroup's limit: a server needs at least {}, and {} are left",
                    FormatBytes(kLeastBytes), FormatBytes(usable));
  } else if (usable < pools) {
    finding.verdict = CheckVerdict::kBetter;
    finding.advice = fmt::format(
        "give the server smaller pools ({}), or free memory: its default pools take up to {}, and only {} are left for "
        "them and the weights",
        PoolFlags(usable), FormatBytes(pools), FormatBytes(usable));
  }
  return finding;
}

Finding CheckOvercommit(const SystemFiles& files) {
  const auto mode = CountOf(files.FirstLine("/proc/sys/vm/overcommit_memory").value_or(""));
  if (mode != 2) return {.name = "address space", .found = "pools take memory as they fill"};
  return {.name = "address space",
          .verdict = CheckVerdict::kBetter,
          .found = "vm.overcommit_memory is 2: the kernel counts pools in full when they are made",
          .advice =
              "set vm.overcommit_memory to 0 (sysctl), or keep --device-memory and --host-memory below what is "
              "left"};
}

Finding CheckHugePages(const SystemFiles& files) {
  const auto text = files.FirstLine("/sys/kernel/mm/transparent_hugepage/enabled");  // "always [madvise] never"
  Finding finding{.name = "huge pages"};
  if (!text) {
    finding.verdict = CheckVerdict::kBetter;
    finding.found = "none: this kernel does not offer them";
    finding.advice =
        "use a kernel with transparent huge pages: weights and pools then need fewer look-ups of addresses";
    return finding;
  }
  const std::size_t open = text->find('['), close = text->find(']');
  const bool chosen = open != std::string::npos && close != std::string::npos && open < close;
  const std::string choice = chosen ? text->substr(open + 1, close - open - 1) : *text;
  finding.found = choice;
  if (choice == "always" || choice == "madvise") return finding;
  finding.verdict = CheckVerdict::kBetter;
  finding.advice =
      "run `echo madvise >/sys/kernel/mm/transparent_hugepage/enabled` as root: weights and pools ask for huge pages, "
      "and without them each step spends time on looking up addresses";
  return finding;
}

}  // namespace loramux
