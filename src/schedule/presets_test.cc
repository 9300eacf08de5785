#include "schedule/presets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "costs/performance_model.h"
#include "schedule/predict/oracle_predictor.h"
#include "schedule/queue/queue_order.h"
#include "schedule/system_settings.h"

namespace loramux::presets_test {
namespace {

TEST(Presets, NameThingsThatExist) {
  std::set<std::string_view> names;
  for (const Preset& preset : Presets()) {
    EXPECT_TRUE(names.insert(preset.name).second) << preset.name;
    EXPECT_TRUE(FindCacheRegime(preset.spec.cache).ok()) << preset.name;
    const std::vector<std::string> orders = QueueOrderNames();
    EXPECT_NE(std::find(orders.begin(), orders.end(), preset.spec.queue), orders.end()) << preset.name;
    EXPECT_EQ(FindPreset(preset.name).value().name, preset.name);
  }
  const auto unknown = FindPreset("orca");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("chameleon-nocache"), std::string::npos);
}

SystemSpec Completed(std::string_view preset, std::int64_t max_model_len = 10'000) {
  SystemSpec spec = FindPreset(preset).value().spec;
  EXPECT_TRUE(Complete(spec, max_model_len).ok());
  return spec;
}

TEST(Presets, AreTheSystemsThatTheyAreNamedAfter) {
  SystemSpec spec = Completed("chameleon");
  EXPECT_EQ(spec.queue, "mlq");
  EXPECT_EQ(spec.fairness.policy, FairnessPolicy::kNone);
  EXPECT_TRUE(spec.keep_idle_adapters);
  EXPECT_FALSE(spec.keep_history);
  EXPECT_GT(spec.whole_prompt_tokens, 0);
  EXPECT_TRUE(spec.separate_phases);
  EXPECT_EQ(spec.cold_start, ColdStart::kHold);
  EXPECT_GE(spec.prefill_chunk, 10'000);
  EXPECT_GE(spec.max_batch_tokens, 10'000 + spec.max_running);  // any prompt fits beside all decodes
  EXPECT_FALSE(spec.spread_prompts);
  EXPECT_FALSE(spec.load_on_arrival);
  EXPECT_FALSE(spec.reserve_output);  // its quotas reserve what it predicts
  EXPECT_EQ(spec.decode_turns, 1);    // Chameleon's scheduler admits requests after every step
  // "Non-preemptive"; all of a queue, by quotas alone (algorithm 1).
  EXPECT_EQ(spec.discard_share, 0);
  EXPECT_FALSE(spec.overdue_first);
  EXPECT_GE(spec.lookahead, 1 << 20);
  spec = Completed("loramux");
  EXPECT_TRUE(spec.spread_prompts);
  EXPECT_TRUE(spec.load_on_arrival);
  EXPECT_TRUE(spec.keep_history);
  EXPECT_EQ(spec.fairness.policy, FairnessPolicy::kVtc);
  EXPECT_EQ(spec.max_batch_tokens, SystemSpec().max_batch_tokens);
  EXPECT_EQ(spec.prefill_chunk, spec.max_batch_tokens);
  spec = Completed("s-lora");
  EXPECT_FALSE(spec.keep_idle_adapters);
  EXPECT_EQ(spec.queue, "fifo");
  EXPECT_EQ(spec.decode_turns, 10);
  EXPECT_TRUE(spec.reserve_output);
  EXPECT_EQ(spec.discard_share, 0);
  spec = Completed("chameleon");
  EXPECT_EQ(spec.lane_count, LaneCountRule::kLeastSquares);
  EXPECT_EQ(spec.most_lanes, 4);
  EXPECT_EQ(spec.prefetch_lookahead, 64);
  EXPECT_EQ(Completed("loramux-mlq").lane_count, LaneCountRule::kWorthIt);
  for (const char* name : {"fastlibra", "fastlibra-wom", "fastlibra-wos", "fastlibra-wol", "vllm"}) {
    spec = Completed(name);
    EXPECT_EQ(spec.page_tokens, 32) << name;  // "blocks of 32 tokens"
    EXPECT_EQ(spec.swap_out, SwapOut::kEvicted) << name;
    EXPECT_EQ(spec.host_copies, HostCopies::kRegistered) << name;
    EXPECT_EQ(spec.proactive_swapping, name != std::string_view("vllm"));
    EXPECT_EQ(spec.swapping.upper, 0.95);
    EXPECT_EQ(spec.swapping.lower, 0.70);
    EXPECT_EQ(spec.swapping.interval, 100 * kNsPerMs);
    EXPECT_EQ(spec.batch_window, 5 * kNsPerSecond);
  }
  EXPECT_EQ(Completed("loramux").swap_out, SwapOut::kAhead);
}

TEST(Presets, AreVllmLoraAndCaraServe) {
  SystemSpec spec = Completed("vllm-lora-batch32");
  EXPECT_EQ(spec.host_copies, HostCopies::kAlways);
  EXPECT_EQ(spec.max_distinct_adapters, 32);
  EXPECT_EQ(spec.prefetch_lookahead, 10);
  EXPECT_GT(spec.adapter_share, 0);
  EXPECT_EQ(spec.whole_prompt_tokens, 0);
  EXPECT_FALSE(spec.separate_phases);
  EXPECT_EQ(spec.cold_start, ColdStart::kOverlap);
  EXPECT_EQ(spec.adapter_bound, AdapterBound::kStep);
  EXPECT_EQ(spec.max_batch_tokens, SystemSpec().max_batch_tokens);
  for (const std::string_view name : {"caraserve", "ondmd", "cached"}) {
    spec = Completed(name);
    EXPECT_TRUE(spec.separate_phases) << name;
    EXPECT_EQ(spec.decode_turns, 0) << name;
    EXPECT_FALSE(spec.keep_history) << name;
  }
  EXPECT_EQ(Completed("hf-peft").max_distinct_adapters, 1);
  EXPECT_TRUE(FindPreset("hf-peft")->all_on_device);
  spec = Completed("punica");
  EXPECT_FALSE(spec.separate_phases);
  EXPECT_EQ(spec.whole_prompt_tokens, 1);
  EXPECT_FALSE(spec.keep_idle_adapters);
}

// "With 12 GB allocated to the adapter pool and 160 MB per adapter, the pool holds 76", in pages of 2 MB.
TEST(SystemSpec, APoolInBytesHoldsTheDocumentsSeventySixAdapters) {
  constexpr std::int64_t kMiB = 1 << 20;
  SystemSpec spec = FindPreset("vllm-lora-fifo").value().spec;
  spec.adapter_bytes = 12'288 * kMiB;
  ASSERT_TRUE(Complete(spec, 5000).ok());
  const std::int64_t device_pages = (12'288 + 30'720) / 2;
  EXPECT_EQ(AdapterPartPages(spec, device_pages, 2 * kMiB), 12'288 / 2);
  EXPECT_EQ(AdapterPartPages(spec, device_pages, 2 * kMiB) / (160 / 2), 76);
  EXPECT_EQ(spec.adapter_share, 0) << "the regime's fifth still counts";
  EXPECT_EQ(AdapterPartPages(spec, 100, 2 * kMiB), 99) << "nothing is left for keys and values";
  spec.adapter_bytes = 0;
  ASSERT_TRUE(Complete(spec, 5000).ok());
  EXPECT_EQ(AdapterPartPages(spec, 1000, 2 * kMiB), 200);
}

TEST(SystemSpec, WhatIsGivenWinsOverTheRegimeAndWholePrompts) {
  SystemSpec spec = FindPreset("s-lora").value().spec;
  spec.whole_prompt_tokens = 9000;
  spec.adapter_share = 0.3;
  ASSERT_TRUE(Complete(spec, 5000).ok());
  EXPECT_EQ(spec.whole_prompt_tokens, 9000);
  EXPECT_EQ(spec.max_batch_tokens, 9000 + spec.max_running);
  EXPECT_EQ(spec.adapter_share, 0.3);
  const SystemSpec once = spec;
  ASSERT_TRUE(Complete(spec, 5000).ok());
  for (const Setting& setting : kSettings) EXPECT_EQ(setting.get(spec), setting.get(once)) << setting.key;
  spec.cache = "none";
  EXPECT_FALSE(Complete(spec, 5000).ok());
  SystemSpec chunked{.max_batch_tokens = 100, .prefill_chunk = 30};
  ASSERT_TRUE(Complete(chunked, 5000).ok());
  EXPECT_EQ(chunked.prefill_chunk, 30);
  EXPECT_EQ(SystemSpec{.max_batch_tokens = 100}.Chunk(), 100);
}

// Each row leads to a field of its own, and to that alone. Its default is valid, and an operator finds it by one flag.
TEST(SystemSpec, TheTableDescribesEachFieldOnce) {
  std::set<std::string_view> keys, flags;
  for (const Setting& setting : kSettings) {
    SCOPED_TRACE(setting.key);
    EXPECT_TRUE(keys.insert(setting.key).second);
    EXPECT_EQ(setting.group == SettingGroup::kNoFlag, setting.flag.empty());
    if (!setting.flag.empty()) {
      EXPECT_TRUE(flags.insert(setting.flag).second);
      EXPECT_FALSE(setting.text.empty());
    }
    const SystemSpec plain;
    SystemSpec changed;
    SettingValue value = setting.get(plain);
    if (auto* on = std::get_if<bool>(&value)) *on = !*on;
    if (auto* number = std::get_if<std::int64_t>(&value)) {
      EXPECT_LE(*number, setting.range.high);
      ++*number;
    }
    if (auto* number = std::get_if<double>(&value)) {
      EXPECT_LE(*number, setting.range.high);
      *number += 0.25;
    }
    if (auto* text = std::get_if<std::string>(&value)) *text += "x";
    setting.set(changed, value);
    for (const Setting& other : kSettings) {
      EXPECT_EQ(other.get(changed) != other.get(plain), other.key == setting.key) << other.key;
    }
  }
}

TEST(SystemSpec, PresetsKeepWhatAnOperatorDecides) {
  SystemSpec from{.cache = "lru", .max_running = 7, .age_bound = 3, .objective = 5}, to = FindPreset("s-lora")->spec;
  from.fairness.max_wait = 4;
  TakeOperatorsSettings(from, to);
  EXPECT_EQ(to.max_running, 7);
  EXPECT_EQ(to.age_bound, 3);
  EXPECT_EQ(to.objective, 5);
  EXPECT_EQ(to.fairness.max_wait, 4);
  EXPECT_EQ(to.cache, "s-lora");
  EXPECT_TRUE(to.reserve_output);
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
