// Whole systems by name: a regime of the cache, an order of the queue, and how a step is filled. Those of the source
// documents are here as far as they are built of these parts, so that simulator and server compare the same thing.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"
#include "schedule/queue_order.h"
#include "schedule/scheduler.h"

namespace loramux {

struct Preset {
  std::string_view name;
  std::string_view what;            // in words, with the source
  std::string_view cache;           // of FindCacheRegime
  std::string_view queue = "fifo";  // of MakeQueueOrder
  bool keep_history = true;         // false: no request finds what another one computed, whatever the regime says
  bool chunked_prefill = true;      // false: prompts are computed whole
  bool spread_prompts = false, load_on_arrival = false;  // of SchedulerOptions
  bool separate_phases = false;                          // of SchedulerOptions, as the next three
  std::int64_t decode_turns = 1;
  std::int64_t whole_prompt_tokens = 0;  // without chunked_prefill: of SchedulerOptions; 0: 4096
  bool fair = false;                     // among tenants; the documents' systems are not
  std::int64_t lookahead = 64, max_loads_in_flight = 4, max_distinct_adapters = 0;  // of SchedulerOptions
  ColdStart cold_start = ColdStart::kPassOver;
  std::int64_t prefetch_lookahead = 0;
  bool skip_beyond_distinct = false;
  bool all_on_device = false;  // every adapter is on the device from the start and stays (CaraServe's CACHED)
  // adapters that are on their way are computed on the CPU: the simulator alone can
  bool cpu_assist = false;
  RequestSizeForm size_form = RequestSizeForm::kProduct;
};

// All of them, ours first.
std::span<const Preset> Presets();
// Error: an unknown name; the message lists the valid ones.
Result<Preset> FindPreset(std::string_view name);

// Prompts are computed whole from now on. `max_model_len` > 0: positions that a sequence may have.
void ComputePromptsWhole(std::int64_t max_model_len, SchedulerOptions& scheduler, std::int64_t together = 0);

// Who is let in, when, and what a step waits for: all of a preset but its cache, and whether prompts are computed
// whole.
void ApplyPresetOrder(const Preset& preset, SchedulerOptions& scheduler, QueueOrderOptions& queue);

// Fills in what the preset and its regime say. The policy and the history are the caller's to make: MakeEvictionPolicy
// of the regime's policy, a DependencyTree where both keep history. `max_model_len`: ComputePromptsWhole's.
// REQUIRES: the preset's cache is a regime.
void ApplyPreset(const Preset& preset, std::int64_t max_model_len, SchedulerOptions& scheduler,
                 QueueOrderOptions& queue);

}  // namespace loramux
