#include "costs/cpu_assist.h"

#include <gtest/gtest.h>

#include <array>

#include "costs/performance_model.h"

namespace loramux::cpu_assist_test {
namespace {

// 10 layers. A step takes 100 ms, 80 of them in products with the base weights, half of which are beside the group. A
// core computes a token of rank 8 in 4 ms.
PerformanceModel SomeModel() {
  PerformanceModel model;
  model.step = 0.02;
  model.dense_floor = 0.08;
  model.assist = {.layers = 10, .cores = 4};
  model.assist.groups[0] = {.hand_off = 0.002, .per_token_rank = 0.0005, .base_share = 0.5};
  return model;
}

StepLoad Prefill(std::int64_t tokens) { return {.prefill_tokens = tokens, .prefill_sequences = 1}; }

TEST(CpuAssist, CoresAreThoseThatKeepUpWithTheDevice) {
  const PerformanceModel model = SomeModel();
  EXPECT_EQ(TokensPerCore(model, 8), 10);  // 40 ms / 4 ms
  EXPECT_EQ(TokensPerCore(model, 16), 5);
  EXPECT_EQ(TokensPerCore(model, 1 << 20), 1);
  EXPECT_EQ(AssistCores(model, 1, 8), 1);
  EXPECT_EQ(AssistCores(model, 10, 8), 1);
  EXPECT_EQ(AssistCores(model, 11, 8), 2);
  EXPECT_EQ(AssistCores(model, 1000, 8), 4);  // as many as are allotted
}

TEST(CpuAssist, WhatTheProductsBesideItHideCostsNothing) {
  PerformanceModel model = SomeModel();
  std::array rows = {AssistedRows{.tokens = 8, .rank = 8}};
  EXPECT_DOUBLE_EQ(AssistSeconds(model, Prefill(8), rows), 0);  // 2 + 32 ms beside 40
  rows[0].tokens = 100;                                         // on four cores: 2 + 100 ms beside 40
  EXPECT_NEAR(AssistSeconds(model, Prefill(100), rows), 0.062, 1e-12);
  model.assist.per_token = 1e-4;  // nothing is beside copies
  EXPECT_NEAR(AssistSeconds(model, Prefill(100), rows), 0.072, 1e-12);
  // Two adapters share the cores.
  const std::array two = {AssistedRows{.tokens = 50, .rank = 8}, AssistedRows{.tokens = 50, .rank = 8}};
  EXPECT_NEAR(AssistSeconds(model, Prefill(100), two), 0.072, 1e-12);
  EXPECT_EQ(AssistSeconds(model, Prefill(100), {}), 0);
  model.assist.cores = 0;  // in place
  EXPECT_EQ(AssistSeconds(model, Prefill(100), rows), 0);
}

TEST(CpuAssist, EachLayerRunsWhereItCanWhenItsTurnComes) {
  PerformanceModel model = SomeModel();
  model.assist.groups[0].hand_off = 0;
  const double on_device = 0.1;
  const auto step = [&](double begins, double ends) {
    const std::array rows = {AssistedRows{.tokens = 100, .rank = 8, .arrival_begins = begins, .arrival_ends = ends}};
    return AssistedStepSeconds(model, Prefill(100), on_device, rows);
  };
  // A layer takes 10 ms on the device and 16 with the host.
  EXPECT_NEAR(step(-1, 0), 0.1, 1e-12);         // it is there
  EXPECT_NEAR(step(10, 11), 0.16, 1e-12);       // nothing comes in time
  EXPECT_NEAR(step(0, 1e-3), 0.106, 1e-12);     // only the first layer is late
  EXPECT_NEAR(step(0.04, 0.04), 0.118, 1e-12);  // three layers until 48 ms
  // The layers come every 13 ms, slower than the device and faster than the host: the pace is theirs, but for the last.
  EXPECT_NEAR(step(0, 0.13), 0.136, 0.007);
  for (double ends = 0; ends < 0.3; ends += 0.01) {
    EXPECT_GE(step(0, ends), on_device - 1e-12);
    EXPECT_LE(step(0, ends), 0.16 + 1e-12);
  }
}

TEST(CpuAssist, OneAdapterMayArriveBeforeTheOther) {
  PerformanceModel model = SomeModel();
  model.assist.groups[0].hand_off = 0;
  const std::array rows = {AssistedRows{.tokens = 100, .rank = 8, .arrival_begins = -1, .arrival_ends = 0},
                           AssistedRows{.tokens = 50, .rank = 8, .arrival_begins = 9, .arrival_ends = 10}};
  EXPECT_NEAR(AssistedStepSeconds(model, Prefill(150), 0.1, rows), 0.11, 1e-12);  // 200 ms on four cores beside 40
}

TEST(CpuAssist, UnmeasuredAssistanceIsFree) {
  PerformanceModel model = SomeModel();
  model.assist = {};
  EXPECT_FALSE(model.assist.measured());
  const std::array rows = {AssistedRows{.tokens = 100, .rank = 8, .arrival_begins = 1, .arrival_ends = 2}};
  EXPECT_EQ(AssistedStepSeconds(model, Prefill(100), 0.1, rows), 0.1);
}

}  // namespace
}  // namespace loramux::cpu_assist_test
