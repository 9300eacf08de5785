// A simulated server and what is asked of it, drawn from a seed: from tiny to ample, from a trickle to overload.
#pragma once

#include <cstdint>
#include <string_view>

#include "simulate/simulation.h"

namespace loramux {

struct RandomWorld {
  SimulationOptions options;
  Workload workload;
};

// The same for the same preset and seed. Every request fits the model's length; some are larger than the memory.
RandomWorld DrawWorld(std::string_view preset, std::uint64_t seed);

// As World makes them of these options.
SchedulerOptions SchedulerOptionsOf(const RandomWorld& world);

}  // namespace loramux
