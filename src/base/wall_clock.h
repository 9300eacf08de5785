// The time of day in nanoseconds, for what other systems compare with their own clocks. Decisions take a Clock.
#pragma once

#include <cstdint>

namespace loramux {

// Nanoseconds since 1970-01-01 UTC. It may jump when the system's clock is set. Thread-safe.
std::int64_t UnixNanoseconds();

}  // namespace loramux
