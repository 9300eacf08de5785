#include "schedule/snapshot_interval.h"

#include <gtest/gtest.h>

namespace loramux::snapshot_interval_test {
namespace {

// 64 requests that computed `again` tokens again, while `taken` snapshots were taken at the interval.
std::int64_t IntervalAfter(SnapshotInterval& interval, std::int64_t again, int taken) {
  for (int i = 0; i < taken; ++i) interval.Taken(interval.tokens() * (i + 1));
  interval.Taken(interval.tokens() + 1);  // elsewhere
  for (int i = 0; i < 64; ++i) interval.Began(again);
  return interval.tokens();
}

TEST(SnapshotInterval, FollowsWhatIsComputedAgain) {
  SnapshotInterval interval(2048, 16, /*room=*/640);
  EXPECT_EQ(interval.least(), 128);
  EXPECT_EQ(IntervalAfter(interval, 10, 1), 2048);    // 640 tokens, and the room of one
  EXPECT_EQ(IntervalAfter(interval, 11, 1), 1024);    // 704
  EXPECT_EQ(IntervalAfter(interval, 1025, 0), 1024);  // a snapshot was evicted: no reason for more
  EXPECT_EQ(IntervalAfter(interval, 0, 0), 1024);
  for (const int expected : {512, 256, 256}) EXPECT_EQ(IntervalAfter(interval, 100, 2), expected);
  EXPECT_EQ(interval.least(), 16);
  EXPECT_EQ(IntervalAfter(interval, 10, 8), 256);  // an eighth
  EXPECT_EQ(IntervalAfter(interval, 10, 9), 512);
  for (int i = 0; i < 9; ++i) IntervalAfter(interval, 0, 1);
  EXPECT_EQ(interval.tokens(), 8 * 2048);
  SnapshotInterval none(0, 16, 640);
  EXPECT_EQ(IntervalAfter(none, 100, 0), 0);
}

}  // namespace
}  // namespace loramux::snapshot_interval_test
