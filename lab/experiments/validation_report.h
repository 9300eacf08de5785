// The result page of the simulator's validation, made from all runs so far.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "lab/experiments/validation_run.h"

namespace loramux {

// Latencies of one run.
struct LatencyFigures {
  double tpot_ms = 0;                       // mean over the requests of their mean time per later token
  double ttft_p50_ms = 0, ttft_p90_ms = 0;  // from the time of sending
};
// Figures of the requests sent from `warm_up` on.
LatencyFigures FiguresOf(const std::vector<ServedRequest>& requests, TimeNs warm_up);

// One run of a preset under a load: on the real engine, and simulated with a model fitted to every other quarter of a
// second of it and with the machine's pace.
struct ValidationRun {
  std::string preset;
  int load_percent = 0;             // load, in percent of `saturation`
  double rate = 0, saturation = 0;  // requests per second
  std::int64_t requests = 0;
  LatencyFigures real, simulated;
  LatencyFigures even;    // simulated at one pace for the whole run
  LatencyFigures beside;  // simulated at the pace of the quarters that the model was fitted to
  LatencyFigures linear;  // simulated without the model's factors
  LatencyFigures once;    // simulated with the profile measured before all runs
  std::int64_t fitted_steps = 0;
  double fit_error = 0, linear_fit_error = 0;  // mean relative error on the steps that the model was fitted to
  double unevenness = 0;                       // time of the slowest or fastest second's steps, relative to all
  double step_time_ratio = 0;                  // predicted time of the steps not used for fitting, over measured time
  double once_step_time_ratio = 0;             // the same for the profile measured before all runs
  double between_steps_us = 0, submit_latency_us = 0;
  double busy = 0;  // share of the time in which the real executor was busy
  double adapter_hits = 0, simulated_adapter_hits = 0;
};

// One line, for ReadRuns.
std::string RunAsJsonLine(const ValidationRun& run);
// Reads a file with one run per line. Errors name the line.
Result<std::vector<ValidationRun>> ReadRuns(const std::filesystem::path& file);

// Bounds on the relative difference between simulated and real figures.
inline constexpr double kTpotBound = 0.03, kTtftBound = 0.10;

// Everything the page contains.
struct ValidationReport {
  std::string command, machine, date, setting;  // human-readable
  std::vector<ValidationRun> runs;
};
// The number of figures (per preset and load) outside their bounds. Each is the median over the repetitions of the
// difference between a simulated run and its own real run.
std::int64_t OutsideBounds(const ValidationReport& report);
// Writes FOLDER/simulator_validation.md, .json and .svg. REQUIRES: at least one run.
Status WriteReport(const ValidationReport& report, const std::filesystem::path& folder);

}  // namespace loramux
