// Compares scores with values computed by hand from the formulas, and the eviction order of given candidates.
#include "worth/eviction_policy.h"

#include <algorithm>
#include <cmath>

namespace loramux::eviction_policy_test {
namespace {

std::unique_ptr<EvictionPolicy> Make(std::string_view name) { return std::move(MakeEvictionPolicy(name)).value(); }

constexpr TimeNs kNow = 1000 * kNsPerSecond;

EvictionCandidate Adapter(std::int64_t pages, TimeNs idle, double frequency, ReloadFrom reload = ReloadFrom::kHost) {
  return {.pages = pages,
          .last_use = kNow - idle,
          .uses = frequency,
          .reload = reload,
          .kind = CandidateKind::kAdapter,
          .frequency = frequency,
          .frequency_at = kNow - idle};
}
EvictionCandidate Page(TimeNs idle, double frequency) {
  return {.pages = 1,
          .last_use = kNow - idle,
          .uses = frequency,
          .reload = ReloadFrom::kComputation,
          .kind = CandidateKind::kKeysAndValues,
          .frequency = frequency,
          .frequency_at = kNow - idle};
}

// Indices of the candidates in the order of their eviction.
std::vector<std::size_t> OrderOf(const EvictionPolicy& policy, const std::vector<EvictionCandidate>& candidates,
                                 const EvictionContext& context) {
  std::vector<std::size_t> order(candidates.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return policy.Score(candidates[a], context) < policy.Score(candidates[b], context);
  });
  return order;
}

using Order = std::vector<std::size_t>;

TEST(EvictionPolicy, UnknownNameListsTheValidOnes) {
  const auto policy = MakeEvictionPolicy("random");
  ASSERT_FALSE(policy.ok());
  EXPECT_EQ(policy.error().message,
            "eviction policy: expected one of lru, gdsf, fairshare, chameleon, fastlibra, "
            "fastlibra-wol, loramux, found 'random'");
  for (const std::string& name : EvictionPolicyNames()) EXPECT_EQ(Make(name)->name(), name);
}

TEST(EvictionPolicy, LruGoesByLastUseAlone) {
  const EvictionCandidate old{.pages = 1, .last_use = 10, .uses = 100};
  const EvictionCandidate recent{.pages = 50, .last_use = 20, .uses = 1};
  EXPECT_LT(Make("lru")->Score(old, {.now = 30}), Make("lru")->Score(recent, {.now = 30}));
}

TEST(EvictionPolicy, GdsfKeepsFrequentSmallAndRecentOnes) {
  const auto gdsf = Make("gdsf");
  EvictionClock clock;
  clock.Evicts(2, kNsPerSecond * 3 / 4);
  const EvictionContext context{.now = kNsPerSecond, .clock = &clock};
  const EvictionCandidate base{.pages = 10, .last_use = context.now / 2, .uses = 5, .reload = ReloadFrom::kHost};
  EvictionCandidate other = base;
  other.uses = 50;
  EXPECT_LT(gdsf->Score(base, context), gdsf->Score(other, context));
  other = base;
  other.pages = 100;
  EXPECT_GT(gdsf->Score(base, context), gdsf->Score(other, context));
  other = base;
  other.last_use = context.now - 1;
  EXPECT_LT(gdsf->Score(base, context), gdsf->Score(other, context));
  other = base;
  other.reload = ReloadFrom::kDisk;
  EXPECT_LT(gdsf->Score(base, context), gdsf->Score(other, context));
  EvictionCandidate computed = other;
  computed.reload = ReloadFrom::kComputation;
  EXPECT_LT(gdsf->Score(other, context), gdsf->Score(computed, context));
}

// "Score = Frequency * Cost / Size + K" (Chameleon 5.3.3). 10 pages of 0.1 and a latency of 8: a cost of 9. K is that
// of the last use: nothing was evicted before 100 ms, a score of 2 then, and one of 5 at 300 ms.
TEST(EvictionPolicy, GdsfByHand) {
  const auto gdsf = Make("gdsf");
  EvictionClock clock;
  const EvictionContext context{.now = 500 * kNsPerMs, .clock = &clock};
  EvictionCandidate candidate{.pages = 10, .last_use = 1 * kNsPerMs, .uses = 5, .reload = ReloadFrom::kHost};
  EXPECT_DOUBLE_EQ(gdsf->Score(candidate, context), 5.0 * 9 / 10);
  clock.Evicts(2, 100 * kNsPerMs);
  clock.Evicts(5, 300 * kNsPerMs);
  EXPECT_DOUBLE_EQ(gdsf->Score(candidate, context), 5.0 * 9 / 10);
  candidate.last_use = 200 * kNsPerMs;
  EXPECT_DOUBLE_EQ(gdsf->Score(candidate, context), 5.0 * 9 / 10 + 2);
  candidate.last_use = 300 * kNsPerMs;
  candidate.uses = 0;  // loaded ahead: it counts as used once
  EXPECT_DOUBLE_EQ(gdsf->Score(candidate, context), 9.0 / 10 + 5);
}

TEST(EvictionClock, NeverGoesBackAndRemembersWhatItWas) {
  EvictionClock clock;
  EXPECT_EQ(clock.At(100), 0);
  clock.Evicts(3, 10);
  clock.Evicts(2, 20);
  clock.Evicts(4, 30);
  clock.Evicts(6, 30);  // one after another in one step
  EXPECT_EQ(clock.At(9), 0);
  EXPECT_EQ(clock.At(29), 3);
  EXPECT_EQ(clock.At(30), 6);
  clock.Forget(25);
  EXPECT_EQ(clock.At(25), 3);
  for (int i = 0; i < 200'000; ++i) clock.Evicts(i, 100 + i);
  EXPECT_EQ(clock.At(200'099), 199'999);
  EXPECT_LE(clock.At(50'100), 50'000);
  EXPECT_GE(clock.At(50'100), 49'980);
}

// Frequencies of 4, 1 and 2 of 4; ages of 100, 0 and 50 seconds of 100; 10, 40 and 20 pages of 40.
const EvictionContext kWeighed{.now = kNow,
                               .total_visits = 20,
                               .max_frequency = 4,
                               .max_pages = 40,
                               .oldest_use = kNow - 100 * kNsPerSecond,
                               .made_at = kNow - 200 * kNsPerSecond};
const std::vector<EvictionCandidate> kThree = {Adapter(10, 100 * kNsPerSecond, 4), Adapter(40, 0, 1),
                                               Adapter(20, 50 * kNsPerSecond, 2)};

TEST(EvictionPolicy, ChameleonByHand) {
  const auto chameleon = Make("chameleon");
  EXPECT_NEAR(chameleon->Score(kThree[0], kWeighed), 0.45 * 1 + 0.10 * 0 + 0.45 * 0.25, 1e-12);
  EXPECT_NEAR(chameleon->Score(kThree[1], kWeighed), 0.45 * 0.25 + 0.10 * 1 + 0.45 * 1, 1e-12);
  EXPECT_NEAR(chameleon->Score(kThree[2], kWeighed), 0.45 * 0.5 + 0.10 * 0.5 + 0.45 * 0.5, 1e-12);
  EXPECT_EQ(OrderOf(*chameleon, kThree, kWeighed), (Order{2, 0, 1}));
  const auto by_frequency = MakeEvictionPolicy("chameleon", {.frequency = 1, .recency = 0, .size = 0}).value();
  EXPECT_EQ(OrderOf(*by_frequency, kThree, kWeighed), (Order{1, 2, 0}));
}

TEST(EvictionPolicy, FairShareByHand) {
  const auto fairshare = Make("fairshare");
  EXPECT_NEAR(fairshare->Score(kThree[0], kWeighed), (1 + 0 + 0.25) / 3, 1e-12);
  EXPECT_NEAR(fairshare->Score(kThree[1], kWeighed), (0.25 + 1 + 1) / 3, 1e-12);
  EXPECT_NEAR(fairshare->Score(kThree[2], kWeighed), (0.5 + 0.5 + 0.5) / 3, 1e-12);
  // Chameleon keeps the first one for its frequency.
  EXPECT_EQ(OrderOf(*fairshare, kThree, kWeighed), (Order{0, 2, 1}));
}

TEST(EvictionPolicy, ChameleonKeepsWhatQueuedRequestsWant) {
  std::vector<EvictionCandidate> candidates = kThree;
  candidates[2].queued = true;
  EXPECT_EQ(OrderOf(*Make("chameleon"), candidates, kWeighed), (Order{0, 1, 2}));
  EXPECT_EQ(OrderOf(*Make("fairshare"), candidates, kWeighed), (Order{0, 1, 2}));
}

TEST(EvictionPolicy, ChameleonTakesSmallThingsFirst) {
  // 0.45 x 1 + 0.10 x 1 + 0.45 / 40 for the page.
  EXPECT_EQ(OrderOf(*Make("chameleon"), {Page(0, 4), Adapter(40, 0, 4)}, kWeighed), (Order{0, 1}));
  // An empty context has no maxima and must not cause a division by zero.
  const double score = Make("chameleon")->Score(Page(0, 1), {});
  EXPECT_TRUE(std::isfinite(score));
}

TEST(EvictionPolicy, ChameleonForgetsVisitsInTheSameTimeAsTheMaximum) {
  EvictionContext context = kWeighed;
  context.made_at = kNow;
  context.max_frequency = 1;
  context.oldest_use = kNow - kFrequencyHalfLife;
  // Half a visit is left.
  const double score = Make("chameleon")->Score(Adapter(40, kFrequencyHalfLife, 1), context);
  EXPECT_NEAR(score, 0.45 * 0.5 + 0.10 * 0 + 0.45 * 1, 1e-12);
}

// 20 visits in all; 6 adapters expected to be needed, 4 on the device: a reward of 1.5.
const EvictionContext kLibra{.now = kNow, .total_visits = 20, .resident_adapters = 4, .low_lora = 6, .made_at = kNow};

TEST(EvictionPolicy, FastLibraByHand) {
  const auto fastlibra = Make("fastlibra"), wol = Make("fastlibra-wol");
  const double e = std::exp(1.0);
  const double half = std::exp2(-1.0 / 60);  // part of a visit's frequency left after a second
  // A fresh adapter: 1 - sigmoid(0) = 0.5. After one second: 1 - 1 / (1 + 1 / e) = 1 / (1 + e).
  EXPECT_NEAR(fastlibra->Score(Adapter(10, 0, 2), kLibra), 1.5 * 10 * 0.1 * 0.5, 1e-12);
  EXPECT_NEAR(fastlibra->Score(Adapter(10, kNsPerSecond, 2), kLibra), 1.5 * 10 * 0.1 * half / (1 + e), 1e-12);
  EXPECT_NEAR(wol->Score(Adapter(10, 0, 2), kLibra), 10 * 0.1 * 0.5, 1e-12);
  EXPECT_NEAR(fastlibra->Score(Page(0, 4), kLibra), 1 * 0.2 * 0.5, 1e-12);  // no reward for KV pages
  EvictionContext enough = kLibra;
  enough.resident_adapters = 12;
  EXPECT_EQ(fastlibra->Score(Adapter(10, 0, 2), enough), wol->Score(Adapter(10, 0, 2), enough));
}

TEST(EvictionPolicy, FastLibraRewardsAdaptersWhileThereAreTooFew) {
  // 1 page with 4 visits against 1 page with 3 visits: 0.1 against 0.075, or 0.1125 with the reward.
  const std::vector<EvictionCandidate> candidates = {Page(0, 4), Adapter(1, 0, 3)};
  EXPECT_EQ(OrderOf(*Make("fastlibra"), candidates, kLibra), (Order{0, 1}));
  EXPECT_EQ(OrderOf(*Make("fastlibra-wol"), candidates, kLibra), (Order{1, 0}));
}

// The paper's sigmoid of seconds: after 745 seconds e^t exceeds a 64-bit float, and all scores are 0.
TEST(EvictionPolicy, FastLibraSaturatesAndLoramuxDoesNot) {
  const EvictionCandidate minute = Page(kNsPerSecond * 60, 100), hour = Page(kNsPerSecond * 3600, 1);
  EXPECT_GT(Make("fastlibra")->Score(Page(30 * kNsPerSecond, 1), kLibra), 0.0);
  EXPECT_GT(Make("fastlibra")->Score(minute, kLibra), 0.0);
  EXPECT_EQ(Make("fastlibra")->Score(hour, kLibra), 0.0);
  const auto in_minutes = std::move(MakeEvictionPolicy("fastlibra", {.time_unit = 60 * kNsPerSecond})).value();
  EXPECT_GT(in_minutes->Score(hour, kLibra), 0.0);
  // 1 - sigmoid(t): a minute of idle time is one unit.
  EXPECT_NEAR(in_minutes->Score(minute, kLibra) / in_minutes->Score(Page(0, 100), kLibra), 2 / (1 + std::exp(1.0)),
              1e-9);
  EXPECT_GT(Make("loramux")->Score(minute, kLibra), Make("loramux")->Score(hour, kLibra));
  EvictionCandidate months = hour, longer = hour;
  months.frequency_at = kNow - kNsPerSecond * 86400 * 60;
  longer.frequency_at = months.frequency_at - kNsPerSecond;
  EXPECT_GT(Make("loramux")->Score(months, kLibra), Make("loramux")->Score(longer, kLibra));
}

// (visits + 0.3) / (30 s + idle seconds) x effort per page.
TEST(EvictionPolicy, LoramuxByHand) {
  const auto loramux = Make("loramux");
  EvictionContext enough = kLibra;
  enough.low_lora = 0;
  EXPECT_NEAR(loramux->Score(Page(0, 4), enough), 4.3 / 30 * 10, 1e-12);
  EXPECT_NEAR(loramux->Score(Page(kFrequencyHalfLife, 4), enough), 4.3 / 90 * 10, 1e-12);
  // Effort: (8 + 8) / 8.
  EXPECT_NEAR(loramux->Score(Adapter(8, 2 * kFrequencyHalfLife, 4), enough), 4.3 / 150 * 0.1 * 2, 1e-12);
  EXPECT_NEAR(loramux->Score(Adapter(8, 0, 1, ReloadFrom::kDisk), enough), 1.3 / 30 * 2, 1e-12);
  // With the reward of 1.5.
  EXPECT_NEAR(loramux->Score(Adapter(8, 0, 1, ReloadFrom::kDisk), kLibra), 1.3 / 30 * 3, 1e-12);
  EXPECT_NEAR(loramux->Score(Adapter(8, kFrequencyHalfLife, 0, ReloadFrom::kDisk), enough), 1.3 / 90 * 2, 1e-12);
  enough.remembered_s = 5;  // a cache with a short turnover
  EXPECT_NEAR(loramux->Score(Page(kFrequencyHalfLife, 4), enough), 4.3 / 65 * 10, 1e-12);
}

TEST(EvictionPolicy, LoramuxGoesByWhatWasLearnedOfVisits) {
  const auto loramux = Make("loramux");
  EvictionCandidate over = Page(0, 4);
  over.reuse_factor = 0.25;
  EXPECT_DOUBLE_EQ(loramux->Score(over, kLibra), loramux->Score(Page(0, 4), kLibra) / 4);
  EXPECT_EQ(Make("lru")->Score(over, kLibra), Make("lru")->Score(Page(0, 4), kLibra));
  EvictionCandidate adapter = Adapter(8, 0, 4);
  adapter.reuse_factor = 0.25;
  EXPECT_DOUBLE_EQ(loramux->Score(adapter, kLibra), loramux->Score(Adapter(8, 0, 4), kLibra) / 4);
  adapter.reuse_factor = 4;  // never raised above the prior
  EXPECT_EQ(loramux->Score(adapter, kLibra), loramux->Score(Adapter(8, 0, 4), kLibra));
}

// A fetch has the latency of an adapter's load, and one fetch brings back all that a query left behind.
TEST(EvictionPolicy, LoramuxSharesTheLatencyOfAFetchAmongThePagesOfAQuery) {
  const auto loramux = Make("loramux");
  EXPECT_GT(loramux->MostPagesOfQuery(ReloadFrom::kHost), 1);
  EXPECT_EQ(loramux->MostPagesOfQuery(ReloadFrom::kComputation), 1);  // no latency
  EvictionCandidate page = Page(0, 4);
  page.reload = ReloadFrom::kHost;
  EXPECT_NEAR(loramux->Score(page, kLibra), 4.3 / 30 * (0.8 + 0.1), 1e-12);
  page.pages = 4;
  EXPECT_NEAR(loramux->Score(page, kLibra), 4.3 / 30 * (0.8 / 4 + 0.1), 1e-12);
}

// A prefill delays all requests, a load only those that wait for it.
TEST(EvictionPolicy, LoramuxComputesAgainTheLessGladlyTheMoreWait) {
  const auto loramux = Make("loramux");
  EvictionContext alone = kLibra, crowd = kLibra;
  alone.requests = 1;
  crowd.requests = 25;
  EvictionCandidate copied = Page(0, 4);
  copied.reload = ReloadFrom::kHost;
  EXPECT_EQ(loramux->Score(Page(0, 4), alone), loramux->Score(Page(0, 4), kLibra));
  EXPECT_DOUBLE_EQ(loramux->Score(Page(0, 4), crowd), 25 * loramux->Score(Page(0, 4), alone));
  EXPECT_EQ(loramux->Score(copied, crowd), loramux->Score(copied, alone));
  EXPECT_EQ(loramux->Score(Adapter(8, 0, 1), crowd), loramux->Score(Adapter(8, 0, 1), alone));
}

// The factor for queued adapters must not round away their order.
// A page of a snapshot that saves the computation of many pages is worth as many, and one that saves little goes first.
TEST(EvictionPolicy, ASnapshotIsWorthWhatItSaves) {
  for (const char* name : {"loramux", "gdsf"}) {
    const auto policy = Make(name);
    const EvictionContext context{.now = kNow, .made_at = kNow};
    EvictionCandidate snapshot = Page(0, 4);
    const double of_page = policy->Score(snapshot, context);
    snapshot.effort = 3;
    const double long_one = policy->Score(snapshot, context);
    snapshot.effort = 0.5;
    EXPECT_LT(policy->Score(snapshot, context), of_page) << name;
    EXPECT_GT(long_one, of_page) << name;
  }
  EvictionCandidate snapshot = Page(0, 4);
  snapshot.effort = 3;
  EXPECT_NEAR(Make("loramux")->Score(snapshot, {.now = kNow, .made_at = kNow}), 4.3 / 30 * 10 * 3, 1e-12);
}

TEST(EvictionPolicy, LoramuxTellsAdaptersOfQueuedRequestsApart) {
  std::vector<EvictionCandidate> candidates = {Adapter(80, kNsPerSecond, 3), Adapter(80, kNsPerSecond, 2.999),
                                               Page(0, 1000)};
  candidates[0].queued = candidates[1].queued = true;
  EXPECT_EQ(OrderOf(*Make("loramux"), candidates, {.now = kNow, .made_at = kNow}), (Order{2, 1, 0}));
}

TEST(EvictionPolicy, LoramuxKeepsWhatIsDearForItsPages) {
  EvictionCandidate queued = Adapter(64, 10 * kFrequencyHalfLife, 1);
  queued.queued = true;
  const std::vector<EvictionCandidate> candidates = {Page(0, 1), Adapter(64, 0, 1), Adapter(8, 0, 1),
                                                     Adapter(8, 0, 1, ReloadFrom::kDisk), queued};
  // Scores per page: 10, 0.1125, 0.2, 2; the last candidate is wanted.
  EXPECT_EQ(OrderOf(*Make("loramux"), candidates, {.now = kNow, .made_at = kNow}), (Order{1, 2, 3, 0, 4}));
}

}  // namespace
}  // namespace loramux::eviction_policy_test
