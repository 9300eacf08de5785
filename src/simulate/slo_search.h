// Finds the load that a server sustains under an objective, by bisection over the arrival rate.
#pragma once

#include <string_view>
#include <vector>

#include "simulate/simulation.h"

namespace loramux {

// The result at one arrival rate.
struct LoadProbe {
  double rate = 0;  // requests per second
  double p99_ttft_ms = 0, p50_ttft_ms = 0;
  double refused = 0;   // requests
  bool within = false;  // P99 TTFT is within the objective
};

// The result of the search.
struct SustainedLoad {
  double rate = 0;                // the highest rate within the objective; 0: none
  bool at_least = false;          // no probed rate was too high; the true rate may be higher
  std::vector<LoadProbe> probes;  // ascending by rate
};

// The mean end-to-end time, in ns, of requests at low load: 200 of the workload's requests, first come, first served
// with LRU, at 0.05 requests per second, at the model's own pace. Chameleon's objective is five times that. `preset`:
// the system that serves them in place of the options' own. Errors: all requests are refused; an unknown preset.
Result<TimeNs> LowLoadTime(const SimulationOptions& options, const WorkloadOptions& workload,
                           std::string_view preset = "fifo");

// The highest rate at which P99 TTFT is within `slo`, to 2 %. Starts at workload.rate (or 1), doubles or halves it
// until the limit is bracketed, then bisects. As the workload has a fixed number of requests, the result is the load
// sustained for that many.
Result<SustainedLoad> FindSustainedLoad(const SimulationOptions& options, WorkloadOptions workload, TimeNs slo);

}  // namespace loramux
