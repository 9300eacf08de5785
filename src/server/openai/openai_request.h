// Parses the bodies of POST /v1/chat/completions, /v1/completions and /v1/embeddings, /classify, /score and /rerank:
// from untrusted JSON to typed, checked fields. Supports OpenAI's fields and vLLM's additions. request_fields.h says
// which fields are refused; unknown ones are accepted.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "http/json_reader.h"
#include "server/openai/adapter_fields.h"
#include "server/openai/chat_fields.h"
#include "server/openai/request_fields.h"
#include "server/openai/tool_fields.h"
#include "step/sampling.h"
#include "text/grammar/output_constraint.h"

namespace loramux {

// The endpoint of a request.
enum class Endpoint { kChat, kCompletion };

inline constexpr std::int64_t kMaxChoicesPerPrompt = 128;     // the maximum of `n`
inline constexpr std::int32_t kMaxPriority = 10;              // the range of `priority` is -10 to 10
inline constexpr std::int32_t kMaxDeadlineMs = 86'400'000;    // the maximum of `deadline_ms`: one day
inline constexpr std::int32_t kDefaultCompletionTokens = 16;  // OpenAI's default for /v1/completions

inline constexpr std::size_t kMaxStops = 16;       // the maximum of stop strings
inline constexpr std::size_t kMaxSaltBytes = 256;  // of `cache_salt`

inline constexpr std::int64_t kMaxTopLogprobs = 2560;  // the maximum of choices times alternatives per token

// What a request gets where it says nothing (GenerationDefaults).
struct RequestDefaults {
  SamplingParams sampling;
  std::optional<std::int32_t> max_output_tokens;  // a bound on every request, as in vLLM
};

// Limits that depend on the model or on the operator. The defaults for lengths limit nothing.
struct RequestLimits {
  std::int64_t vocab_size = std::int64_t{1} << 31;  // token ids in the request must be below
  std::int64_t max_sequences = 256;                 // the maximum of prompts times `n`
  // The model's length. No prompt has more tokens; no chat has more messages, because each has at least one token.
  std::int64_t max_tokens = std::numeric_limits<std::int64_t>::max();
  // Characters of one JSON string. A longer one cannot be a prompt of `max_tokens` tokens.
  std::size_t max_string = std::numeric_limits<std::size_t>::max();
  const RequestDefaults* defaults = nullptr;  // null: those of OpenAI. Not owned
  // Those of the model that a body asks for, which must outlive the parse; null: `defaults`. May be empty.
  std::function<const RequestDefaults*(const std::string& model, const std::optional<AdapterField>& adapter)>
      defaults_of = {};
  // Is shown the body as the client sent it, once it is parsed and before its fields are checked; may be empty.
  std::function<void(const Json& body)> on_body = {};
  const std::atomic<bool>* gone = nullptr;  // JsonLimits::gone
};

// Returns the limits of a body whose strings and values count as parts of a prompt of the model's length.
JsonLimits BodyLimits(const RequestLimits& limits);
// Parses a body, which must be an object, within `json`, and shows it to limits.on_body.
Result<Json> ParseBody(std::string_view body, const JsonLimits& json, const RequestLimits& limits);

// A prompt of /v1/completions, or an input of an endpoint that generates nothing: text or token ids.
using Prompt = std::variant<std::string, std::vector<TokenId>>;

// What becomes of the hidden states that a request without generated tokens pools.
enum class PooledUse : std::uint8_t {
  kVectors,  // themselves: embeddings
  kClasses,  // the classes of the adapter's head
  kScores,   // how well texts fit: the adapter's head for each pair, or else the cosine of their embeddings
};

// What such a request says of them.
struct EmbeddingFields {
  PooledUse use = PooledUse::kVectors;
  bool activate = true;   // a head's numbers become what its task says
  std::size_t first = 0;  // of scores: so many of the prompts are the first texts: one, or one for each second text
  std::int64_t dimensions = 0;    // numbers of each; 0: as many as the model has
  std::optional<bool> normalize;  // nullopt: as the model's configuration says
  bool base64 = false;            // instead of an array of numbers
};

// A parsed request.
struct OpenAiRequest {
  Endpoint endpoint = Endpoint::kChat;
  std::string model;
  std::optional<AdapterField> adapter;  // the adapter that another field than `model` names
  std::string cache_salt;               // only requests with the same one share cached prefixes; empty: none
  std::int32_t n = 1;
  std::optional<std::int32_t> max_tokens;
  std::int32_t min_tokens = 0;
  // Alternatives beside the log-probability of each prompt token; -1: they are not wanted in `prompt_logprobs`.
  std::int32_t prompt_logprobs = -1;
  bool ignore_eos = false;
  SamplingParams sampling;  // without the seed
  std::vector<LogitBias> logit_bias;
  std::optional<std::uint64_t> seed;
  std::int32_t priority = 0;     // as in vLLM: the lower value is served first
  std::int32_t deadline_ms = 0;  // milliseconds from arrival within which the client wants the first token; 0: none
  std::optional<OutputConstraint> output;  // what the text of each choice must match; nullopt: anything

  std::vector<std::string> stop;
  std::vector<TokenId> stop_token_ids;
  bool include_stop = false;  // include_stop_str_in_output
  bool skip_special_tokens = true;
  bool add_special_tokens = true;  // default: true for completions, false for chat (the template adds them)
  // Only so many tokens of each prompt count: its last ones, or, for embeddings, its first ones. -1: as many as leave
  // room for `max_tokens`; nullopt: all.
  std::optional<std::int32_t> truncate_prompt_tokens;
  bool tokens_as_ids = false;  // log-probabilities call a token "token_id:ID"

  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;  // usage in every event; only together with include_usage, as in vLLM

  // For chat requests only.
  ChatPrompt chat;
  ToolFields tools;

  // For requests that pool hidden states, which are completions of no token, or chats.
  std::optional<EmbeddingFields> embedding;

  // For completions, and requests that pool. Not empty.
  std::vector<Prompt> prompts;
  bool echo = false;
  bool to_model_length = false;  // without `max_tokens`, go on to the model's length as a chat does

  // Alternatives that the engine must find for the prompt's tokens: for `prompt_logprobs`, and for `logprobs` of an
  // echoed prompt. -1: none are wanted.
  std::int32_t ScoredAlternatives() const { return std::max(prompt_logprobs, echo ? sampling.top_logprobs : -1); }

  std::vector<LikelyMistake> mistakes;  // unknown fields that are probably misspelt
  // Tools of the request that the model is not offered, for a header: "custom;name=apply_patch".
  std::vector<std::string> left_out_tools;
};

// Parse and check a body. Errors name the field (`param`), what was expected and what was found. Thread-safe; never
// throw.
Result<OpenAiRequest> ParseChatRequest(std::string_view body, const RequestLimits& limits);
// The same, of a body that is parsed already. REQUIRES: `body` is an object.
Result<OpenAiRequest> ParseChatJson(Json body, const RequestLimits& limits);
Result<OpenAiRequest> ParseCompletionRequest(std::string_view body, const RequestLimits& limits);
Result<OpenAiRequest> ParseCompletionJson(const Json& body, const RequestLimits& limits);
Result<OpenAiRequest> ParseEmbeddingRequest(std::string_view body, const RequestLimits& limits);
Result<OpenAiRequest> ParseClassifyRequest(std::string_view body, const RequestLimits& limits);
Result<OpenAiRequest> ParseScoreRequest(std::string_view body, const RequestLimits& limits);
// `reply` receives what the answer depends on.
struct RerankReply {
  std::size_t top_n = 0;               // 0: all
  std::vector<std::string> documents;  // empty: they are not wanted
};
Result<OpenAiRequest> ParseRerankRequest(std::string_view body, const RequestLimits& limits, RerankReply& reply);

}  // namespace loramux
