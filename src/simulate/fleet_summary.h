// A fleet's result in figures, and the search for the number of servers that an objective needs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "simulate/fleet.h"
#include "workload/statistics.h"

namespace loramux {

// What a request is promised.
struct FleetObjective {
  TimeNs ttft = 0;    // time to the first token; 0: any
  TimeNs token = 0;   // time per token: from arrival to the last token, over the output's tokens; 0: any
  TimeNs warmup = 0;  // requests that arrive before are not counted
};

// What one adapter's requests got. Latencies are in ms.
struct AdapterSummary {
  std::int32_t adapter = -1;  // -1: the base model
  std::int64_t rank = 0, requests = 0;
  double attained = 0;  // share of its requests within the objective
  double cold = 0;      // share that came to a server without the adapter on the device
  double p50_ttft = 0, p99_ttft = 0, mean_token = 0;
};

// Figures of one run. Latencies are in ms.
struct FleetSummary {
  std::int64_t requests = 0, finished = 0, refused = 0, cancelled = 0, broken = 0, not_served = 0, retries = 0;
  double attained = 0;  // share of the requests within the objective; cancelled ones are not counted
  double ttft_attained = 0, token_attained = 0;
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
    double attained = 0, p99_ttft_ms = 0;
  };
  std::int64_t servers = 0;   // 0: `most` do not suffice
  std::vector<Probe> probes;  // ascending by servers
};
// Finds the smallest number of servers, at most `most`, with which a share of at least `share` of the requests is
// within the objective: doubles options.servers, then bisects. `faults` gives the events for a number of servers.
// Errors: those of SimulateFleet and `faults`.
Result<FleetSize> FindFleetSize(FleetOptions options, const Workload& workload, const FleetObjective& objective,
                                double share, std::int64_t most,
                                const std::function<Result<std::vector<FleetEvent>>(std::int64_t servers)>& faults,
                                const std::function<void(const std::string&)>& note);

}  // namespace loramux
