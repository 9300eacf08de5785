// The checks of `loramux doctor`, by what they look at. Each makes one finding.
#pragma once

#include <optional>

#include "tools/doctor/cgroup.h"
#include "tools/doctor/examine.h"

namespace loramux {

// How many processors this process may run on, by its affinity; at least 1.
std::int64_t AllowedProcessors(const SystemFiles& files);

Finding CheckInstructions(const SystemFiles& files);
Finding CheckProcessors(const SystemFiles& files, const CgroupLimits& limits);
Finding CheckLoad(const SystemFiles& files);
Finding CheckFrequency(const SystemFiles& files);
Finding CheckNuma(const SystemFiles& files);

Finding CheckMemory(const SystemFiles& files, const CgroupLimits& limits);
Finding CheckOvercommit(const SystemFiles& files);
Finding CheckHugePages(const SystemFiles& files);

Finding CheckOpenFiles(const SystemFiles& files);
Finding CheckTasks(const SystemFiles& files, const CgroupLimits& limits);
Finding CheckGpu(const SystemFiles& files, const MachineFacts& facts);
Finding CheckAddress(const MachineFacts& facts);
Finding CheckCache(const MachineFacts& facts);

}  // namespace loramux
