#include "schedule/queue/size_lanes.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

#include "base/prng.h"

namespace loramux::size_lanes_test {
namespace {

double SumOfSquares(std::span<const double> values) {
  double mean = 0, sum = 0;
  for (const double value : values) mean += value / static_cast<double>(values.size());
  for (const double value : values) sum += (value - mean) * (value - mean);
  return sum;
}

// The least sum of squares, by trying every partition.
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
  // The minima are 100 x 1 x (0.2 + 3.8) = 400 and 400 x 2 x (0.2 + 0.8) = 800.
  for (const double total : {12000.0, 300.0}) {  // more than the minima, and less
    const std::vector<double> quotas = LaneQuotas(loads, total, 5);
    EXPECT_NEAR(quotas[0], total / 3, 1e-9);
    EXPECT_NEAR(quotas[1], total * 2 / 3, 1e-9);
  }
  const LaneLoad idle[] = {{}, {.largest_tokens = 100, .seconds = 10, .arrivals_per_second = 10}};
  EXPECT_GT(LaneQuotas(idle, 1000, 5)[0], 0);
}

// Tok_min >= S x D x (1 / SLO + lambda), and "the total number of available tokens must be greater than or equal to"
// the sum over the queues.
TEST(SizeLanes, TheLeastTokensOfALane) {
  EXPECT_DOUBLE_EQ(LeastTokens({.largest_tokens = 400, .seconds = 2, .arrivals_per_second = 0.8}, 5), 800);
  EXPECT_DOUBLE_EQ(LeastTokens({.largest_tokens = 100, .seconds = 1, .arrivals_per_second = 3.8}, 5), 400);
}

SizeLanes Lanes(SystemSpec spec, double total_tokens) {
  spec.total_tokens = total_tokens;
  return SizeLanes(std::move(spec));
}

void Arrive(SizeLanes& lanes, std::int64_t input, std::int64_t output, std::int64_t adapter, TimeNs now) {
  lanes.SawArrival({.input_tokens = input, .output_tokens = output, .adapter_tokens = adapter}, now);
}

TEST(SizeLanes, TheSizeIsChameleons) {
  SizeLanes lanes = Lanes({}, 1000);
  Arrive(lanes, 1000, 500, 200, 0);
  Arrive(lanes, 10, 10, 50, 0);
  EXPECT_DOUBLE_EQ(lanes.SizeOf({1000, 500, 200}), 1.0);
  EXPECT_DOUBLE_EQ(lanes.SizeOf({500, 100, 100}), (0.4 * 0.5 + 0.6 * 0.2) * 0.5);
  // the base model counts as the smallest adapter
  EXPECT_DOUBLE_EQ(lanes.SizeOf({500, 100, 0}), (0.4 * 0.5 + 0.6 * 0.2) * 0.25);
  SizeLanes sum = Lanes({.request_size = RequestSizeForm::kSum}, 1000);
  SizeLanes output = Lanes({.request_size = RequestSizeForm::kOutputOnly}, 1000);
  for (SizeLanes* other : {&sum, &output}) {
    Arrive(*other, 1000, 500, 200, 0);
    Arrive(*other, 10, 10, 50, 0);
  }
  EXPECT_DOUBLE_EQ(sum.SizeOf({500, 100, 100}), (0.4 * 0.5 + 0.6 * 0.2 + 0.5) / 2);
  EXPECT_DOUBLE_EQ(output.SizeOf({500, 100, 100}), 0.2);
}

// The cache has 800 tokens of a prompt of 1,000.
TEST(SizeLanes, WhatTheCacheHasCountsWhereItIsToldTo) {
  const RequestExtent whole{.input_tokens = 1000, .output_tokens = 100, .adapter_tokens = 50};
  RequestExtent cached = whole;
  cached.cached_tokens = 800;
  const auto seen = [&](CountCached count) {
    SizeLanes lanes = Lanes({.count_cached = count}, 10000);
    lanes.SawArrival(whole, 0);
    EXPECT_EQ(lanes.SizeOf(whole), 1);
    EXPECT_EQ(lanes.QuotaTokens(whole), 1150);
    return std::pair(lanes.SizeOf(cached), lanes.QuotaTokens(cached));
  };
  EXPECT_EQ(seen(CountCached::kEverywhere), std::pair(0.4 + 0.6, std::int64_t{1150}));
  EXPECT_EQ(seen(CountCached::kQuota), std::pair(0.4 * 0.2 + 0.6, std::int64_t{1150}));
  EXPECT_EQ(seen(CountCached::kNowhere), std::pair(0.4 * 0.2 + 0.6, std::int64_t{350}));
}

// The largest input is the largest that was to be computed, so that A keeps its weight where all prompts are mostly
// cached.
TEST(SizeLanes, SizesAreRelativeToWhatWasComputed) {
  SizeLanes lanes = Lanes({.count_cached = CountCached::kQuota}, 10000);
  const RequestExtent cached{.input_tokens = 1000, .output_tokens = 10, .adapter_tokens = 50, .cached_tokens = 900};
  lanes.SawArrival(cached, 0);
  EXPECT_DOUBLE_EQ(lanes.SizeOf(cached), 1);
}

// Long prompts of which the cache has all but 10 tokens take as long as short ones, so their lane needs no larger
// quota for their prefill.
TEST(SizeLanes, QuotasCountNoPrefillThatTheCacheSaves) {
  PerformanceModel model;
  model.step = 0.01;
  model.per_prefill_token = 0.001;
  std::vector<double> share;
  for (const CountCached count : {CountCached::kEverywhere, CountCached::kQuota, CountCached::kNowhere}) {
    SizeLanes lanes = Lanes({.request_size = RequestSizeForm::kOutputOnly,
                             .count_cached = count,
                             .costs = std::make_shared<const PerformanceModel>(model)},
                            10000);
    for (int i = 0; i < 200; ++i) {
      const bool prompt = i % 2 == 0;
      lanes.SawArrival(
          {.input_tokens = prompt ? 4000 : 10, .output_tokens = prompt ? 10 : 100, .cached_tokens = prompt ? 3990 : 0},
          i * kNsPerSecond / 10);
    }
    ASSERT_TRUE(lanes.Refit(20 * kNsPerSecond));
    ASSERT_EQ(lanes.lanes(), 2);
    share.push_back(lanes.Quota(0) / 10000);
  }
  // The time per output token is that of a step, 0.01 s. D: 4.01 s or 0.02 s, with 10 steps; S: 4010 or 20 tokens.
  EXPECT_NEAR(share[0], 4010 * 4.11 / (4010 * 4.11 + 110 * 1.02), 2e-3);
  EXPECT_NEAR(share[1], 4010 * 0.12 / (4010 * 0.12 + 110 * 1.02), 2e-3);
  EXPECT_NEAR(share[2], 20 * 0.12 / (20 * 0.12 + 110 * 1.02), 2e-3);
}

SizeLanes Fitted(SystemSpec spec, std::int64_t (*output_of)(std::uint64_t)) {
  SizeLanes lanes = Lanes(std::move(spec), 10000);
  Prng prng(7);
  for (int i = 0; i < 1000; ++i) Arrive(lanes, 1, output_of(prng.NextBelow(1000)), 0, i * kNsPerMs);
  EXPECT_TRUE(lanes.Refit(kNsPerSecond));
  EXPECT_FALSE(lanes.Refit(kNsPerSecond));  // too few arrivals since the last fit
  return lanes;
}

TEST(SizeLanes, AsManyLanesAsThereAreSizes) {
  const auto two = [](std::uint64_t random) -> std::int64_t {
    return random < 800 ? 10 + random / 100 : 500 + random / 10;
  };
  const auto three = [](std::uint64_t random) -> std::int64_t { return (random % 3) * 300 + 20 + random / 100; };
  const auto even = [](std::uint64_t random) -> std::int64_t { return random + 1; };
  EXPECT_EQ(Fitted({}, two).lanes(), 2);
  EXPECT_EQ(Fitted({}, three).lanes(), 3);
  EXPECT_EQ(Fitted({}, even).lanes(), 3);
  EXPECT_EQ(Fitted({}, [](std::uint64_t) -> std::int64_t { return 5; }).lanes(), 1);
  // "Minimal WCSS" finds four lanes in all of them.
  EXPECT_EQ(Fitted({.lane_count = LaneCountRule::kLeastSquares}, two).lanes(), 4);
  EXPECT_EQ(Fitted({.lane_count = LaneCountRule::kLeastSquares}, even).lanes(), 4);
  EXPECT_EQ(Fitted({.lane_count = LaneCountRule::kLeastSquares, .most_lanes = 2}, even).lanes(), 2);
  EXPECT_EQ(Fitted({.queue = "mlq-static"}, two).lanes(), 4);
}

// With half of the tokens the lanes need twice the share, and the operator can see that they exceed what there is.
TEST(SizeLanes, TellWhatShareOfTheTokensTheyNeed) {
  const auto share_of = [](double total) {
    SizeLanes lanes = Lanes({}, total);
    EXPECT_EQ(lanes.LeastShare(), 0);
    for (int i = 0; i < 1000; ++i) Arrive(lanes, 100, 100, 0, i * kNsPerMs);
    EXPECT_TRUE(lanes.Refit(kNsPerSecond));
    return lanes.LeastShare();
  };
  // S = 200 tokens, D = 100 x 0.05 s = 5 s, 1,000 arrivals in 1 s, SLO = 5 s: 200 x 5 x 1,000.2 tokens.
  EXPECT_NEAR(share_of(2e6), 200 * 5 * 1000.2 / 2e6, 1e-3);
  EXPECT_NEAR(share_of(5e5), 200 * 5 * 1000.2 / 5e5, 4e-3);
  EXPECT_EQ(Fitted({.queue = "mlq-static"}, [](std::uint64_t) -> std::int64_t { return 5; }).LeastShare(), 0);
}

TEST(SizeLanes, CutOffsLieInTheMiddle) {
  const SizeLanes lanes = Fitted({}, [](std::uint64_t random) -> std::int64_t { return random % 2 == 0 ? 100 : 1000; });
  ASSERT_EQ(lanes.lanes(), 2);
  EXPECT_EQ(lanes.LaneOf({1, 540, 0}), 0);
  EXPECT_EQ(lanes.LaneOf({1, 560, 0}), 1);
  EXPECT_NEAR(lanes.Quota(0) + lanes.Quota(1), 10000, 1e-6);
  EXPECT_LT(lanes.Quota(0), lanes.Quota(1));
}

// The sum of squares of the requests when they are grouped by lane.
double SumOfSquaresByLane(const SizeLanes& lanes, std::span<const RequestExtent> extents) {
  std::vector<std::vector<double>> sizes(static_cast<std::size_t>(lanes.lanes()));
  for (const RequestExtent& extent : extents)
    sizes[static_cast<std::size_t>(lanes.LaneOf(extent))].push_back(lanes.SizeOf(extent));
  double sum = 0;
  for (const std::vector<double>& lane : sizes) sum += lane.empty() ? 0 : SumOfSquares(lane);
  return sum;
}

// Fitting on bins loses almost nothing against exact clusters, for sizes of any distribution.
TEST(SizeLanes, LanesAreAsGoodAsTheBestClusters) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Prng prng(seed);
    SizeLanes lanes = Lanes({.lane_count = LaneCountRule::kLeastSquares}, 10000);
    std::vector<RequestExtent> extents;
    for (int i = 0; i < 2000; ++i) {
      // From an even distribution to few large values among many small ones.
      const double tail = std::pow(prng.NextDouble(), static_cast<double>(seed % 5));
      extents.push_back({.input_tokens = 1 + static_cast<std::int64_t>(prng.NextBelow(2000)),
                         .output_tokens = 1 + static_cast<std::int64_t>(1000 * tail),
                         .adapter_tokens = 16 + 16 * static_cast<std::int64_t>(prng.NextBelow(8))});
      lanes.SawArrival(extents.back(), i);
    }
    ASSERT_TRUE(lanes.Refit(1));
    std::vector<double> sizes;
    for (const RequestExtent& extent : extents) sizes.push_back(lanes.SizeOf(extent));
    std::sort(sizes.begin(), sizes.end());
    ASSERT_EQ(lanes.lanes(), kMaxLanes);
    EXPECT_LE(SumOfSquaresByLane(lanes, extents), 1.01 * ClusterSorted(sizes, kMaxLanes).sum_of_squares);
  }
}

TEST(SizeLanes, RefitsWhenArrivalsDoubledAndThenAfterTheInterval) {
  SizeLanes lanes = Lanes({}, 10000);
  int fits = 0;
  for (int i = 0; i < 500; ++i) {
    Arrive(lanes, 1, 1 + i % 7, 0, i);
    fits += lanes.Refit(i);
  }
  EXPECT_EQ(fits, 3);  // at 100, 200 and 400
  EXPECT_FALSE(lanes.Refit(299 * kNsPerSecond));
  EXPECT_TRUE(lanes.Refit(301 * kNsPerSecond));
  EXPECT_FALSE(lanes.Refit(700 * kNsPerSecond));  // no new arrivals
}

// Two lanes: short prompts with long answers, and long prompts with short answers. A performance model knows the time
// of prefill.
TEST(SizeLanes, QuotasCountThePrefillThatAProfileKnows) {
  PerformanceModel model;
  model.step = 0.01;
  model.per_prefill_token = 0.001;
  double share[2];
  for (const bool by_profile : {false, true}) {
    SystemSpec options{.request_size = RequestSizeForm::kOutputOnly};
    if (by_profile) options.costs = std::make_shared<const PerformanceModel>(model);
    SizeLanes lanes = Lanes(options, 10000);
    for (int i = 0; i < 200; ++i) {
      const bool prompt = i % 2 == 0;
      Arrive(lanes, prompt ? 4000 : 10, prompt ? 10 : 100, 0, i * kNsPerSecond / 10);
      if (!prompt) lanes.SawEnd({.input_tokens = 10, .output_tokens = 100}, kNsPerSecond);
    }
    ASSERT_TRUE(lanes.Refit(20 * kNsPerSecond));
    ASSERT_EQ(lanes.lanes(), 2);
    EXPECT_NEAR(lanes.Quota(0) + lanes.Quota(1), 10000, 1e-6);
    share[by_profile] = lanes.Quota(0) / 10000;  // share of long prompts with short answers
  }
  // Largest sizes are 4010 and 110 tokens, with equal arrivals. Without the model, D is proportional to the outputs,
  // 10 and 100. With it, D is 4.01 s + 10 t and 0.02 s + 100 t, where t = 0.01 s is the time per output token beside
  // the prefill.
  EXPECT_NEAR(share[0], 4010.0 * 10 / (4010 * 10 + 110 * 100), 1e-3);
  EXPECT_NEAR(share[1], 4010 * 4.11 / (4010 * 4.11 + 110 * 1.02), 2e-3);
}

}  // namespace
}  // namespace loramux::size_lanes_test
