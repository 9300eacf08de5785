#include "workload/statistics.h"

#include <gtest/gtest.h>

namespace loramux::statistics_test {
namespace {

TEST(Quantile, InterpolatesBetweenClosestRanks) {
  const std::vector<double> values{10, 20, 30, 40};  // ranks 0, 1, 2, 3
  EXPECT_DOUBLE_EQ(Quantile(values, 0), 10);
  EXPECT_DOUBLE_EQ(Quantile(values, 0.5), 25);     // rank 1.5
  EXPECT_DOUBLE_EQ(Quantile(values, 0.9), 37);     // rank 2.7
  EXPECT_DOUBLE_EQ(Quantile(values, 0.99), 39.7);  // rank 2.97
  EXPECT_DOUBLE_EQ(Quantile(values, 1), 40);
  EXPECT_DOUBLE_EQ(Quantile({7}, 0.99), 7);
  EXPECT_DOUBLE_EQ(Quantile({}, 0.5), 0);
}

TEST(Summarise, SortsWhatItGets) {
  std::vector<double> values;
  for (int i = 101; i >= 1; --i) values.push_back(i);
  const Summary summary = Summarise(values);
  EXPECT_EQ(summary.count, 101);
  EXPECT_DOUBLE_EQ(summary.mean, 51);
  EXPECT_DOUBLE_EQ(summary.min, 1);
  EXPECT_DOUBLE_EQ(summary.p50, 51);
  EXPECT_DOUBLE_EQ(summary.p90, 91);
  EXPECT_DOUBLE_EQ(summary.p99, 100);
  EXPECT_DOUBLE_EQ(summary.max, 101);
  EXPECT_EQ(Summarise({}).count, 0);
}

TEST(QuantileCurve, HasBothEnds) {
  EXPECT_EQ(QuantileCurve({3, 1, 2}, 4), (std::vector<double>{1, 1.5, 2, 2.5, 3}));
  EXPECT_TRUE(QuantileCurve({}, 4).empty());
}

TEST(UpperMedian, IsAValueOfTheSet) {
  EXPECT_EQ(UpperMedian({}), 0);
  EXPECT_EQ(UpperMedian({9, 1, 4}), 4);
  EXPECT_EQ(UpperMedian({9, 1, 4, 6}), 6);
}

}  // namespace
}  // namespace loramux::statistics_test
