#include "residency/kv_tiers.h"

#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include "prefix/tree_world_for_test.h"

namespace loramux::kv_tiers_test {
namespace {

using tree_world::kPageTokens;
using tree_world::Tokens;

// A device of eight pages, full of history.
struct World {
  VirtualClock clock;
  std::unique_ptr<PagePool> device = std::move(PagePool::Create("device", 8 * 64, 64)).value();
  std::unique_ptr<PagePool> host = std::move(PagePool::Create("host", 8 * 64, 64)).value();
  ModeledTransfer transfer{&clock, {.latency_ns = 10}, {.latency_ns = 10}};
  DependencyTree tree{kPageTokens, device.get(), host.get()};
  NodeId tail = tree.branches().Top(tree.Hold(""));

  World() {
    for (TokenId token = 0; token < 32; token += 4) {
      PageHandle page;
      CHECK(device->Allocate(PageCategory::kKv, std::span(&page, 1)));
      tail = tree.Insert(tail, Tokens(4, token), page, clock.Now()).node;
    }
    tree.EndUse(tail, clock.Now());
  }
};

bool Poll(World& w, KvTiers& tiers) {
  bool any = false;
  for (; const auto done = w.transfer.Poll(); any = true) tiers.End(*done, w.clock.Now());
  tiers.Look();
  return any;
}

Move ToHost(NodeId node) { return {.item = node, .to = Tier::kHost, .why = MoveReason::kBackUp}; }

// Two paths in one job; what leaves the tier is no part of it.
TEST(KvTiers, BackUpCopiesWhatIsPlanned) {
  World w;
  KvTiers tiers(w.tree, *w.device, *w.host, w.transfer);
  EXPECT_EQ(tiers.max_pages_of_job(), 1);
  EXPECT_FALSE(Poll(w, tiers));
  const NodeId parent = w.tree.nodes().Parent(w.tail);
  tiers.BackUp(Moves{
      {.item = AdapterGeneration{1}, .from = Tier::kHost}, ToHost(w.tree.nodes().Parent(parent)), ToHost(w.tail)});
  EXPECT_TRUE(tiers.backing_up());
  EXPECT_FALSE(tiers.idle());
  w.clock.Advance(1000);
  EXPECT_TRUE(Poll(w, tiers));
  EXPECT_TRUE(tiers.idle());
  EXPECT_EQ(tiers.stats().pages_backed_up, 2);
  EXPECT_EQ(w.tree.tiers().host_pages(), 2);
  EXPECT_TRUE(w.tree.nodes().At(w.tail).has_host_copy());
  EXPECT_FALSE(w.tree.nodes().At(parent).has_host_copy());
  w.tree.CheckIntegrity();
}

TEST(KvTiers, WithoutAHostTierNothingMoves) {
  World w;
  KvTiers tiers(w.tree);
  EXPECT_EQ(tiers.max_pages_of_job(), 0);
  tiers.BackUp(Moves{});
  EXPECT_TRUE(tiers.idle());
  EXPECT_FALSE(Poll(w, tiers));
  EXPECT_EQ(tiers.FetchOf(w.tail), nullptr);
  EXPECT_FALSE(tiers.IsRequester(RequestId{1}) || tiers.AnyFailed());
  tiers.Cancel(RequestId{1});
  tiers.EndFailedFetches();
  EXPECT_EQ(w.tree.tiers().host_pages(), 0);
  EXPECT_EQ(w.transfer.next_end(), -1);
}

}  // namespace
}  // namespace loramux::kv_tiers_test
