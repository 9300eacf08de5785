// The result page of the simulator's validation, from the runs that were made so far.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "bench/validation_run.h"

namespace loramux {

struct LatencyFigures {
  double tpot_ms = 0;                       // mean over the requests of their mean time per later token
  double ttft_p50_ms = 0, ttft_p90_ms = 0;  // from the moment of sending
};
// Of those sent from `warm_up` on.
LatencyFigures FiguresOf(const std::vector<ServedRequest>& requests, TimeNs warm_up);

// A preset under a load, once: the real engine, and the simulated one with what was fitted to every other quarter of a
// second of it and the pace that the machine had.
struct ValidationRun {
  std::string preset;
  int load_percent = 0;             // of `saturation`
  double rate = 0, saturation = 0;  // requests a second
  std::int64_t requests = 0;
  LatencyFigures real, simulated;
  LatencyFigures even;    // simulated at one pace for the whole run
  LatencyFigures beside;  // simulated at the pace of the quarters that the model was fitted to
  LatencyFigures linear;  // simulated without the model's factors
  LatencyFigures once;    // simulated by the profile that was measured before all runs
  std::int64_t fitted_steps = 0;
  double fit_error = 0, linear_fit_error = 0;  // mean relative error on the steps that the model was fitted to
  double unevenness = 0;                       // of the second whose steps were the slowest or the fastest, from all
  double step_time_ratio = 0;       // what the models say of the steps they have not seen, over what they took
  double once_step_time_ratio = 0;  // the same of the profile that was measured before all runs
  double between_steps_us = 0, submit_latency_us = 0;
  double busy = 0;  // of the real executor, share of the time
  double adapter_hits = 0, simulated_adapter_hits = 0;
};

std::string RunAsJsonLine(const ValidationRun& run);
// Of a file with a run a line. Errors name the line.
Result<std::vector<ValidationRun>> ReadRuns(const std::filesystem::path& file);

// How far the simulated figures may be from the real ones.
inline constexpr double kTpotBound = 0.03, kTtftBound = 0.10;

struct ValidationReport {
  std::string command, machine, date, setting;  // in words
  std::vector<ValidationRun> runs;
};
// Cells of the report outside their bounds: each a preset, a load and a figure. Medians over the repetitions of each
// one's difference from its own real run.
std::int64_t OutsideBounds(const ValidationReport& report);
// Writes FOLDER/simulator_validation.md, .json and .svg. REQUIRES: a run.
Status WriteReport(const ValidationReport& report, const std::filesystem::path& folder);

}  // namespace loramux
