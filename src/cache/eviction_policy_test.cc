#include "cache/eviction_policy.h"

namespace loramux {
namespace {

TEST(EvictionPolicy, UnknownNameListsTheValidOnes) {
  const auto policy = MakeEvictionPolicy("random");
  ASSERT_FALSE(policy.ok());
  EXPECT_EQ(policy.error().message, "eviction policy: expected one of lru, gdsf, found 'random'");
}

TEST(EvictionPolicy, LruGoesByLastUseAlone) {
  const auto lru = std::move(MakeEvictionPolicy("lru")).value();
  const EvictionCandidate old{.pages = 1, .last_use = 10, .uses = 100};
  const EvictionCandidate recent{.pages = 50, .last_use = 20, .uses = 1};
  EXPECT_LT(lru->Score(old, 30), lru->Score(recent, 30));
}

TEST(EvictionPolicy, GdsfKeepsFrequentSmallAndRecentOnes) {
  const auto gdsf = std::move(MakeEvictionPolicy("gdsf")).value();
  const TimeNs now = kNsPerSecond;
  const EvictionCandidate base{.pages = 10, .last_use = now / 2, .uses = 5, .reload = ReloadFrom::kHost};
  EvictionCandidate other = base;
  other.uses = 50;
  EXPECT_LT(gdsf->Score(base, now), gdsf->Score(other, now));
  other = base;
  other.pages = 100;
  EXPECT_GT(gdsf->Score(base, now), gdsf->Score(other, now));
  other = base;
  other.last_use = now - 1;
  EXPECT_LT(gdsf->Score(base, now), gdsf->Score(other, now));
  other = base;
  other.reload = ReloadFrom::kDisk;
  EXPECT_LT(gdsf->Score(base, now), gdsf->Score(other, now));
  EvictionCandidate computed = other;
  computed.reload = ReloadFrom::kComputation;
  EXPECT_LT(gdsf->Score(other, now), gdsf->Score(computed, now));
}

}  // namespace
}  // namespace loramux
