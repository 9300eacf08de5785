// Finds the load that a server sustains under an objective, by bisection over the arrival rate.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "simulate/objective.h"
#include "simulate/simulation.h"

namespace loramux {

// The result at one arrival rate.
struct LoadProbe {
  double rate = 0;  // requests per second
  // Not a number where the run was given up, because the objective was out of reach.
  double p99_ttft_ms = 0, p50_ttft_ms = 0;
  double refused = 0;   // requests
  bool within = false;  // the objective is kept
};

// The result of the search.
struct SustainedLoad {
  double rate = 0;                // the highest rate within the objective; 0: none
  bool at_least = false;          // no probed rate was too high; the true rate may be higher
  std::vector<LoadProbe> probes;  // with all requests; ascending by rate
};

// The mean end-to-end time, in ns, of requests at low load: 200 of the workload's requests, first come, first served
// with LRU, at 0.05 requests per second, at the model's own pace. Chameleon's objective is five times that. `preset`:
// the system that serves them in place of the options' own. Errors: all requests are refused; an unknown preset.
Result<TimeNs> LowLoadTime(const SimulationOptions& options, const WorkloadOptions& workload,
                           std::string_view preset = "fifo");
// The same of a preset that was changed.
Result<TimeNs> LowLoadTime(const SimulationOptions& options, const WorkloadOptions& workload, Preset preset);

// How to search.
struct LoadSearch {
  ServiceObjective objective;
  // Give hopeless runs up, and look first with a part of the requests, so that all of them run only near the limit. A
  // rate that is far below or above the limit of the part is not tried. The result is the same, as long as no rate
  // that is too high lies below one that is not; false: try each with all requests to their end.
  bool hasten = true;
  std::function<void(double share)> progress;  // is told an estimate of how far the search is; may be empty
};

// The highest rate within the objective, to 2 %: for TTFT alone one at which its 99th percentile keeps it; otherwise
// one at which 99 % of the requests keep all of it. Starts at workload.rate (or 1), doubles or halves it until the
// limit is bracketed, then bisects. As the workload has a fixed number of requests, the result is the load sustained
// for that many. Errors: those of MakeWorkload and Simulate.
Result<SustainedLoad> FindSustainedLoad(const SimulationOptions& options, const WorkloadOptions& workload,
                                        const LoadSearch& search);
// The same for TTFT alone.
Result<SustainedLoad> FindSustainedLoad(const SimulationOptions& options, const WorkloadOptions& workload, TimeNs ttft);

}  // namespace loramux
