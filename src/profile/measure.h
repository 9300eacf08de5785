// All measurements of `loramux profile` in one function. The command and the validation of the simulator use it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "costs/performance_profile.h"
#include "profile/engine_session.h"
#include "profile/step_bench.h"
#include "profile/sweep.h"
#include "runtime/runtime.h"

namespace loramux {

// Settings of the measurements.
struct MeasureOptions {
  std::string model_name, digest;     // as in PerformanceProfile::BaseModel
  std::vector<std::string> adapters;  // directories
  RuntimeOptions engine;              // as for the server, and with the model's device; also of single steps
  std::int64_t step_memory = 0;       // device memory of single steps, in bytes; 0: as the engine's
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

// Measures and fits a profile where the model lies, on the CPU or on a device: first single steps, then links, then the
// engine, each with memory of its own. Errors: those of the adapters and of the device, and lack of memory.
Result<MeasuredProfile> MeasureProfile(std::unique_ptr<PlacedModel> model, const MeasureOptions& options);

}  // namespace loramux
