// A request in the engine: what the scheduler knows of it, and what it leaves to others.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "adapter/registry.h"
#include "engine/generation.h"
#include "formats/embedding_config.h"
#include "schedule/request.h"
#include "step/sampling.h"
#include "step/token_constraint.h"

namespace loramux {

// Every request that the engine gives to the scheduler is the base of one. Not thread-safe.
struct Sequence : Request {
  SamplingParams sampling;
  std::vector<LogitBias> logit_bias;
  std::int32_t min_tokens = 0;
  std::shared_ptr<const AdapterVersion> version;  // until the residency manager holds it; null: base model
  // end the request; not delivered; banned until min_tokens are generated
  std::vector<TokenId> stop_ids;
  std::shared_ptr<TokenConstraint> constraint;  // null: none
  bool ignore_eos = false;                      // with a constraint: end-of-sequence tokens are banned throughout
  std::int32_t prompt_logprobs = -1;            // alternatives; -1: not wanted
  std::vector<ScoredToken> prompt_scores;  // scores of the prompt's tokens from the second on, as far as they are known
  bool scores_told = false;                // the client has got them
  std::optional<Pooling> pooling;          // nullopt: tokens are wanted, and no embedding
  std::int64_t pooled = 0;                 // positions in pool_sum
  std::vector<double> pool_sum;            // [hidden_size]; empty: none yet
  std::vector<float> embedding;            // [hidden_size], once the prompt is computed
  GenerationCallback on_event;

  // Adjacent positions of the prompt.
  struct Positions {
    std::int64_t first = 0, count = 0;
  };

  // Returns the prompt tokens that a chunk of `count` tokens scores: the rows before them say what the model thinks of
  // them. A row that was computed before a preemption is not scored again.
  std::span<const TokenId> ScoredBy(std::int64_t count) const;
  // Returns the positions that a chunk of `count` tokens pools, likewise.
  Positions PooledBy(std::int64_t count) const;

  // Adds the scores of a chunk. What is scored may come from the cache, should the request begin again.
  void AddScores(std::span<ScoredToken> scores);
  // Takes the sum [hidden_size] after a chunk that pooled `positions` more. Those may come from the cache, likewise.
  void TakeSum(std::int64_t positions, std::span<const double> sum);
  // Makes the embedding. REQUIRES: the prompt is computed, and an embedding is wanted.
  void MakeEmbedding();

  bool all_scored() const { return static_cast<std::int32_t>(prompt_scores.size()) + 1 >= prompt_tokens; }
};

}  // namespace loramux
