// What is known of a choice of an answer, for the writers of all APIs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "engine/generation.h"
#include "server/output/output_parser.h"

namespace loramux {

// Token counts of one choice or of a whole response.
struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::int64_t cached_tokens = 0;     // prompt tokens that came from the prefix cache
  std::int64_t reasoning_tokens = 0;  // completion tokens of the reasoning, with the tags around it
};

// One token with its log-probability.
struct LogprobEntry {
  TokenId id = 0;
  std::string token;  // as text, with U+FFFD for a part of a character
  float logprob = 0;
  std::string bytes = {};  // if they are not those of `token`; empty: they are
  bool special = false;    // an added token that is no text
  bool by_id = false;      // the client wants "token_id:ID" as its name
  // Returns what the client sees as `token`.
  std::string Name() const;
  // Returns the characters that begin in this token.
  std::int64_t Characters() const;
};

// One generated token, with its alternatives.
struct TokenLogprobText {
  LogprobEntry chosen;
  std::vector<LogprobEntry> top;  // most likely first
  bool unknown = false;           // the first token of a prompt has no log-probability
  std::size_t text_end = 0;       // bytes of the output's text that were there once this token was added
};

// The stop string or the stop token id that ended a choice (vLLM's `stop_reason`); monostate: JSON null.
using StopReason = std::variant<std::monostate, std::string, TokenId>;

// Where an answer goes on with another version of its adapter (Engine::Retarget).
struct VersionChange {
  std::int64_t from = 0;       // tokens of the choice before it
  std::string weight_version;  // WeightVersionOf the version from there on
};

// A whole choice, or its new output in a stream.
struct ChoiceOutput {
  std::int32_t index = 0;
  std::string text;
  // Instead of `text`, if the answer was read as more than content.
  std::optional<std::vector<OutputEvent>> events = {};
  bool has_calls = false;     // the answer calls tools
  bool called_tools = false;  // the finish reason is "tool_calls" instead of "stop"
  bool wants_logprobs = false;
  std::vector<TokenLogprobText> logprobs;
  std::int64_t text_offset = 0;  // characters of text before the first token of `logprobs`
  std::string prompt_logprobs;   // JSON (PromptLogprobsJson); empty: not wanted
  FinishReason finish = FinishReason::kNone;
  StopReason stop_reason;
  TokenId stop_token = -1;      // the token that ended the choice; it is not in `logprobs`. -1: none did
  std::string stop_token_text;  // its stored form
  std::optional<TokenLogprobText> stop_logprob = {};  // log-probability of `stop_token`, if it is wanted
  // Ids of the new tokens, with the one that ended the choice; nullopt: they are not wanted.
  std::optional<std::vector<TokenId>> token_ids = {};
  // Ids of the prompt, as the model reads it; only with the choice's first output, and if ids are wanted.
  std::shared_ptr<const std::vector<TokenId>> prompt_token_ids = {};
  std::vector<VersionChange> version_changes = {};  // in the new tokens
  std::vector<float> embedding = {};                // only for requests for embeddings
};

// Returns the number that stands for a log-probability, or a logit, in JSON, which has no infinities.
double LogprobNumber(float logprob);

}  // namespace loramux
