// What `loramux simulate` found, for people and programs.
#pragma once

#include <string>
#include <vector>

#include "simulate/load_search.h"
#include "simulate/simulation.h"
#include "simulate/summary.h"

namespace loramux {

struct PresetRun {
  Preset preset;
  SimulationResult result;
  SimulationSummary summary;
  SustainedLoad sustained;      // without probes: not asked for
  std::int64_t page_bytes = 0;  // its pages, if they are not as large as the report's
};

struct SimulationReport {
  std::string device, workload;  // in words
  std::string command;           // command that made it
  std::int64_t page_bytes = 0, device_pages = 0;
  ServiceObjective objective;
  std::string objective_source;  // in words: "the default", "as given"
  double low_load_ms = 0;        // 0: the objective for TTFT does not come from it
  std::vector<PresetRun> runs;
};

// "12.5", or ">= 12.5" where the search found no end.
std::string ShowSustained(const SustainedLoad& load);
// Aligned columns, a preset a line.
std::string ReportAsTable(const SimulationReport& report);
// One JSON object, indented.
std::string ReportAsJson(const SimulationReport& report);
// A page of its own, with plots.
std::string ReportAsHtml(const SimulationReport& report);

}  // namespace loramux
