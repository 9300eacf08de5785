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
  const EvictionCandidate old{.adapter = {1}, .pages = 1, .last_use = 10, .uses = 100};
  const EvictionCandidate recent{.adapter = {2}, .pages = 50, .last_use = 20, .uses = 1};
  EXPECT_LT(lru->Score(old, 30), lru->Score(recent, 30));
}

TEST(EvictionPolicy, GdsfKeepsFrequentSmallAndRecentOnes) {
  const auto gdsf = std::move(MakeEvictionPolicy("gdsf")).value();
  const TimeNs now = kNsPerSecond;
  const EvictionCandidate base{.adapter = {1}, .pages = 10, .last_use = now / 2, .uses = 5, .in_host_tier = true};
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
  other.in_host_tier = false;
  EXPECT_LT(gdsf->Score(base, now), gdsf->Score(other, now));
}

}  // namespace
}  // namespace loramux
