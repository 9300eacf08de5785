// All measurements of `loramux profile` in one function. The command and the validation of the simulator use it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "profile/engine_session.h"
#include "profile/step_bench.h"
#include "profile/sweep.h"
#include "runtime/runtime.h"
#include "schedule/profile/performance_profile.h"

namespace loramux {

// Settings of the measurements.
struct MeasureOptions {
  std::string model_name, digest;  // of PerformanceProfile::BaseModel
  // Called twice: for the single steps, and for the engine.
  std::function<Result<std::unique_ptr<Model>>()> load_model;
  std::vector<std::string> adapters;  // directories
  StepBench::Options steps;
  RuntimeOptions engine;  // as for the server
  SweepOptions sweep;
  double link_seconds = 12;                  // approximate
  double engine_seconds = 24;                // approximate; 0: the engine does not run, and the profile has no factors
  double input_mean = 96, output_mean = 32;  // tokens of the engine's requests; shorter where the engine is slow
  std::vector<double> rates;                 // requests per second; empty: shares of the rate that the engine sustains
  std::uint64_t seed = 1;
  // Called with the current activity, the seconds it has taken, and the seconds it is expected to take.
  std::function<void(const std::string& what, double passed, double expected)> progress;
};

// A profile and the measurements of single steps.
struct MeasuredProfile {
  PerformanceProfile profile;
  SweepResult sweep;
};

// Measures and fits a profile. Errors: those of the model and the adapters, and lack of memory for them.
Result<MeasuredProfile> MeasureProfile(const MeasureOptions& options);

}  // namespace loramux
