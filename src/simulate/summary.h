// A simulation's result in figures: latencies, throughput, hit rates, bytes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "simulate/simulation.h"
#include "workload/statistics.h"

namespace loramux {

// Figures of one simulation. Latencies are in ms.
struct SimulationSummary {
  Summary ttft, tpot, end_to_end, queue;  // per request; tpot of requests with more than one token
  Summary token;                          // per request: from arrival to the last token, over the output's tokens
  Summary between_tokens;                 // per token, within 0.8 %; max is 0: not kept
  std::int64_t finished = 0, refused = 0;
  double seconds = 0;  // from the first arrival to the last token
  double requests_per_second = 0, output_tokens_per_second = 0, offered_per_second = 0;
  // requests with a TTFT within the SLO: per second, and as a share
  double goodput = 0, within_slo = 0;
  // share of all requests that keep the objective for TPOT, that for time per token, and all objectives
  double within_tpot = 0, within_token = 0, attained = 0;
  // share of adapter requests with their adapter on the device at arrival
  double adapter_hit_share = 0;
  double prefix_hit_share = 0;     // share of the prompts' tokens that the prefix cache has
  double mean_load_ms = 0;         // time from the decision to load an adapter to its residency
  double lanes_least_share = 0;    // SchedulerStats::lanes_least_share, at the end
  std::int64_t awaited_loads = 0;  // loads that steps waited for (SchedulerStats::cold_starts)
  std::int64_t adapter_loads = 0, preemptions = 0, squashes = 0, history_evictions = 0;
  // Tokens that requests had computed when they were preempted: found in the cache when they began again, or computed
  // again. The second: of squashes.
  ResumedTokens resumed, resumed_squashes;
  double gigabytes_to_device = 0, gigabytes_to_host = 0, gigabytes_from_disk = 0;
  double busy_share = 0, link_busy_share = 0;  // share of time in use: the executor, the host link towards the device
  double invalid_history_share = 0;
};

// Summarises a result. Shares are of all requests.
SimulationSummary Summarise(const SimulationResult& result, const ServiceObjective& objective);
// The same; `ttft` is the TTFT objective in ns, and the only one.
SimulationSummary Summarise(const SimulationResult& result, TimeNs ttft);

// TTFT in ms of each request that was not refused, in order of arrival.
std::vector<double> TtftsOf(const SimulationResult& result);

// Latency by size: requests in thirds by the tokens that they compute (prompt plus twice the output), smallest third
// first.
struct SizeClassSummary {
  Summary ttft;
  double queue_share = 0;  // share of queueing in the end-to-end time, mean over the requests
};
// The three size classes, smallest first. Counts only requests that completed in full.
std::vector<SizeClassSummary> SummariseBySize(const SimulationResult& result);

}  // namespace loramux
