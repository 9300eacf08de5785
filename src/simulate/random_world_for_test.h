// A simulated server and its workload, drawn from a seed: from tiny to ample memory, from light load to overload.
#pragma once

#include <cstdint>
#include <string_view>

#include "simulate/simulation.h"

namespace loramux {

// The arguments of Simulate.
struct RandomWorld {
  SimulationOptions options;
  Workload workload;
};

// Deterministic in preset and seed. Every request fits the model's length; some are larger than the memory.
RandomWorld DrawWorld(std::string_view preset, std::uint64_t seed);

// The scheduler options that Simulate makes from this world's options.
SystemSpec SpecOf(const RandomWorld& world);

}  // namespace loramux
