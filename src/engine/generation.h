// What a client of the engine asks for and what it gets back.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "model/sampler.h"

namespace loramux {

enum class FinishReason {
  kNone,       // still running
  kStop,       // an end-of-sequence token or one of stop_token_ids (which is not part of the output)
  kLength,     // max_tokens, or no position is left
  kCancelled,  // by Engine::Cancel, or the engine is shutting down
  kError,      // GenerationEvent::error says why
};

// One step's news of one request. References are valid during the callback only.
struct GenerationEvent {
  RequestId id;
  // The new token; null if the event only ends the request. The token that stops a request (kStop) is not delivered.
  const SampledToken* token = nullptr;
  FinishReason finish = FinishReason::kNone;
  TokenId stop_token = -1;                           // the id that ended it, if finish is kStop
  const Error* error = nullptr;                      // if finish is kError
  TimeNs arrival = 0, first_scheduled = 0, now = 0;  // for queue time, TTFT and TPOT
  std::int32_t prompt_tokens = 0;
  std::int32_t generated_tokens = 0;      // delivered so far, this one included
  std::int32_t cached_prompt_tokens = 0;  // found in the cache instead of computed
};

// Called on the engine thread, in order, exactly once with finish != kNone as the last call. Must not block, throw or
// call back into the engine's step (Submit and Cancel are allowed: they only post to the inbox).
using GenerationCallback = std::function<void(const GenerationEvent&)>;

struct GenerationRequest {
  std::vector<TokenId> prompt;  // not empty; ids in [0, vocabulary)
  AdapterGeneration adapter = kBaseModel;
  // whose virtual token counter is charged; empty: the adapter (by name) or the base model
  std::string tenant;
  SamplingParams sampling;
  std::int32_t max_tokens = -1;  // -1: as many as fit the model's length and the memory
  std::int32_t min_tokens = 0;   // eos and stop ids cannot be chosen before
  bool ignore_eos = false;
  std::int32_t priority = 0;  // -10 (soonest) to 10; others are cut off (queue_order.h)
  TimeNs deadline = 0;        // by when the client wants it to begin, on the engine's clock; 0: no wish
  // what somebody outside the engine knows of its output, for the predictor; 0: nothing
  std::int32_t length_hint = 0;
  std::vector<TokenId> stop_token_ids;
  GenerationCallback on_event;
};

}  // namespace loramux
