// How far a model's predictions of a text are from another's: what quantised weights cost.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/model.h"
#include "step/sampling.h"

namespace loramux {

// The logits of a model for every token of a text but the last.
struct TextLogits {
  std::int64_t vocab = 0;
  std::vector<float> logits;     // [tokens that are predicted, vocab]
  std::vector<TokenId> targets;  // the tokens that follow
};

// Computes them. The text is cut into windows of `window` tokens that know nothing of each other, so the first token of
// a window is not predicted. Needs 4 bytes for each entry of the vocabulary and token. `progress` (of tokens) may be
// empty. REQUIRES: window >= 2.
TextLogits ComputeTextLogits(Model& model, std::span<const TokenId> tokens, std::int64_t window, int threads,
                             const Progress& progress);

// Two models' predictions of one text.
struct TextQuality {
  double perplexity_before = 0, perplexity_after = 0;
  double mean_divergence = 0;  // Kullback-Leibler, of `after` from `before`, in nats a token
  double high_divergence = 0;  // divergence that 99 % of the tokens stay below
  double same_top = 0;         // share of tokens with the same most probable prediction
};

// REQUIRES: the same targets and vocabulary.
TextQuality CompareTexts(const TextLogits& before, const TextLogits& after);

}  // namespace loramux
