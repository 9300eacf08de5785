// The result page of the cache's scenarios: a table per scenario and device size, plots, and all figures as JSON.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "lab/experiments/scenario_run.h"
#include "lab/experiments/scenario_simulation.h"

namespace loramux {

// All runs of one regime in one scenario at one device size.
struct ScenarioCell {
  std::string scenario, regime;
  int memory_percent = 0;        // device size as a percentage of the working set
  std::vector<CellResult> runs;  // repetitions
  std::string error;             // not empty: it could not run
};

// Our regime against the best other one, of one scenario and size, in pairs of runs directly after each other.
struct ScenarioDuel {
  std::string scenario, other;
  int memory_percent = 0;
  std::vector<CellResult> ours, others;  // pair by pair
};

// A regime in virtual time.
struct SimulatedCell {
  std::string scenario, regime;
  int memory_percent = 0;
  std::vector<SimulatedCellResult> runs;  // by seed; the same sessions for all regimes
  std::string error;                      // not empty: it could not run
};

// Figures of a scenario's workload.
struct ScenarioSummary {
  std::string name;
  std::size_t sessions = 0, requests = 0, adapters_asked = 0;
  double rate = 0;                              // requests per second, after the warm-up
  double capacity = 0;                          // requests per second of the closed loop with ample memory
  double prompt_tokens = 0, answer_tokens = 0;  // mean
  std::int64_t working_set_bytes = 0, adapter_bytes = 0;
};

// Everything the page contains.
struct ScenarioReport {
  std::string command, machine, date;
  std::size_t adapters = 0;
  double zipf = 0, load = 0, seconds = 0, warm_up_seconds = 0, host_share = 0;
  int repetitions = 0, threads = 0;
  std::int64_t weight_bytes = 0;  // bytes of the base model, not in the pool
  double run_seconds = 0;         // time of all runs together
  std::vector<int> memory_percent;
  std::vector<std::string> regimes;
  std::vector<ScenarioSummary> scenarios;
  std::vector<ScenarioCell> cells;
  std::string ours;  // the regime that takes part in the duels
  std::vector<ScenarioDuel> duels;
  std::string profiled;  // the device of the profile
  int seeds = 0;         // in virtual time
  std::vector<SimulatedCell> simulated;

  // REQUIRES: the cell was run.
  const ScenarioCell& Cell(const std::string& scenario, int memory_percent, const std::string& regime) const;
  // The other regime with the lowest mean time to first token, in virtual time if that was run; nullopt: none has run.
  std::optional<std::string> BestOther(const std::string& scenario, int memory_percent) const;
  // The cell in virtual time; with an error if it could not run. REQUIRES: it was simulated.
  const SimulatedCell& Simulated(const std::string& scenario, int memory_percent, const std::string& regime) const;
  // Answers of all cells and duels that were wrong or missing.
  std::int64_t WrongAnswers() const;
  // Whether every cell could run.
  bool AllRan() const;
};

// Writes FOLDER/cache_scenarios.md, .json and, for each scenario, cache_scenarios_NAME_ttft.svg and _memory.svg.
Status WriteReport(const ScenarioReport& report, const std::filesystem::path& folder);

}  // namespace loramux
