// What a step samples, as flat arrays: it can be copied to a device as it stands. Only the constraints of grammars are
// objects, whose masks are ready at the end of the step.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "step/sampling.h"
#include "step/token_constraint.h"

namespace loramux {

// A part of a flat array.
struct FlatRange {
  std::uint32_t first = 0, size = 0;
};

// One token to sample.
struct SampleRow {
  SamplingParams params;
  std::uint32_t generated_count = 0;    // tokens that the sequence has generated: the number of the draw
  std::int32_t constraint = -1;         // index in SampleBatch::constraints; -1: none
  FlatRange bias;                       // in SampleBatch::biases
  FlatRange prompt, generated, banned;  // in SampleBatch::tokens; prompt and generated are empty if no penalty is set
  FlatRange logprob_ids;                // in SampleBatch::tokens
};

static_assert(std::is_trivially_copyable_v<SampleRow>);

// A row of logits of which the log-probability of a given token is wanted: the prompt's next one.
struct ScoreRow {
  TokenId token = 0;
  std::int32_t top_logprobs = 0;  // alternatives
};

// The rows of a step. Memory is kept by Clear.
struct SampleBatch {
  std::vector<SampleRow> rows;
  std::vector<LogitBias> biases;
  std::vector<TokenId> tokens;
  std::vector<std::shared_ptr<TokenConstraint>> constraints;

  void Clear();
  // Appends a row. Copies the sequence's tokens only if a penalty reads them. `constraint` may be null.
  void Add(const SamplingParams& params, const SamplerContext& context,
           const std::shared_ptr<TokenConstraint>& constraint = nullptr);
  // What the sampler reads of a row's sequence; it refers to this batch. Waits for the mask of the row's constraint, if
  // it has one.
  SamplerContext ContextOf(const SampleRow& row) const;

 private:
  FlatRange Append(std::span<const TokenId> more);
  std::span<const TokenId> Tokens(FlatRange range) const { return std::span(tokens).subspan(range.first, range.size); }
};

}  // namespace loramux
