// What `loramux simulate --servers` found, for people and programs.
#pragma once

#include <string>
#include <vector>

#include "simulate/fleet.h"
#include "simulate/fleet_summary.h"
#include "simulate/machine_search.h"

namespace loramux {

// One policy's run.
struct FleetRun {
  std::string policy;
  FleetResult result;
  FleetSummary summary;
  FleetSize size;  // without probes: not asked for
};

struct FleetReport {
  std::string device, workload, fleet;  // in words
  std::string command;                  // command that made it
  FleetObjective objective;
  std::string objective_source;  // SimulationReport
  double low_load_ms = 0;        // 0: the objective for TTFT does not come from it
  double wanted_share = 0;       // share that FindFleetSize was asked for
  std::int64_t servers = 0;      // servers of the runs; with a search, each run has the number that its policy needs
  std::vector<FleetRun> runs;
  std::string first_column = "policy";  // what runs differ in
  std::string answer;                   // a sentence; empty: not asked for
  std::vector<MachineCount> machines;   // the ways to serve that were compared, the cheapest first; without results
};

// The run that gives most requests what they were promised. REQUIRES: a run.
const FleetRun& BestOf(const FleetReport& report);

// What each way to serve needs, a way a line, with a line of headings.
std::vector<std::vector<std::string>> MachineRows(const FleetReport& report);
// Aligned columns, a policy a line; then the adapters that the best policy serves worst.
std::string ReportAsTable(const FleetReport& report);
// One JSON object, indented, with all adapters.
std::string ReportAsJson(const FleetReport& report);
// A page of its own, with plots.
std::string ReportAsHtml(const FleetReport& report);

}  // namespace loramux
