#include "worth/turnover.h"

#include <gtest/gtest.h>

namespace loramux::turnover_test {
namespace {

constexpr TimeNs kTenth = kNsPerSecond / 10;

// For `tenths` tenths of a second, `idle` pages are idle and `going` pages are evicted in each.
void Pass(Turnover& turnover, std::int64_t idle, std::int64_t going, int tenths, TimeNs& now, std::int64_t& evicted) {
  for (int i = 0; i < tenths; ++i) turnover.Saw(idle, evicted += going, now += kTenth);
}

TEST(Turnover, IsTheTimeInWhichAllThatIsIdleGoes) {
  Turnover turnover;
  TimeNs now = 0;
  std::int64_t evicted = 0;
  EXPECT_FALSE(turnover.Seconds().has_value());
  Pass(turnover, 1000, 0, 50, now, evicted);
  EXPECT_FALSE(turnover.Seconds().has_value());  // nothing was evicted
  Pass(turnover, 1000, 50, 1000, now, evicted);
  ASSERT_TRUE(turnover.Seconds().has_value());
  EXPECT_NEAR(*turnover.Seconds(), 2, 0.02);  // 500 evictions a second
  Pass(turnover, 1000, 500, 1000, now, evicted);
  EXPECT_NEAR(*turnover.Seconds(), 0.2, 0.002);
}

TEST(Turnover, EndsWhenNothingGoesAnyMore) {
  Turnover turnover;
  TimeNs now = 0;
  std::int64_t evicted = 0;
  Pass(turnover, 1000, 50, 100, now, evicted);
  const double then = *turnover.Seconds();
  Pass(turnover, 1000, 0, 100, now, evicted);
  EXPECT_GT(*turnover.Seconds(), 2 * then);
  Pass(turnover, 1000, 0, 3000, now, evicted);
  EXPECT_FALSE(turnover.Seconds().has_value());
}

// A night without requests does not count as residence time of pages.
TEST(Turnover, AQuietTimeCountsForLittle) {
  Turnover turnover;
  TimeNs now = 0;
  std::int64_t evicted = 0;
  Pass(turnover, 1000, 50, 1000, now, evicted);
  turnover.Saw(1000, evicted, now += 8 * 3600 * kNsPerSecond);
  EXPECT_NEAR(*turnover.Seconds(), 2, 0.2);
}

}  // namespace
}  // namespace loramux::turnover_test
