#include "tools/doctor/cgroup.h"

#include <algorithm>
#include <string>
#include <vector>

namespace loramux {
namespace {

// Version 1 says "no limit" by the largest number of whole pages.
constexpr std::int64_t kNoLimitBytes = std::int64_t{1} << 60;
constexpr std::size_t kMaxDepth = 64;

// The groups of a path, from the innermost to the root: /a/b, /a and "".
std::vector<std::string> GroupsOf(std::string_view path) {
  std::vector<std::string> groups{""};
  if (!path.starts_with('/')) return groups;
  std::string group;
  for (const std::string_view name : Pieces(path.substr(1), '/')) {
    if (name.empty()) continue;
    if (name == ".." || groups.size() > kMaxDepth) return {""};  // outside of what this process sees
    group += "/" + std::string(name);
    groups.insert(groups.begin(), group);
  }
  return groups;
}

// The path of this process in the tree of a controller of version 1, or of version 2 (an empty name).
std::optional<std::string> PathOf(std::string_view membership, std::string_view controller) {
  for (const std::string_view line : Pieces(membership, '\n')) {
    const std::size_t first = line.find(':');
    if (first == std::string_view::npos) continue;
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    for (const std::string_view name : Pieces(line.substr(first + 1, second - first - 1), ',')) {
      if (name == controller) return std::string(line.substr(second + 1));
    }
  }
  return std::nullopt;
}

void Lower(std::optional<double>& limit, double value) {
  if (!limit || value < *limit) limit = value;
}

// The files of a version for a group's memory, and what memory.stat there calls cached files.
struct MemoryNames {
  const char *limit, *used;
  const char* cached[2];
};
constexpr MemoryNames kMemory1{
    "/memory.limit_in_bytes", "/memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}};
constexpr MemoryNames kMemory2{"/memory.max", "/memory.current", {"inactive_file", "active_file"}};

// Without cached files: the kernel drops them before it refuses memory to the group.
std::optional<std::int64_t> MemoryUsed(const SystemFiles& files, const std::string& folder, const MemoryNames& names) {
  std::optional<std::int64_t> used = CountOf(files.FirstLine(folder + names.used).value_or(""));
  if (!used) return std::nullopt;
  const std::string stat = files.Read(folder + "/memory.stat").value_or("");
  for (const char* name : names.cached) {
    const std::int64_t cached = CountOf(ValueOf(stat, name).value_or("")).value_or(0);
    *used -= std::min(*used, cached);
  }
  return used;
}

void LowerMemory(CgroupLimits& limits, const SystemFiles& files, const std::string& folder, const MemoryNames& names) {
  const auto limit = CountOf(files.FirstLine(folder + names.limit).value_or(""));
  if (!limit || *limit >= kNoLimitBytes || (limits.memory_bytes && *limits.memory_bytes <= *limit)) return;
  limits.memory_bytes = limit;
  limits.memory_used = MemoryUsed(files, folder, names);
}

void LowerTasks(CgroupLimits& limits, const SystemFiles& files, const std::string& file) {
  const auto tasks = CountOf(files.FirstLine(file).value_or(""));
  if (tasks && (!limits.tasks || *tasks < *limits.tasks)) limits.tasks = tasks;
}

void LowerProcessors(CgroupLimits& limits, std::optional<std::int64_t> quota_us,
                     std::optional<std::int64_t> period_us) {
  if (!quota_us || !period_us || *quota_us == 0 || *period_us == 0) return;
  Lower(limits.processors, static_cast<double>(*quota_us) / static_cast<double>(*period_us));
}

void ReadVersion2(CgroupLimits& limits, const SystemFiles& files, std::string_view path) {
  for (const std::string& group : GroupsOf(path)) {
    const std::string folder = "/sys/fs/cgroup" + group;
    LowerMemory(limits, files, folder, kMemory2);
    LowerTasks(limits, files, folder + "/pids.max");
    const std::string cpu = files.FirstLine(folder + "/cpu.max").value_or("");  // "max 100000" or "150000 100000"
    const auto parts = Pieces(cpu, ' ');
    if (parts.size() == 2) LowerProcessors(limits, CountOf(parts[0]), CountOf(parts[1]));
  }
}

void ReadVersion1(CgroupLimits& limits, const SystemFiles& files, std::string_view membership) {
  for (const std::string& group : GroupsOf(PathOf(membership, "memory").value_or("/"))) {
    LowerMemory(limits, files, "/sys/fs/cgroup/memory" + group, kMemory1);
  }
  for (const std::string& group : GroupsOf(PathOf(membership, "cpu").value_or("/"))) {
    const std::string folder = "/sys/fs/cgroup/cpu" + group;
    LowerProcessors(limits, CountOf(files.FirstLine(folder + "/cpu.cfs_quota_us").value_or("")),
                    CountOf(files.FirstLine(folder + "/cpu.cfs_period_us").value_or("")));
  }
  for (const std::string& group : GroupsOf(PathOf(membership, "pids").value_or("/"))) {
    LowerTasks(limits, files, "/sys/fs/cgroup/pids" + group + "/pids.max");
  }
}

}  // namespace

CgroupLimits ReadCgroupLimits(const SystemFiles& files) {
  CgroupLimits limits;
  const std::string membership = files.Read("/proc/self/cgroup").value_or("");
  ReadVersion2(limits, files, PathOf(membership, "").value_or("/"));
  ReadVersion1(limits, files, membership);
  return limits;
}

}  // namespace loramux
