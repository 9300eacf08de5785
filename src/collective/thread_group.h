// Ranks that are threads of one process: for tests, and for ThreadSanitizer.
#pragma once

#include <memory>
#include <vector>

#include "collective/collectives.h"

namespace loramux {

// The ends of a group, one for each rank. Each may outlive the others: to those, a rank without an end is one that says
// nothing.
std::vector<std::unique_ptr<Collectives>> MakeThreadGroup(std::int64_t ranks, TimeNs wait_limit);

}  // namespace loramux
