// A request for completions, chats or what is made of hidden states, as the server understands it: typed, checked
// fields, whichever API they were sent in (dialect.h).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "http/json_reader.h"
#include "server/output/tool_set.h"
#include "step/sampling.h"
#include "text/grammar/output_constraint.h"

namespace loramux {

// An adapter with a weight of its products.
struct NamedWeight {
  std::string name;
  double weight = 1;
};

// An adapter that a field names, or the sum of several.
struct AdapterField {
  std::string field;  // "lora_path"
  std::string name;   // not empty; it may be unknown
  // Of a sum, which may also be one adapter with another weight than 1: its adapters, in their order, none twice and
  // none with weight 0. Otherwise empty. `name` then says all of it, for messages.
  std::vector<NamedWeight> parts = {};
};

// OpenAI's newer name of the role "system".
inline constexpr std::string_view kDeveloper = "developer";

// A chat prompt before its template is rendered.
struct ChatPrompt {
  // variables of the template, as JSON: {"messages", "tools", "documents", chat_template_kwargs...}
  std::string template_context;
  // Ends the prompt with the header of the assistant's answer.
  bool add_generation_prompt = true;
  // The model continues the last message instead of answering it.
  bool continue_final_message = false;
  std::string final_message;                  // content of the last message, if continue_final_message
  std::string final_part = {};                // the last of its text parts, if it has several
  bool fold_system = false;                   // system messages that the template has no place for join others
  bool has_developer = false;                 // a message has the role kDeveloper
  std::shared_ptr<const ToolSet> tools = {};  // the functions of `tools`; none: empty or null
};

// Whether the model must call a tool.
enum class ToolChoice { kAuto, kNone, kRequired, kNamed };

// What a chat request says of its tools.
struct ToolFields {
  ToolChoice choice = ToolChoice::kAuto;
  std::string function;  // the name of kNamed; one of `offered`
  // The functions on offer; null: none, or the model is not to call them, so the server looks for no calls.
  std::shared_ptr<const ToolSet> offered;
  bool parallel = true;           // false: the answer ends with its first call
  bool include_reasoning = true;  // false: reasoning is left out of the answer
};

// True if the answer must be a call.
inline bool MustCall(const ToolFields& tools) {
  return tools.choice == ToolChoice::kRequired || tools.choice == ToolChoice::kNamed;
}

// A field that is in no line of the table, and the name that was probably meant.
struct LikelyMistake {
  std::string name;  // a PlainName
  std::string_view meant;
};

// The endpoint of a request.
enum class Endpoint { kChat, kCompletion };

inline constexpr std::int64_t kMaxChoicesPerPrompt = 128;     // the maximum of `n`
inline constexpr std::int32_t kMaxPriority = 10;              // the range of `priority` is -10 to 10
inline constexpr std::int32_t kMaxDeadlineMs = 86'400'000;    // the maximum of `deadline_ms`: one day
inline constexpr std::int32_t kDefaultCompletionTokens = 16;  // OpenAI's default for /v1/completions

inline constexpr std::size_t kMaxStops = 16;       // the maximum of stop strings
inline constexpr std::size_t kMaxSaltBytes = 256;  // most bytes of `cache_salt`

inline constexpr std::int64_t kMaxTopLogprobs = 2560;  // the maximum of choices times alternatives per token
inline constexpr std::size_t kMaxLogprobIds = 128;     // the maximum of `logprob_token_ids`, as in vLLM

// What a request gets where it says nothing (GenerationDefaults).
struct RequestDefaults {
  SamplingParams sampling;
  std::optional<std::int32_t> max_output_tokens;  // a bound on every request, as in vLLM
  bool speculates = false;                        // requests speculate unless they say no; false: none may
};

// The numbers of SamplingParams that a model may have defaults for.
enum SamplingField : std::uint8_t {
  kTemperature = 1,
  kTopP = 2,
  kMinP = 4,
  kTopK = 8,
  kPresencePenalty = 16,
  kFrequencyPenalty = 32,
  kRepetitionPenalty = 64,
};

// Limits that depend on the model or on the operator. The defaults for lengths limit nothing.
struct RequestLimits {
  std::int64_t vocab_size = std::int64_t{1} << 31;  // token ids in the request must be below
  std::int64_t max_sequences = 256;                 // the maximum of prompts times `n`
  bool speculates = false;                          // a request may say `speculate`: true
  // The model's length. No prompt has more tokens; no chat has more messages, because each has at least one token.
  std::int64_t max_tokens = std::numeric_limits<std::int64_t>::max();
  // Characters of one JSON string. A longer one cannot be a prompt of `max_tokens` tokens.
  std::size_t max_string = std::numeric_limits<std::size_t>::max();
  // Is shown the body as the client sent it, once it is parsed and before its fields are checked; may be empty.
  std::function<void(const Json& body)> on_body = {};
  const std::atomic<bool>* gone = nullptr;  // JsonLimits::gone
};

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
  bool activate = true;           // a head's numbers become what its task says
  std::size_t first = 0;          // first texts among the prompts of scores: one, or one for each second text
  std::int64_t dimensions = 0;    // numbers of each; 0: as many as the model has
  std::optional<bool> normalize;  // nullopt: as the model's configuration says
  bool base64 = false;            // instead of an array of numbers
};

// A parsed request.
struct CompletionRequest {
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
  // Tokens whose log-probabilities are told beside the sampled one's, instead of the likeliest; empty: the likeliest.
  std::vector<TokenId> logprob_token_ids;
  // Which numbers of `sampling` the client gave, bits by SamplingField. The model's defaults are in place of the
  // others.
  std::uint8_t given = 0;
  std::optional<std::uint64_t> seed;
  std::int32_t priority = 0;     // as in vLLM: the lower value is served first
  std::int32_t deadline_ms = 0;  // milliseconds from arrival within which the client wants the first token; 0: none
  bool speculate = true;         // tokens are guessed ahead and verified, where the server does that
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
  bool token_ids = false;      // the answer has the ids of the prompt and of its tokens, with the one that ended it

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
  bool to_model_length = false;   // without `max_tokens`, go on to the model's length as a chat does
  bool likeliest_choice = false;  // the writer tells the choice whose tokens are likeliest first

  // Alternatives that the engine must find for the prompt's tokens: for `prompt_logprobs`, and for `logprobs` of an
  // echoed prompt. -1: none are wanted.
  std::int32_t ScoredAlternatives() const { return std::max(prompt_logprobs, echo ? sampling.top_logprobs : -1); }

  // Puts a model's defaults where the client gave no number, and the server's mode of log-probabilities. Errors:
  // `min_tokens` is beyond the model's bound; the mode tells not which of several choices is likeliest.
  Status TakeDefaults(const RequestDefaults& defaults);

  std::vector<LikelyMistake> mistakes;  // unknown fields that are probably misspelt
  // Tools of the request that the model is not offered, for a header: "custom;name=apply_patch".
  std::vector<std::string> left_out_tools;
};

}  // namespace loramux
