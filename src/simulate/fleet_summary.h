// A fleet's result in figures, and the search for the number of servers that an objective needs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "simulate/fleet.h"
#include "simulate/objective.h"
#include "workload/statistics.h"

namespace loramux {

using FleetObjective = ServiceObjective;

// What one adapter's requests got. Latencies are in ms.
struct AdapterSummary {
  std::int32_t adapter = -1;  // -1: the base model
  std::string name;           // Workload::NameOf
  std::int64_t rank = 0, requests = 0;
  double attained = 0;  // share of its requests within the objective
  double cold = 0;      // share that came to a server without the adapter on the device
  double p50_ttft = 0, p99_ttft = 0, mean_token = 0;
};

// Figures of one run. Latencies are in ms.
struct FleetSummary {
  std::int64_t requests = 0, finished = 0, refused = 0, cancelled = 0, broken = 0, not_served = 0, retries = 0;
  double attained = 0;  // share of the requests within the objective; cancelled ones are not counted
  double ttft_attained = 0, token_attained = 0, tpot_attained = 0;
  Summary ttft, tpot, token;  // token: time per token, of the objective
  double cold = 0;            // share that came to a server without their adapter on its device
  double prefix_hits = 0;     // share of the prompts' tokens
  double seconds = 0, requests_per_second = 0, output_tokens_per_second = 0;
  std::int64_t device_loads = 0, disk_loads = 0, preemptions = 0;
  // By server: requests sent to it, and the share of time in which its device is busy.
  Summary sent, busy;
  std::vector<AdapterSummary> adapters;  // with requests; the worst attainment first, then the most requests
};

FleetSummary Summarise(const FleetResult& result, const Workload& workload, const FleetObjective& objective);

// Time per token of each finished request after the warm-up, in ms.
std::vector<double> TokenTimesOf(const FleetResult& result, const FleetObjective& objective);

// The smallest fleet.
struct FleetSize {
  // One size that was tried.
  struct Probe {
    std::int64_t servers = 0;
    // Where the run was given up: the most that could have been attained, and the percentile until then.
    double attained = 0, p99_ttft_ms = 0;
  };
  std::int64_t servers = 0;   // 0: `most` do not suffice
  std::vector<Probe> probes;  // ascending by servers
  // of the fleet with `servers`, if the search simulated one
  std::optional<FleetResult> result;
};
// Finds the smallest number of servers, at most `most`, with which a share of at least `share` of the requests is
// within the objective: doubles options.servers, then bisects; runs that cannot keep it any more are given up. `faults`
// gives the events for a number of servers. Errors: those of SimulateFleet and `faults`.
Result<FleetSize> FindFleetSize(FleetOptions options, const Workload& workload, const FleetObjective& objective,
                                double share, std::int64_t most,
                                const std::function<Result<std::vector<FleetEvent>>(std::int64_t servers)>& faults,
                                const std::function<void(const std::string&)>& note);

}  // namespace loramux
