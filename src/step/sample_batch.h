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

// No token: a row that does not count.
inline constexpr TokenId kNoToken = -1;

// One token to sample.
struct SampleRow {
  SamplingParams params;
  std::uint32_t generated_count = 0;  // tokens that the sequence has generated: the number of the draw
  std::int32_t constraint = -1;       // index in SampleBatch::constraints; -1: none
  // The token of a draft that stands at this place: the next row is computed as if it were sampled, and counts only
  // then (SampleWithDraft). kNoToken: no row of the sequence follows.
  TokenId drafted = kNoToken;
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
  // Appends a row, and one for each token of a draft that may follow it: the last samples what follows the whole draft.
  // Copies the sequence's tokens only if a penalty reads them. `constraint` may be null. The same tokens are banned in
  // all rows. REQUIRES for a draft: the sequence has generated a token.
  void Add(const SamplingParams& params, const SamplerContext& context,
           const std::shared_ptr<TokenConstraint>& constraint = nullptr, std::span<const TokenId> draft = {});
  // True if the row is the first of its sequence.
  bool IsFirst(std::size_t row) const { return row == 0 || rows[row - 1].drafted == kNoToken; }
  // What the sampler reads of a row's sequence; it refers to this batch. Waits for the mask of the row's constraint, if
  // it has one.
  SamplerContext ContextOf(const SampleRow& row) const;

 private:
  FlatRange Append(std::span<const TokenId> more);
  std::span<const TokenId> Tokens(FlatRange range) const { return std::span(tokens).subspan(range.first, range.size); }
};

// Samples the rows of a sequence, of which `row` is the first, as far as they count: each by `sample(row)`, and the
// next one if the sampled token is the drafted one and its constraint has not failed. Its constraint then advances by
// that token; the engine advances it by the last one that counts. The tokens of the others are kNoToken. So a sequence
// gets the tokens that it would get one by one.
template <typename SampleRowAt>
void SampleWithDraft(const SampleBatch& samples, std::size_t row, std::span<SampledToken> tokens,
                     const SampleRowAt& sample) {
  bool counts = true;
  for (;; ++row) {
    const SampleRow& of = samples.rows[row];
    tokens[row] = counts ? sample(row) : SampledToken{.id = kNoToken};
    if (of.drafted == kNoToken) return;
    TokenConstraint* const constraint =
        of.constraint < 0 ? nullptr : samples.constraints[static_cast<std::size_t>(of.constraint)].get();
    counts = counts && tokens[row].id == of.drafted && (constraint == nullptr || constraint->failure() == nullptr);
    if (counts && constraint != nullptr) constraint->Advance(of.drafted);
  }
}

}  // namespace loramux
