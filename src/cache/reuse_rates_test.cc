#include "cache/reuse_rates.h"

#include <functional>

#include <gtest/gtest.h>

namespace loramux {
namespace {

constexpr TimeNs kSecond = kNsPerSecond;

double Rate(const ReuseRates& rates, double frequency, double idle_s) {
  return ReuseRates::Prior(frequency, idle_s) * rates.Factor(frequency, static_cast<TimeNs>(idle_s * kNsPerSecond));
}

// Of pages that were visited `frequency` times and are visited again at `rate(idle seconds)`: what is seen of `pages` of them in a
// second at each second up to `longest`, all that come to it.
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
  rates.Learn(kSecond);
  for (const double frequency : {0.0, 1.0, 2.0, 5.0, 12.0, 100.0}) {
    for (const double idle : {0.0, 0.5, 3.0, 60.0, 1e4, 1e9}) {
      EXPECT_NEAR(rates.Factor(frequency, static_cast<TimeNs>(idle * kNsPerSecond)), 1, 1e-9) << frequency << ' ' << idle;
    }
  }
}

TEST(ReuseRates, BecomeWhatIsSeen) {
  ReuseRates rates;
  See(rates, 1, 10000, 128, [](double) { return 0.004; });   // the prior: 0.043 at once, 0.01 after 100 s
  rates.Learn(kSecond);
  for (const double idle : {6.0, 12.0, 24.0, 48.0, 96.0}) EXPECT_NEAR(Rate(rates, 1, idle), 0.004, 0.001) << idle;
}

// He reads for eight seconds and then asks again, or never.
TEST(ReuseRates, LookAhead) {
  ReuseRates rates;
  See(rates, 1, 1000, 120, [](double idle) { return idle > 8 && idle < 17 ? 0.2 : 0.0; });
  rates.Learn(kSecond);
  // From 2 s on: about one visit for 6 s of waiting and 5 of the mean time to it.
  EXPECT_GT(Rate(rates, 1, 2), 0.05);
  EXPECT_LT(Rate(rates, 1, 2), 0.12);
  EXPECT_GT(Rate(rates, 1, 12), Rate(rates, 1, 2));
  EXPECT_LT(Rate(rates, 1, 60), Rate(rates, 1, 2) / 10);
}

// Conversations that are over: ten visits do not make another one.
TEST(ReuseRates, TellManyVisitsFromVisitsToCome) {
  ReuseRates rates;
  See(rates, 10, 1000, 120, [](double idle) { return idle < 20 ? 0.1 : 0.0; });
  See(rates, 1, 1000, 120, [](double) { return 0.01; });
  rates.Learn(kSecond);
  EXPECT_GT(Rate(rates, 10, 6), Rate(rates, 1, 6));
  EXPECT_LT(Rate(rates, 10, 90), Rate(rates, 1, 90));
  EXPECT_GT(ReuseRates::Prior(10, 90), ReuseRates::Prior(1, 90));   // which the prior has the other way
}

TEST(ReuseRates, TakeFromFewerVisitsWhatWasNotSeenOfMore) {
  ReuseRates rates;
  See(rates, 1, 1000, 120, [](double) { return 0.0; });
  rates.Learn(kSecond);
  EXPECT_LT(rates.Factor(1, 60 * kSecond), 0.1);
  EXPECT_LT(rates.Factor(1, 3600 * kSecond), 0.1);   // nor longer
  EXPECT_LT(rates.Factor(20, 60 * kSecond), 0.5);    // nor oftener
}

TEST(ReuseRates, Forget) {
  ReuseRates rates;
  See(rates, 1, 100, 120, [](double) { return 0.0; });
  rates.Learn(kSecond);
  EXPECT_LT(rates.Factor(1, 60 * kSecond), 0.3);
  rates.Learn(8 * 3600 * kSecond);
  EXPECT_NEAR(rates.Factor(1, 60 * kSecond), 1, 0.05);
}

}  // namespace
}  // namespace loramux
