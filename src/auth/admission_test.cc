// Quotas and queues, on a clock that the test sets.
#include "auth/admission.h"

#include <atomic>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "base/prng.h"

namespace loramux::admission_test {
namespace {

using testing::HasSubstr;

AdmissionRequest For(const std::string& adapter, std::int64_t sequences = 1) { return {adapter, "", {}, sequences}; }
AdmissionRequest WithKey(const std::string& key, QuotaLimits limits) { return {"sql", key, limits, 1}; }

TEST(Admission, RatesFillWithTime) {
  QuotaLimits limits;
  limits.requests_per_second = 2;
  limits.burst = 3;
  Admission admission{QuotaTable(limits)};
  TimeNs now = 1000;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(admission.Admit(For("sql"), now).ok());
  const auto refused = admission.Admit(For("sql"), now);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kRateLimited);
  EXPECT_EQ(refused.error().retry_after_seconds, 1);
  EXPECT_THAT(refused.error().message, HasSubstr("the model `sql`: expected at most 2 per second"));
  EXPECT_TRUE(admission.Admit(For("other"), now).ok());  // has its own quota
  EXPECT_FALSE(admission.Admit(For("sql"), now + kNsPerSecond / 2 - kNsPerMs).ok());
  EXPECT_TRUE(admission.Admit(For("sql"), now + kNsPerSecond / 2).ok());
  now += 100 * kNsPerSecond;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(admission.Admit(For("sql"), now).ok());
  EXPECT_FALSE(admission.Admit(For("sql"), now).ok());
  admission.CheckIntegrity();
}

TEST(Admission, RetryAfterIsWhenItHelps) {
  QuotaLimits limits;
  limits.requests_per_second = 0.01;
  Admission admission{QuotaTable(limits)};
  EXPECT_TRUE(admission.Admit(For("sql"), 0).ok());
  const auto refused = admission.Admit(For("sql"), kNsPerSecond);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().retry_after_seconds, 99);
  EXPECT_TRUE(admission.Admit(For("sql"), 100 * kNsPerSecond).ok());
}

TEST(Admission, ConcurrencyCountsSequencesUntilTheyEnd) {
  QuotaLimits limits;
  limits.concurrency = 3;
  Admission admission{QuotaTable(limits)};
  {
    auto first = admission.Admit(For("sql", 2), 0);
    ASSERT_TRUE(first.ok());
    EXPECT_THAT(admission.Admit(For("sql", 2), 0).error().message,
                HasSubstr("expected at most 3 sequences at a time, found 2 and 2"));
    auto second = admission.Admit(For("sql", 1), 0);
    ASSERT_TRUE(second.ok());
    AdmissionTicket moved = std::move(second).value();
    EXPECT_EQ(admission.Load().serving, 3);
    EXPECT_FALSE(admission.Admit(For("sql"), 0).ok());
    moved = AdmissionTicket();
    EXPECT_TRUE(admission.Admit(For("sql"), 0).ok());
  }
  EXPECT_EQ(admission.Load().serving, 0);
  EXPECT_TRUE(admission.Admit(For("sql", 3), 0).ok());
  const auto never = admission.Admit(For("sql", 4), 0);
  ASSERT_FALSE(never.ok());
  EXPECT_EQ(never.error().code, ErrorCode::kInvalidArgument);  // retrying would not help
  EXPECT_EQ(never.error().param, "n");
  EXPECT_EQ(admission.Load().refused, 3);
}

TEST(Admission, QueuesEndWithTheFirstToken) {
  QuotaLimits limits;
  limits.queued = 2;
  Admission admission(QuotaTable(limits), /*max_queued=*/3);
  auto sql = admission.Admit(For("sql", 2), 0);
  ASSERT_TRUE(sql.ok());
  EXPECT_THAT(admission.Admit(For("sql"), 0).error().message, HasSubstr("the model `sql`: expected at most 2 waiting"));
  auto other = admission.Admit(For("other"), 0);
  ASSERT_TRUE(other.ok());
  EXPECT_THAT(admission.Admit(For("third"), 0).error().message, HasSubstr("this server: expected at most 3 waiting"));
  sql->Progress(1, 10);
  EXPECT_EQ(admission.Load().queued, 2);
  auto third = admission.Admit(For("sql"), 0);
  EXPECT_TRUE(third.ok());
  admission.CheckIntegrity();
}

TEST(Admission, TokensAreADebtThatTimePays) {
  QuotaLimits limits;
  limits.tokens_per_second = 100;
  Admission admission{QuotaTable(limits)};
  {
    auto ticket = admission.Admit(For("sql"), 0);
    ASSERT_TRUE(ticket.ok());
    ticket->Progress(1, 600);  // the bucket held 100
  }
  const auto refused = admission.Admit(For("sql"), 0);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().retry_after_seconds, 5);
  EXPECT_FALSE(admission.Admit(For("sql"), 4 * kNsPerSecond).ok());
  EXPECT_TRUE(admission.Admit(For("sql"), 5 * kNsPerSecond).ok());
}

TEST(Admission, KeysHaveLimitsOfTheirOwnAndARefusalTakesNothing) {
  QuotaLimits adapter, key;
  adapter.requests_per_second = 1;
  adapter.burst = 2;
  key.concurrency = 1;
  Admission admission{QuotaTable(adapter)};
  auto held = admission.Admit(WithKey("acme", key), 0);
  ASSERT_TRUE(held.ok());
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(admission.Admit(WithKey("acme", key), 0).error().message, HasSubstr("the API key `acme`"));
  }
  auto second = admission.Admit(WithKey("other", key), 0);  // the adapter's bucket still has one token
  EXPECT_TRUE(second.ok());
  EXPECT_THAT(admission.Admit(WithKey("third", key), 0).error().message, HasSubstr("the model `sql`"));
  admission.CheckIntegrity();
}

TEST(Admission, NewQuotasHoldFromTheNextRequestOn) {
  Admission admission{QuotaTable()};
  auto held = admission.Admit(For("sql", 100), 0);
  ASSERT_TRUE(held.ok());
  QuotaLimits limits;
  limits.concurrency = 5;
  admission.SetQuotas(QuotaTable(limits));
  EXPECT_FALSE(admission.Admit(For("sql"), 0).ok());
}

TEST(Admission, MillionsOfNamesStayInBoundedMemory) {
  QuotaLimits limits;
  limits.requests_per_second = 0.001;
  Admission admission(QuotaTable(limits), kMostQueued, /*max_idle_names=*/100);
  auto held = admission.Admit(For("held"), 0);
  ASSERT_TRUE(held.ok());
  for (int i = 0; i < 200'000; ++i) {
    EXPECT_TRUE(admission.Admit(WithKey("key" + std::to_string(i), {}), i).ok() || i > 0);
    EXPECT_TRUE(admission.Admit(For("name" + std::to_string(i)), i).ok());
  }
  EXPECT_LE(admission.Load().names, 101u);
  EXPECT_FALSE(admission.Admit(For("held"), 0).ok());  // names in use are never forgotten
  EXPECT_FALSE(admission.Admit(For("name199999"), 200'000).ok());
  admission.CheckIntegrity();
}

TEST(Admission, RandomUseOnManyThreadsAddsUp) {
  QuotaLimits limits;
  limits.concurrency = 8;
  limits.queued = 6;
  Admission admission(QuotaTable(limits), /*max_queued=*/20, /*max_idle_names=*/3);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Prng prng(static_cast<std::uint64_t>(t) + 1);
      std::vector<std::pair<AdmissionTicket, std::int64_t>> held;
      for (TimeNs now = 0; now < 5000; ++now) {
        AdmissionRequest request =
            For("a" + std::to_string(prng.NextBelow(6)), 1 + static_cast<std::int64_t>(prng.NextBelow(3)));
        if (prng.NextBelow(2) == 0) request.key = "k" + std::to_string(prng.NextBelow(3));
        auto ticket = admission.Admit(request, now);
        if (ticket.ok()) held.emplace_back(std::move(ticket).value(), request.sequences);
        if (!held.empty() && prng.NextBelow(2) == 0 && held.front().second > 0) {
          held.front().first.Progress(1, 5);
          --held.front().second;
        }
        if (held.size() > 4 || (!held.empty() && prng.NextBelow(3) == 0)) held.erase(held.begin());
        if (now % 500 == 0) admission.CheckIntegrity();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  admission.CheckIntegrity();
  EXPECT_EQ(admission.Load().serving, 0);
  EXPECT_EQ(admission.Load().queued, 0);
}

}  // namespace
}  // namespace loramux::admission_test
