// A request in the engine: what the scheduler knows of it, and what it leaves to others.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "adapter/registry.h"
#include "engine/generation.h"
#include "engine/ngram_index.h"
#include "schedule/request.h"
#include "step/sampling.h"

namespace loramux {

// Every request that the engine gives to the scheduler is the base of one. Not thread-safe.
struct Sequence : Request {
  // What the client asked for, without what the base has taken over: prompt, tenant and prefix_domain. All tokens that
  // end the request are in stop_token_ids.
  GenerationRequest asked;
  std::shared_ptr<const AdapterVersion> version;  // until the residency manager holds it; null: base model
  std::vector<ScoredToken> prompt_scores;  // scores of the prompt's tokens from the second on, as far as they are known
  bool scores_told = false;                // the client has got them
  std::int64_t pooled = 0;                 // positions in pool_sum
  std::vector<double> pool_sum;            // [hidden_size]; empty: none yet
  std::vector<float> embedding;            // [hidden_size], once the prompt is computed
  NgramIndex places;                       // places of its tokens, if it speculates
  std::size_t draft_agrees = 0;            // known tokens that agree with those before what is drafted (Drafter)

  // Adjacent positions of the prompt.
  struct Positions {
    std::int64_t first = 0, count = 0;
  };

  // Returns the prompt tokens that a chunk of `count` tokens scores: the rows before them say what the model thinks of
  // them. A row that was computed before a preemption is not scored again.
  std::span<const TokenId> ScoredBy(std::int64_t count) const {
    return asked.prompt_logprobs < 0 ? std::span<const TokenId>() : FindScored(count);
  }
  // Returns the positions that a chunk of `count` tokens pools, likewise.
  Positions PooledBy(std::int64_t count) const { return asked.pooling ? FindPooled(count) : Positions{}; }

  // Begins the prompt's scores and its sum, as far as they are wanted. What was there goes: it is of another adapter.
  void BeginPrompt();
  // Adds the scores of a chunk. What is scored may come from the cache, should the request begin again.
  void AddScores(std::span<ScoredToken> scores);
  // Takes the sum [hidden_size] after a chunk that pooled `positions` more. Those may come from the cache, likewise.
  void TakeSum(std::int64_t positions, std::span<const double> sum);
  // Makes the embedding. REQUIRES: the prompt is computed, and an embedding is wanted.
  void MakeEmbedding();

  bool all_scored() const { return static_cast<std::int32_t>(prompt_scores.size()) + 1 >= prompt_tokens; }

 private:
  std::span<const TokenId> FindScored(std::int64_t count) const;
  Positions FindPooled(std::int64_t count) const;
};

}  // namespace loramux
