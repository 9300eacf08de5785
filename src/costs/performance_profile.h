// The file that `loramux profile` writes: performance models of one base model on one device, the conditions of the
// measurement, and the quality of the fits. docs/reference/files.md describes each field.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "costs/pace.h"
#include "costs/performance_model.h"

namespace loramux {

// Bounds of a table of factors in a file.
inline constexpr std::size_t kMaxFactors = 256;
inline constexpr double kMinFactor = 0.01, kMaxFactor = 100, kMaxFactorTokens = 1e9;
// Bound of after_prefill_decay.
inline constexpr double kMaxDecay = 0.99;
// Bounds of the pace in a file: number of changes, and period.
inline constexpr std::size_t kMaxPaceChanges = 8192;
inline constexpr TimeNs kMaxPacePeriod = TimeNs{86400} * kNsPerSecond;
// Bounds of CpuAssist's counts in a file.
inline constexpr std::int64_t kMaxAssistLayers = 65536, kMaxAssistCores = 65536, kMaxExperts = 65536;
// Bounds of the bandwidth of a link in a file.
inline constexpr double kMinBytesPerSecond = 1, kMaxBytesPerSecond = 1e18;

// Quality of predictions against measurements.
struct FitQuality {
  std::int64_t points = 0;  // measurements
  double r2 = 0;  // coefficient of determination of the seconds; at most 1; negative if a constant would be better
  double mean_error = 0;  // relative: |predicted - measured| / measured
  double p90_error = 0;   // 90th percentile of the same
};

// A fitted model and its quality.
struct FittedModel {
  PerformanceModel model;
  FitQuality fitted;    // on the points used for the fit
  FitQuality held_out;  // on the other points
  // On the other points, by kind of step.
  FitQuality held_out_prefill, held_out_decode, held_out_mixed;
  // Quality of a fit with batch size and ranks alone, as in CaraServe, on decode steps in which each request has its
  // own adapter.
  FitQuality caraserve_decode;
  // On steps of the running engine that were not used for the factors: with the factors, and by the linear terms alone.
  // No points: the engine did not run with this shape, or the file has version 1; then there are no factors.
  FitQuality engine, engine_linear;
};

// The content of a profile.
struct PerformanceProfile {
  // The version that is written. Older ones are read too: version 1 has no factors, version 2 no after_prefill_decay,
  // version 3 no pace and no after_prefill_per_sequence, version 4 no device_kind. The
  // field cpu_assist is there if the assistance was measured (version 5 and later).
  static constexpr std::int64_t kVersion = 5;

  // The conditions of the measurement.
  std::string device;               // description; the same in every model
  std::string device_kind = "cpu";  // as --device names it: "cpu", "cuda" or "emulated"
  std::int64_t threads = 0;         // threads of the processor
  std::int64_t unix_seconds = 0;    // time of the measurement
  // The base model.
  struct BaseModel {
    std::string name;    // name of the directory; informational
    std::string digest;  // digest of the content of the weights; "random" if there were none
    std::int64_t hidden_size = 0, num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0, intermediate_size = 0,
                 vocab_size = 0;
    std::string dtype, kv_dtype;  // as in safetensors: "BF16"
    std::int64_t page_tokens = 0;
  } base;
  std::vector<std::int64_t> ranks;  // ranks of the adapters that were measured, ascending
  std::string lora_targets;         // modules that the adapters change: "q_proj,k_proj,..."
  // Noise of the machine: mean relative distance of repetitions of a step from their median.
  double repeat_error = 0;
  // Bounds of the steps that were measured: tokens, sequences, positions of a sequence. Beyond them the models
  // extrapolate.
  std::int64_t max_batch_tokens = 0, max_running = 0, max_positions = 0;

  // The models of the two shapes. Their links and their assistance are equal.
  FittedModel mbgmv, bgmv;
  // Seconds; the same in both models. 0 if they were not measured.
  double between_steps = 0, submit_latency = 0;
  // Throughput of the engine while its steps were measured; 0 if they were not.
  double requests_per_second = 0;
  // Speed of the machine while the steps of the engine were measured, relative to EngineModel(). Constant if they were
  // not measured.
  Pace pace;
  FitQuality disk, host_to_device, device_to_host;  // quality of the links' models, on the points used for the fit

  // The model of the shape.
  const PerformanceModel& ModelOf(LoraCostShape shape) const {
    return shape == LoraCostShape::kBgmv ? bgmv.model : mbgmv.model;
  }
  // The model of the shape that the engine was measured with; mbgmv if it was not measured.
  const PerformanceModel& EngineModel() const {
    return bgmv.engine.points > 0 && mbgmv.engine.points == 0 ? bgmv.model : mbgmv.model;
  }
};

// Reads an untrusted text. It must have every field of its version, with the right type and range, and no other field.
// Seconds are finite and not negative, bandwidths are positive, and each model predicts a positive time. The message of
// an error begins with `label`, which names the source, and names the field.
Result<PerformanceProfile> ParsePerformanceProfile(std::string_view json, const std::string& label);
// The same from a file of at most 1 MiB. `label` is its path.
Result<PerformanceProfile> LoadPerformanceProfile(const std::filesystem::path& file);

// Checks that both base models have the same dimensions, which decide how long a step takes. Names and weights may
// differ. Error, with code kInvalidArgument: the dimensions differ; the message names the first such field, and the
// profile by `label`.
Status CheckSameShape(const PerformanceProfile::BaseModel& measured, const PerformanceProfile::BaseModel& wanted,
                      const std::string& label);

// Checks that the profile was measured on a device of the kind that computes now; they differ by orders of magnitude.
// `kind` and `description`: of that device, as in a profile. Error, with code kInvalidArgument: names both and says
// what to do. `label` names the profile.
Status CheckSameDevice(const PerformanceProfile& profile, const std::string& kind, const std::string& description,
                       const std::string& label);

// The text that ParsePerformanceProfile reads. Bytes that are not UTF-8 are replaced.
std::string PerformanceProfileAsJson(const PerformanceProfile& profile);

}  // namespace loramux
