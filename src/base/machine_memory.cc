#include "base/machine_memory.h"

#include <sys/sysinfo.h>

#include "base/check.h"

namespace loramux {
namespace {

std::int64_t Bytes(std::uint64_t units, std::uint64_t unit) { return static_cast<std::int64_t>(units * unit); }

struct sysinfo Info() {
  struct sysinfo info = {};
  CHECK_EQ(sysinfo(&info), 0);  // fails for a bad address alone
  return info;
}

}  // namespace

std::int64_t MachineMemory() {
  const struct sysinfo info = Info();
  return Bytes(info.totalram, info.mem_unit);
}

std::int64_t MachineMemoryWithSwap() {
  const struct sysinfo info = Info();
  return Bytes(info.totalram + info.totalswap, info.mem_unit);
}

}  // namespace loramux
