#include "step/step_batch.h"

#include <algorithm>

namespace loramux {
namespace {

template <typename T>
FlatRange AppendTo(std::vector<T>& array, std::span<const T> more) {
  const FlatRange range{static_cast<std::uint32_t>(array.size()), static_cast<std::uint32_t>(more.size())};
  array.insert(array.end(), more.begin(), more.end());
  return range;
}

}  // namespace

StepSequence& StepBatch::Add(RequestId id, std::span<const TokenId> of_tokens, std::int64_t position,
                             std::span<const std::uint32_t> of_pages) {
  StepSequence& sequence = sequences.emplace_back();
  sequence.id = id;
  sequence.position = position;
  sequence.tokens = AppendTo(tokens, of_tokens);
  sequence.pages = AppendTo(pages, of_pages);
  return sequence;
}

StepSequence& StepBatch::AddBare(RequestId id, std::size_t of_tokens, std::int64_t position) {
  const std::uint32_t first = sequences.empty() ? 0 : sequences.back().tokens.first + sequences.back().tokens.size;
  StepSequence& sequence = sequences.emplace_back();
  sequence.id = id;
  sequence.position = position;
  sequence.tokens = {first, static_cast<std::uint32_t>(of_tokens)};
  return sequence;
}

void StepBatch::AddDraft(StepSequence& sequence, std::span<const TokenId> draft, bool contents) {
  if (contents) AppendTo(tokens, draft);
  sequence.tokens.size += static_cast<std::uint32_t>(draft.size());
}

AdapterSegment& StepBatch::UseAdapter(StepSequence& sequence, AdapterRef adapter) {
  const auto first = static_cast<std::int32_t>(sequence.tokens.first);
  const bool joins = !segments.empty() && segments.back().adapter == adapter &&
                     segments.back().first_token + segments.back().num_tokens == first;
  if (!joins) segments.push_back({.adapter = adapter, .first_token = first});
  segments.back().num_tokens += static_cast<std::int32_t>(sequence.tokens.size);
  sequence.segment = static_cast<std::int32_t>(segments.size()) - 1;
  return segments.back();
}

std::int32_t StepBatch::Await(const std::shared_ptr<const LayerProgress>& progress) {
  if (progress == nullptr) return -1;
  const auto found = std::ranges::find(arrivals, progress);
  const auto index = static_cast<std::int32_t>(found - arrivals.begin());
  if (found == arrivals.end()) arrivals.push_back(progress);
  return index;
}

void StepBatch::Sample(StepSequence& sequence, const SamplingParams& params, const SamplerContext& context,
                       const std::shared_ptr<TokenConstraint>& constraint, std::span<const TokenId> draft) {
  sequence.logit_rows = 1 + static_cast<std::int32_t>(draft.size());
  sequence.sample = static_cast<std::int32_t>(samples.rows.size());
  samples.Add(params, context, constraint, draft);
}

void StepBatch::Score(StepSequence& sequence, std::span<const TokenId> scored, std::int64_t first_scored,
                      std::int32_t top_logprobs) {
  sequence.first_scored = static_cast<std::int32_t>(first_scored);
  sequence.scores = {static_cast<std::uint32_t>(scores.size()), static_cast<std::uint32_t>(scored.size())};
  for (const TokenId token : scored) scores.push_back({token, top_logprobs});
}

void StepBatch::Clear() {
  copies.clear();
  placements.clear();
  tokens.clear();
  pages.clear();
  sequences.clear();
  segments.clear();
  arrivals.clear();
  samples.Clear();
  scores.clear();
  pools.Clear();
}

}  // namespace loramux
