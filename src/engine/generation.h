// The engine's interface to its clients: what a request contains and which events it produces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "formats/embedding_config.h"
#include "step/sampling.h"
#include "step/token_constraint.h"

namespace loramux {

// Why a request ended.
enum class FinishReason {
  kNone,       // still running
  kStop,       // an end-of-sequence token or one of stop_token_ids, which is not part of the output
  kLength,     // max_tokens reached, or no position left
  kCancelled,  // by Engine::Cancel, or the engine is shutting down
  kAborted,    // by Engine::AbortAll or Engine::Retarget; what was generated counts
  kError,      // GenerationEvent::error gives the reason
};

// Which requests the engine does not work on (Engine::SetHold). They keep their places, pages and tokens.
enum class Hold : std::uint8_t {
  kNone,
  kNew,  // requests that were not taken from the inbox; those that the scheduler knows go on
  kAll,  // no step is planned
};

// One request's news of one step.
struct GenerationEvent {
  RequestId id;
  // Free for the callback: GenerationInbox has the number of the request's choice here.
  std::size_t choice = 0;
  // The new token; absent if the event only ends the request. The token that stops a request is `stop` instead.
  std::optional<SampledToken> token;
  // The adapter that the token, or the embedding, was computed with. After Engine::Retarget it is another one.
  AdapterGeneration adapter = kBaseModel;
  FinishReason finish = FinishReason::kNone;
  // The prompt's tokens from the second on, if the request asks for them (prompt_logprobs). Given once: with the first
  // event after the whole prompt was computed. Otherwise empty.
  std::vector<ScoredToken> prompt_scores;
  // With the last event of a request for an embedding: [hidden_size], not normalised. Otherwise empty.
  std::vector<float> embedding;
  std::optional<SampledToken> stop;                  // the token that ended the request, if finish is kStop
  std::optional<Error> error;                        // set if finish is kError
  TimeNs arrival = 0, first_scheduled = 0, now = 0;  // for queue time, TTFT and TPOT
  TimeNs adapter_wait = 0;  // the part of the time before first_scheduled in which its adapter was not on the device
  std::int32_t prompt_tokens = 0;
  std::int32_t generated_tokens = 0;      // delivered so far, including this one
  std::int32_t cached_prompt_tokens = 0;  // found in the prefix cache instead of computed
};

// Called on the engine thread, in order. The last call, and only that one, has finish != kNone. Must not block, throw
// or call the engine's Step. May call Submit and Cancel, which only post to the inbox. May take what the event has.
using GenerationCallback = std::function<void(GenerationEvent&)>;

// A request to the engine.
struct GenerationRequest {
  std::vector<TokenId> prompt;  // not empty; ids in [0, vocabulary size)
  AdapterGeneration adapter = kBaseModel;
  // The request ends on this version of the adapter, whatever takes its name (Engine::Retarget).
  bool keeps_version = false;
  // Request::base_tokens. Unset: as the adapter's invocation tokens say.
  std::optional<std::int32_t> base_tokens;
  // charged for the request's service; empty: the adapter's name, or the base model
  std::string tenant;
  // Only requests of one domain find each other's keys and values in the prefix cache. Empty: the shared domain.
  std::string prefix_domain;
  SamplingParams sampling;
  std::vector<LogitBias> logit_bias;
  std::vector<TokenId> logprob_token_ids;  // SamplerContext::logprob_ids of each token
  // Alternatives beside the log-probability of each prompt token; -1: the prompt's log-probabilities are not wanted.
  // Cached keys and values are then computed again, as far as the log-probabilities are not known.
  std::int32_t prompt_logprobs = -1;
  // Set: the request wants the prompt's embedding, and no token. REQUIRES: max_tokens is 0, and no prompt_logprobs.
  std::optional<Pooling> pooling;
  // -1: as many as fit the model's length and the memory; 0: only the prompt is computed
  std::int32_t max_tokens = -1;
  std::int32_t min_tokens = 0;  // end-of-sequence and stop tokens cannot be sampled before
  bool ignore_eos = false;
  bool speculates = true;     // where the engine does (SystemSpec::speculation)
  std::int32_t priority = 0;  // -10 (first) to 10 (last); values outside are clamped (queue_order.h)
  TimeNs deadline = 0;        // by when the client wants the first token, on the engine's clock; 0: none
  // expected output tokens, guessed outside the engine, for the predictor; 0: unknown
  std::int32_t length_hint = 0;
  std::vector<TokenId> stop_token_ids;
  std::vector<TokenId> eos_token_ids;  // end-of-sequence tokens beside EngineOptions::eos_token_ids
  // What the output must match; of this request alone. Null: anything. End-of-sequence tokens end the request even with
  // ignore_eos or before min_tokens, where nothing else may follow; a constraint that fails ends it with its error.
  std::shared_ptr<TokenConstraint> constraint;
  GenerationCallback on_event;
};

}  // namespace loramux
