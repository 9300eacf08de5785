// How much load is sustained under an objective: bisection over the rate of arrivals.
#pragma once

#include <vector>

#include "simulate/simulation.h"

namespace loramux {

struct LoadProbe {
  double rate = 0;  // requests per second
  double p99_ttft_ms = 0, p50_ttft_ms = 0;
  double refused = 0;   // requests
  bool within = false;  // P99 TTFT within the objective
};

struct SustainedLoad {
  double rate = 0;                // the highest that was within; 0: none
  bool at_least = false;          // no rate was too high: the search ended at the highest that it asks for
  std::vector<LoadProbe> probes;  // ascending by rate
};

// The mean end-to-end time of requests that hardly ever meet: 200 of the workload's, on first come, first served with
// LRU, at a twentieth of a request a second, at the model's own pace. Chameleon's objective is five times that. Error:
// all are refused.
Result<TimeNs> LowLoadTime(const SimulationOptions& options, const WorkloadOptions& workload);

// The highest rate at which P99 TTFT is within `slo`, to 2 %: from workload.rate (or 1) up or down by factors of two,
// then by halves. As the workload has a fixed number of requests, it is the load that is sustained for so many.
Result<SustainedLoad> FindSustainedLoad(const SimulationOptions& options, WorkloadOptions workload, TimeNs slo);

}  // namespace loramux
