// The cache's scenarios in virtual time: the same sessions, adapters and pages, on a machine where the same step always
// takes the same time. It resolves differences between regimes of a fraction of a percent, which no pair of real runs
// can.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "costs/performance_model.h"
#include "lab/experiments/scenario_run.h"
#include "lab/experiments/scenario_workload.h"
#include "workload/workload.h"

namespace loramux {

// The simulated server: the same as scenario_run's real one, except for its steps and transfers.
struct SimulatedHouse {
  PerformanceModel model;
  HouseSizes sizes;
  double adapter_share = 0;  // SystemSpec::adapter_share
};

// Sessions as requests of the simulator: at their times; each turn's prompt quotes the answers of the simulation.
struct SimulatedScenario {
  Workload workload;
  std::int64_t working_set_bytes = 0;      // as Reference's
  std::int64_t largest_request_bytes = 0;  // on the device: its adapter and all of its keys and values
};

// Results of one simulated cell.
struct SimulatedCellResult {
  // means over requests, as CellResult's
  double ttft_ms = 0, ttft_geometric_ms = 0, tpot_ms = 0, tpot_geometric_ms = 0;
  double end_to_end_ms = 0;    // mean, from due to the last token
  double tokens_computed = 0;  // share of the prompts' tokens, of all requests
  double bytes_to_device = 0;  // bytes of the whole run
  std::int64_t refused = 0;
};

// Converts sessions for the simulator. Errors: those of Simulate.
Result<SimulatedScenario> PrepareSimulation(const SimulatedHouse& house, const std::vector<Session>& sessions);
// Latencies cover arrivals after the warm-up. Errors: those of Simulate; too few requests for latencies.
Result<SimulatedCellResult> SimulateCell(const SimulatedHouse& house, const SimulatedScenario& scenario,
                                         const CellOptions& options);

}  // namespace loramux
