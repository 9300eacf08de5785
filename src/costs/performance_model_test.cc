#include "costs/performance_model.h"

#include <gtest/gtest.h>

#include "costs/service_times.h"

namespace loramux::performance_model_test {
namespace {

StepLoad MixedLoad() {
  StepLoad load;
  load.prefill_tokens = 100;
  load.prefill_sequences = 2;
  load.decode_sequences = 5;
  load.prefill_attention = 3000;
  load.decode_context = 700;
  load.adapter_tokens = 40;
  load.distinct_adapters = 4;
  load.rank_sum = 80;
  load.max_rank = 64;
  load.token_ranks = 900;
  load.prefill_context = 60;
  return load;
}

PerformanceModel EveryTerm(LoraCostShape shape) {
  PerformanceModel model;
  model.shape = shape;
  model.step = 1;
  model.per_prefill_token = 2;
  model.per_prefill_sequence = 3;
  model.per_decode_sequence = 5;
  model.per_prefill_attention = 7;
  model.per_decode_context = 11;
  model.per_prefill_context = 41;
  model.token_tile = 12;
  model.per_token_tile = 37;
  model.per_adapter = 13;
  model.per_adapter_token = 17;
  model.per_adapter_token_rank = 19;
  model.per_rank = 23;
  model.per_padded_rank = 29;
  model.per_padded_adapter = 31;
  return model;
}

constexpr double kShared = 1 + 2 * 100 + 3 * 2 + 5 * 5 + 7 * 3000 + 11 * 700 + 41 * 60 + 37 * 9 + 13 * 4 + 17 * 40;

TEST(PerformanceModelTest, EachShapePaysForItsOwnTerms) {
  EXPECT_EQ(EveryTerm(LoraCostShape::kMbgmv).SecondsOf(MixedLoad()), kShared + 19 * 900 + 23 * 80);
  EXPECT_EQ(EveryTerm(LoraCostShape::kBgmv).SecondsOf(MixedLoad()), kShared + 29 * 40 * 64 + 31 * 4 * 64);
}

TEST(PerformanceModelTest, UnknownTokenRanksAreTakenAsTheMeanRanks) {
  StepLoad load = MixedLoad();
  load.token_ranks = 0;
  EXPECT_EQ(EveryTerm(LoraCostShape::kMbgmv).SecondsOf(load), kShared + 19 * (40 * 80 / 4) + 23 * 80);
}

// 4 experts, of which a token takes 1: of 2 tokens 1.75 are expected to be taken.
TEST(PerformanceModelTest, ExpertsAreReadOnceForAllTokensThatTakeThem) {
  PerformanceModel model;
  model.per_expert = 8;
  EXPECT_EQ(model.SecondsOf({.decode_sequences = 2}), 0);  // it is no mixture of experts
  model.experts = {4, 1};
  EXPECT_DOUBLE_EQ(model.SecondsOf({.decode_sequences = 1}), 8);
  EXPECT_DOUBLE_EQ(model.SecondsOf({.decode_sequences = 2}), 14);
  EXPECT_NEAR(model.SecondsOf({.prefill_tokens = 1000}), 32, 1e-9);
  model.per_expert = 0;
  model.per_expert_rank = 1;
  // Two adapters of mean rank 12 with two tokens each.
  const StepLoad load = {.decode_sequences = 4, .adapter_tokens = 4, .rank_sum = 24, .distinct_adapters = 2};
  EXPECT_DOUBLE_EQ(model.SecondsOf(load), 24 * 1.75);
  model.shape = LoraCostShape::kBgmv;
  EXPECT_EQ(model.SecondsOf(load), 0);
}

TEST(PerformanceModelTest, TheFloorOfTheWeightsGrowsWithTheExpertsTaken) {
  PerformanceModel model;
  model.experts = {4, 1};
  model.dense_floor = 3;
  model.expert_floor = 2;
  model.per_decode_sequence = 1;
  EXPECT_DOUBLE_EQ(model.SecondsOf({.decode_sequences = 1}), 5);
  EXPECT_DOUBLE_EQ(model.SecondsOf({.decode_sequences = 2}), 3 + 3.5);
  EXPECT_DOUBLE_EQ(model.SecondsOf({.decode_sequences = 20}), 20);
  model.per_prefill_token = 0.1;
  EXPECT_EQ(RidgeTokens(model), 110);  // all experts
}

TEST(PerformanceModelTest, NoLessThanTheFloor) {
  PerformanceModel model;
  model.per_decode_sequence = 1;
  model.floor = 3;
  StepLoad load;
  load.decode_sequences = 2;
  EXPECT_EQ(model.SecondsOf(load), 3);
  load.decode_sequences = 4;
  EXPECT_EQ(model.SecondsOf(load), 4);
}

TEST(PerformanceModelTest, TheFloorOfTheWeightsLeavesAttentionOnTop) {
  PerformanceModel model;
  model.per_decode_sequence = 1;
  model.per_decode_context = 0.5;
  model.dense_floor = 3;
  StepLoad load;
  load.decode_sequences = 2;
  load.decode_context = 4;
  EXPECT_EQ(model.SecondsOf(load), 3 + 2);
  load.decode_sequences = 4;
  EXPECT_EQ(model.SecondsOf(load), 4 + 2);
}

TEST(PerformanceModelTest, FromTheRidgeOnAStepTakesLongerForMoreTokens) {
  PerformanceModel model;
  model.per_prefill_token = 1e-4;
  EXPECT_EQ(RidgeTokens(model), 0);
  model.dense_floor = 20.5e-3;
  const std::int64_t ridge = RidgeTokens(model);
  EXPECT_EQ(ridge, 205);
  const auto seconds = [&](std::int64_t tokens) { return model.SecondsOf({.prefill_tokens = tokens}); };
  EXPECT_DOUBLE_EQ(seconds(1), seconds(ridge));
  EXPECT_GT(seconds(ridge + 1), seconds(ridge));
  model.per_prefill_token = 1e-300;  // an implausible profile
  EXPECT_EQ(RidgeTokens(model), 1 << 20);
  model.per_prefill_token = 0;
  EXPECT_EQ(RidgeTokens(model), 0);
}

TEST(PerformanceModelTest, FactorsAreInterpolatedInTheLogarithmOfTheTokens) {
  PerformanceModel model;
  model.step = 2;
  model.decode_factors = {{2, 1}, {8, 3}};
  model.prefill_factors = {{100, 5}};
  StepLoad load;
  const auto seconds = [&](std::int64_t sequences) {
    load.decode_sequences = sequences;
    return model.SecondsOf(load);
  };
  EXPECT_DOUBLE_EQ(seconds(1), 2);
  EXPECT_DOUBLE_EQ(seconds(2), 2);
  EXPECT_DOUBLE_EQ(seconds(4), 4);  // half way between 2 and 8
  EXPECT_DOUBLE_EQ(seconds(8), 6);
  EXPECT_DOUBLE_EQ(seconds(999), 6);
  EXPECT_DOUBLE_EQ(model.LinearSecondsOf(load), 2);
  load.prefill_tokens = 10;
  EXPECT_DOUBLE_EQ(seconds(0), 10);
  EXPECT_DOUBLE_EQ(seconds(4), 10);  // no step with both was measured: factor of prefill
  model.mixed_factors = {{20, 7}};
  EXPECT_DOUBLE_EQ(seconds(4), 14);
  EXPECT_DOUBLE_EQ(seconds(0), 10);
}

TEST(PerformanceModelTest, DecodingAfterAPromptTakesLonger) {
  PerformanceModel model;
  model.step = 2;
  model.after_prefill = 0.5;
  StepLoad load;
  load.decode_sequences = 3;
  EXPECT_DOUBLE_EQ(model.SecondsOf(load), 2);
  load.after_prefill = 1;
  EXPECT_DOUBLE_EQ(model.SecondsOf(load), 2.5);
  EXPECT_DOUBLE_EQ(model.LinearSecondsOf(load), 2);
  load.after_prefill = 2;
  EXPECT_DOUBLE_EQ(model.SecondsOf(load), 2);
  model.after_prefill_decay = 0.5;
  EXPECT_DOUBLE_EQ(model.SecondsOf(load), 2.25);
  load.after_prefill = 4;
  EXPECT_DOUBLE_EQ(model.SecondsOf(load), 2.0625);
  model.after_prefill_per_sequence = 0.25;
  EXPECT_DOUBLE_EQ(model.SecondsOf(load), 2.8125);  // three of them
  load.after_prefill = kColdSteps;
  EXPECT_DOUBLE_EQ(model.SecondsOf(load), 2.75 + 0.5 / 128);
  load.after_prefill = 0;
  EXPECT_DOUBLE_EQ(model.SecondsOf(load), 2);
  load.after_prefill = 4;
  load.prefill_tokens = 16;
  EXPECT_DOUBLE_EQ(model.SecondsOf(load), 2);
}

TEST(PerformanceModelTest, HowManyStepsAgoTheLastPromptWas) {
  StepLoad load{.decode_sequences = 2};
  EXPECT_EQ(StepsAfterPrefill(load), 0);  // there was no prefill
  load.prefill_tokens = 30;
  std::int32_t after = StepsAfterPrefill(load);
  for (std::int32_t step = 1; step <= kColdSteps; ++step) {
    EXPECT_EQ(after, step);
    after = StepsAfterPrefill({.decode_sequences = 2, .after_prefill = after});
  }
  EXPECT_EQ(after, 0);
  EXPECT_EQ(StepsAfterPrefill({.prefill_tokens = 5, .after_prefill = 3}), 1);
}

}  // namespace
}  // namespace loramux::performance_model_test
