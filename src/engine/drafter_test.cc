#include "engine/drafter.h"

#include <memory>

#include <gtest/gtest.h>

#include "engine/engine_world_for_test.h"
#include "step/sample_batch.h"

namespace loramux {
namespace {

using Tokens = std::vector<TokenId>;

TEST(RowPace, FitsWhatARowTakes) {
  RowPace pace;
  const double unknown = pace.TokensPerRow();
  for (int i = 0; i < 200; ++i) {
    const std::int64_t rows = 1 + i % 5;
    pace.Add(rows, 1, (19 + rows) * kNsPerMs);
  }
  EXPECT_NEAR(pace.TokensPerRow(), 1.0 / 20, 0.01);
  EXPECT_LT(pace.TokensPerRow(), unknown);
  // A batch whose rows take all the time: a row must give a whole token.
  for (int i = 0; i < 500; ++i) {
    const std::int64_t rows = 16 + i % 7 * 4;
    pace.Add(rows, 16, rows * kNsPerMs);
  }
  EXPECT_NEAR(pace.TokensPerRow(), 1, 0.05);
  pace.Add(16, 16, 3600 * kNsPerSecond);  // held up by something else
  EXPECT_NEAR(pace.TokensPerRow(), 1, 0.4);
}

class DrafterTest : public testing::Test {
 protected:
  DrafterTest() {
    spec_.speculation = {.method = Speculation::kNgram, .draft_tokens = 3, .least_ngram = 2, .most_ngram = 3};
    sequence_.tokens = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2};
    sequence_.prompt_tokens = 8;
    sequence_.max_total_tokens = 100;
  }
  Tokens Draft() {
    drafter_.Draft(sequence_);
    return sequence_.draft;
  }

  SystemSpec spec_;
  Drafter drafter_{spec_};
  Sequence sequence_;
};

TEST_F(DrafterTest, DraftsWhatFollowedBefore) {
  EXPECT_EQ(Draft(), (Tokens{3, 4, 5}));
  sequence_.asked.speculates = false;
  EXPECT_EQ(Draft(), Tokens{});
  sequence_.asked.speculates = true;
  sequence_.tokens.back() = 9;
  EXPECT_EQ(Draft(), Tokens{});
}

TEST_F(DrafterTest, EndsBeforeTheRequestDoes) {
  sequence_.max_total_tokens = 13;  // two tokens of a draft, and the one behind them
  EXPECT_EQ(Draft(), (Tokens{3, 4}));
  sequence_.max_total_tokens = 11;
  EXPECT_EQ(Draft(), Tokens{});
  sequence_.max_total_tokens = 100;
  sequence_.asked.stop_token_ids = {5};
  EXPECT_EQ(Draft(), (Tokens{3, 4}));
  sequence_.asked.stop_token_ids = {3};
  EXPECT_EQ(Draft(), Tokens{});
}

// Until there are so many tokens stop tokens are banned, and then they are not: a step has one rule for all its rows.
TEST_F(DrafterTest, EndsWhereStopTokensBeginToCount) {
  sequence_.asked.min_tokens = 4;
  EXPECT_EQ(Draft(), (Tokens{3}));  // tokens 3 and 4 are sampled without stop tokens
  sequence_.asked.min_tokens = 3;
  EXPECT_EQ(Draft(), Tokens{});
  sequence_.asked.min_tokens = 2;
  EXPECT_EQ(Draft(), (Tokens{3, 4, 5}));
}

TEST_F(DrafterTest, DraftsLessWhereItIsWrong) {
  EXPECT_EQ(Draft(), (Tokens{3, 4, 5}));
  for (int i = 0; i < 60; ++i) drafter_.Verified(sequence_, 3, 0);
  EXPECT_EQ(Draft(), Tokens{});
  int without = 0;
  while (Draft().empty() && without < 1000) ++without;
  EXPECT_GT(without, 5);  // it tries again, seldom
  EXPECT_GT(sequence_.draft.size(), 0u);
  for (int i = 0; i < 60; ++i) drafter_.Verified(sequence_, 3, 3);
  EXPECT_EQ(Draft(), (Tokens{3, 4, 5}));
}

TEST_F(DrafterTest, DraftsFromTheLastAnswersOfTheAdapterInTheDomain) {
  const auto ask = [](std::uint32_t adapter, const char* domain, Tokens tokens) {
    Sequence sequence;
    sequence.adapter = AdapterGeneration{adapter};
    sequence.prefix_domain = domain;
    sequence.tokens = std::move(tokens);
    sequence.prompt_tokens = 2;
    sequence.max_total_tokens = 100;
    return sequence;
  };
  drafter_.Ended(ask(1, "a", {90, 91, 20, 21, 22, 23, 24, 25}));
  const auto drafted = [&](Sequence sequence) {
    drafter_.Draft(sequence);
    return sequence.draft;
  };
  EXPECT_EQ(drafted(ask(1, "a", {70, 91, 20})), (Tokens{21, 22, 23}));  // by the end of the prompt
  EXPECT_EQ(drafted(ask(1, "a", {80, 81, 20, 21})), (Tokens{22, 23, 24}));
  EXPECT_EQ(drafted(ask(1, "a", {80, 81, 23, 24})), (Tokens{25}));  // the answer ends there
  EXPECT_EQ(drafted(ask(1, "b", {80, 81, 20, 21})), Tokens{});
  EXPECT_EQ(drafted(ask(2, "a", {80, 81, 20, 21})), Tokens{});
  spec_.keep_history = false;
  EXPECT_EQ(drafted(ask(1, "a", {80, 81, 20, 21})), Tokens{});
}

TEST_F(DrafterTest, KeepsTheLatestAnswers) {
  for (TokenId i = 0; i < 2000; ++i) {
    Sequence sequence;
    sequence.tokens = {5000, 5001, 10 + i, 10 + i, 3000 + i};
    sequence.prompt_tokens = 2;
    drafter_.Ended(sequence);
  }
  const auto drafted = [&](TokenId token) {
    Sequence sequence;
    sequence.tokens = {1, 2, token, token};
    sequence.prompt_tokens = 2;
    sequence.max_total_tokens = 100;
    drafter_.Draft(sequence);
    return sequence.draft;
  };
  EXPECT_EQ(drafted(2009), (Tokens{4999}));
  EXPECT_EQ(drafted(10), Tokens{});
}

// All rows of a draft count up to the first that differs, whose token is the sequence's.
TEST(SampleWithDraft, CountsWhatWasRight) {
  StepBatch batch;
  SamplingParams params;
  params.frequency_penalty = 1;
  const Tokens prompt = {1, 2}, generated = {3, 4}, draft = {5, 6, 7};
  const SamplerContext context = {.prompt = prompt, .generated = generated};
  StepSequence& sequence = batch.Add(RequestId{1}, Tokens{4}, 3, std::vector<std::uint32_t>{0});
  batch.AddDraft(sequence, draft);
  batch.Sample(sequence, params, context, nullptr, draft);
  EXPECT_EQ(sequence.tokens.size, 4u);
  EXPECT_EQ(sequence.logit_rows, 4);
  ASSERT_EQ(batch.samples.rows.size(), 4u);
  for (std::size_t row = 0; row < 4; ++row) {
    EXPECT_EQ(batch.samples.IsFirst(row), row == 0);
    const SamplerContext seen = batch.samples.ContextOf(batch.samples.rows[row]);
    EXPECT_EQ(seen.step(), 2 + row);
    ASSERT_EQ(seen.generated.size(), 2 + row);
    EXPECT_EQ(seen.generated.back(), static_cast<TokenId>(4 + row));
  }
  const auto sampled = [&](const Tokens& tokens) {
    std::vector<SampledToken> result(4);
    SampleWithDraft(batch.samples, 0, result, [&](std::size_t row) { return SampledToken{.id = tokens[row]}; });
    Tokens ids;
    for (const SampledToken& token : result) ids.push_back(token.id);
    return ids;
  };
  EXPECT_EQ(sampled({5, 6, 7, 8}), (Tokens{5, 6, 7, 8}));
  EXPECT_EQ(sampled({5, 9, 7, 8}), (Tokens{5, 9, kNoToken, kNoToken}));
  EXPECT_EQ(sampled({9, 6, 7, 8}), (Tokens{9, kNoToken, kNoToken, kNoToken}));
}

}  // namespace
}  // namespace loramux
