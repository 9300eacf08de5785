#include "engine/sequence.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace loramux {

std::span<const TokenId> Sequence::FindScored(std::int64_t count) const {
  const auto first = static_cast<std::int64_t>(prompt_scores.size());
  const std::int64_t end = std::min(computed + count, std::int64_t{prompt_tokens} - 1);
  if (end <= first) return {};
  CHECK_LE(computed, first);
  return prompt().subspan(static_cast<std::size_t>(first + 1), static_cast<std::size_t>(end - first));
}

Sequence::Positions Sequence::FindPooled(std::int64_t count) const {
  const std::int64_t first = (*asked.pooling == Pooling::kLast ? std::int64_t{prompt_tokens} - 1 : 0) + pooled;
  const std::int64_t end = computed + count;
  if (end <= first) return {};
  CHECK_LE(computed, first);
  return {first, end - first};
}

void Sequence::BeginPrompt() {
  prompt_scores.clear();
  pooled = 0;
  pool_sum.clear();
  const bool needs_all = asked.prompt_logprobs >= 0 || asked.pooling == Pooling::kMean;
  reusable_tokens = needs_all && prompt_tokens > 1 ? 0 : Request::kAllTokens;
}

void Sequence::AddScores(std::span<ScoredToken> scores) {
  if (scores.empty()) return;
  std::move(scores.begin(), scores.end(), std::back_inserter(prompt_scores));
  reusable_tokens = all_scored() ? Request::kAllTokens : static_cast<std::int64_t>(prompt_scores.size());
}

void Sequence::TakeSum(std::int64_t positions, std::span<const double> sum) {
  if (positions == 0) return;
  pool_sum.assign(sum.begin(), sum.end());
  pooled += positions;
  if (asked.pooling == Pooling::kMean) reusable_tokens = pooled;
}

void Sequence::MakeEmbedding() {
  CHECK_EQ(pooled, asked.pooling == Pooling::kMean ? std::int64_t{prompt_tokens} : 1);
  const auto count = static_cast<double>(pooled);
  embedding.reserve(pool_sum.size());
  for (const double sum : pool_sum) embedding.push_back(static_cast<float>(sum / count));
}

}  // namespace loramux
