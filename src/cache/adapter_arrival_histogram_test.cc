#include "cache/adapter_arrival_histogram.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/prng.h"

namespace loramux::adapter_arrival_histogram_test {
namespace {

constexpr AdapterGeneration kAdapter{7};
constexpr TimeNs kSecond = kNsPerSecond;

// One adapter in slot 0; each use lasts 50 milliseconds.
struct Uses {
  AdapterArrivalHistogram histogram;
  TimeNs now = 0;
  std::size_t slot = 0;

  void After(TimeNs idle) {
    now += idle;
    histogram.EndIdle(slot, kAdapter, now);
    now += 50 * kNsPerMs;
    histogram.BeginIdle(slot, kAdapter, now);
  }
  std::optional<AdapterArrivalHistogram::Window> IdleTimes() const { return histogram.IdleTimes(slot, kAdapter); }
};

TEST(AdapterArrivalHistogram, APeriodIsExpectedJustBeforeItEnds) {
  Uses uses;
  uses.After(0);
  for (std::uint32_t i = 0; i < AdapterArrivalHistogram::kFewestSamples; ++i) {
    EXPECT_FALSE(uses.IdleTimes().has_value()) << i;  // too few samples
    uses.After(10 * kSecond);
  }
  const auto window = uses.IdleTimes();
  ASSERT_TRUE(window.has_value());
  // A bin is a quarter of an octave wide, and the window is extended by a tenth on each side.
  EXPECT_LE(window->from, 9 * kSecond);
  EXPECT_GE(window->from, 10 * kSecond / std::exp2(0.25) * 0.899);
  EXPECT_GE(window->until, 11 * kSecond);
  EXPECT_LE(window->until, 10 * kSecond * std::exp2(0.25) * 1.101);
  const auto next = uses.histogram.Next(uses.now);
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->adapter, kAdapter);
  EXPECT_EQ(next->window, (AdapterArrivalHistogram::Window{uses.now + window->from, uses.now + window->until}));
  EXPECT_TRUE(uses.histogram.Next(next->window.until).has_value());
  EXPECT_FALSE(uses.histogram.Next(next->window.until + 1).has_value());  // it did not arrive in the window
}

// The ends of the window are percentiles of the samples.
TEST(AdapterArrivalHistogram, AUniformDistributionGivesItsPercentiles) {
  Uses uses;
  Prng prng(1);
  uses.After(0);
  for (int i = 0; i < 200; ++i) uses.After(20 * kSecond + static_cast<TimeNs>(prng.NextBelow(20'000'000'000)));
  const auto window = uses.IdleTimes();
  ASSERT_TRUE(window.has_value());
  const double from = static_cast<double>(window->from) / 0.9 / kSecond,
               until = static_cast<double>(window->until) / 1.1 / kSecond;
  EXPECT_GE(from, 21 / std::exp2(0.25) - 0.5);  // the 5th percentile is 21 s, the 99th 39.8 s
  EXPECT_LE(from, 21.5);
  EXPECT_GE(until, 39);
  EXPECT_LE(until, 39.8 * std::exp2(0.25) + 0.5);
}

// The idle times of a memoryless arrival process are exponential: their 99th percentile is 90 times the 5th.
TEST(AdapterArrivalHistogram, OfWhatIsSpreadWidelyNothingIsExpected) {
  Uses uses;
  Prng prng(2);
  uses.After(0);
  for (int i = 0; i < 200; ++i) {
    const double uniform = (static_cast<double>(prng.NextBelow(1'000'000)) + 0.5) / 1e6;
    uses.After(static_cast<TimeNs>(-10 * std::log(uniform) * static_cast<double>(kSecond)));
    EXPECT_EQ(uses.histogram.Next(uses.now).has_value(), uses.IdleTimes().has_value());
  }
  EXPECT_FALSE(uses.IdleTimes().has_value());
}

TEST(AdapterArrivalHistogram, AFewOutliersChangeNothingAndManyDo) {
  Uses uses;
  uses.After(0);
  for (int i = 0; i < 150; ++i) uses.After(10 * kSecond);
  const auto before = uses.IdleTimes();
  ASSERT_TRUE(before.has_value());
  uses.After(2 * 3600 * kSecond);  // longer than all bins
  uses.After(kNsPerMs);            // too short to be counted
  for (int i = 0; i < 5; ++i) uses.After(kSecond / 10);
  EXPECT_EQ(uses.IdleTimes(), before);
  for (int i = 0; i < 4; ++i) uses.After(2 * 3600 * kSecond);
  EXPECT_FALSE(uses.IdleTimes().has_value());
}

// A new period displaces the old one, so the memory of an adapter is bounded.
TEST(AdapterArrivalHistogram, OldIdleTimesFade) {
  Uses uses;
  uses.After(0);
  for (int i = 0; i < 1000; ++i) uses.After(10 * kSecond);
  int until_known = 0;
  for (; until_known < 3000; ++until_known) {
    uses.After(100 * kSecond);
    const auto window = uses.IdleTimes();
    if (window.has_value() && window->from > 50 * kSecond) break;
  }
  EXPECT_GT(until_known, 8);
  EXPECT_LT(until_known, 1000);
}

TEST(AdapterArrivalHistogram, WhoIsExpectedFirstComesFirstUntilSettledOrUsed) {
  AdapterArrivalHistogram histogram;
  TimeNs now = 0;
  const auto learn = [&](std::size_t slot, TimeNs period) {
    const AdapterGeneration adapter{static_cast<std::uint32_t>(slot + 1)};
    histogram.BeginIdle(slot, adapter, now);
    for (std::uint32_t i = 0; i < AdapterArrivalHistogram::kFewestSamples; ++i) {
      now += period;
      histogram.EndIdle(slot, adapter, now);
      histogram.BeginIdle(slot, adapter, now);
    }
  };
  learn(0, 100 * kSecond);
  learn(1, 20 * kSecond);
  histogram.BeginIdle(0, AdapterGeneration{1}, now);
  ASSERT_TRUE(histogram.Next(now).has_value());
  EXPECT_EQ(histogram.Next(now)->adapter, AdapterGeneration{2});
  histogram.Settle(1);
  EXPECT_EQ(histogram.Next(now)->adapter, AdapterGeneration{1});
  histogram.EndIdle(0, AdapterGeneration{1}, now);
  EXPECT_FALSE(histogram.Next(now).has_value());
  histogram.BeginIdle(1, AdapterGeneration{2}, now);
  EXPECT_EQ(histogram.Next(now)->adapter, AdapterGeneration{2});
  histogram.EndIdle(1, AdapterGeneration{99}, now);  // another adapter has the slot
  EXPECT_FALSE(histogram.Next(now).has_value());
  EXPECT_FALSE(histogram.IdleTimes(1, AdapterGeneration{2}).has_value());
}

}  // namespace
}  // namespace loramux::adapter_arrival_histogram_test
