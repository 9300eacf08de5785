#include "profile/engine_fit.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "base/prng.h"

namespace loramux::engine_fit_test {
namespace {

// Steps of one to eight sequences that take 1.5 times as long as the linear terms predict; some waited for a transfer.
EngineRun SlowRun() {
  EngineRun run;
  TimeNs ended = 0;
  for (int i = 0; i < 400; ++i) {
    ObservedStep step;
    const bool after_idling = i % 50 == 0;  // at times no request arrived
    step.load.decode_sequences = after_idling ? 0 : 1 + i % 8;
    step.load.prefill_tokens = after_idling ? 16 : 0;
    // The engine's thread was delayed before one step in twenty.
    step.gap = i == 0 ? -1 : after_idling ? 20 * kNsPerMs : i % 20 == 11 ? 61 * kNsPerUs : kNsPerUs;
    step.seconds_ns = (150 + 75 * step.load.decode_sequences) * kNsPerUs;
    step.plain = i % 7 != 0;
    if (!step.plain) step.seconds_ns *= 9;  // it waited for a transfer
    step.begin = ended + std::max<TimeNs>(0, step.gap);
    ended = step.begin + step.seconds_ns;
    run.steps.push_back(step);
  }
  run.end = ended;
  // The second request arrives while the first is served; the others find the engine idle.
  run.requests = {{.sent = 1000, .seen = 1050, .first_token = 2000, .last_token = 5000, .tokens = 2},
                  {.sent = 3000, .seen = 4900, .first_token = 5000, .last_token = 6000, .tokens = 2},
                  {.sent = 7000, .seen = 7060, .first_token = 7500, .last_token = 8000, .tokens = 2},
                  {.sent = 9000, .seen = 9070, .first_token = 9500, .last_token = 9600, .tokens = 2}};
  return run;
}

PerformanceProfile LinearProfile() {
  PerformanceProfile profile;
  for (PerformanceModel* model : {&profile.mbgmv.model, &profile.bgmv.model}) {
    model->step = 100e-6;
    model->per_decode_sequence = 50e-6;
  }
  profile.bgmv.model.shape = LoraCostShape::kBgmv;
  return profile;
}

TEST(EngineFitTest, FactorsGapsAndLatencyOfRuns) {
  PerformanceProfile profile = LinearProfile();
  FitEngine({{SlowRun(), SlowRun()}}, LoraCostShape::kMbgmv, profile);
  EXPECT_NEAR(profile.submit_latency, 60e-9, 1e-15);
  EXPECT_NEAR(profile.between_steps, 4e-6, 0.2e-6);
  EXPECT_EQ(profile.bgmv.model.between_steps, profile.between_steps);
  EXPECT_EQ(profile.bgmv.model.submit_latency, profile.submit_latency);
  const StepLoad load{.decode_sequences = 6};
  EXPECT_NEAR(profile.mbgmv.model.SecondsOf(load), 600e-6, 1e-9);
  EXPECT_NEAR(profile.bgmv.model.SecondsOf(load), 400e-6, 1e-9);  // the engine did not run with this variant
  EXPECT_TRUE(profile.bgmv.model.decode_factors.empty());
  EXPECT_EQ(profile.bgmv.engine.points, 0);
  // About a quarter of the 684 plain steps is held out.
  EXPECT_GT(profile.mbgmv.engine.points, 100);
  EXPECT_LT(profile.mbgmv.engine.points, 250);
  EXPECT_NEAR(profile.mbgmv.engine.mean_error, 0, 1e-6);
  EXPECT_NEAR(profile.mbgmv.engine_linear.mean_error, 1.0 / 3, 1e-6);
  // Apart from the factors, the machine's pace was constant.
  EXPECT_EQ(profile.pace.period(), 2 * SlowRun().end);
  for (const Pace::Change& change : profile.pace.changes()) EXPECT_NEAR(change.factor, 1, 1e-6);
}

TEST(EngineFitTest, WhatWasFittedIsWhatAFileHolds) {
  PerformanceProfile profile = LinearProfile();
  profile.device = "a test's";
  profile.threads = 2;
  profile.base = {.name = "m",
                  .digest = "d",
                  .hidden_size = 8,
                  .num_layers = 1,
                  .num_heads = 1,
                  .num_kv_heads = 1,
                  .head_dim = 8,
                  .intermediate_size = 8,
                  .vocab_size = 8,
                  .dtype = "F32",
                  .kv_dtype = "F32",
                  .page_tokens = 16};
  profile.max_batch_tokens = profile.max_running = profile.max_positions = 64;
  for (PerformanceModel* model : {&profile.mbgmv.model, &profile.bgmv.model}) {
    for (PerformanceModel::Link* link : {&model->disk, &model->host_to_device, &model->device_to_host})
      link->bytes_per_second = 1e9;
  }
  FitEngine({{SlowRun()}}, LoraCostShape::kMbgmv, profile);
  const auto read = ParsePerformanceProfile(PerformanceProfileAsJson(profile), "FILE");
  ASSERT_TRUE(read.ok()) << read.error().message;
  for (std::int64_t sequences = 1; sequences < 20; ++sequences) {
    const StepLoad load{.decode_sequences = sequences};
    EXPECT_EQ(read->mbgmv.model.SecondsOf(load), profile.mbgmv.model.SecondsOf(load));
  }
  EXPECT_EQ(read->mbgmv.model.submit_latency, profile.submit_latency);
  EXPECT_EQ(read->pace.period(), profile.pace.period());
  EXPECT_FALSE(read->pace.changes().empty());
}

// Extremely disturbed steps must still give a table that the file can hold.
TEST(EngineFitTest, AbsurdStepsGiveFactorsWithinBounds) {
  EngineRun run = SlowRun();
  for (ObservedStep& step : run.steps) step.seconds_ns *= 1'000'000;
  PerformanceProfile profile = LinearProfile();
  FitEngine({{run}}, LoraCostShape::kMbgmv, profile);
  for (const StepFactor& at : profile.mbgmv.model.decode_factors) EXPECT_LE(at.factor, kMaxFactor);
}

}  // namespace
}  // namespace loramux::engine_fit_test
