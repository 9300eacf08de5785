#include "worth/usage_monitor.h"

#include "worth/eviction_policy.h"

namespace loramux::usage_monitor_test {
namespace {

TEST(UsageMonitor, HalfOfTheVisitsAreForgottenInAHalfLife) {
  UsageMonitor monitor;
  const AdapterGeneration adapter{7};
  monitor.Visit(2, adapter, 0);
  monitor.Visit(2, adapter, 0);
  monitor.Visit(2, adapter, kFrequencyHalfLife);
  EXPECT_DOUBLE_EQ(monitor.Of(2, adapter).frequency, 2.0);
  EXPECT_EQ(monitor.Of(2, adapter).at, kFrequencyHalfLife);
  EXPECT_DOUBLE_EQ(monitor.Decayed(monitor.Of(2, adapter), 3 * kFrequencyHalfLife), 0.5);
  monitor.VisitBase(kFrequencyHalfLife);
  EXPECT_DOUBLE_EQ(monitor.TotalVisits(kFrequencyHalfLife), 3.0);
}

// "The total number of times the adapter has been used within a specific time frame" (Chameleon 4.2).
TEST(UsageMonitor, CountsTheVisitsWithinTheWindow) {
  UsageMonitor monitor;
  monitor.set_window(16 * kNsPerSecond);
  const AdapterGeneration adapter{7};
  const auto count = [&](TimeNs now) { return monitor.InWindow(2, adapter, now); };
  EXPECT_EQ(count(0), 0);
  for (const int second : {100, 100, 103, 110}) monitor.Visit(2, adapter, second * kNsPerSecond);
  EXPECT_EQ(count(110 * kNsPerSecond), 4);
  EXPECT_EQ(count(115 * kNsPerSecond), 4);
  EXPECT_EQ(count(116 * kNsPerSecond), 2);
  EXPECT_EQ(count(119 * kNsPerSecond), 1);
  EXPECT_EQ(count(126 * kNsPerSecond), 0);
  monitor.Visit(2, adapter, 500 * kNsPerSecond);  // long after
  EXPECT_EQ(count(500 * kNsPerSecond), 1);
  EXPECT_EQ(monitor.InWindow(2, AdapterGeneration{8}, 500 * kNsPerSecond), 0);
  EXPECT_EQ(monitor.InWindow(3, adapter, 500 * kNsPerSecond), 0);
  EXPECT_DOUBLE_EQ(monitor.Decayed({.frequency = 4, .at = 0}, 32 * kNsPerSecond), 1.0);
}

// Adapters that are visited once only are worth less than the prior says; those visited every second are worth more.
TEST(UsageMonitor, LearnsHowSoonAdaptersAreVisitedAgain) {
  const auto factor = [](bool again) {
    UsageMonitor monitor;
    EXPECT_EQ(monitor.ReuseFactor({}, 0), 1);
    TimeNs now = 0;
    for (int second = 1; second <= 600; ++second) {
      now = second * kNsPerSecond;
      const std::size_t slot = again ? static_cast<std::size_t>(second % 20) : static_cast<std::size_t>(second);
      monitor.Visit(slot, AdapterGeneration{static_cast<std::uint32_t>(slot + 1)}, now);
      for (std::size_t i = 0; i <= slot || (again && i < 20); ++i) {
        monitor.SawNoVisit(monitor.Of(i, AdapterGeneration{static_cast<std::uint32_t>(i + 1)}), now, kNsPerSecond);
      }
      monitor.Learn(now, 30);
    }
    return monitor.ReuseFactor({.frequency = again ? 5.0 : 1.0, .at = now}, now + 10 * kNsPerSecond);
  };
  EXPECT_GT(factor(true), 0.3);
  EXPECT_LT(factor(false), 0.05);
}

TEST(UsageMonitor, ASlotThatIsUsedAgainBeginsAtNothing) {
  UsageMonitor monitor;
  monitor.Visit(0, AdapterGeneration{1}, 10);
  EXPECT_EQ(monitor.Of(0, AdapterGeneration{2}).frequency, 0);
  EXPECT_EQ(monitor.Of(5, AdapterGeneration{1}).frequency, 0);
  monitor.Visit(0, AdapterGeneration{2}, 20);
  EXPECT_DOUBLE_EQ(monitor.Of(0, AdapterGeneration{2}).frequency, 1.0);
  EXPECT_EQ(monitor.Of(0, AdapterGeneration{1}).frequency, 0);
}

TEST(UsageMonitor, TheBatchSizeIsThatOfTheLastFiveSeconds) {
  UsageMonitor monitor;
  EXPECT_EQ(monitor.RecentBatchSize(0), 0);
  monitor.SawBatch(4, 0);
  monitor.SawBatch(8, kNsPerSecond);
  EXPECT_DOUBLE_EQ(monitor.RecentBatchSize(kNsPerSecond), 6.0);
  EXPECT_DOUBLE_EQ(monitor.RecentBatchSize(5 * kNsPerSecond), 8.0);  // the first batch was 5 seconds ago
  EXPECT_EQ(monitor.RecentBatchSize(6 * kNsPerSecond), 0);
  monitor.SawBatch(3, 100 * kNsPerSecond);  // uses the same bucket as the first batch
  EXPECT_DOUBLE_EQ(monitor.RecentBatchSize(100 * kNsPerSecond), 3.0);
}

TEST(UsageMonitor, TheWindowOfBatchesCanBeSet) {
  UsageMonitor monitor;
  monitor.set_batch_window(20 * kNsPerSecond);
  monitor.SawBatch(4, 0);
  monitor.SawBatch(8, 10 * kNsPerSecond);
  EXPECT_DOUBLE_EQ(monitor.RecentBatchSize(19 * kNsPerSecond), 6.0);
  EXPECT_DOUBLE_EQ(monitor.RecentBatchSize(20 * kNsPerSecond), 8.0);
}

// FastLibra's equation 3 by hand: 1 - (1 - prob)^BS.
TEST(UsageMonitor, ProbabilityInBatch) {
  EXPECT_DOUBLE_EQ(ProbabilityInBatch(0.5, 2), 0.75);
  EXPECT_DOUBLE_EQ(ProbabilityInBatch(0.25, 1), 0.25);
  EXPECT_EQ(ProbabilityInBatch(0.5, 0), 0);
  EXPECT_EQ(ProbabilityInBatch(0, 8), 0);
  EXPECT_EQ(ProbabilityInBatch(1, 8), 1);
}

}  // namespace
}  // namespace loramux::usage_monitor_test
