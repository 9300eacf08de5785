// The file that `loramux profile` writes: performance models of one base model on one device, what they were measured
// on, and how good they are. docs/design/performance-model.md describes it field by field.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "schedule/pace.h"
#include "schedule/performance_model.h"

namespace loramux {

// Of a table of factors in a file.
inline constexpr std::size_t kMaxFactors = 256;
inline constexpr double kMinFactor = 0.01, kMaxFactor = 100, kMaxFactorTokens = 1e9;
inline constexpr double kMaxDecay = 0.99;
// Of the pace in a file: changes, and what it may last.
inline constexpr std::size_t kMaxPaceChanges = 8192;
inline constexpr TimeNs kMaxPacePeriod = TimeNs{86400} * kNsPerSecond;
// Of a link in a file.
inline constexpr double kMinBytesPerSecond = 1, kMaxBytesPerSecond = 1e18;

// Predictions against measurements.
struct FitQuality {
  std::int64_t points = 0;
  double r2 = 0;          // of the seconds; at most 1, negative if a constant would do better
  double mean_error = 0;  // relative: |predicted - measured| / measured
  double p90_error = 0;
};

// One fitted shape and what it is worth.
struct FittedModel {
  PerformanceModel model;
  FitQuality fitted;    // on the points that it was fitted to
  FitQuality held_out;  // on points that it has not seen, and by their kind:
  FitQuality held_out_prefill, held_out_decode, held_out_mixed;
  // batch size and ranks alone, on decode steps where each request has its own adapter
  FitQuality caraserve_decode;
  // Of steps of the running engine that the factors have not seen: with them, and by the linear terms alone. No points:
  // the engine did not run with this shape, or the file is of version 1; then there are no factors.
  FitQuality engine, engine_linear;
};

struct PerformanceProfile {
  // read too: 1 had no factors, 2 no after_prefill_decay, 3 no pace and no
  static constexpr std::int64_t kVersion = 4;
  // after_prefill_per_sequence

  // What it was measured on.
  std::string device;  // in words; also in every model
  std::int64_t threads = 0;
  std::int64_t unix_seconds = 0;
  struct BaseModel {
    std::string name;    // the directory's; informational
    std::string digest;  // of the weights' content; "random" if there were none
    std::int64_t hidden_size = 0, num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0, intermediate_size = 0,
                 vocab_size = 0;
    std::string dtype, kv_dtype;  // as in safetensors: "BF16"
    std::int64_t page_tokens = 0;
  } base;
  std::vector<std::int64_t> ranks;  // of the adapters, ascending
  std::string lora_targets;         // what they change: "q_proj,k_proj,..."
  // How far apart repetitions of a step were, mean relative distance from their median: how quiet the machine was.
  double repeat_error = 0;
  // The largest steps that were measured; beyond them the models extrapolate.
  std::int64_t max_batch_tokens = 0, max_running = 0, max_positions = 0;

  FittedModel mbgmv, bgmv;  // their links are equal
  // between_steps and submit_latency of both models; 0 if they were not measured.
  double between_steps = 0, submit_latency = 0;
  // What the engine sustained while its steps were measured; 0 if they were not.
  double requests_per_second = 0;
  // How fast the machine was while they were measured, beside what EngineModel() says of them; always as fast where
  // they were not.
  Pace pace;
  FitQuality disk, host_to_device, device_to_host;  // of the links' lines, on the points that they were fitted to

  const PerformanceModel& ModelOf(LoraCostShape shape) const {
    return shape == LoraCostShape::kBgmv ? bgmv.model : mbgmv.model;
  }
  // Of the shape that the engine was measured with; mbgmv where it was not.
  const PerformanceModel& EngineModel() const {
    return bgmv.engine.points > 0 && mbgmv.engine.points == 0 ? bgmv.model : mbgmv.model;
  }
};

// Reads an untrusted text. Every field must be there, of its type and in its range (seconds are finite and not
// negative, bandwidths positive, each model takes some time), and no other field. Errors name the field; `label` the
// source.
Result<PerformanceProfile> ParsePerformanceProfile(std::string_view json, const std::string& label);
Result<PerformanceProfile> LoadPerformanceProfile(const std::filesystem::path& file);

// What decides how long a step takes: not the name, nor what the weights say. Error, of code kInvalidArgument: they
// differ; it names the first field that does. `label`: of the profile, in the message.
Status CheckSameShape(const PerformanceProfile::BaseModel& measured, const PerformanceProfile::BaseModel& wanted,
                      const std::string& label);

// As Parse reads it. Bytes that are not UTF-8 are replaced.
std::string PerformanceProfileAsJson(const PerformanceProfile& profile);

}  // namespace loramux
