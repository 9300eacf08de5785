#include "prefix/reuse_statistics.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "prefix/tree_world_for_test.h"

namespace loramux::reuse_statistics_test {
namespace {

using tree_world::kPageTokens;
using tree_world::Tokens;
using tree_world::World;

TEST(ReuseStatistics, FrequencyHalvesInAHalfLife) {
  World w(64, /*half_life=*/1000);
  const BranchId base = w.tree->Hold("");
  const NodeId tail = w.Remember(base, Tokens(4), 0);
  EXPECT_DOUBLE_EQ(w.tree->View(tail).frequency, 1.0);
  w.tree->Use(tail, 1000);
  EXPECT_NEAR(w.tree->View(tail).frequency, 1.5, 1e-6);
  w.tree->EndUse(tail, 3000);  // a use of two half-lives counts as time, not as visits
  EXPECT_NEAR(w.tree->View(tail).frequency, 0.375, 1e-6);
  EXPECT_EQ(w.tree->View(tail).last_use, 3000);
  w.tree->Release(base);
}

TEST(ReuseStatistics, AWantedNodeMayGoAllTheSame) {
  World w;
  const BranchId base = w.tree->Hold("");
  const NodeId tail = w.Remember(base, Tokens(4), 0);
  w.tree->Want(tail);
  EXPECT_EQ(w.tree->View(tail).wants, 1);
  w.tree->Evict(tail);
  const NodeId other = w.Remember(base, Tokens(4, 50), 0);  // reuses the slot of the removed node
  EXPECT_EQ(other.index, tail.index);
  w.tree->Unwant(tail);
  EXPECT_EQ(w.tree->View(other).wants, 0);
  w.tree->Release(base);
}

// A conversation is an edge: its last page has as many visits as the conversation has turns. After a fork, each edge
// counts by itself.
TEST(ReuseStatistics, AllPagesOfAnEdgeHaveTheVisitsOfItsFirst) {
  World w(64);
  const std::unique_ptr<PagePool> host = std::move(PagePool::Create("host", 64 * 64, 64)).value();
  w.tree = std::make_unique<DependencyTree>(kPageTokens, w.pool.get(), host.get(), /*half_life=*/1000 * kNsPerSecond);
  const BranchId base = w.tree->Hold("");
  const auto visits = [&](NodeId tail) {
    std::vector<double> of_edge;
    for (NodeId at = tail; w.tree->nodes().Depth(at) > 0; at = w.tree->nodes().Parent(at)) {
      of_edge.insert(of_edge.begin(), std::round(w.tree->View(at).edge_frequency));
    }
    return of_edge;
  };
  NodeId tail = w.Remember(base, Tokens(8), 0);
  EXPECT_EQ(visits(tail), (std::vector<double>{1, 1}));
  tail = w.Remember(base, Tokens(12), 0);
  EXPECT_EQ(visits(tail), (std::vector<double>{2, 2, 2}));
  EXPECT_EQ(std::round(w.tree->View(tail).frequency), 1);
  tail = w.Remember(base, Tokens(16), 0);
  EXPECT_EQ(visits(tail), (std::vector<double>{3, 3, 3, 3}));
  std::vector<TokenId> parting = Tokens(16);
  std::fill(parting.begin() + 8, parting.end(), 99);
  const NodeId other = w.Remember(base, parting, 0);
  EXPECT_EQ(visits(other), (std::vector<double>{4, 4, 1, 1}));
  tail = w.Remember(base, Tokens(16), 0);  // after the fork: two earlier visits of pages 3 and 4, and this one
  EXPECT_EQ(visits(tail), (std::vector<double>{5, 5, 3, 3}));
  EXPECT_EQ(visits(other), (std::vector<double>{5, 5, 1, 1}));
  w.tree->CheckIntegrity();
  w.tree->Release(base);
}

TEST(ReuseStatistics, WithoutAHostTierAPageHasItsOwnVisitsAlone) {
  World w(64, /*half_life=*/1000 * kNsPerSecond);
  const BranchId base = w.tree->Hold("");
  w.Remember(base, Tokens(8), 0);
  const NodeId tail = w.Remember(base, Tokens(12), 0);
  EXPECT_EQ(w.tree->View(tail).edge_frequency, w.tree->View(tail).frequency);
  EXPECT_LT(w.tree->View(tail).edge_frequency, w.tree->View(w.tree->nodes().Parent(tail)).edge_frequency);
  w.tree->Release(base);
}

// A long use does not lower the worth of a node, and no node is worth less than a child inserted meanwhile.
TEST(ReuseStatistics, WorthInTheHostTierNeverFallsAndNoChildHasMore) {
  World w(64, kNsPerSecond);
  const auto host = std::move(PagePool::Create("host", 64 * 64, 64)).value();
  w.tree = std::make_unique<DependencyTree>(kPageTokens, w.pool.get(), host.get(), kNsPerSecond);
  w.tree->set_host_bonus(3 * kNsPerSecond);
  const NodeId parent = w.Remember(w.tree->Hold(""), Tokens(4), 0);
  w.tree->Use(parent, kNsPerSecond);
  const TimeNs visited = w.tree->reuse().HostWorth(parent);
  const NodeId child = w.tree->Insert(parent, Tokens(4, 100), w.NewPage(), 20 * kNsPerSecond).node;
  w.tree->EndUse(child, 60 * kNsPerSecond);
  EXPECT_EQ(w.tree->reuse().HostWorth(child), 60 * kNsPerSecond);
  EXPECT_GT(w.tree->reuse().HostWorth(parent), visited);
  EXPECT_GE(w.tree->reuse().HostWorth(parent), w.tree->reuse().HostWorth(child));
  w.tree->CheckIntegrity();
}

// The same prompt every ten seconds, or a different one each time.
TEST(ReuseStatistics, LearnsHowIdlePagesAreUsedAgain) {
  const auto factor_after = [](bool same) {
    World w(4096);
    const BranchId base = w.tree->Hold("");
    for (TimeNs now = 0; now < 1000 * kNsPerSecond; now += 20 * kNsPerMs) {
      const auto tens = static_cast<TokenId>(now / (10 * kNsPerSecond));
      if (now % (10 * kNsPerSecond) == 0) w.Remember(base, Tokens(40 * kPageTokens, same ? 0 : 1000 * tens), now);
      w.tree->ObserveIdlePages(now, 30);
    }
    w.tree->CheckIntegrity();
    return w.tree->reuse().rates().Factor(
        1, 9 * kNsPerSecond);  // visits decay within a second here, so every visit counts as the first
  };
  EXPECT_GT(factor_after(true), 1.5);  // the prior remembers 30 seconds
  EXPECT_LT(factor_after(false), 0.5);
}

// Conversations end after any turn with the same odds, so that long ones are worth no more than short ones. Without
// learning, those with eight turns and more would be worth nine minutes more than what is new.
TEST(ReuseStatistics, VisitsThatPredictNothingEarnNoWorth) {
  World w(1 << 15, /*half_life=*/600 * kNsPerSecond);
  const auto host = std::move(PagePool::Create("host", 64 * 64, 64)).value();
  w.tree = std::make_unique<DependencyTree>(kPageTokens, w.pool.get(), host.get(), 600 * kNsPerSecond);
  constexpr TimeNs kBonus = 180 * kNsPerSecond;
  w.tree->set_host_bonus(kBonus);
  const BranchId base = w.tree->Hold("");
  EXPECT_EQ(w.tree->reuse().HostWorth(0, 8), 3 * kBonus);
  Prng prng(7);
  TokenId next = 0;
  std::vector<TokenId> open(20, 0);  // the first tokens of conversations
  for (TimeNs now = 0; now < 1200 * kNsPerSecond; now += 20 * kNsPerMs) {
    if (now % kNsPerSecond == 0) {
      TokenId& conversation = open[prng.NextBelow(open.size())];
      if (conversation == 0 || prng.NextBelow(4) == 0) conversation = next += 1000;
      w.Remember(base, Tokens(64 * kPageTokens, conversation), now);
    }
    w.tree->ObserveIdlePages(now, 30);
  }
  EXPECT_LT(w.tree->reuse().HostWorth(0, 8), kBonus / 2);
  EXPECT_GE(w.tree->reuse().HostWorth(0, 8), 0);
  w.tree->CheckIntegrity();
}

// ---------------------------------------------------------------- Statistics alone

struct Statistics {
  TreeNodes nodes{1};
  PrefixIndex index{&nodes, 0};
  std::uint32_t top = index.AddTop(0, "");

  std::uint32_t Add(std::uint32_t parent, TokenId token) {
    const std::vector<TokenId> page = {token};
    return index.Insert(parent, page, index.Find(parent, page).hash);
  }
};

TEST(ReuseStatistics, AloneEachDoublingOfVisitsIsWorthTheBonus) {
  Statistics s;
  ReuseStatistics reuse(&s.nodes, kNsPerSecond, /*by_edge=*/true);
  EXPECT_EQ(reuse.HostWorth(500, 8), 500);
  reuse.set_host_bonus(100);
  EXPECT_EQ(reuse.HostWorth(500, 1), 500);
  EXPECT_EQ(reuse.HostWorth(500, 8), 800);
  EXPECT_EQ(reuse.HostWorth(500, 0), reuse.HostWorth(500, 1.0 / 64));  // bounded
  const std::uint32_t node = s.Add(s.top, 1);
  reuse.VisitInserted(node, 1000);
  EXPECT_EQ(reuse.HostWorth(s.nodes.IdOf(node)), 1000);
  reuse.Visit(node, 1000);
  EXPECT_EQ(reuse.HostWorth(s.nodes.IdOf(node)), 1100);
  reuse.EndUse(node, 1100, /*idle=*/true);
  EXPECT_EQ(reuse.HostWorth(s.nodes.IdOf(node)), 1200);
  reuse.CheckIntegrity();
}

TEST(ReuseStatistics, AloneAForkEndsAnEdge) {
  Statistics s;
  ReuseStatistics reuse(&s.nodes, 1000 * kNsPerSecond, /*by_edge=*/true);
  const std::uint32_t first = s.Add(s.top, 1), second = s.Add(first, 2);
  for (const std::uint32_t node : {first, second}) reuse.VisitInserted(node, 0);
  reuse.Visit(first, 0);
  reuse.CountEdges(second);
  EXPECT_EQ(reuse.EdgeFrequency(s.nodes[second]), 2);  // those of the first page
  s.Add(first, 3);
  reuse.CountEdges(second);
  EXPECT_EQ(reuse.EdgeFrequency(s.nodes[first]), 2);
  EXPECT_EQ(reuse.EdgeFrequency(s.nodes[second]), 1);
  const ReuseStatistics by_page(&s.nodes, kNsPerSecond, /*by_edge=*/false);
  s.nodes[second].frequency = 5;
  EXPECT_EQ(by_page.EdgeFrequency(s.nodes[second]), 5);
}

TEST(ReuseStatistics, AloneAWantOfAGoneNodeIsForgotten) {
  Statistics s;
  ReuseStatistics reuse(&s.nodes, kNsPerSecond, true);
  const NodeId node = s.nodes.IdOf(s.Add(s.top, 1));
  reuse.Want(node);
  EXPECT_EQ(s.nodes.At(node).wants, 1);
  reuse.Unwant(node);
  EXPECT_DEATH(reuse.Unwant(node), "wants");
  s.index.Remove(node.index);
  reuse.Unwant(node);
}

}  // namespace
}  // namespace loramux::reuse_statistics_test
