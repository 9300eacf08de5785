#include "cluster/replica_sets.h"

#include <cmath>

#include "base/prng.h"

namespace loramux::replica_sets_test {
namespace {

// Sends requests of 0.1 seconds each at `load` seconds per second from `from` to `to`; returns the changes of the
// number of replicas.
int Load(ReplicaSets& sets, std::string_view adapter, double load, TimeNs from, TimeNs to, double wobble = 0) {
  int changes = 0;
  std::int64_t last = sets.Replicas(adapter);
  const auto step = [&](TimeNs now) {
    const double wave = 1 + wobble * std::sin(static_cast<double>(now) / (7.0 * kNsPerSecond));
    return static_cast<TimeNs>(0.1 / (load * wave) * kNsPerSecond);
  };
  for (TimeNs now = from; now < to; now += step(now)) {
    const std::int64_t replicas = sets.Count(adapter, 0.1, 60, now);
    changes += replicas != last;
    last = replicas;
  }
  return changes;
}

constexpr TimeNs kMinute = 60 * kNsPerSecond;

TEST(ReplicaSets, GrowAndShrinkWithTheLoad) {
  ReplicaSets sets;
  EXPECT_EQ(sets.Replicas("a"), 1);
  Load(sets, "a", 0.2, 0, 5 * kMinute);
  EXPECT_EQ(sets.Replicas("a"), 1);
  EXPECT_NEAR(sets.LoadOf("a", 5 * kMinute), 0.2, 0.02);
  Load(sets, "a", 4, 5 * kMinute, 10 * kMinute);
  EXPECT_GE(sets.Replicas("a"), 8);  // 4 / 0.5
  EXPECT_LE(sets.Replicas("a"), 9);
  EXPECT_EQ(sets.Replicas("b"), 1);
  Load(sets, "a", 0.2, 10 * kMinute, 20 * kMinute);
  EXPECT_EQ(sets.Replicas("a"), 1);
}

TEST(ReplicaSets, ALoadNearALimitChangesNothing) {
  ReplicaSets sets;
  Load(sets, "a", 1.5, 0, 5 * kMinute);
  EXPECT_LE(Load(sets, "a", 1.5, 5 * kMinute, 30 * kMinute, 0.2), 1);
  // Without a gap between growing and shrinking, and without a hold, the same load goes up and down.
  ReplicaSets nervous(/*grow=*/0.5, /*shrink=*/0.5, /*hold=*/0);
  Load(nervous, "a", 1.5, 0, 5 * kMinute);
  EXPECT_GT(Load(nervous, "a", 1.5, 5 * kMinute, 30 * kMinute, 0.2), 20);
}

TEST(ReplicaSets, GivesBackOneAtATimeAndAllAfterASilence) {
  ReplicaSets sets;
  Load(sets, "a", 5, 0, 5 * kMinute);
  const std::int64_t most = sets.Replicas("a");
  Load(sets, "a", 0.5, 5 * kMinute, 6 * kMinute + 10 * kNsPerSecond);
  EXPECT_GE(sets.Replicas("a"), most - 3);
  EXPECT_LT(sets.Replicas("a"), most);
  EXPECT_EQ(sets.Count("a", 0.1, 60, 30 * kMinute), 1);
}

TEST(ReplicaSets, AtMostAllServers) {
  ReplicaSets sets;
  for (int i = 0; i < 100; ++i) sets.Count("a", 100, 3, i * kNsPerMs);
  EXPECT_EQ(sets.Replicas("a"), 3);
  EXPECT_EQ(sets.Count("a", 100, 2, kNsPerSecond), 2);
}

TEST(ReplicaSets, ForgetsTheColdest) {
  ReplicaSets sets;
  for (int i = 0; i < 20; ++i) sets.Count("hot", 10, 60, 0);
  const std::int64_t hot = sets.Replicas("hot");
  EXPECT_GT(hot, 1);
  for (std::size_t i = 0; i < ReplicaSets::kMostAdapters + 10; ++i)
    sets.Count("cold-" + std::to_string(i), 0.001, 60, static_cast<TimeNs>(i) * 1000);
  EXPECT_LE(sets.size(), ReplicaSets::kMostAdapters);
  EXPECT_EQ(sets.Replicas("hot"), hot);
}

}  // namespace
}  // namespace loramux::replica_sets_test
