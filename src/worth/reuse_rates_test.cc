#include "worth/reuse_rates.h"

#include <functional>

#include <gtest/gtest.h>

namespace loramux::reuse_rates_test {
namespace {

constexpr TimeNs kSecond = kNsPerSecond;
constexpr double kRemembered = 30;

double Rate(const ReuseRates& rates, double frequency, double idle_s) {
  return ReuseRates::Prior(frequency, idle_s, kRemembered) *
         rates.Factor(frequency, static_cast<TimeNs>(idle_s * kNsPerSecond));
}

// Simulates `pages` pages with `frequency` visits that are visited again at `rate(idle seconds)`. Feeds their idle time
// and visits, second by second up to `longest`.
void See(ReuseRates& rates, double frequency, double pages, int longest, const std::function<double(double)>& rate) {
  double visits = 0;
  for (int second = 0; second < longest; ++second) {
    const TimeNs idle = second * kSecond + kSecond / 2;
    rates.SawIdle(frequency, idle, pages);
    for (visits += pages * rate(second + 0.5); visits >= 1; --visits) rates.SawVisit(frequency, idle);
  }
}

TEST(ReuseRates, AreThePriorWhereNothingWasSeen) {
  ReuseRates rates;
  EXPECT_EQ(rates.Factor(3, kSecond), 1);
  rates.Learn(kSecond, kRemembered);
  for (const double frequency : {0.0, 1.0, 2.0, 5.0, 12.0, 100.0}) {
    for (const double idle : {0.0, 0.5, 3.0, 60.0, 1e4, 1e9}) {
      EXPECT_NEAR(rates.Factor(frequency, static_cast<TimeNs>(idle * kNsPerSecond)), 1, 1e-9)
          << frequency << ' ' << idle;
    }
  }
}

TEST(ReuseRates, BecomeWhatIsSeen) {
  ReuseRates rates;
  See(rates, 1, 10000, 128, [](double) { return 0.004; });  // the prior: 0.043 at first, 0.01 after 100 seconds
  rates.Learn(kSecond, kRemembered);
  for (const double idle : {6.0, 12.0, 24.0, 48.0, 96.0}) EXPECT_NEAR(Rate(rates, 1, idle), 0.004, 0.001) << idle;
}

// A user reads for eight seconds and then asks again, or never.
TEST(ReuseRates, LookAhead) {
  ReuseRates rates;
  See(rates, 1, 1000, 120, [](double idle) { return idle > 8 && idle < 17 ? 0.2 : 0.0; });
  rates.Learn(kSecond, kRemembered);
  // From 2 seconds on: about one visit for 6 seconds of waiting and a mean of 5 seconds to the visit.
  EXPECT_GT(Rate(rates, 1, 2), 0.05);
  EXPECT_LT(Rate(rates, 1, 2), 0.12);
  EXPECT_GT(Rate(rates, 1, 12), Rate(rates, 1, 2));
  EXPECT_LT(Rate(rates, 1, 60), Rate(rates, 1, 2) / 10);
}

// Conversations that are over: ten visits do not predict another one.
TEST(ReuseRates, TellManyVisitsFromVisitsToCome) {
  ReuseRates rates;
  See(rates, 10, 1000, 120, [](double idle) { return idle < 20 ? 0.1 : 0.0; });
  See(rates, 1, 1000, 120, [](double) { return 0.01; });
  rates.Learn(kSecond, kRemembered);
  EXPECT_GT(Rate(rates, 10, 6), Rate(rates, 1, 6));
  EXPECT_LT(Rate(rates, 10, 90), Rate(rates, 1, 90));
  // The prior says the opposite.
  EXPECT_GT(ReuseRates::Prior(10, 90, kRemembered), ReuseRates::Prior(1, 90, kRemembered));
}

TEST(ReuseRates, TakeFromFewerVisitsWhatWasNotSeenOfMore) {
  ReuseRates rates;
  See(rates, 1, 1000, 120, [](double) { return 0.0; });
  rates.Learn(kSecond, kRemembered);
  EXPECT_LT(rates.Factor(1, 60 * kSecond), 0.1);
  EXPECT_LT(rates.Factor(1, 3600 * kSecond), 0.1);  // nor after a longer idle time
  EXPECT_LT(rates.Factor(20, 60 * kSecond), 0.5);   // nor with more visits
}

TEST(ReuseRates, BonusesOfThePriorAscendAndAreBounded) {
  ReuseRates rates;
  const auto bonuses = rates.Bonuses(100, kRemembered, 1000);
  EXPECT_EQ(bonuses[0], 0);
  // The rate of one visit after 100 seconds is that of two after 230: 1.3 / 130 = 2.3 / 230.
  EXPECT_NEAR(bonuses[1], 100, 1e-6);
  EXPECT_NEAR(bonuses[3], (0.3 + 8) * 100 - 130, 1e-6);
  EXPECT_NEAR(rates.Bonuses(100, kRemembered, 60)[1], 60, 1e-6);
  EXPECT_NEAR(rates.Bonuses(100, kRemembered, 60)[5], 300, 1e-6);
}

TEST(ReuseRates, BonusesFollowWhatVisitsPredict) {
  const auto bonuses_of = [](double once, double often) {
    ReuseRates rates;
    for (const double frequency : {1.0, 2.0, 4.0, 8.0, 16.0, 32.0})
      See(rates, frequency, 1000, 300, [&](double) { return frequency > 1 ? often : once; });
    rates.Learn(kSecond, kRemembered);
    return rates.Bonuses(100, kRemembered, 180);
  };
  // Conversations go on or not, however long they are.
  const auto nothing = bonuses_of(0.01, 0.01);
  EXPECT_LT(nothing[5], 60);
  // What was visited twice comes back ten times as often.
  EXPECT_GT(bonuses_of(0.002, 0.02)[1], 150);
  // What was visited often is over.
  EXPECT_LT(bonuses_of(0.02, 0.002)[5], 1);
}

TEST(ReuseRates, Forget) {
  ReuseRates rates;
  See(rates, 1, 100, 120, [](double) { return 0.0; });
  rates.Learn(kSecond, kRemembered);
  EXPECT_LT(rates.Factor(1, 60 * kSecond), 0.3);
  rates.Learn(8 * 3600 * kSecond, kRemembered);
  EXPECT_NEAR(rates.Factor(1, 60 * kSecond), 1, 0.05);
}

// A small cache behaves like a large one on a shorter time scale.
TEST(ReuseRates, RememberAsLongAsPagesStay) {
  EXPECT_EQ(ReuseRates::Remembered(std::nullopt), 30);
  EXPECT_EQ(ReuseRates::Remembered(3600), 30);
  EXPECT_EQ(ReuseRates::Remembered(2), 4);
  EXPECT_EQ(ReuseRates::Remembered(0), 0.25);
  // Ten visits and two seconds idle, against one visit just now.
  EXPECT_GT(ReuseRates::Prior(10, 2, 30), ReuseRates::Prior(1, 0, 30));
  EXPECT_LT(ReuseRates::Prior(10, 2, 0.25), ReuseRates::Prior(1, 0, 0.25));
}

// Observations are seconds and visits, so they stay valid under another prior.
TEST(ReuseRates, ThatWereLearnedDoNotDependOnHowLongIsRemembered) {
  for (const double remembered_s : {0.5, 5.0, 30.0}) {
    ReuseRates rates;
    See(rates, 1, 10000, 128, [](double) { return 0.02; });
    rates.Learn(kSecond, 30);
    rates.Learn(kSecond, remembered_s);
    for (const double idle : {6.0, 24.0, 96.0}) {
      const double rate =
          ReuseRates::Prior(1, idle, remembered_s) * rates.Factor(1, static_cast<TimeNs>(idle * kNsPerSecond));
      EXPECT_NEAR(rate, 0.02, 0.006) << remembered_s << ' ' << idle;
    }
  }
}

}  // namespace
}  // namespace loramux::reuse_rates_test
