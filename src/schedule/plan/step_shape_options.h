// What the steps of other systems do otherwise than those of continuous batching (schedule/baselines/ carries it out).
#pragma once

#include <cstdint>

namespace loramux {

// What a step does if a request could start but its adapter is not on the device.
enum class ColdStart : std::uint8_t {
  // The step goes on without the request, which starts when its adapter has arrived, or arrives in time.
  kPassOver,
  // The step waits for the adapters of the requests that it admits, and then also admits requests that arrived
  // meanwhile. Adapters of requests that cannot start yet load in the background. S-LoRA's loop.
  kHold,
  // The step waits. Beside steps, only adapters for `prefetch_lookahead` are loaded. vLLM-LoRA's ensure_loaded,
  // CaraServe's ONDMD.
  kStall,
};

// Whether a request begins while its adapter is still on its way to the device, computed meanwhile from the copy in the
// host tier (CaraServe 4; docs/design/scheduling.md). Only with ColdStart::kPassOver.
enum class ColdStartPolicy : std::uint8_t {
  kWait,    // it begins when enough layers are on the device (schedule/plan/arrival.h)
  kAssist,  // it begins at once where the host tier has the adapter
  kAuto,    // as kAssist where that is expected to be sooner than to wait, request by request
};

// S-LoRA prefetches in the middle of its decode turns, and again so many turns before their end.
inline constexpr std::int64_t kPrefetchTurns = 3;

// The defaults are continuous batching.
struct StepShapeOptions {
  ColdStart cold_start = ColdStart::kPassOver;
  // A step either computes prompts or decodes; the two take turns (S-LoRA's loop). REQUIRES: whole_prompt_tokens > 0.
  // Not with kStall.
  bool separate_phases = false;
  // With separate_phases: decoding steps after a step of prompts, before the next step of prompts (S-LoRA's
  // max_wait_tokens). If more than kPrefetchTurns, loads for waiting requests begin beside only two of these steps, as
  // in S-LoRA.
  std::int64_t decode_turns = 1;
  // With kStall: number of waiting requests without a seat, oldest first, for which adapters are loaded beside a step.
  std::int64_t prefetch_lookahead = 0;
  // Whether later requests may pass one that would exceed max_distinct_adapters (vLLM-LoRA) or max_decode_step.
  bool skip_beyond_distinct = false;
};

}  // namespace loramux
