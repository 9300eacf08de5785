#include "lab/experiments/paired_ratio.h"

#include <cmath>

#include <gtest/gtest.h>

#include "base/prng.h"

namespace loramux::paired_ratio_test {
namespace {

TEST(PairedRatio, OrderStatistics) {
  // The ratios 1, 2, ..., 8: between the second and the seventh with 1 - 2 (1 + 8) / 2^8.
  const PairedRatio eight = RatioOfPairs({8, 7, 6, 5, 4, 3, 2, 1}, std::vector<double>(8, 1.0));
  EXPECT_DOUBLE_EQ(eight.median, 4.5);
  EXPECT_DOUBLE_EQ(eight.low, 2);
  EXPECT_DOUBLE_EQ(eight.high, 7);
  EXPECT_DOUBLE_EQ(eight.confidence, 1 - 18.0 / 256);
  const PairedRatio three = RatioOfPairs({3, 2, 1}, {2, 2, 2});
  EXPECT_DOUBLE_EQ(three.median, 1);
  EXPECT_DOUBLE_EQ(three.low, 0.5);
  EXPECT_DOUBLE_EQ(three.high, 1.5);
  EXPECT_DOUBLE_EQ(three.confidence, 0.75);
  EXPECT_DOUBLE_EQ(RatioOfPairs({4}, {2}).median, 2);
  EXPECT_EQ(RatioOfPairs({4}, {2}).confidence, 0);
  EXPECT_EQ(RatioOfPairs({}, {}).median, 1);
}

TEST(PairedRatio, HoldsTheTrueRatioAsOftenAsItSays) {
  Prng random(7);
  // Each pair on a machine with tenfold changes of speed, each run with occasionally very large noise.
  int held = 0;
  constexpr int kTrials = 2000;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> ours, theirs;
    for (int i = 0; i < 12; ++i) {
      const double machine = std::pow(10, random.NextDouble());
      const auto noise = [&] { return std::exp(0.3 * random.NextDouble()) * (random.NextDouble() < 0.1 ? 3.0 : 1.0); };
      ours.push_back(1.05 * machine * noise());
      theirs.push_back(machine * noise());
    }
    const PairedRatio ratio = RatioOfPairs(ours, theirs);
    held += ratio.low <= 1.05 && 1.05 <= ratio.high;
    EXPECT_GE(ratio.confidence, PairedRatio::kConfidence);
  }
  EXPECT_GE(held, static_cast<int>(0.88 * kTrials));
}

}  // namespace
}  // namespace loramux::paired_ratio_test
