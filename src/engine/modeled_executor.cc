#include "engine/modeled_executor.h"

#include <algorithm>

#include "base/check.h"
#include "base/prng.h"

namespace loramux {

namespace {

TokenId TokenAfter(AdapterGeneration adapter, std::uint64_t prompt_tokens, std::uint64_t generated, TokenId last,
                   std::int64_t vocab_size) {
  std::uint64_t hash = SplitMix64(adapter.value);
  hash = SplitMix64(hash ^ prompt_tokens << 32 ^ generated);
  hash = SplitMix64(hash ^ static_cast<std::uint64_t>(last));
  return static_cast<TokenId>(hash % static_cast<std::uint64_t>(vocab_size));
}

}  // namespace

ScoredToken ModeledExecutor::ScoreOf(const ScoreRow& row) {
  ScoredToken token{
      .id = row.token, .logprob = -static_cast<float>(row.token + 1), .rank = row.token + 1, .top_logprobs = {}};
  for (std::int32_t i = 0; i < row.top_logprobs; ++i) token.top_logprobs.push_back({i, -static_cast<float>(i + 1)});
  return token;
}

TokenId ModeledExecutor::NextToken(AdapterGeneration adapter, std::span<const TokenId> prompt,
                                   std::span<const TokenId> generated, std::int64_t vocab_size) {
  const TokenId last = generated.empty() ? prompt.back() : generated.back();
  return TokenAfter(adapter, prompt.size(), generated.size(), last, vocab_size);
}

void ModeledExecutor::Submit(StepBatch batch) {
  CHECK(!batch_.has_value());
  TimeNs duration = cost_.base_ns + cost_.per_token_ns * static_cast<TimeNs>(batch.tokens.size());
  for (const AdapterSegment& segment : batch.segments) duration += cost_.per_rank_ns * segment.rank;
  ends_at_ = clock_->Now() + duration;
  batch_ = std::move(batch);
}

void ModeledExecutor::PoolInto(std::vector<double>& pooled) const {
  pooled.clear();
  for (const PoolRange& range : batch_->pools.ranges) {
    std::array<double, 2> sum = {0, 0};
    std::ranges::copy(batch_->pools.SumBefore(range), sum.begin());
    for (std::int64_t row = range.first_row; row < range.first_row + range.rows; ++row) {
      const std::array<double, 2> hidden = HiddenOf(batch_->tokens[static_cast<std::size_t>(row)]);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += hidden[i];
    }
    pooled.insert(pooled.end(), sum.begin(), sum.end());
  }
}

bool ModeledExecutor::Poll(StepResult& result) {
  if (!batch_.has_value() || clock_->Now() < ends_at_) return false;
  result.tokens.clear();
  result.waited = 0;
  result.tokens.resize(batch_->samples.rows.size());
  for (const StepSequence& sequence : batch_->sequences) {
    if (sequence.sample < 0) continue;
    const AdapterSegment* const segment = batch_->SegmentOf(sequence);
    const auto first = static_cast<std::size_t>(sequence.sample), rows = static_cast<std::size_t>(sequence.logit_rows);
    const std::span<const TokenId> tokens = batch_->TokensOf(sequence).last(rows);
    SampleWithDraft(batch_->samples, first, result.tokens, [&](std::size_t row) {
      return SampledToken{.id =
                              TokenAfter(segment == nullptr ? kBaseModel : segment->generation,
                                         static_cast<std::uint64_t>(sequence.prompt_tokens),
                                         batch_->samples.rows[row].generated_count, tokens[row - first], vocab_size_)};
    });
  }
  result.scores.clear();
  for (const ScoreRow& row : batch_->scores) result.scores.push_back(ScoreOf(row));
  PoolInto(result.pooled);
  result.batch = std::move(*batch_);
  batch_.reset();
  return true;
}

}  // namespace loramux
