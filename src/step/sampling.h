// What a request says about sampling, and what sampling gives: the protocol, the engine, the executors and the model
// share these types.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace loramux {

// Added to the logit of a token.
using LogitBias = std::pair<TokenId, float>;

// What is told as the log-probability of a sampled token and of its alternatives; vLLM's words (--logprobs-mode). Raw:
// before bans, biases, penalties, temperature and thresholds, but among the tokens that a grammar allows. Processed: of
// what the token was drawn from; without a draw (greedy), before temperature and thresholds. The logits are not
// normalised.
enum class LogprobsMode : std::uint8_t { kRawLogprobs, kProcessedLogprobs, kRawLogits, kProcessedLogits };

// The name of a mode, such as "raw_logprobs", and the mode of a name; nullopt: there is none.
std::string_view LogprobsModeName(LogprobsMode mode);
std::optional<LogprobsMode> FindLogprobsMode(std::string_view name);

// The sampling parameters of a request, but for its biases of logits. Names mean the same as in OpenAI's API and vLLM.
// They can be copied to a device as they stand.
struct SamplingParams {
  float temperature = 1.0f;  // below kGreedyBelow, such as 0: greedy
  std::int32_t top_k = 0;    // 0 or -1: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float presence_penalty = 0.0f;    // over generated tokens
  float frequency_penalty = 0.0f;   // over generated tokens
  float repetition_penalty = 1.0f;  // over prompt and generated tokens, as transformers
  std::uint64_t seed = 0;           // the server draws one if the client gives none
  std::int32_t top_logprobs = -1;   // -1: no logprobs; otherwise the number of alternatives beside the chosen token
  LogprobsMode logprobs_mode = LogprobsMode::kRawLogprobs;

  // As vLLM: a smaller temperature would overflow.
  static constexpr float kGreedyBelow = 1e-5f;
  bool IsGreedy() const { return temperature < kGreedyBelow; }
};

// A token with its log probability.
struct TokenLogprob {
  TokenId id = 0;
  float logprob = 0;
};

// The result of Sample.
struct SampledToken {
  TokenId id = 0;
  // If requested: as LogprobsMode says. Never NaN; -infinity for a token that is ruled out.
  float logprob = 0;
  // If requested: the most likely tokens by the same numbers, descending; may or may not include the chosen one. Or the
  // chosen one and then those of SamplerContext::logprob_ids.
  std::vector<TokenLogprob> top_logprobs;
};

// A token of a prompt, and what the model thinks of it after the tokens before it.
struct ScoredToken {
  TokenId id = 0;
  float logprob = 0;      // log softmax of the raw logits, whatever the mode: nothing was drawn. Never NaN
  std::int32_t rank = 0;  // tokens that are at least as likely, itself included; 1: the likeliest
  // If requested: the most likely tokens, descending; may or may not include this one.
  std::vector<TokenLogprob> top_logprobs;
};

// The sampler's input about the sequence. Not owning.
struct SamplerContext {
  std::span<const TokenId> prompt;
  std::span<const TokenId> generated;
  std::span<const TokenId> banned;  // may not be chosen now (eos and stop ids until min_tokens is reached)
  // One bit for each token id that a grammar allows now, the lowest id in the lowest bit. Empty: any token.
  std::span<const std::uint32_t> allowed;
  // The number of generated tokens, where `generated` leaves them out because no penalty reads them. 0: its size.
  std::size_t generated_count = 0;
  std::span<const LogitBias> logit_bias;
  // Told instead of the likeliest tokens, if log-probabilities are: each once, in this order. Empty: the likeliest.
  std::span<const TokenId> logprob_ids = {};

  // The number of the draw.
  std::size_t step() const { return generated_count > 0 ? generated_count : generated.size(); }
};

}  // namespace loramux
