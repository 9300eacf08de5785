#include "profile/pace_fit.h"

#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "costs/performance_profile.h"

namespace loramux::pace_fit_test {
namespace {

// A model that predicts 10 ms for every step.
PerformanceModel TenMilliseconds() {
  PerformanceModel model;
  model.step = 10e-3;
  return model;
}

ObservedStep StepAt(TimeNs begin_ms, TimeNs took_ms, bool plain = true) {
  return {.begin = begin_ms * kNsPerMs, .seconds_ns = took_ms * kNsPerMs, .plain = plain};
}

// Adds ten steps that take `took_ms` in total; the model predicts 1 ms for each, plus half of that per sequence.
void AddTen(EngineRun& run, TimeNs begin_ms, TimeNs took_ms, std::int64_t sequences = 0) {
  for (TimeNs i = 0; i < 10; ++i) {
    ObservedStep step{.begin = begin_ms * kNsPerMs + i * took_ms * kNsPerMs / 10,
                      .seconds_ns = took_ms * kNsPerMs / 10};
    step.load.decode_sequences = sequences;
    run.steps.push_back(step);
  }
}
PerformanceModel OneMillisecond() {
  PerformanceModel model;
  model.step = 1e-3;
  model.per_decode_sequence = 0.5e-3;
  return model;
}

// A stretch ends after 50 ms of steps, or after 250 ms of wall-clock time.
TEST(PaceFitTest, AStretchIsWhatAllOfItsStepsTook) {
  EngineRun run;
  // The second step waited for a transfer.
  run.steps = {StepAt(0, 30), StepAt(30, 500, false), StepAt(200, 30), StepAt(230, 36), StepAt(530, 5)};
  const std::vector<PaceStretch> stretches = StretchesOf(TimedStepsOf(run, TenMilliseconds()));
  ASSERT_EQ(stretches.size(), 3U);
  EXPECT_EQ(stretches[0].begin, 0);
  EXPECT_EQ(stretches[0].end, 230 * kNsPerMs);
  EXPECT_DOUBLE_EQ(stretches[0].factor, 3);  // 60 ms measured, 20 ms predicted
  EXPECT_EQ(stretches[1].begin, 230 * kNsPerMs);
  EXPECT_EQ(stretches[1].end, 266 * kNsPerMs);
  EXPECT_DOUBLE_EQ(stretches[1].factor, 3.6);
  EXPECT_DOUBLE_EQ(stretches[2].factor, 0.5);  // long after the previous step
}

TEST(PaceFitTest, RunsFollowEachOtherOverAndOver) {
  EngineRun slow, fast;
  AddTen(slow, 0, 50);
  AddTen(slow, 60, 50, 1);
  slow.end = 130 * kNsPerMs;
  AddTen(fast, 20, 5);
  fast.end = 30 * kNsPerMs;
  const Pace pace = PaceOf({{slow, fast}}, OneMillisecond());
  EXPECT_EQ(pace.period(), 160 * kNsPerMs);
  EXPECT_NEAR(pace.At(0), 5, 1e-9);
  EXPECT_NEAR(pace.At(59 * kNsPerMs), 5, 1e-9);
  EXPECT_NEAR(pace.At(60 * kNsPerMs), 10.0 / 3, 1e-9);
  EXPECT_NEAR(pace.At(149 * kNsPerMs), 10.0 / 3, 1e-9);  // the fast run's first 20 ms have no steps
  EXPECT_NEAR(pace.At(150 * kNsPerMs), 0.5, 1e-9);
  EXPECT_NEAR(pace.At(160 * kNsPerMs), 5, 1e-9);
  EXPECT_EQ(PaceOf({}, TenMilliseconds()).At(7), 1);
}

// Only every other second has steps; the seconds between repeat the ones before them.
TEST(PaceFitTest, WhatNobodySawIsAsWhatCameBefore) {
  EngineRun run;
  for (const TimeNs second : {1, 3}) {
    // The number of sequences: each adds half a millisecond to the prediction.
    for (TimeNs at = 0; at < 1000; at += 50) AddTen(run, second * 1000 + at, 50, at == 500 ? second : 0);
  }
  run.end = 5 * kNsPerSecond;
  const Pace pace = PaceOf({&run, 1}, OneMillisecond());
  EXPECT_EQ(pace.period(), 5 * kNsPerSecond);
  EXPECT_EQ(pace.At(500 * kNsPerMs), 1);  // there is nothing before it to repeat
  for (const auto& [second, like] : std::vector<std::pair<TimeNs, double>>{{1, 1}, {2, 1}, {3, 3}, {4, 3}}) {
    const TimeNs at = second * kNsPerSecond;
    EXPECT_NEAR(pace.At(at), 5, 1e-9) << second;
    EXPECT_NEAR(pace.At(at + 499 * kNsPerMs), 5, 1e-9) << second;
    EXPECT_NEAR(pace.At(at + 500 * kNsPerMs), 50 / (10 + 5 * like), 1e-9) << second;
    EXPECT_NEAR(pace.At(at + 549 * kNsPerMs), 50 / (10 + 5 * like), 1e-9) << second;
    EXPECT_NEAR(pace.At(at + 550 * kNsPerMs), 5, 1e-9) << second;
  }
}

// A stretch counts for its own time only, and not for a period without steps after it, even if that is shorter than the
// longest stretch.
TEST(PaceFitTest, TheLastStretchIsNotHeld) {
  EngineRun run;
  AddTen(run, 0, 50);
  AddTen(run, 50, 50);
  AddTen(run, 100, 50, 1);
  AddTen(run, 350, 50);
  run.end = 400 * kNsPerMs;
  const Pace pace = PaceOf({&run, 1}, OneMillisecond());
  EXPECT_NEAR(pace.At(100 * kNsPerMs), 10.0 / 3, 1e-9);
  EXPECT_NEAR(pace.At(150 * kNsPerMs), 5, 1e-9);
  EXPECT_NEAR(pace.At(249 * kNsPerMs), 5, 1e-9);
  EXPECT_NEAR(pace.At(250 * kNsPerMs), 10.0 / 3, 1e-9);
  EXPECT_NEAR(pace.At(300 * kNsPerMs), 5, 1e-9);
}

// Steps of 10 ms with independent errors of up to one half, on a machine that alternates every second between slower
// and faster by `unrest`.
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

// Errors of single steps must not be taken for the machine's pace.
TEST(PaceFitTest, ChanceIsNotThePace) {
  const EngineRun steady = Scattered(0), restless = Scattered(0.2);
  double squares = 0;
  const std::vector<PaceStretch> stretches = StretchesOf(TimedStepsOf(steady, TenMilliseconds()));
  for (const PaceStretch& stretch : stretches) squares += (stretch.factor - 1) * (stretch.factor - 1);
  EXPECT_GT(std::sqrt(squares / static_cast<double>(stretches.size())), 0.1);  // although the pace is constant
  EXPECT_LT(Unrest(PaceOf({&steady, 1}, TenMilliseconds())), 0.06);
  EXPECT_NEAR(Unrest(PaceOf({&restless, 1}, TenMilliseconds())), 0.2, 0.03);
}

// A gap longer than everything before it; and a single step in a day.
TEST(PaceFitTest, LongGapsRepeatWhatThereIsAndTheTapeIsBounded) {
  EngineRun run;
  AddTen(run, 0, 50);
  AddTen(run, 50, 50, 1);
  AddTen(run, 100, 50, 4);
  AddTen(run, 1000, 50);
  run.end = 1050 * kNsPerMs;
  const Pace pace = PaceOf({&run, 1}, OneMillisecond());
  for (const TimeNs piece : {1, 2, 5}) {
    EXPECT_NEAR(pace.At(piece * 150 * kNsPerMs), 5, 1e-9) << piece;
    EXPECT_NEAR(pace.At((piece * 150 + 50) * kNsPerMs), 10.0 / 3, 1e-9) << piece;
    EXPECT_NEAR(pace.At((piece * 150 + 100) * kNsPerMs), 5.0 / 3, 1e-9) << piece;
  }
  AddTen(run, 200'000'000, 50);
  run.end = run.steps.back().begin + 5 * kNsPerMs;
  const Pace long_pace = PaceOf({&run, 1}, OneMillisecond());
  EXPECT_LE(long_pace.changes().size(), kMaxPaceChanges);
  EXPECT_LE(long_pace.period(), kMaxPacePeriod);
  EXPECT_NEAR(long_pace.At(50 * kNsPerMs), 10.0 / 3, 1e-9);
}

// If a step takes longer than a stretch, its deviation may be the model's error.
TEST(PaceFitTest, OneStepTellsNothingOfTheMachine) {
  EngineRun run;
  for (TimeNs i = 0; i < 8; ++i) run.steps.push_back(StepAt(i * 100, i % 2 == 0 ? 60 : 100));
  run.end = 800 * kNsPerMs;
  const Pace pace = PaceOf({&run, 1}, TenMilliseconds());
  for (TimeNs at = 0; at < 800; at += 50) EXPECT_EQ(pace.At(at * kNsPerMs), 1) << at;
}

}  // namespace
}  // namespace loramux::pace_fit_test
