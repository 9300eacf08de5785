#include "worth/adapter_arrival_histogram.h"

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
  // A bin is a second wide, and the window is extended by a tenth on each side.
  EXPECT_EQ(window->from, 9 * kSecond);
  EXPECT_EQ(window->until, 12'100 * kNsPerMs);
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
  EXPECT_GE(from, 20);  // the 5th percentile is 21 s, the 99th 39.8 s
  EXPECT_LE(from, 21.5);
  EXPECT_GE(until, 39);
  EXPECT_LE(until, 40.01);
}

// Idle times of random arrivals: exponential.
TimeNs Exponential(Prng& prng, double mean_seconds) {
  const double uniform = (static_cast<double>(prng.NextBelow(1'000'000)) + 0.5) / 1e6;
  return static_cast<TimeNs>(-mean_seconds * std::log(uniform) * static_cast<double>(kSecond));
}

// Few bins hold the idle times of frequent random arrivals, so the histogram tells something: expect it at once.
TEST(AdapterArrivalHistogram, FrequentRandomArrivalsAreExpectedAtOnce) {
  Uses uses;
  Prng prng(2);
  uses.After(0);
  for (int i = 0; i < 200; ++i) {
    uses.After(Exponential(prng, 10));
    EXPECT_EQ(uses.histogram.Next(uses.now).has_value(), uses.IdleTimes().has_value());
  }
  const auto window = uses.IdleTimes();
  ASSERT_TRUE(window.has_value());
  EXPECT_EQ(window->from, 0);
  EXPECT_GT(window->until, 35 * kSecond);  // the 99th percentile is 46 s
  EXPECT_LT(window->until, 80 * kSecond);
}

TEST(AdapterArrivalHistogram, OfWhatIsSpreadOverAllBinsNothingIsExpected) {
  Prng prng(2);
  const auto even = [&](Uses& uses) {
    uses.After(0);
    for (int i = 0; i < 200; ++i) uses.After(static_cast<TimeNs>(prng.NextBelow(240'000'000'000)));
  };
  Uses uses;
  even(uses);
  EXPECT_FALSE(uses.IdleTimes().has_value());
  EXPECT_FALSE(uses.histogram.Next(uses.now).has_value());
  Uses undemanding{.histogram = AdapterArrivalHistogram({.least_variation = 0})};
  even(undemanding);
  EXPECT_TRUE(undemanding.IdleTimes().has_value());
  Uses rare;
  rare.After(0);
  for (int i = 0; i < 200; ++i) rare.After(Exponential(prng, 100));
  EXPECT_FALSE(rare.IdleTimes().has_value());
}

TEST(AdapterArrivalHistogram, WhatWasEvictedIsExpectedOnceMore) {
  Uses uses;
  uses.After(0);
  for (int i = 0; i < 20; ++i) uses.After(10 * kSecond);
  uses.histogram.ExpectAgain(uses.slot, kAdapter);  // already expected: nothing changes
  ASSERT_TRUE(uses.histogram.Next(uses.now).has_value());
  uses.histogram.Settle(uses.slot);
  EXPECT_FALSE(uses.histogram.Next(uses.now).has_value());
  uses.histogram.ExpectAgain(uses.slot, AdapterGeneration{99});  // another adapter: nothing is expected
  EXPECT_FALSE(uses.histogram.Next(uses.now).has_value());
  uses.histogram.ExpectAgain(uses.slot, kAdapter);
  ASSERT_TRUE(uses.histogram.Next(uses.now).has_value());
  uses.histogram.Settle(uses.slot);
  uses.histogram.ExpectAgain(uses.slot, kAdapter);
  EXPECT_FALSE(uses.histogram.Next(uses.now).has_value());
  uses.After(10 * kSecond);
  uses.histogram.Settle(uses.slot);
  uses.histogram.ExpectAgain(uses.slot, kAdapter);  // another idle time
  EXPECT_TRUE(uses.histogram.Next(uses.now).has_value());
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
