// The cache's scenarios in virtual time: the same sessions, adapters and pages, on a machine that always takes as long
// for the same step. What a regime is worth shows there to a fraction of a percent, which no pair of real runs can
// show.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "bench/scenario_run.h"
#include "bench/scenario_workload.h"
#include "schedule/performance_model.h"
#include "simulate/workload.h"

namespace loramux {

// What the simulated server is: as scenario_run's real one, but for its steps and transfers.
struct SimulatedHouse {
  PerformanceModel model;
  HouseSizes sizes;
  double adapter_share = 0;  // SimulationOptions::adapter_share
};

// Sessions as the simulator's requests: at their times, and each turn's prompt quotes the answers that the simulation
// gives.
struct SimulatedScenario {
  Workload workload;
  std::int64_t working_set_bytes = 0;      // as Reference's
  std::int64_t largest_request_bytes = 0;  // of the device: its adapter and all of its keys and values
};

struct SimulatedCellResult {
  // means over requests, as CellResult's
  double ttft_ms = 0, ttft_geometric_ms = 0, tpot_ms = 0, tpot_geometric_ms = 0;
  double end_to_end_ms = 0;    // from when a request is due to its last token, mean
  double tokens_computed = 0;  // share of the prompts' tokens, of all requests
  double bytes_to_device = 0;  // of the whole run
  std::int64_t refused = 0;
};

// Errors: what Simulate refuses.
Result<SimulatedScenario> PrepareSimulation(const SimulatedHouse& house, const std::vector<Session>& sessions);
// Latencies are of what arrives after the warm-up. Errors: what Simulate refuses; requests too few to have latencies.
Result<SimulatedCellResult> SimulateCell(const SimulatedHouse& house, const SimulatedScenario& scenario,
                                         const CellOptions& options);

}  // namespace loramux
