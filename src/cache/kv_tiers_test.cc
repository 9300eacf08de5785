#include "cache/kv_tiers.h"

#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include "cache/kv_eviction_plan.h"
#include "cache/tree_world_for_test.h"

namespace loramux::kv_tiers_test {
namespace {

using tree_world::kPageTokens;
using tree_world::Tokens;

// A device of eight pages, full of history that the next plan would evict.
struct World {
  VirtualClock clock;
  std::unique_ptr<PagePool> device = std::move(PagePool::Create("device", 8 * 64, 64)).value();
  std::unique_ptr<PagePool> host = std::move(PagePool::Create("host", 8 * 64, 64)).value();
  ModeledTransfer transfer{&clock, {.latency_ns = 10}, {.latency_ns = 10}};
  std::unique_ptr<EvictionPolicy> policy = std::move(MakeEvictionPolicy("lru")).value();
  DependencyTree tree{kPageTokens, device.get(), host.get()};
  KvEvictionPlan plan{tree, *policy};
  NodeId tail = tree.branches().Top(tree.Hold(""));

  World() {
    for (TokenId token = 0; token < 32; token += 4) {
      PageHandle page;
      CHECK(device->Allocate(PageCategory::kKv, std::span(&page, 1)));
      tail = tree.Insert(tail, Tokens(4, token), page, clock.Now()).node;
    }
    tree.Unlock(tail, clock.Now());
    plan.Reset(clock.Now());
  }
};

// Backs up what is evicted next, a small part of the device at a time.
TEST(KvTiers, BackUpWhatIsEvictedNext) {
  World w;
  KvTiers tiers(w.tree, *w.device, *w.host, w.transfer);
  EXPECT_EQ(tiers.max_pages_of_job(), 1);
  EXPECT_FALSE(tiers.Poll(w.clock.Now()));
  tiers.BackUp(w.plan, {});
  EXPECT_TRUE(tiers.backing_up());
  EXPECT_FALSE(tiers.idle());
  w.clock.Advance(1000);
  EXPECT_TRUE(tiers.Poll(w.clock.Now()));
  EXPECT_TRUE(tiers.idle());
  EXPECT_EQ(tiers.stats().pages_backed_up, 1);
  EXPECT_EQ(w.tree.tiers().host_pages(), 1);
  w.tree.CheckIntegrity();
}

TEST(KvTiers, WithoutAHostTierNothingMoves) {
  World w;
  KvTiers tiers(w.tree);
  EXPECT_EQ(tiers.max_pages_of_job(), 0);
  tiers.BackUp(w.plan, {});
  EXPECT_TRUE(tiers.idle());
  EXPECT_FALSE(tiers.Poll(w.clock.Now()));
  EXPECT_EQ(tiers.FetchOf(w.tail), nullptr);
  EXPECT_FALSE(tiers.IsRequester(RequestId{1}) || tiers.AnyInUse() || tiers.AnyFailed());
  tiers.Cancel(RequestId{1});
  tiers.EndFailedFetches();
  EXPECT_EQ(w.tree.tiers().host_pages(), 0);
  EXPECT_EQ(w.transfer.next_end(), -1);
}

}  // namespace
}  // namespace loramux::kv_tiers_test
