#include "schedule/presets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "costs/performance_model.h"
#include "schedule/predict/oracle_predictor.h"

namespace loramux::presets_test {
namespace {

TEST(Presets, NameThingsThatExist) {
  std::set<std::string_view> names;
  for (const Preset& preset : Presets()) {
    EXPECT_TRUE(names.insert(preset.name).second) << preset.name;
    EXPECT_TRUE(FindCacheRegime(preset.cache).ok()) << preset.name;
    const std::vector<std::string> orders = QueueOrderNames();
    EXPECT_NE(std::find(orders.begin(), orders.end(), preset.queue), orders.end()) << preset.name;
    EXPECT_EQ(FindPreset(preset.name).value().name, preset.name);
  }
  const auto unknown = FindPreset("orca");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("chameleon-nocache"), std::string::npos);
}

TEST(Presets, FillInOptions) {
  SystemSpec scheduler;
  QueueOrderOptions queue;
  ApplyPreset(FindPreset("chameleon").value(), 10'000, scheduler, queue);
  EXPECT_EQ(queue.name, "mlq");
  EXPECT_EQ(scheduler.fairness.policy, FairnessPolicy::kNone);
  EXPECT_TRUE(scheduler.keep_idle_adapters);
  EXPECT_GT(scheduler.whole_prompt_tokens, 0);
  EXPECT_TRUE(scheduler.shape.separate_phases);
  EXPECT_EQ(scheduler.shape.cold_start, ColdStart::kHold);
  EXPECT_GE(scheduler.prefill_chunk, 10'000);
  EXPECT_GE(scheduler.max_batch_tokens, 10'000 + scheduler.max_running);  // any prompt fits beside all decodes
  EXPECT_FALSE(scheduler.spread_prompts);
  EXPECT_FALSE(scheduler.load_on_arrival);
  ApplyPreset(FindPreset("loramux").value(), 10'000, scheduler, queue);
  EXPECT_TRUE(scheduler.spread_prompts);
  EXPECT_TRUE(scheduler.load_on_arrival);
  scheduler = {};
  ApplyPreset(FindPreset("s-lora").value(), 10'000, scheduler, queue);
  EXPECT_FALSE(scheduler.keep_idle_adapters);
  EXPECT_EQ(queue.name, "fifo");
  EXPECT_EQ(scheduler.shape.decode_turns, 10);
  EXPECT_TRUE(scheduler.reserve_output);
  EXPECT_EQ(scheduler.discard_share, 0);
  scheduler = {};
  ApplyPreset(FindPreset("chameleon").value(), 10'000, scheduler, queue);
  EXPECT_FALSE(scheduler.reserve_output);      // its quotas reserve what it predicts
  EXPECT_EQ(scheduler.shape.decode_turns, 1);  // Chameleon's scheduler admits requests after every step
  Preset together = FindPreset("s-lora").value();
  together.whole_prompt_tokens = 9000;
  ApplyPreset(together, 5000, scheduler, queue);
  EXPECT_EQ(scheduler.whole_prompt_tokens, 9000);
  EXPECT_EQ(scheduler.max_batch_tokens, 9000 + scheduler.max_running);
  scheduler = {};
  ApplyPreset(FindPreset("vllm-lora-batch32").value(), 10'000, scheduler, queue);
  EXPECT_EQ(scheduler.max_distinct_adapters, 32);
  EXPECT_GT(scheduler.adapter_share, 0);
  EXPECT_EQ(scheduler.whole_prompt_tokens, 0);
  EXPECT_FALSE(scheduler.shape.separate_phases);
  EXPECT_EQ(scheduler.shape.cold_start, ColdStart::kStall);
  EXPECT_EQ(scheduler.max_batch_tokens, SystemSpec{}.max_batch_tokens);
}

// The defaults are what the options have anyway; what a preset says stays unless it is given.
TEST(DocumentConstants, ReplaceOnlyWhatTheyAreGiven) {
  SystemSpec scheduler;
  QueueOrderOptions queue;
  ApplyPreset(FindPreset("vllm-lora-batch32").value(), 2048, scheduler, queue);
  ApplyConstants({}, scheduler, queue);
  EXPECT_EQ(scheduler.max_distinct_adapters, 32);
  EXPECT_EQ(scheduler.shape.prefetch_lookahead, 10);
  EXPECT_EQ(scheduler.batch_window, SystemSpec().batch_window);
  EXPECT_EQ(scheduler.swapping.interval, SwapThresholds().interval);
  EXPECT_EQ(queue.lanes.refresh, SizeLanesOptions().refresh);
  EXPECT_EQ(queue.lanes.output_weight, SizeLanesOptions().output_weight);
  ApplyConstants({.score = {.size = 2},
                  .input_weight = 1,
                  .most_lanes = 3,
                  .lane_refresh = kNsPerSecond,
                  .expectation = {.least_variation = 4},
                  .swapping = {.upper = 0.8},
                  .prefetch_lookahead = 5,
                  .adapters_in_batch = 0},
                 scheduler, queue);
  EXPECT_EQ(scheduler.score_weights.size, 2);
  EXPECT_EQ(scheduler.expectation.least_variation, 4);
  EXPECT_EQ(scheduler.swapping.upper, 0.8);
  EXPECT_EQ(scheduler.shape.prefetch_lookahead, 5);
  EXPECT_EQ(scheduler.max_distinct_adapters, 0);
  EXPECT_EQ(queue.lanes.input_weight, 1);
  EXPECT_EQ(queue.lanes.most_lanes, 3);
  EXPECT_EQ(queue.lanes.refresh, kNsPerSecond);
}

TEST(Presets, SettingsFillInOptions) {
  SystemSpec scheduler;
  QueueOrderOptions queue;
  ApplySettings({.max_running = 7,
                 .max_batch_tokens = 100,
                 .age_bound = 3,
                 .fairness_max_wait = 4,
                 .objective = 5,
                 .count_cached = CountCached::kQuota},
                scheduler, queue);
  EXPECT_EQ(scheduler.max_running, 7);
  EXPECT_EQ(scheduler.prefill_chunk, 100);
  EXPECT_EQ(scheduler.age_bound, 3);
  EXPECT_EQ(queue.age_bound, 3);
  EXPECT_EQ(scheduler.fairness.max_wait, 4);
  EXPECT_EQ(queue.objective, 5);
  EXPECT_EQ(queue.lanes.slo, 5);
  EXPECT_EQ(queue.lanes.count_cached, CountCached::kQuota);
  ApplySettings({.prefill_chunk = 30}, scheduler, queue);
  EXPECT_EQ(scheduler.prefill_chunk, 30);
}

TEST(OraclePredictor, IsRightAsOftenAsItIsToldTo) {
  OraclePredictor predictor(0.8, 3);
  int right = 0, same_bucket = 0;
  std::array<int, OraclePredictor::kBuckets> buckets = {};
  constexpr int kQueries = 20000;
  for (int i = 0; i < kQueries; ++i) {
    const LengthQuery query{.prompt_tokens = i, .max_output_tokens = 200, .hint = 200};
    const std::int32_t guess = predictor.Predict(query);
    EXPECT_EQ(guess, predictor.Predict(query));
    right += guess == 200;
    same_bucket += OraclePredictor::BucketOf(guess) == OraclePredictor::BucketOf(200);
    ++buckets[static_cast<std::size_t>(OraclePredictor::BucketOf(guess))];
  }
  EXPECT_NEAR(right / double{kQueries}, 0.8, 0.01);
  EXPECT_EQ(right, same_bucket);  // a wrong prediction is in another bucket
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const double wanted = static_cast<std::int32_t>(i) == OraclePredictor::BucketOf(200) ? 0.8 : 0.2 / 6;
    EXPECT_NEAR(buckets[i] / double{kQueries}, wanted, 0.01) << i;
  }
}

TEST(OraclePredictor, GuessesNothingThatTheWorkloadNeverHas) {
  OraclePredictor predictor(0, 3, 150);
  int longer = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::int32_t guess = predictor.Predict({.prompt_tokens = i, .max_output_tokens = 40, .hint = 40});
    EXPECT_LE(guess, 150);
    EXPECT_NE(OraclePredictor::BucketOf(guess), OraclePredictor::BucketOf(40));
    longer += guess > 128;
  }
  EXPECT_GT(longer, 400);  // the bucket of the longest is one of three wrong ones
  EXPECT_NE(OraclePredictor(0, 3, 20).Predict({.hint = 10}), 10);  // all answers are in one bucket: still wrong
}

TEST(OraclePredictor, Extremes) {
  const LengthQuery query{.prompt_tokens = 5, .max_output_tokens = 77, .hint = 33};
  EXPECT_EQ(OraclePredictor(1, 1).Predict(query), 33);
  EXPECT_NE(OraclePredictor(0, 1).Predict(query), 33);
  EXPECT_EQ(OraclePredictor(1, 1).Predict({.max_output_tokens = 77}), 77);  // no hint
  EXPECT_EQ(OraclePredictor::BucketOf(1), 0);
  EXPECT_EQ(OraclePredictor::BucketOf(32), 0);
  EXPECT_EQ(OraclePredictor::BucketOf(33), 1);
  EXPECT_EQ(OraclePredictor::BucketOf(5000), OraclePredictor::kBuckets - 1);
}

TEST(PerformanceModel, WeightsAreReadOnceHoweverLittleIsComputed) {
  const PerformanceModel model{
      .step = 1, .per_prefill_token = 0.1, .per_decode_sequence = 0.1, .per_decode_context = 0.01, .dense_floor = 5};
  EXPECT_DOUBLE_EQ(model.SecondsOf({.decode_sequences = 1}), 6);
  // The keys and values that they attend to are read in addition.
  EXPECT_DOUBLE_EQ(model.SecondsOf({.decode_sequences = 10, .decode_context = 100}), 7);
  EXPECT_DOUBLE_EQ(model.SecondsOf({.prefill_tokens = 100, .decode_sequences = 10}), 12);
}

}  // namespace
}  // namespace loramux::presets_test
