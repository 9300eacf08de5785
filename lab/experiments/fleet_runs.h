// Fleets side by side, over several seeds, for the experiments on routing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lab/experiments/experiment.h"
#include "simulate/fleet.h"
#include "simulate/fleet_summary.h"

namespace loramux {

// One setting of a fleet. Each seed draws another workload and other chances.
struct FleetJob {
  FleetOptions options;
  WorkloadOptions load;
  FleetObjective objective;
};

// A figure over the seeds.
struct Spread {
  double mean = 0, low = 0, high = 0;
};
Spread SpreadOf(const std::vector<FleetSummary>& seeds, const std::function<double(const FleetSummary&)>& figure);
// "98.6 (98.1-99.0)", with the figure times `factor`.
std::string ShowSpread(const Spread& spread, double factor = 1, int digits = 1);

// How many seeds an experiment takes: `all`, or one if its numbers of requests are scaled down.
std::int64_t SeedsOf(const ExperimentContext& context, std::int64_t all);

// Runs each job with the seeds context.seed, context.seed + 1, ... Returns the summaries by job, then by seed.
Result<std::vector<std::vector<FleetSummary>>> SimulateFleets(ExperimentContext& context,
                                                              const std::vector<FleetJob>& jobs, std::int64_t seeds);

}  // namespace loramux
