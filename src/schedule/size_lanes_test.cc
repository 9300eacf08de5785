#include "schedule/size_lanes.h"

#include <cmath>
#include <gtest/gtest.h>

#include "base/prng.h"

namespace loramux {
namespace {

double SumOfSquares(std::span<const double> values) {
  double mean = 0, sum = 0;
  for (const double value : values) mean += value / static_cast<double>(values.size());
  for (const double value : values) sum += (value - mean) * (value - mean);
  return sum;
}

// Tries every partition.
double Best(std::span<const double> sorted, std::int32_t count) {
  if (sorted.empty()) return 0;
  if (count == 1) return SumOfSquares(sorted);
  double best = SumOfSquares(sorted);
  for (std::size_t cut = 1; cut < sorted.size(); ++cut) {
    best = std::min(best, SumOfSquares(sorted.subspan(0, cut)) + Best(sorted.subspan(cut), count - 1));
  }
  return best;
}

TEST(SizeLanes, ClustersAreTheBestOfAllPartitions) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    Prng prng(seed);
    std::vector<double> values(1 + prng.NextBelow(18));
    for (double& value : values) value = static_cast<double>(prng.NextBelow(seed % 3 == 0 ? 5 : 1000)) / 100;
    std::sort(values.begin(), values.end());
    for (std::int32_t count = 1; count <= 4; ++count) {
      const Clusters clusters = ClusterSorted(values, count);
      ASSERT_NEAR(clusters.sum_of_squares, Best(values, count), 1e-9);
      ASSERT_LE(clusters.begins.size(), static_cast<std::size_t>(count));
      ASSERT_EQ(clusters.begins[0], 0u);
      for (std::size_t i = 1; i < clusters.means.size(); ++i) ASSERT_LT(clusters.means[i - 1], clusters.means[i]);
    }
  }
}

TEST(SizeLanes, QuotasShareAllTokens) {
  const LaneLoad loads[] = {{.largest_tokens = 100, .seconds = 1, .arrivals_per_second = 3.8},
                            {.largest_tokens = 400, .seconds = 2, .arrivals_per_second = 0.8}};
  // Minima 100 x 1 x (0.2 + 3.8) = 400 and 400 x 2 x (0.2 + 0.8) = 800.
  for (const double total : {12000.0, 300.0}) {   // more than the minima; less
    const std::vector<double> quotas = LaneQuotas(loads, total, 5);
    EXPECT_NEAR(quotas[0], total / 3, 1e-9);
    EXPECT_NEAR(quotas[1], total * 2 / 3, 1e-9);
  }
  const LaneLoad idle[] = {{}, {.largest_tokens = 100, .seconds = 10, .arrivals_per_second = 10}};
  EXPECT_GT(LaneQuotas(idle, 1000, 5)[0], 0);
}

void Arrive(SizeLanes& lanes, std::int64_t input, std::int64_t output, std::int64_t adapter, TimeNs now) {
  lanes.SawArrival({.input_tokens = input, .output_tokens = output, .adapter_tokens = adapter}, now);
}

TEST(SizeLanes, TheSizeIsChameleons) {
  SizeLanes lanes({}, 1000);
  Arrive(lanes, 1000, 500, 200, 0);
  Arrive(lanes, 10, 10, 50, 0);
  EXPECT_DOUBLE_EQ(lanes.SizeOf({1000, 500, 200}), 1.0);
  EXPECT_DOUBLE_EQ(lanes.SizeOf({500, 100, 100}), (0.4 * 0.5 + 0.6 * 0.2) * 0.5);
  EXPECT_DOUBLE_EQ(lanes.SizeOf({500, 100, 0}), (0.4 * 0.5 + 0.6 * 0.2) * 0.25);   // the base model: as the smallest
  SizeLanes sum({.form = RequestSizeForm::kSum}, 1000), output({.form = RequestSizeForm::kOutputOnly}, 1000);
  for (SizeLanes* other : {&sum, &output}) {
    Arrive(*other, 1000, 500, 200, 0);
    Arrive(*other, 10, 10, 50, 0);
  }
  EXPECT_DOUBLE_EQ(sum.SizeOf({500, 100, 100}), (0.4 * 0.5 + 0.6 * 0.2 + 0.5) / 2);
  EXPECT_DOUBLE_EQ(output.SizeOf({500, 100, 100}), 0.2);
}

SizeLanes Fitted(SizeLanesOptions options, std::int64_t (*output_of)(std::uint64_t)) {
  SizeLanes lanes(options, 10000);
  Prng prng(7);
  for (int i = 0; i < 1000; ++i) Arrive(lanes, 1, output_of(prng.NextBelow(1000)), 0, i * kNsPerMs);
  EXPECT_TRUE(lanes.Refit(kNsPerSecond));
  EXPECT_FALSE(lanes.Refit(kNsPerSecond));   // not before there is more to see
  return lanes;
}

TEST(SizeLanes, AsManyLanesAsThereAreSizes) {
  const auto two = [](std::uint64_t random) -> std::int64_t { return random < 800 ? 10 + random / 100 : 500 + random / 10; };
  const auto three = [](std::uint64_t random) -> std::int64_t { return (random % 3) * 300 + 20 + random / 100; };
  const auto even = [](std::uint64_t random) -> std::int64_t { return random + 1; };
  EXPECT_EQ(Fitted({}, two).lanes(), 2);
  EXPECT_EQ(Fitted({}, three).lanes(), 3);
  EXPECT_EQ(Fitted({}, even).lanes(), 3);
  EXPECT_EQ(Fitted({}, [](std::uint64_t) -> std::int64_t { return 5; }).lanes(), 1);
  // "Minimal WCSS" sees four in all of them.
  EXPECT_EQ(Fitted({.count_rule = LaneCountRule::kLeastSquares}, two).lanes(), 4);
  EXPECT_EQ(Fitted({.count_rule = LaneCountRule::kLeastSquares}, even).lanes(), 4);
  EXPECT_EQ(Fitted({.fixed = true}, two).lanes(), 4);
}

TEST(SizeLanes, CutOffsLieInTheMiddle) {
  const SizeLanes lanes = Fitted({}, [](std::uint64_t random) -> std::int64_t { return random % 2 == 0 ? 100 : 1000; });
  ASSERT_EQ(lanes.lanes(), 2);
  EXPECT_EQ(lanes.LaneOf({1, 540, 0}), 0);
  EXPECT_EQ(lanes.LaneOf({1, 560, 0}), 1);
  EXPECT_NEAR(lanes.Quota(0) + lanes.Quota(1), 10000, 1e-6);
  EXPECT_LT(lanes.Quota(0), lanes.Quota(1));
}

TEST(SizeLanes, RefitsWhenArrivalsDoubledAndThenAfterTheInterval) {
  SizeLanes lanes({}, 10000);
  int fits = 0;
  for (int i = 0; i < 500; ++i) {
    Arrive(lanes, 1, 1 + i % 7, 0, i);
    fits += lanes.Refit(i);
  }
  EXPECT_EQ(fits, 3);   // at 100, 200 and 400
  EXPECT_FALSE(lanes.Refit(299 * kNsPerSecond));
  EXPECT_TRUE(lanes.Refit(301 * kNsPerSecond));
  EXPECT_FALSE(lanes.Refit(700 * kNsPerSecond));   // nothing new
}

}  // namespace
}  // namespace loramux
