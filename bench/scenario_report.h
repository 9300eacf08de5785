// The result page of the cache's scenarios: a table for each scenario and size of the device, plots, and everything as
// JSON.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "bench/scenario_run.h"
#include "bench/scenario_simulation.h"

namespace loramux {

struct ScenarioCell {
  std::string scenario, regime;
  int memory_percent = 0;        // the device, of the working set
  std::vector<CellResult> runs;  // repetitions
  std::string error;             // not empty: it could not run
};

// Ours beside the best of the others of one scenario and size, in pairs of runs one right after the other.
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

struct ScenarioSummary {
  std::string name;
  std::size_t sessions = 0, requests = 0, adapters_asked = 0;
  double rate = 0;                              // requests a second, after the warm-up
  double capacity = 0;                          // of the closed loop with ample memory
  double prompt_tokens = 0, answer_tokens = 0;  // mean
  std::int64_t working_set_bytes = 0, adapter_bytes = 0;
};

struct ScenarioReport {
  std::string command, machine, date;
  std::size_t adapters = 0;
  double zipf = 0, load = 0, seconds = 0, warm_up_seconds = 0, host_share = 0;
  int repetitions = 0, threads = 0;
  std::int64_t weight_bytes = 0;  // of the base model, beside the pool
  double run_seconds = 0;         // of everything
  std::vector<int> memory_percent;
  std::vector<std::string> regimes;
  std::vector<ScenarioSummary> scenarios;
  std::vector<ScenarioCell> cells;
  std::string ours;  // the regime that duels are about
  std::vector<ScenarioDuel> duels;
  std::string profiled;  // the device of the profile
  int seeds = 0;         // in virtual time
  std::vector<SimulatedCell> simulated;

  const ScenarioCell& Cell(const std::string& scenario, int memory_percent, const std::string& regime) const;
  // The other regime with the least mean time to the first token, in virtual time where that was run; nullopt: none has
  // run.
  std::optional<std::string> BestOther(const std::string& scenario, int memory_percent) const;
  // In virtual time; with an error if it could not run. REQUIRES: it was simulated.
  const SimulatedCell& Simulated(const std::string& scenario, int memory_percent, const std::string& regime) const;
  // Answers that were not the expected ones or none at all, of all cells and duels.
  std::int64_t WrongAnswers() const;
  bool AllRan() const;
};

// Writes FOLDER/cache_scenarios.md, .json and, for each scenario, cache_scenarios_NAME_ttft.svg and _memory.svg.
Status WriteReport(const ScenarioReport& report, const std::filesystem::path& folder);

}  // namespace loramux
