// What a step samples, as flat arrays: it can be copied to a device as it stands. Only the constraints of grammars are
// objects, whose masks are ready at the end of the step.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/sampling.h"
#include "base/token_constraint.h"

namespace loramux {

// A part of a flat array.
struct FlatRange {
  std::uint32_t first = 0, size = 0;
};

// One token to sample: SamplingParams and SamplerContext without pointers.
struct SampleRow {
  std::uint64_t seed = 0;
  float temperature = 1, top_p = 1, min_p = 0;
  float presence_penalty = 0, frequency_penalty = 0, repetition_penalty = 1;
  std::int32_t top_k = 0, top_logprobs = -1;
  std::uint32_t generated_count = 0;    // tokens that the sequence has generated: the number of the draw
  std::int32_t constraint = -1;         // index in SampleBatch::constraints; -1: none
  FlatRange bias;                       // range of SampleBatch::biases
  FlatRange prompt, generated, banned;  // ranges of SampleBatch::tokens; empty prompt and generated: no penalty is set
};

// A row of logits of which the log-probability of a given token is wanted: the prompt's next one.
struct ScoreRow {
  TokenId token = 0;
  std::int32_t top_logprobs = 0;  // alternatives
};

// The rows of a step. Memory is kept by Clear.
struct SampleBatch {
  std::vector<SampleRow> rows;
  std::vector<std::pair<TokenId, float>> biases;
  std::vector<TokenId> tokens;
  std::vector<std::shared_ptr<TokenConstraint>> constraints;

  void Clear();
  // Appends a row. Copies the sequence's tokens only if a penalty reads them. `constraint` may be null.
  void Add(const SamplingParams& params, const SamplerContext& context,
           const std::shared_ptr<TokenConstraint>& constraint = nullptr);
  // The row in the sampler's terms. `params` keeps its memory from call to call; the context refers to this batch.
  // Waits for the mask of the row's constraint, if it has one.
  void Unpack(std::size_t row, SamplingParams& params, SamplerContext& context) const;

 private:
  FlatRange Append(std::span<const TokenId> more);
  std::span<const TokenId> Tokens(FlatRange range) const { return std::span(tokens).subspan(range.first, range.size); }
};

}  // namespace loramux
