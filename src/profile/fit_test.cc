#include "profile/fit.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "base/prng.h"

namespace loramux::fit_test {
namespace {

// A device on which every term matters.
PerformanceModel KnownDevice(LoraCostShape shape) {
  PerformanceModel model;
  model.shape = shape;
  model.step = 2e-3;
  model.per_prefill_token = 6e-4;
  model.per_prefill_sequence = 3e-4;
  model.per_decode_sequence = 9e-4;
  model.per_prefill_attention = 2e-6;
  model.per_decode_context = 3e-6;
  model.per_prefill_context = 2e-6;
  model.token_tile = 12;
  model.per_token_tile = 4e-3;
  model.per_adapter = 2e-4;
  model.per_adapter_token = 1e-4;
  model.per_adapter_token_rank = 4e-6;
  model.per_rank = 1e-5;
  model.per_padded_rank = 5e-6;
  model.per_padded_adapter = 8e-6;
  model.experts = {64, 4};
  model.per_expert = 3e-4;
  model.per_expert_rank = 2e-6;
  return model;
}

StepLoad RandomLoad(Prng& prng) {
  const auto below = [&](std::uint64_t bound) { return static_cast<std::int64_t>(prng.NextBelow(bound)); };
  StepLoad load;
  if (below(2) == 0) {
    load.prefill_tokens = 2 + below(500);
    load.prefill_sequences = 1 + below(8);
    load.prefill_attention = load.prefill_tokens * (1 + below(1000));
    load.prefill_context = load.prefill_tokens + load.prefill_sequences * below(1500);
  }
  if (load.prefill_tokens == 0 || below(2) == 0) {
    load.decode_sequences = 1 + below(128);
    load.decode_context = load.decode_sequences * (1 + below(2000));
  }
  if (below(4) != 0) {
    load.adapter_tokens = 1 + below(static_cast<std::uint64_t>(load.prefill_tokens + load.decode_sequences));
    load.distinct_adapters = 1 + below(static_cast<std::uint64_t>(std::min<std::int64_t>(32, load.adapter_tokens)));
    load.max_rank = 8 << below(4);
    load.rank_sum =
        load.max_rank + (load.distinct_adapters - 1) * (1 + below(static_cast<std::uint64_t>(load.max_rank)));
    load.token_ranks = load.adapter_tokens * load.rank_sum / load.distinct_adapters + below(100);
  }
  return load;
}

// `noise` is relative and uniform.
std::vector<StepMeasurement> Measure(const PerformanceModel& device, int count, double noise, std::uint64_t seed) {
  Prng prng(seed);
  std::vector<StepMeasurement> points;
  for (int i = 0; i < count; ++i) {
    StepMeasurement point{.load = RandomLoad(prng), .held_out = prng.NextDouble() < 0.25};
    point.seconds = device.SecondsOf(point.load) * (1 + noise * (2 * prng.NextDouble() - 1));
    points.push_back(point);
  }
  return points;
}

PerformanceModel Fit(const std::vector<StepMeasurement>& points, LoraCostShape shape) {
  return FitSteps(points, shape, KnownDevice(shape).experts);
}

class FitOfEachShape : public testing::TestWithParam<LoraCostShape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, FitOfEachShape, testing::Values(LoraCostShape::kBgmv, LoraCostShape::kMbgmv));

TEST_P(FitOfEachShape, ExactMeasurementsGiveTheDeviceBack) {
  const PerformanceModel device = KnownDevice(GetParam());
  const PerformanceModel fitted = Fit(Measure(device, 300, 0, 1), GetParam());
  EXPECT_EQ(fitted.shape, GetParam());
  EXPECT_EQ(fitted.token_tile, 12);
  for (const PerformanceTerm& term : PerformanceTerms(GetParam())) {
    EXPECT_NEAR(fitted.*term.coefficient / (device.*term.coefficient), 1, 1e-6) << term.name;
  }
}

TEST_P(FitOfEachShape, NoisyMeasurementsPredictWhatWasHeldOut) {
  const PerformanceModel device = KnownDevice(GetParam());
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const std::vector<StepMeasurement> points = Measure(device, 200, 0.05, seed);
    const PerformanceModel fitted = Fit(points, GetParam());
    std::vector<double> predicted, truth;
    for (const StepMeasurement& point : points) {
      if (!point.held_out) continue;
      predicted.push_back(fitted.SecondsOf(point.load));
      truth.push_back(device.SecondsOf(point.load));
    }
    const FitQuality quality = QualityOf(predicted, truth);
    EXPECT_GT(quality.r2, 0.995) << "seed " << seed;
    // the noise is 2.5 % on average; the error of the fit is smaller
    EXPECT_LT(quality.mean_error, 0.02) << "seed " << seed;
    EXPECT_LT(quality.p90_error, 0.05) << "seed " << seed;
  }
}

TEST_P(FitOfEachShape, HeldOutPointsAreNotLookedAt) {
  std::vector<StepMeasurement> points = Measure(KnownDevice(GetParam()), 100, 0.05, 3);
  const PerformanceModel before = Fit(points, GetParam());
  for (StepMeasurement& point : points) {
    if (point.held_out) point.seconds *= 10;
  }
  const StepLoad load = points[0].load;
  EXPECT_EQ(Fit(points, GetParam()).SecondsOf(load), before.SecondsOf(load));
  for (StepMeasurement& point : points) point.held_out = !point.held_out;
  EXPECT_GT(Fit(points, GetParam()).SecondsOf(load), before.SecondsOf(load) * 5);
}

TEST_P(FitOfEachShape, TermsThatNeverVaryDoNoHarm) {
  // No adapters at all, and as many chunks as tokens: columns of zeros, and equal columns.
  PerformanceModel device = KnownDevice(GetParam());
  Prng prng(4);
  std::vector<StepMeasurement> points;
  for (int i = 0; i < 50; ++i) {
    StepLoad load;
    load.prefill_tokens = load.prefill_sequences = 1 + static_cast<std::int64_t>(prng.NextBelow(100));
    points.push_back({load, device.SecondsOf(load), i % 4 == 0});
  }
  const PerformanceModel fitted = Fit(points, GetParam());
  for (const StepMeasurement& point : points) {
    EXPECT_NEAR(fitted.SecondsOf(point.load) / point.seconds, 1, 1e-6);
  }
  EXPECT_EQ(fitted.per_adapter, 0);
}

// A device with effects beyond the linear terms: decode steps of few tokens are slower, prefill is faster, and prefill
// empties the caches.
TEST_P(FitOfEachShape, FactorsTakeUpWhatTheLinearTermsMiss) {
  PerformanceModel device = KnownDevice(GetParam());
  device.decode_factors = {{1, 1.5}, {16, 1.2}, {64, 1}};
  device.prefill_factors = {{2, 0.8}};
  device.mixed_factors = {{2, 0.9}, {100, 1.3}};
  std::vector<StepMeasurement> points = Measure(device, 8000, 0.02, 7);
  Prng prng(8);
  for (StepMeasurement& point : points) {
    point.load.after_prefill = prng.NextBelow(2) == 0 ? 1 + static_cast<std::int32_t>(prng.NextBelow(kColdSteps)) : 0;
    if (point.load.prefill_tokens == 0 && point.load.after_prefill > 0) {
      point.seconds +=
          0.02 * std::pow(0.6, point.load.after_prefill - 1) + 1e-3 * static_cast<double>(point.load.decode_sequences);
    }
    if (point.held_out) point.seconds *= 100;  // the fit must not see it
  }
  PerformanceModel model = KnownDevice(GetParam());
  FitFactors(points, 20, model);
  EXPECT_NEAR(model.after_prefill, 0.02, 0.004);
  EXPECT_NEAR(model.after_prefill_decay, 0.6, 0.05);
  EXPECT_NEAR(model.after_prefill_per_sequence, 1e-3, 1e-4);
  for (const StepMeasurement& point : points) {
    const double measured = point.held_out ? point.seconds / 100 : point.seconds;
    EXPECT_NEAR(model.SecondsOf(point.load) / measured, 1, 0.1);
  }
  for (const FactorTable table : kFactorTables) {
    const std::vector<StepFactor>& factors = model.*table;
    for (std::size_t i = 1; i < factors.size(); ++i) EXPECT_LT(factors[i - 1].tokens, factors[i].tokens);
    EXPECT_FALSE(factors.empty());
  }
  EXPECT_GT(model.decode_factors.size(), 8U);
}

TEST(FactorsTest, FewPointsShareAPlace) {
  PerformanceModel model;
  model.step = 1;
  std::vector<StepMeasurement> points;
  for (int i = 0; i < 9; ++i) points.push_back({.load = {.decode_sequences = 1 << i}, .seconds = 2});
  FitFactors(points, 20, model);
  ASSERT_EQ(model.decode_factors.size(), 1U);
  EXPECT_DOUBLE_EQ(model.decode_factors[0].factor, 2);
  EXPECT_NEAR(model.decode_factors[0].tokens, 16, 1e-9);
  EXPECT_TRUE(model.prefill_factors.empty());
  EXPECT_EQ(model.after_prefill, 0);
}

// Disturbed steps change the mean predicted for steps of their kind, and for no other kind.
TEST(FactorsTest, WhatDisturbedStepsTookStaysWithTheirKind) {
  PerformanceModel model;
  model.step = 1e-3;
  std::vector<StepMeasurement> points;
  const auto add = [&](std::int64_t prompt, std::int64_t decodes, double seconds) {
    const StepLoad load{.prefill_tokens = prompt, .decode_sequences = decodes, .prefill_sequences = prompt > 0};
    points.push_back({.load = load, .seconds = seconds});
  };
  for (int i = 0; i < 20000; ++i) add(0, 1, i % 20 == 0 ? 5e-3 : 1e-3);   // mean: 1.2 ms
  for (int i = 0; i < 20000; ++i) add(0, 4, i % 20 == 10 ? 3e-3 : 1e-3);  // 1.1 ms
  for (int i = 0; i < 40; ++i) add(0, 16, i == 7 ? 41e-3 : 1e-3);         // mean: 2 ms, because of a single step
  for (int i = 0; i < 500; ++i) add(100, 0, 1e-3);
  FitFactors(points, 30, model);
  EXPECT_NEAR(model.SecondsOf({.decode_sequences = 1}), 1.2e-3, 0.01e-3);
  EXPECT_NEAR(model.SecondsOf({.decode_sequences = 4}), 1.1e-3, 0.01e-3);
  EXPECT_NEAR(model.SecondsOf({.decode_sequences = 16}), 1.17e-3, 0.03e-3);  // mostly the share of the whole table
  EXPECT_NEAR(model.SecondsOf({.prefill_tokens = 100, .prefill_sequences = 1}), 1e-3, 0.01e-3);
}

TEST(NonNegativeLeastSquaresTest, NeverNegativeAndNoNeighbourIsBetter) {
  // If the unconstrained solution is negative somewhere, clamping it does not give the constrained solution. The test
  // checks that no feasible direction improves the result (Karush, Kuhn and Tucker).
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Prng prng(seed);
    const std::size_t columns = 1 + prng.NextBelow(8), rows = columns + prng.NextBelow(20);
    std::vector<std::vector<double>> a(rows, std::vector<double>(columns));
    std::vector<double> b(rows);
    for (std::size_t i = 0; i < rows; ++i) {
      for (double& value : a[i]) value = prng.NextDouble() - 0.3;
      b[i] = prng.NextDouble() - 0.4;
    }
    const std::vector<double> x = NonNegativeLeastSquares(a, b);
    for (std::size_t j = 0; j < columns; ++j) {
      double gradient = 0;  // gradient of the sum of squares, downhill
      for (std::size_t i = 0; i < rows; ++i) {
        double residual = b[i];
        for (std::size_t k = 0; k < columns; ++k) residual -= a[i][k] * x[k];
        gradient += a[i][j] * residual;
      }
      ASSERT_GE(x[j], 0);
      EXPECT_LE(gradient, 1e-8) << "seed " << seed;
      if (x[j] > 1e-9) {
        EXPECT_NEAR(gradient, 0, 1e-8) << "seed " << seed;
      }
    }
  }
}

TEST(QualityTest, AsComputedByHand) {
  const std::vector<double> measured = {1, 2, 3, 4}, predicted = {1.1, 2, 2.7, 5};
  const FitQuality quality = QualityOf(predicted, measured);
  EXPECT_EQ(quality.points, 4);
  EXPECT_NEAR(quality.r2, 1 - (0.01 + 0 + 0.09 + 1) / 5, 1e-12);
  EXPECT_NEAR(quality.mean_error, (0.1 + 0 + 0.1 + 0.25) / 4, 1e-12);
  EXPECT_NEAR(quality.p90_error, 0.25, 1e-12);
  std::vector<double> ten_measured(10, 1.0), ten_predicted;
  for (int i = 1; i <= 10; ++i) ten_predicted.push_back(1 + 0.01 * i);
  EXPECT_NEAR(QualityOf(ten_predicted, ten_measured).p90_error, 0.09, 1e-12);  // nine of ten are at most this
  EXPECT_EQ(QualityOf({}, {}).points, 0);
}

TEST(LinkTest, LatencyAndBandwidth) {
  std::vector<double> bytes, seconds;
  Prng prng(5);
  for (double size = 1e4; size < 1e9; size *= 1.7) {
    bytes.push_back(size);
    seconds.push_back((50e-6 + size / 8e9) * (1 + 0.02 * (prng.NextDouble() - 0.5)));
  }
  const PerformanceModel::Link link = FitLink(bytes, seconds);
  EXPECT_NEAR(link.latency, 50e-6, 1e-6);
  EXPECT_NEAR(link.bytes_per_second, 8e9, 8e7);
}

TEST(LinkTest, TimesThatDoNotGrowStillGiveABandwidth) {
  const PerformanceModel::Link link = FitLink(std::vector<double>{100, 200}, std::vector<double>{2.0, 1.0});
  EXPECT_GT(link.bytes_per_second, 0);
  EXPECT_TRUE(std::isfinite(link.bytes_per_second));
}

TEST(LinkTest, RatesAreThoseThatAProfileMayHold) {
  EXPECT_EQ(FitLink(std::vector<double>{1, 2}, std::vector<double>{1e30, 1e30}).bytes_per_second, kMinBytesPerSecond);
  EXPECT_EQ(FitLink(std::vector<double>{1e30, 2e30}, std::vector<double>{1, 2}).bytes_per_second, kMaxBytesPerSecond);
}

TEST(CaraServeFormTest, FindsTheLineOfEachShape) {
  Prng prng(6);
  for (const LoraCostShape shape : {LoraCostShape::kBgmv, LoraCostShape::kMbgmv}) {
    std::vector<StepMeasurement> points;
    for (int i = 0; i < 40; ++i) {
      StepLoad load;
      load.decode_sequences = 1 + static_cast<std::int64_t>(prng.NextBelow(32));
      load.max_rank = 8 << prng.NextBelow(4);
      load.token_ranks = load.max_rank + static_cast<std::int64_t>(prng.NextBelow(1000));
      const std::int64_t work =
          shape == LoraCostShape::kBgmv ? load.decode_sequences * load.max_rank : load.token_ranks;
      points.push_back({load,
                        0.02 + 1e-4 * static_cast<double>(load.decode_sequences) + 1e-5 * static_cast<double>(work),
                        i % 3 == 0});
    }
    EXPECT_NEAR(CaraServeForm(points, shape).r2, 1, 1e-9);
    const auto other = shape == LoraCostShape::kBgmv ? LoraCostShape::kMbgmv : LoraCostShape::kBgmv;
    EXPECT_LT(CaraServeForm(points, other).r2, 0.9);
  }
}

}  // namespace
}  // namespace loramux::fit_test
