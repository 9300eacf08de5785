// The limits of the control groups that a process is in, of version 1 or 2.
#pragma once

#include <cstdint>
#include <optional>

#include "tools/doctor/system_files.h"

namespace loramux {

// nullopt: no limit, or none that can be read.
struct CgroupLimits {
  std::optional<double> processors;          // the processors' time that the group may take: 1.5 is one and a half
  std::optional<std::int64_t> memory_bytes;  // the least limit of the group and those around it
  std::optional<std::int64_t> memory_used;   // bytes, of the group with that limit, without cached files
  std::optional<std::int64_t> tasks;         // processes and threads
};

// The limits of this process. A path that leaves the groups' tree counts as the tree's root.
CgroupLimits ReadCgroupLimits(const SystemFiles& files);

}  // namespace loramux
