#include "cluster/server_health.h"

#include "cluster/retry_budget.h"

namespace loramux::server_health_test {
namespace {

constexpr TimeNs kSecond = kNsPerSecond;

void FailTimes(ServerHealth& health, int times, TimeNs now) {
  for (int i = 0; i < times; ++i) health.Failed(now);
}

TEST(ServerHealth, EjectsAfterFailuresInARow) {
  ServerHealth health({}, 0, false);
  EXPECT_EQ(health.Share(0), 1);
  FailTimes(health, 2, 0);
  health.Succeeded(0, 0);
  FailTimes(health, 2, kSecond);
  EXPECT_FALSE(health.Ejected(kSecond));
  health.Failed(kSecond);
  EXPECT_TRUE(health.Ejected(kSecond));
  EXPECT_NEAR(health.SecondsLeft(3 * kSecond), 8, 1e-6);
  EXPECT_TRUE(health.Ejected(11 * kSecond - 1));
  EXPECT_FALSE(health.Ejected(11 * kSecond));
  EXPECT_EQ(health.failures(), 5);
  EXPECT_EQ(health.ejections(), 1);
}

// As a server does that closes each connection after its first answer.
TEST(ServerHealth, EjectsAServerThatFailsEverySecondRequest) {
  ServerHealth health({}, 0, false);
  for (int i = 0; i < 4; ++i) {
    health.Failed(i * kSecond);
    health.Succeeded(i * kSecond, i * kSecond);
  }
  EXPECT_FALSE(health.Ejected(4 * kSecond));
  health.Failed(4 * kSecond);
  EXPECT_TRUE(health.Ejected(4 * kSecond));
  ServerHealth rare({}, 0, false);
  for (int i = 0; i < 20; ++i) {  // two of three work, or the failures are far apart
    rare.Failed(i * kSecond);
    for (int good = 0; good < 2; ++good) rare.Succeeded(i * kSecond, i * kSecond);
  }
  for (int i = 2; i < 20; ++i) {
    rare.Failed(i * 31 * kSecond);
    rare.Succeeded(i * 31 * kSecond, i * 31 * kSecond);
  }
  EXPECT_EQ(rare.ejections(), 0);
}

TEST(ServerHealth, EjectionsDoubleUpToTenTimes) {
  ServerHealth health({}, 0, false);
  FailTimes(health, 3, 0);
  TimeNs now = 0;
  for (const int seconds : {10, 20, 40, 80, 100, 100}) {
    EXPECT_TRUE(health.Ejected(now + seconds * kSecond - 1)) << seconds;
    now += seconds * kSecond;
    EXPECT_FALSE(health.Ejected(now)) << seconds;
    health.Failed(now);  // one is enough after a return
    EXPECT_TRUE(health.Ejected(now));
  }
  // After a long time in use it is as at first.
  now += 100 * kSecond;
  health.Succeeded(now, now);
  now += 101 * kSecond;
  FailTimes(health, 3, now);
  EXPECT_NEAR(health.SecondsLeft(now), 10, 1e-6);
}

TEST(ServerHealth, FailedProbesKeepItOutUntilOneSucceeds) {
  ServerHealth health({}, 0, false);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(health.Ejected(i * kSecond));
    health.Probed(false, i * kSecond);
  }
  EXPECT_TRUE(health.Ejected(100 * kSecond));
  health.Probed(true, 100 * kSecond);
  EXPECT_FALSE(health.Ejected(100 * kSecond));
  EXPECT_NEAR(health.Share(100 * kSecond), ServerHealth::kFirstShare, 1e-9);
  EXPECT_NEAR(health.Share(105 * kSecond), 0.55, 1e-9);
  EXPECT_EQ(health.Share(110 * kSecond), 1);
}

TEST(ServerHealth, GoodProbesDoNotHideFailedRequests) {
  ServerHealth health({}, 0, false);
  for (int i = 0; i < 3; ++i) {
    health.Failed(i);
    health.Probed(true, i);
  }
  EXPECT_TRUE(health.Ejected(3));
  health.Probed(true, 4);  // nor do they end the ejection
  EXPECT_TRUE(health.Ejected(5));
}

TEST(ServerHealth, InPanicAnAnswerEndsTheEjection) {
  ServerHealth health({}, 0, false);
  FailTimes(health, 3, kSecond);
  health.Succeeded(kSecond - 1, 2 * kSecond);  // sent before
  EXPECT_TRUE(health.Ejected(2 * kSecond));
  health.Succeeded(2 * kSecond, 3 * kSecond);
  EXPECT_FALSE(health.Ejected(3 * kSecond));
  EXPECT_LT(health.Share(3 * kSecond), 0.2);
}

TEST(ServerHealth, ARestartForgivesAndStartsSlowly) {
  ServerHealth health({}, 0, false);
  FailTimes(health, 3, 0);
  health.Restarted(kSecond);
  EXPECT_FALSE(health.Ejected(kSecond));
  EXPECT_NEAR(health.Share(kSecond), ServerHealth::kFirstShare, 1e-9);
  FailTimes(health, 3, 2 * kSecond);
  EXPECT_NEAR(health.SecondsLeft(2 * kSecond), 10, 1e-6);
}

TEST(RetryBudget, AShareOfTheRequestsOfTheWindow) {
  RetryBudget budget(0.2);
  const auto take_all = [&](TimeNs now) {
    int taken = 0;
    while (budget.Take(now)) ++taken;
    return taken;
  };
  EXPECT_EQ(take_all(0), RetryBudget::kAlways);
  for (int i = 0; i < 100; ++i) budget.CountRequest(kSecond);
  EXPECT_EQ(take_all(2 * kSecond), 20);
  EXPECT_EQ(take_all(8 * kSecond), 0);
  EXPECT_EQ(take_all(10 * kSecond), RetryBudget::kAlways);  // those of second 0 left the window
  EXPECT_EQ(take_all(100 * kSecond), RetryBudget::kAlways);
}

void ErrTimes(ServerHealth& health, int times, TimeNs now) {
  for (int i = 0; i < times; ++i) health.Errored(now, now, true);
}

TEST(CircuitBreaker, ErrorsInARowWithinTheWindowEject) {
  ServerHealth health({}, 0, false);
  ErrTimes(health, 4, 0);
  health.Worked(0, 0);
  ErrTimes(health, 4, kSecond);
  EXPECT_FALSE(health.Ejected(kSecond));
  ErrTimes(health, 1, 32 * kSecond);  // the first of the five is too old
  EXPECT_FALSE(health.Ejected(32 * kSecond));
  ErrTimes(health, 4, 33 * kSecond);
  EXPECT_TRUE(health.Ejected(33 * kSecond));
  EXPECT_EQ(health.Reason(33 * kSecond), "ejected after errors of its own, for 10.0 s more");
  EXPECT_FALSE(health.Ejected(43 * kSecond));
  EXPECT_EQ(health.failures(), 0);
  EXPECT_EQ(health.ejections(), 1);
  ServerHealth never({.errors_to_eject = 0}, 0, false);
  ErrTimes(never, 1000, 0);
  EXPECT_FALSE(never.Ejected(0));
}

TEST(CircuitBreaker, OneRequestAtATimeDecides) {
  ServerHealth health({}, 0, false);
  ErrTimes(health, 5, 0);
  TimeNs now = 0;
  for (const int seconds : {10, 20, 40, 80, 100, 100}) {
    now += seconds * kSecond;
    EXPECT_TRUE(health.Ejected(now - 1)) << seconds;
    EXPECT_FALSE(health.Ejected(now)) << seconds;
    health.Errored(now - 1, now, true);  // an error of a request that was sent before
    health.Sent(now);
    EXPECT_TRUE(health.Ejected(now + 1));  // it has its one request
    health.Ended(now);                     // which was cancelled, or refused: it says nothing
    health.Succeeded(now, now + 1);
    EXPECT_FALSE(health.Ejected(now + 1));
    health.Sent(now + 1);
    health.Ended(now + 1);
    health.Errored(now + 1, now + 2, true);
    EXPECT_TRUE(health.Ejected(now + 2));
    now += 2;
  }
  now += 100 * kSecond;
  health.Sent(now);
  EXPECT_EQ(health.Reason(now), "ejected after errors of its own until a trial succeeds");
  health.Worked(now, now + kSecond);  // the head of its answer is enough
  EXPECT_FALSE(health.Ejected(now + kSecond));
  EXPECT_NEAR(health.Share(now + kSecond), ServerHealth::kFirstShare, 1e-9);
  ErrTimes(health, 4, now + kSecond);
  EXPECT_FALSE(health.Ejected(now + kSecond));  // five are needed again
}

TEST(CircuitBreaker, AnErrorInPanicModeDoesNotEndTheEjection) {
  ServerHealth health({}, 0, false);
  ErrTimes(health, 5, 0);
  health.Succeeded(kSecond, kSecond);
  health.Errored(kSecond, kSecond, true);
  EXPECT_TRUE(health.Ejected(kSecond));
  health.Worked(2 * kSecond, 2 * kSecond);
  EXPECT_FALSE(health.Ejected(2 * kSecond));
}

TEST(CircuitBreaker, AnotherProcessStartsAnew) {
  ServerHealth health({}, 0, false);
  ErrTimes(health, 5, 0);
  health.Restarted(kSecond);
  EXPECT_FALSE(health.Ejected(kSecond));
  ErrTimes(health, 4, kSecond);
  EXPECT_FALSE(health.Ejected(kSecond));
}

}  // namespace
}  // namespace loramux::server_health_test
