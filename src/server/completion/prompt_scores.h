// Log-probabilities of a prompt as vLLM's `prompt_logprobs` shows them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "step/sampling.h"
#include "text/tokenizer.h"

namespace loramux {

// The most log-probabilities of prompts in one answer: prompt tokens times (alternatives + 1), over all choices.
inline constexpr std::int64_t kMaxPromptScores = std::int64_t{256} << 10;

// What the model thinks of a prompt. Choices of one prompt share it.
struct PromptScores {
  TokenId first = 0;                // the first token, which has no log-probability
  std::vector<ScoredToken> scores;  // scores of all other tokens
};

// Returns a JSON array with an entry for each prompt token: null for the first, then
// {"<token id>": {"logprob", "rank", "decoded_token"}, ...}, the prompt's own token first, without duplicates, and
// at most `alternatives` others.
// Serialises token by token: a tree of them all would take several times the memory.
std::string PromptLogprobsJson(const Tokenizer& tokenizer, const PromptScores& prompt, std::int32_t alternatives);

}  // namespace loramux
