// Sampling: from logits to a token.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "step/sample_batch.h"
#include "step/sampling.h"

namespace loramux {

// Scratch memory reused between calls: no allocation once it has grown to the vocabulary. Not thread-safe.
struct SamplerScratch {
  std::vector<float> logits;
  std::vector<float> allowed;  // the logits, without the tokens that a grammar does not allow
  std::vector<float> told;     // the logits that log-probabilities are of, where those are not the ones above
  std::vector<std::pair<float, TokenId>> candidates;
  std::vector<std::pair<float, TokenId>> selection;
  std::vector<std::int32_t> counts;  // all zero between calls
};

// Samples one token. The order of operations is vLLM's: what a grammar allows (raw log-probabilities are those of the
// tokens that it allows), ban, logit bias, repetition, frequency and presence penalties, temperature, min-p, top-k,
// top-p, then one draw. The draw's random number depends only on (seed, number of generated tokens): same seed, same
// tokens, whatever else is in the batch. It picks from the cumulative distribution by ascending id. Every threshold
// keeps a prefix of the tokens ordered by descending logit and ascending id:
//   min-p   those at least min_p times as likely as the likeliest
//   top-k   the first k
//   top-p   the shortest prefix with at least top_p of the probability left after min-p and top-k; at least one token
// Greedy takes the first maximum. Logits with a NaN give the lowest-id finite maximum. A +infinity wins. If no token is
// possible, the result is the lowest id that is allowed and not banned (0 if there is none). Where a grammar allows
// only banned tokens, the ban does not hold. Tokens less likely than e^-87 times the likeliest are never drawn. Ids of
// logit_bias, prompt, generated and banned outside the vocabulary are ignored. What is told of the token never changes
// which one it is. REQUIRES: logits not empty; repetition_penalty > 0; those of logprob_ids are in the vocabulary.
SampledToken Sample(std::span<const float> logits, const SamplingParams& params, const SamplerContext& context,
                    SamplerScratch& scratch);

// Returns the log-probability and the rank of the row's token, and the likeliest tokens. Treats a NaN as -infinity.
// REQUIRES: logits not empty; the token is in the vocabulary.
ScoredToken Score(std::span<const float> logits, const ScoreRow& row, SamplerScratch& scratch);

}  // namespace loramux
