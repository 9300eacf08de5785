#include "tools/profile/pace_fit.h"

#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "schedule/performance_profile.h"

namespace loramux {
namespace {

// A step takes 10 ms, says the model.
PerformanceModel TenMilliseconds() {
  PerformanceModel model;
  model.step = 10e-3;
  return model;
}

ObservedStep StepAt(TimeNs begin_ms, TimeNs took_ms, bool plain = true) {
  return {.begin = begin_ms * kNsPerMs, .seconds_ns = took_ms * kNsPerMs, .plain = plain};
}

// Stretches of 50 ms of steps, or of 250 that passed.
TEST(PaceFitTest, AStretchIsWhatAllOfItsStepsTook) {
  EngineRun run;
  run.steps = {StepAt(0, 30), StepAt(30, 500, false), StepAt(200, 30), StepAt(230, 36), StepAt(530, 5)};   // the second one waited
  const std::vector<PaceStretch> stretches = StretchesOf(TimedStepsOf(run, TenMilliseconds()));
  ASSERT_EQ(stretches.size(), 3U);
  EXPECT_EQ(stretches[0].begin, 0);
  EXPECT_EQ(stretches[0].end, 230 * kNsPerMs);
  EXPECT_DOUBLE_EQ(stretches[0].factor, 3);           // 60 ms of 20
  EXPECT_EQ(stretches[1].begin, 230 * kNsPerMs);
  EXPECT_EQ(stretches[1].end, 266 * kNsPerMs);
  EXPECT_DOUBLE_EQ(stretches[1].factor, 3.6);
  EXPECT_DOUBLE_EQ(stretches[2].factor, 0.5);         // long after the one before
}

TEST(PaceFitTest, RunsFollowEachOtherOverAndOver) {
  EngineRun slow, fast;
  slow.steps = {StepAt(0, 50), StepAt(60, 60)};
  slow.end = 130 * kNsPerMs;
  fast.steps = {StepAt(20, 5)};
  fast.end = 30 * kNsPerMs;
  const Pace pace = PaceOf({{slow, fast}}, TenMilliseconds());
  EXPECT_EQ(pace.period(), 160 * kNsPerMs);
  EXPECT_EQ(pace.At(0), 5);
  EXPECT_EQ(pace.At(59 * kNsPerMs), 5);
  EXPECT_EQ(pace.At(60 * kNsPerMs), 6);
  EXPECT_EQ(pace.At(149 * kNsPerMs), 6);              // the fast one's first 20 ms nobody saw
  EXPECT_EQ(pace.At(150 * kNsPerMs), 0.5);
  EXPECT_EQ(pace.At(160 * kNsPerMs), 5);
  EXPECT_EQ(PaceOf({}, TenMilliseconds()).At(7), 1);
}

// As where every other second was looked at: those between are as the ones before them.
TEST(PaceFitTest, WhatNobodySawIsAsWhatCameBefore) {
  EngineRun run;
  for (const TimeNs second : {1, 3}) {
    for (TimeNs at = 0; at < 1000; at += 50) run.steps.push_back(StepAt(second * 1000 + at, 50));
    run.steps[run.steps.size() - 10].load.decode_sequences = second;   // of half as much again for each
  }
  run.end = 5 * kNsPerSecond;
  PerformanceModel model = TenMilliseconds();
  model.per_decode_sequence = 5e-3;
  const Pace pace = PaceOf({&run, 1}, model);
  EXPECT_EQ(pace.period(), 5 * kNsPerSecond);
  EXPECT_EQ(pace.At(500 * kNsPerMs), 1);              // nothing before it
  for (const auto& [second, like] : std::vector<std::pair<TimeNs, double>>{{1, 1}, {2, 1}, {3, 3}, {4, 3}}) {
    const TimeNs at = second * kNsPerSecond;
    EXPECT_EQ(pace.At(at), 5) << second;
    EXPECT_EQ(pace.At(at + 499 * kNsPerMs), 5) << second;
    EXPECT_NEAR(pace.At(at + 500 * kNsPerMs), 50 / (10 + 5 * like), 1e-9) << second;
    EXPECT_NEAR(pace.At(at + 549 * kNsPerMs), 50 / (10 + 5 * like), 1e-9) << second;
    EXPECT_EQ(pace.At(at + 550 * kNsPerMs), 5) << second;
  }
}

// Steps of 10 ms, each by itself up to a half more or less, on a machine that is so much slower in one second and faster in the next.
EngineRun Scattered(double unrest) {
  EngineRun run;
  Prng prng(3);
  double at = 0;
  for (int i = 0; i < 2000; ++i) {
    const double pace = static_cast<std::int64_t>(at) % 2 == 0 ? 1 + unrest : 1 - unrest;
    const double seconds = 10e-3 * pace * (0.5 + prng.NextDouble());
    run.steps.push_back({.begin = static_cast<TimeNs>(at * 1e9), .seconds_ns = static_cast<TimeNs>(seconds * 1e9)});
    at += seconds;
  }
  run.end = static_cast<TimeNs>(at * 1e9);
  return run;
}

double Unrest(const Pace& pace) {
  double squares = 0;
  for (const Pace::Change& change : pace.changes()) squares += (change.factor - 1) * (change.factor - 1);
  return std::sqrt(squares / static_cast<double>(pace.changes().size()));
}

// What single steps are off is not taken for the machine.
TEST(PaceFitTest, ChanceIsNotThePace) {
  const EngineRun steady = Scattered(0), restless = Scattered(0.2);
  double squares = 0;
  const std::vector<PaceStretch> stretches = StretchesOf(TimedStepsOf(steady, TenMilliseconds()));
  for (const PaceStretch& stretch : stretches) squares += (stretch.factor - 1) * (stretch.factor - 1);
  EXPECT_GT(std::sqrt(squares / static_cast<double>(stretches.size())), 0.1);   // though nothing changed
  EXPECT_LT(Unrest(PaceOf({&steady, 1}, TenMilliseconds())), 0.06);
  EXPECT_NEAR(Unrest(PaceOf({&restless, 1}, TenMilliseconds())), 0.2, 0.03);
}

// A gap that is longer than all before it; one step in a day.
TEST(PaceFitTest, LongGapsRepeatWhatThereIsAndTheTapeIsBounded) {
  EngineRun run;
  run.steps = {StepAt(0, 100), StepAt(100, 50), StepAt(1000, 50)};
  run.end = 1050 * kNsPerMs;
  const Pace pace = PaceOf({&run, 1}, TenMilliseconds());
  for (const TimeNs piece : {1, 2, 5}) {
    EXPECT_EQ(pace.At(piece * 150 * kNsPerMs), 10) << piece;
    EXPECT_EQ(pace.At((piece * 150 + 100) * kNsPerMs), 5) << piece;
  }
  run.steps.push_back(StepAt(TimeNs{200'000'000}, 50));
  run.end = run.steps.back().begin + 50 * kNsPerMs;
  const Pace long_pace = PaceOf({&run, 1}, TenMilliseconds());
  EXPECT_LE(long_pace.changes().size(), kMaxPaceChanges);
  EXPECT_LE(long_pace.period(), kMaxPacePeriod);
  EXPECT_EQ(long_pace.At(100 * kNsPerMs), 5);
}

}  // namespace
}  // namespace loramux
