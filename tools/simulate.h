// `loramux simulate`: what a server would do with a load, without one: the same scheduler and caches on a virtual
// clock.
#pragma once

#include <string>
#include <vector>

#include "simulate/fleet.h"
#include "simulate/simulation.h"
#include "tools/command_line/command_line.h"
#include "tools/system_flags.h"
#include "workload/workload.h"

namespace loramux {

struct SimulateFlags {
  std::string device = "a40", model = "llama-7b";
  std::string adapter_dir;  // ranks of its adapters, in place of --adapters and --ranks
  std::vector<std::string> lora_targets = {"q", "k", "v", "o"};
  // a file of `loramux profile`: its times in place of the device's; empty: not
  std::string profile;
  std::string pace;                      // a file of ReadPace; empty: the profile's, or always the model's
  bool steady = false;                   // always the model's, whatever the profile says
  double host_link_gb = 0;               // per second; 0: the device's, or the profile's
  std::vector<std::int64_t> gpus = {1};  // more than one number only with --find-servers
  std::int64_t stages = 1;               // SimulatedDevice::stages
  std::int64_t page_tokens = 0;          // 0: the preset's
  double memory_share = 0.9, host_memory_gb = 256;
  double device_memory_gb = 0;  // memory of a device; 0: the data sheet's
  bool adapters_on_disk = false;
  std::vector<std::string> presets;  // empty: loramux and s-lora; in a fleet, loramux
  SettingFlags settings;             // beside every preset
  WorkloadOptions workload;
  std::string arrivals;  // "poisson" or "trace"; empty: the trace's own if there is a trace and no rate
  std::string popularity = "power-law", rank_popularity = "uniform";
  // TTFT and TPOT below 0: not given. TTFT 0: five times the mean time of a request at low load; TPOT 0: none.
  ServiceObjective objective{.ttft = -1, .tpot = -1};
  bool find_load = false;
  std::string json, html;  // files to write
  bool list = false;
  std::string replay;  // a recording of `loramux serve`, in place of everything else; empty: not
  bool replay_truncated = false;
  std::string command_line;  // for the report

  // A fleet. `servers` 0: one server without a router. Its `server` has what one server takes as it is given.
  FleetOptions fleet{.servers = 0};
  std::vector<std::string> policies = {"loramux"};
  std::vector<std::string> fail;  // ParseFleetEvents
  TimeNs drift = 0;               // 0: popularity stays
  double drift_share = 0.1;
  bool find_servers = false;
  double share = 0.99;
  std::int64_t most_servers = 1000;

  bool simulates_fleet() const { return fleet.servers > 0 || find_servers; }
};

// What flags stand for.
struct PreparedSimulation {
  std::vector<Preset> presets;           // with what the flags set, and the objective for TTFT
  std::string device;                    // one of them, in words
  std::vector<SimulatedDevice> devices;  // by --gpus
  SimulationOptions options;             // without a preset
  Workload workload;
  ServiceObjective objective;
  std::string objective_source;  // SimulationReport
  double low_load_ms = 0;        // SimulationReport
};
// Reads files and draws the workload, and completes `flags.workload`. Errors name the flag.
Result<PreparedSimulation> PrepareSimulation(SimulateFlags& flags);

struct SimulationReport;
// Writes a file; an empty path: none. The error names the flag.
Status WriteReportFile(const std::string& path, const std::string& text, const char* flag);
// Writes the files that the flags ask for. Errors name the flag.
Status WriteReport(const SimulateFlags& flags, const SimulationReport& report);

void AddSimulateFlags(CommandLine& line, SimulateFlags& flags);
// Prints a table to stdout. Returns the process's exit status.
int RunSimulate(SimulateFlags flags);

// `command_line` goes into the report.
Command SimulateCommand(std::string command_line);

}  // namespace loramux
