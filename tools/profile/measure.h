// All that `loramux profile` measures, as one function: the command and the simulator's validation get their profiles
// from it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/runtime.h"
#include "schedule/performance_profile.h"
#include "tools/profile/engine_session.h"
#include "tools/profile/step_bench.h"
#include "tools/profile/sweep.h"

namespace loramux {

struct MeasureOptions {
  std::string model_name, digest;  // of PerformanceProfile::BaseModel
  // called twice: for steps of our own making, and for the engine
  std::function<Result<std::unique_ptr<Model>>()> load_model;
  std::vector<std::string> adapters;  // directories
  StepBench::Options steps;
  RuntimeOptions engine;  // as the server's
  SweepOptions sweep;
  double link_seconds = 12;                  // about
  double engine_seconds = 24;                // about; 0: the engine does not run, and there are no factors
  double input_mean = 96, output_mean = 32;  // tokens, of the engine's requests; fewer where the engine is slow
  std::vector<double> rates;                 // requests a second; empty: shares of what the engine sustains
  std::uint64_t seed = 1;
  // What is being done, and how many of how many seconds it has taken.
  std::function<void(const std::string& what, double passed, double expected)> progress;
};

struct MeasuredProfile {
  PerformanceProfile profile;
  SweepResult sweep;
};

// Errors: the model's, the adapters', and memory that does not hold them.
Result<MeasuredProfile> MeasureProfile(const MeasureOptions& options);

}  // namespace loramux
