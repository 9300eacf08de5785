// Whole systems by name: a cache regime, a queue order, and options of the scheduler. The systems of the source papers
// are here as far as these parts can express them, so that simulator and server compare the same systems.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/result.h"
#include "schedule/queue/queue_order.h"
#include "schedule/system_spec.h"

namespace loramux {

// What a system's own program costs beside the work of the device, as its published source and runs show. Only
// simulations know these costs (SimulatedServer); on a real server they are in the measured times.
struct ProgramCosts {
  std::int64_t link_passes = 1;  // times that an adapter's bytes cross the link for one load
  double load_seconds = 0;       // of each load, beside the bytes: its copies on the device. Loads do it one by one.
  // The host's work for a layer in a step, in seconds. It runs ahead of the device, so that a step takes the longer of
  // the two. 0: the device is never waited for.
  double layer_seconds = 0;
  // The host's work for each request of a step's batch, in seconds: sampling, bookkeeping, messages. The device waits.
  double request_seconds = 0;
};

// A system. Fields without a comment are the fields of SystemSpec with the same name.
struct Preset {
  std::string_view name;            // unique
  std::string_view what;            // description, with the source
  std::string_view cache;           // argument of FindCacheRegime
  std::string_view queue = "fifo";  // argument of MakeQueueOrder
  bool keep_history = true;         // false: no request reuses pages of another one, whatever the regime says
  bool chunked_prefill = true;      // false: ComputePromptsWhole
  bool spread_prompts = false, load_on_arrival = false, prompts_by_objective = false;
  std::int64_t whole_prompt_tokens = 0;  // without chunked_prefill; 0: 4096
  bool fair = false;                     // fairness among tenants; the systems of the papers have none
  std::int64_t lookahead = 64, max_loads_in_flight = 4, max_distinct_adapters = 0;
  StepShapeOptions shape;
  bool all_on_device = false;  // every adapter stays on the device from the start (CaraServe's CACHED)
  // None: whatever the options say; a server's default, and what the simulator is told.
  std::optional<ColdStartPolicy> cold_start_policy;
  RequestSizeForm size_form = RequestSizeForm::kProduct;  // SizeLanesOptions::form
  bool reserve_output = false;
  ProgramCosts program;
};

// Constants that the source documents give, with their values as defaults. Presets share them.
struct DocumentConstants {
  ScoreWeights score;                              // Chameleon 4.2: F, R and S of its eviction score
  double input_weight = 0.4, output_weight = 0.6;  // Chameleon 4.3.1: A and B of the weighted request size
  std::int64_t most_lanes = kMaxLanes;             // Chameleon 4.3.2: K_max; 1 to kMaxLanes
  TimeNs lane_refresh = 300 * kNsPerSecond;        // Chameleon 4.3.2: T_refresh
  ExpectationOptions expectation;                  // Shahrad et al., for Chameleon 5.3.4
  SwapThresholds swapping;                         // FastLibra 5.3
  TimeNs batch_window = 5 * kNsPerSecond;          // FastLibra 5.1
  std::optional<std::int64_t> prefetch_lookahead;  // vLLM-LoRA: 10; none: the preset's
  std::optional<std::int64_t> adapters_in_batch;   // vLLM-LoRA: 32; none: the preset's
};
// Sets the options that the constants stand for; after ApplyPreset, whose values they replace where they are given.
void ApplyConstants(const DocumentConstants& constants, SystemSpec& scheduler, QueueOrderOptions& queue);

// What an operator sets beside a preset. `serve` and `simulate` make options of it by the same function, so that a
// setting means the same in both.
struct SystemSettings {
  std::int64_t max_running = 256, max_batch_tokens = 512;
  std::optional<std::int64_t> prefill_chunk;  // none: max_batch_tokens
  TimeNs age_bound = 30 * kNsPerSecond, fairness_max_wait = 30 * kNsPerSecond;
  TimeNs objective = 5 * kNsPerSecond;                  // of the order "objective", and of lanes
  TimeNs max_decode_step = 0;                           // SystemSpec::max_decode_step; needs a performance model
  CountCached count_cached = CountCached::kEverywhere;  // SizeLanesOptions::count_cached
};
// Sets these options. Call it before prompts are made whole, which replaces some of them.
void ApplySettings(const SystemSettings& settings, SystemSpec& scheduler, QueueOrderOptions& queue);

// All presets, those of loramux first.
std::span<const Preset> Presets();
// Finds a preset by name. Error: an unknown name; the message lists the valid ones.
Result<Preset> FindPreset(std::string_view name);

// Sets the options so that prompts are computed whole. `max_model_len`: the most positions of a sequence. `together`:
// the most tokens of several prompts in one step; 0: 4096. REQUIRES: max_model_len > 0.
void ComputePromptsWhole(std::int64_t max_model_len, SystemSpec& scheduler, std::int64_t together = 0);

// Sets the options of a preset for admission, loads and order: all but its cache regime and whether prompts are
// computed whole.
void ApplyPresetOrder(const Preset& preset, SystemSpec& scheduler, QueueOrderOptions& queue);

// Sets the options of a preset and of its regime. The caller makes the eviction policy (MakeEvictionPolicy with the
// regime's policy), and a DependencyTree if both preset and regime keep history. `max_model_len`: as in
// ComputePromptsWhole. REQUIRES: preset.cache names a regime.
void ApplyPreset(const Preset& preset, std::int64_t max_model_len, SystemSpec& scheduler, QueueOrderOptions& queue);

}  // namespace loramux
