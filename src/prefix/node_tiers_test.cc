#include "prefix/node_tiers.h"

#include <memory>
#include <string>
#include <vector>

#include "prefix/tree_world_for_test.h"

namespace loramux::node_tiers_test {
namespace {

using tree_world::kPageTokens;
using tree_world::Tokens;
using tree_world::World;

TEST(NodeTiers, WhatIsUsedStaysAndOnlyLeavesGo) {
  World w;
  const BranchId base = w.tree->Hold("");
  const NodeId tail = w.Remember(base, Tokens(12), 0);
  ASSERT_EQ(w.tree->tiers().IdleLeaves().size(), 1u);
  EXPECT_EQ(w.tree->nodes().IdOf(w.tree->tiers().IdleLeaves()[0]), tail);
  const NodeId middle = w.tree->nodes().Parent(tail);
  w.tree->Use(middle, 1);
  EXPECT_EQ(w.tree->tiers().idle_pages(), 1);
  w.tree->Evict(tail);
  EXPECT_FALSE(w.tree->nodes().Exists(tail));
  EXPECT_TRUE(w.tree->tiers().IdleLeaves().empty());
  EXPECT_DEATH(w.tree->Evict(middle), "");
  w.tree->EndUse(middle, 2);
  EXPECT_DEATH(w.tree->Evict(w.tree->nodes().Parent(middle)), "");
  w.tree->Evict(middle);
  EXPECT_EQ(w.Matched(base, Tokens(12)), 1);
  w.tree->CheckIntegrity();
  w.tree->Release(base);
}

TEST(NodeTiers, TheLastPageOfAPathIsLetGoAlone) {
  World w;
  const BranchId base = w.tree->Hold("");
  const NodeId tail = w.Remember(base, Tokens(12), 0);
  w.tree->Use(tail, 1);
  w.tree->EndUseOfLast(tail, 2);
  w.tree->CheckIntegrity();
  EXPECT_EQ(w.tree->tiers().idle_pages(), 1);
  w.tree->Evict(tail);
  EXPECT_DEATH(w.tree->EndUseOfLast(w.tree->branches().Top(base), 2), "");
  const NodeId middle = w.tree->index().Match(w.tree->branches().Top(base), Tokens(12), 1000);
  EXPECT_EQ(w.tree->View(middle).users, 1);
  w.tree->EndUse(middle, 3);
  EXPECT_EQ(w.tree->tiers().idle_pages(), 2);
  w.tree->Release(base);
}

// ---------------------------------------------------------------- Tiers alone

struct Tiers {
  std::unique_ptr<PagePool> device = std::move(PagePool::Create("device", 32 * 64, 64)).value();
  std::unique_ptr<PagePool> host = std::move(PagePool::Create("host", 32 * 64, 64)).value();
  TreeNodes nodes{1};
  PrefixIndex index{&nodes, 0};
  NodeTiers tiers{&nodes, device.get(), host.get()};
  TokenId next = 0;

  // A node with a page on the device.
  NodeId Add(NodeId parent) {
    const std::vector<TokenId> tokens = {next++};
    const std::uint32_t node = index.Insert(parent.index, tokens, index.Find(parent.index, tokens).hash);
    PageHandle page;
    CHECK(device->Allocate(PageCategory::kKv, std::span(&page, 1)));
    tiers.ArriveOnDevice(node, page);
    return nodes.IdOf(node);
  }
  NodeId AddTop(std::uint32_t branch) { return nodes.IdOf(index.AddTop(branch, std::to_string(branch))); }
  std::vector<NodeTiers::MovingPages> BackUp(std::vector<NodeId> path) {
    std::vector<NodeTiers::MovingPages> pages;
    tiers.BeginBackUp(path, pages);
    return pages;
  }
  // Backs the path up and evicts it, from its end.
  void MoveToHost(const std::vector<NodeId>& path) {
    tiers.EndMove(BackUp(path), /*failed=*/false);
    for (std::size_t i = path.size(); i-- > 0;) tiers.EvictToHost(path[i].index);
  }
  std::vector<NodeTiers::MovingPages> Fetch(NodeId tail) {
    std::vector<NodeTiers::MovingPages> pages;
    tiers.BeginFetch(tail, pages);
    return pages;
  }
};

TEST(NodeTiers, AloneAFetchBringsThePartOfAPathThatIsInTheHostTier) {
  Tiers t;
  const NodeId top = t.AddTop(3), first = t.Add(top), second = t.Add(first), third = t.Add(second);
  t.MoveToHost({first, second, third});
  EXPECT_EQ(t.tiers.pages(), 0);
  EXPECT_EQ(t.tiers.host_pages(), 3);
  ASSERT_EQ(t.tiers.HostRoots().size(), 1u);
  EXPECT_EQ(t.tiers.HostRoots()[0], first.index);
  t.tiers.EndMove(t.Fetch(first), /*failed=*/false);
  ASSERT_EQ(t.tiers.HostRoots().size(), 1u);
  EXPECT_EQ(t.tiers.HostRoots()[0], second.index);
  const auto pages = t.Fetch(third);
  ASSERT_EQ(pages.size(), 2u);
  EXPECT_EQ(pages[0].node, second);
  EXPECT_TRUE(t.tiers.HasMoves(BranchId{3}));
  EXPECT_EQ(t.tiers.BranchesWithMoves().size(), 1u);
  EXPECT_TRUE(t.tiers.HasDevicePage(third));
  EXPECT_FALSE(t.tiers.OnDevice(third));
  EXPECT_EQ(t.tiers.idle_pages(), 0);  // the transfer uses the whole path
  t.tiers.CheckIntegrity();
  t.tiers.EndMove(pages, /*failed=*/true);
  EXPECT_FALSE(t.tiers.HasDevicePage(third));
  EXPECT_TRUE(t.nodes.At(third).has_host_copy());
  EXPECT_FALSE(t.tiers.HasMoves(BranchId{3}));
  EXPECT_EQ(t.tiers.pages(BranchId{3}), 1);
  EXPECT_EQ(t.tiers.pages(BranchId{4}), 0);
  EXPECT_EQ(t.device->free_pages(), 31);
  t.tiers.CheckIntegrity();
}

TEST(NodeTiers, AloneAFailedBackUpLeavesNoCopy) {
  Tiers t;
  const NodeId node = t.Add(t.AddTop(0));
  const auto pages = t.BackUp({node});
  EXPECT_EQ(t.tiers.droppable_host_pages(), 0);
  EXPECT_FALSE(t.nodes.At(node).has_host_copy());  // not yet
  EXPECT_TRUE(t.tiers.IdleLeaves().empty());
  t.tiers.EndMove(pages, /*failed=*/true);
  EXPECT_FALSE(t.nodes.At(node).has_host_copy());
  EXPECT_EQ(t.host->free_pages(), 32);
  EXPECT_EQ(t.tiers.IdleLeaves().size(), 1u);
  t.tiers.CheckIntegrity();
}

// A transfer outlives the node: its pages stay allocated until it ends.
TEST(NodeTiers, AloneATransferKeepsThePagesOfARemovedNode) {
  Tiers t;
  const NodeId node = t.Add(t.AddTop(0));
  const auto pages = t.BackUp({node});
  t.tiers.RemovePages(node.index);
  t.index.Remove(node.index);
  EXPECT_EQ(t.tiers.orphans(), 1);
  EXPECT_FALSE(t.tiers.HasMoves(BranchId{0}));
  EXPECT_EQ(t.device->free_pages(), 31);
  t.tiers.CheckIntegrity();
  t.tiers.EndMove(pages, /*failed=*/false);
  EXPECT_EQ(t.tiers.orphans(), 0);
  EXPECT_EQ(t.device->free_pages() + t.host->free_pages(), 64);
}

TEST(NodeTiers, AloneNewIdleLeavesAreListedOnce) {
  Tiers t;
  const NodeId first = t.Add(t.AddTop(0)), second = t.Add(first);
  std::vector<NodeId> leaves;
  EXPECT_TRUE(t.tiers.TakeNewIdleLeaves(leaves));
  EXPECT_EQ(leaves, (std::vector<NodeId>{first, second}));  // the first one is a leaf no longer
  ASSERT_EQ(t.tiers.IdleLeaves().size(), 1u);
  t.tiers.AddUser(second.index);
  t.tiers.AddUser(first.index);
  t.tiers.UpdateLeaf(second.index);
  EXPECT_TRUE(t.tiers.IdleLeaves().empty());
  EXPECT_EQ(t.tiers.idle_pages(), 0);
  for (const NodeId node : {second, first}) EXPECT_TRUE(t.tiers.RemoveUser(node.index));
  t.tiers.UpdateLeaf(second.index);
  leaves.clear();
  EXPECT_TRUE(t.tiers.TakeNewIdleLeaves(leaves));
  EXPECT_EQ(leaves, std::vector<NodeId>{second});
  EXPECT_DEATH(t.tiers.RemoveUser(second.index), "users");
}

// A copy of a device page is dropped and its node stays; a node of the host part alone is removed.
TEST(NodeTiers, AloneADroppedCopyKeepsItsNode) {
  Tiers t;
  const NodeId top = t.AddTop(0), copied = t.Add(top), away = t.Add(top);
  t.tiers.EndMove(t.BackUp({copied}), /*failed=*/false);
  t.MoveToHost({away});
  t.nodes[copied.index].host_worth = 1;
  t.nodes[away.index].host_worth = 2;
  ASSERT_NE(t.tiers.NextToDrop(), nullptr);
  EXPECT_EQ(*t.tiers.NextToDrop(), HostEntry(t.nodes[copied.index], copied.index));
  t.tiers.HoldFromDrop(copied.index);  // a plan drops it
  EXPECT_EQ(t.tiers.NextToDrop()->item, away.index);
  t.tiers.OfferToDrop(copied.index);
  EXPECT_EQ(t.tiers.NextToDrop()->worth, 1);
  t.tiers.FreeHostPage(copied.index);
  EXPECT_FALSE(t.nodes.At(copied).has_host_copy());
  EXPECT_TRUE(t.tiers.OnDevice(copied));
  EXPECT_EQ(t.tiers.NextToDrop()->item, away.index);
  t.tiers.RemovePages(away.index);
  t.index.Remove(away.index);
  EXPECT_EQ(t.tiers.host_pages(), 0);
  EXPECT_EQ(t.tiers.NextToDrop(), nullptr);
  t.tiers.CheckIntegrity();
}

}  // namespace
}  // namespace loramux::node_tiers_test
