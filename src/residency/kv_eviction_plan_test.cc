#include "residency/kv_eviction_plan.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "base/prng.h"

namespace loramux::kv_eviction_plan_test {
namespace {

constexpr std::int64_t kPageTokens = 4;

struct World {
  std::unique_ptr<PagePool> pool = std::move(PagePool::Create("device", 2048 * 64, 64)).value();
  std::unique_ptr<PagePool> host = std::move(PagePool::Create("host", 2048 * 64, 64)).value();
  DependencyTree tree;
  std::unique_ptr<EvictionPolicy> policy = std::move(MakeEvictionPolicy("lru")).value();
  KvEvictionPlan plan{tree, *policy};
  BranchId base = tree.Hold("");

  explicit World(bool host_tier = false) : tree(kPageTokens, pool.get(), host_tier ? host.get() : nullptr) {}

  // Simulates a request that comes, computes and ends, so its pages are history. Returns its tail.
  NodeId Remember(const std::vector<TokenId>& tokens, TimeNs now, BranchId branch) {
    NodeId tail = tree.index().Match(tree.branches().Top(branch), tokens, 1000);
    tree.Use(tail, now);
    for (auto at = static_cast<std::size_t>(tree.nodes().Depth(tail)); (at + 1) * kPageTokens <= tokens.size(); ++at) {
      PageHandle page;
      CHECK(pool->Allocate(PageCategory::kKv, std::span(&page, 1)));
      tail = tree.Insert(tail, std::span(tokens).subspan(at * kPageTokens, kPageTokens), page, now).node;
    }
    tree.EndUse(tail, now);
    return tail;
  }
  NodeId Remember(const std::vector<TokenId>& tokens, TimeNs now) { return Remember(tokens, now, base); }

  // The request took a snapshot of its states there. Returns its last page.
  NodeId RememberState(NodeId tail, TimeNs now) {
    tree.Use(tail, now);
    NodeId end = tail;
    for (std::int64_t i = 0; i < tree.state_pages(); ++i) {
      PageHandle page;
      CHECK(pool->Allocate(PageCategory::kKv, std::span(&page, 1)));
      end = tree.InsertState(end, page, now).node;
    }
    tree.EndUseAfter(tail, end, now);
    tree.EndUse(tail, now);
    return end;
  }

  // Copies the path to `tail` to the host tier.
  void BackUp(NodeId tail) {
    std::vector<NodeId> path;
    for (NodeId at = tail; tree.nodes().Depth(at) > 0 && !tree.nodes().At(at).has_host_page();
         at = tree.nodes().Parent(at))
      path.insert(path.begin(), at);
    if (path.empty()) return;
    std::vector<DependencyTree::MovingPages> pages;
    tree.BeginBackUp(path, pages);
    tree.EndMove(pages, /*failed=*/false);
  }

  NodeId EvictNext(TimeNs now) {
    const auto victim = plan.Next(now);
    CHECK(victim.has_value());
    plan.Evict(*victim, now);
    return victim->node;
  }
};

std::vector<TokenId> Tokens(std::size_t count, TokenId first) { return std::vector<TokenId>(count, first); }

TEST(KvEvictionPlan, TheOldestLeafGoesFirstThenItsParent) {
  World w;
  const NodeId old = w.Remember(Tokens(8, 1), 10), recent = w.Remember(Tokens(4, 2), 20);
  w.plan.Reset(30);
  EXPECT_EQ(w.plan.evictable(), 3);
  EXPECT_EQ(w.EvictNext(30), old);
  EXPECT_EQ(w.EvictNext(30), w.tree.nodes().Parent(old));
  EXPECT_EQ(w.plan.pages(w.base), 1);
  EXPECT_EQ(w.EvictNext(30), recent);
  EXPECT_FALSE(w.plan.Next(30).has_value());
  EXPECT_EQ(w.tree.tiers().pages(), 3);  // a plan does not change the tree
  w.plan.Reset(30);
  EXPECT_EQ(w.EvictNext(30), old);  // Reset forgets the plan
}

// Once a page of a snapshot is gone, the rest of it and what led to it alone go before all others, in this plan and in
// the next: however recently they were used.
TEST(KvEvictionPlan, WhatLeadsToNoSnapshotGoesFirst) {
  World w;
  w.tree.set_state_pages(2);
  const NodeId old = w.RememberState(w.Remember(Tokens(8, 1), 10), 10);
  std::vector<TokenId> longer = Tokens(12, 1);
  longer.resize(16, 2);
  const NodeId recent = w.RememberState(w.Remember(longer, 20), 20);
  w.plan.Reset(30);
  EXPECT_EQ(w.EvictNext(30), old);
  EXPECT_EQ(w.EvictNext(30), w.tree.nodes().Parent(old));  // its keys and values lead to the other one
  EXPECT_EQ(w.EvictNext(30), recent);
  w.tree.Evict(recent);
  EXPECT_EQ(w.tree.Beginning(w.tree.nodes().KvNode(old)), old);
  w.tree.CheckIntegrity();
  w.plan.Reset(30);
  for (int i = 0; i < 3; ++i) {  // the first page of the snapshot, and two of keys and values
    const NodeId gone = w.EvictNext(30);
    EXPECT_EQ(w.tree.View(gone).last_use, 20);
    if (i > 0) EXPECT_EQ(w.tree.nodes().At(gone).state, 0);
  }
  EXPECT_EQ(w.EvictNext(30), old);
}

// "Whatever leaves is in main memory": without a copy a page is passed over, and with it all above it. Once nothing has
// a copy, there is no victim, until the plan no longer spares them.
TEST(KvEvictionPlan, WhatHasNoCopyIsSparedUntilItHasOne) {
  World w(/*host_tier=*/true);
  const NodeId old = w.Remember(Tokens(8, 1), 10), recent = w.Remember(Tokens(8, 2), 20);
  w.plan.Reset(30, /*spares_uncopied=*/true);
  EXPECT_FALSE(w.plan.Next(30).has_value());
  w.plan.SpareUncopied(false);
  EXPECT_EQ(w.EvictNext(30), old);
  w.plan.SpareUncopied(true);
  EXPECT_FALSE(w.plan.Next(30).has_value());  // the parent of the evicted one has no copy either
  w.plan.SpareUncopied(false);
  EXPECT_EQ(w.EvictNext(30), w.tree.nodes().Parent(old));
  std::vector<DependencyTree::MovingPages> pages;
  const std::vector<NodeId> path = {w.tree.nodes().Parent(recent), recent};
  w.tree.BeginBackUp(path, pages);
  w.tree.EndMove(pages, /*failed=*/false);
  w.plan.Reset(40, /*spares_uncopied=*/true);
  EXPECT_EQ(w.EvictNext(40), recent);  // the older one has no copy
  EXPECT_EQ(w.EvictNext(40), path.front());
  EXPECT_FALSE(w.plan.Next(40).has_value());
  EXPECT_EQ(w.plan.evictable(), 2);  // an upper bound
}

// Observations of the load may lower the worth of a page but never raise it above the prior.
TEST(KvEvictionPlan, APageIsWorthWhatIsLearnedAndAtMostThePrior) {
  const auto worth_over_prior = [](bool twice) {  // every prompt is repeated after 2 seconds, or none is
    World w;
    const std::unique_ptr<EvictionPolicy> loramux = std::move(MakeEvictionPolicy("loramux")).value();
    KvEvictionPlan plan(w.tree, *loramux);
    for (std::int64_t at = 0; at < 600 * 50; ++at) {
      const TimeNs now = at * 20 * kNsPerMs;
      const auto prompt = Tokens(40, static_cast<TokenId>(at / 200));
      if (at % 200 == 0 || (twice && at % 200 == 100)) w.Remember(prompt, now);
      w.tree.ObserveIdlePages(now, 30);
    }
    TimeNs now = 600 * kNsPerSecond;
    const NodeId tail = w.Remember(Tokens(40, 1000), now);
    now += kNsPerSecond;
    plan.Reset(now);
    const DependencyTree::NodeView view = w.tree.View(tail);
    EXPECT_EQ(twice, w.tree.reuse().rates().Factor(view.frequency, now - view.last_use) > 1);
    const EvictionContext context;
    const double prior = ReuseRates::Prior(view.frequency, 1, context.remembered_s);
    return plan.Score(tail, now) / (prior * context.costs.Page(ReloadFrom::kComputation));
  };
  EXPECT_DOUBLE_EQ(worth_over_prior(true), 1);
  // Few visits were expected, against the prior's weight of 32.
  EXPECT_LT(worth_over_prior(false), 0.9);
}

// The next turn of a conversation needs all of it. Under `loramux` one conversation goes as a whole; by their own
// visits, the last turns of both would go first.
TEST(KvEvictionPlan, AConversationGoesAsAWholeWhereThePolicyCountsEdges) {
  for (const std::string_view name : {"loramux", "chameleon"}) {
    World w(/*host_tier=*/true);
    const std::unique_ptr<EvictionPolicy> policy = std::move(MakeEvictionPolicy(name)).value();
    KvEvictionPlan plan(w.tree, *policy);
    NodeId tails[2];
    for (const TimeNs turn : {1, 2, 3}) {
      for (const TokenId who : {1, 2}) {
        std::vector<TokenId> said = Tokens(static_cast<std::size_t>(4 * turn), who);
        tails[who - 1] = w.Remember(said, (2 * turn + who) * kNsPerSecond);
      }
    }
    const TimeNs now = 20 * kNsPerSecond;
    EvictionContext context;
    context.max_frequency = 3;
    context.made_at = now;
    plan.set_context(context);
    plan.Reset(now);
    std::vector<NodeId> gone;
    for (int i = 0; i < 3; ++i) {
      const auto victim = plan.Next(now);
      ASSERT_TRUE(victim.has_value());
      plan.Evict(*victim, now);
      gone.push_back(victim->node);
    }
    const bool whole = std::count(gone.begin(), gone.end(), tails[1]) == 0;
    EXPECT_EQ(whole, name == "loramux") << name;
    EXPECT_EQ(gone[0], tails[0]);
  }
}

// FastLibra's nodes are what a query computed. A page counts as large as all pages of its query, without those that
// another query added.
TEST(KvEvictionPlan, APageCountsAsItsQueryWhereThePolicyWeighsThose) {
  World w;
  const std::unique_ptr<EvictionPolicy> libra = std::move(MakeEvictionPolicy("fastlibra")).value();
  KvEvictionPlan plan(w.tree, *libra);
  const NodeId one = w.Remember(Tokens(4, 1), 10), five = w.Remember(Tokens(20, 2), 10);
  plan.Reset(10);
  EXPECT_DOUBLE_EQ(plan.Score(five, 10), 5 * plan.Score(one, 10));
  std::vector<TokenId> longer = Tokens(20, 2);
  longer.resize(32, 3);
  const NodeId eight = w.Remember(longer, 10);
  plan.Reset(10);
  EXPECT_DOUBLE_EQ(plan.Score(eight, 10),
                   3 * plan.Score(one, 10));  // three pages with one visit; the first five have two
  EXPECT_DOUBLE_EQ(plan.Score(five, 10), 5 * plan.Score(one, 10));
}

// Sizes of queries are remembered. A plan that remembers gives each page the score of a new one, also of pages that
// were used, forked and evicted since, and at the time of a use itself.
TEST(KvEvictionPlan, WhatItRemembersOfQueriesIsStillSo) {
  // `loramux` weighs the queries of pages with a copy alone; here they are not evicted.
  for (const auto& [name, copied] : {std::pair{"fastlibra", false}, {"loramux", true}}) {
    World w(/*host_tier=*/true);
    const std::unique_ptr<EvictionPolicy> policy = std::move(MakeEvictionPolicy(name)).value();
    KvEvictionPlan plan(w.tree, *policy);
    Prng prng(3);
    TimeNs now = 0;
    for (int round = 0; round < 100; ++round) {
      std::vector<TokenId> tokens = Tokens(kPageTokens * (1 + prng.NextBelow(20)), 1);
      if (prng.NextBelow(2) == 0) tokens[prng.NextBelow(tokens.size())] = static_cast<TokenId>(prng.NextBelow(4));
      const NodeId tail = w.Remember(tokens, now);
      if (copied) w.BackUp(tail);
      plan.Reset(now);
      (void)plan.Score(tail, now);
      if (prng.NextBelow(3) == 0) w.Remember(tokens, now);  // at the same time
      if (prng.NextBelow(2) == 0) now += static_cast<TimeNs>(prng.NextBelow(40)) * kNsPerSecond;
      if (!copied && w.tree.tiers().idle_pages() > 300) {
        for (int i = 0; i < 100; ++i) w.tree.Evict(w.tree.nodes().IdOf(w.tree.tiers().IdleLeaves().front()));
      }
      plan.Reset(now);
      KvEvictionPlan fresh(w.tree, *policy);
      fresh.Reset(now);
      for (std::uint32_t index = 0; index < w.tree.nodes().slots(); ++index) {
        const NodeId node = w.tree.nodes().IdOf(index);
        if (!w.tree.nodes().Exists(node) || w.tree.nodes().Depth(node) == 0) continue;
        ASSERT_EQ(plan.Score(node, now), fresh.Score(node, now)) << name << ", round " << round << ", node " << node;
      }
    }
  }
}

TEST(KvEvictionPlan, WhatThePlanBeginsToUseStays) {
  World w;
  const NodeId old = w.Remember(Tokens(8, 1), 10), recent = w.Remember(Tokens(8, 2), 20);
  w.plan.Reset(30);
  w.plan.Use(old);
  EXPECT_EQ(w.plan.evictable(), 2);
  EXPECT_EQ(w.EvictNext(30), recent);
  w.plan.EndUse(old, 30);  // its admission failed
  EXPECT_EQ(w.plan.evictable(), 3);
  EXPECT_EQ(w.EvictNext(30), old);
}

TEST(KvEvictionPlan, APreemptedRequestsPagesBecomeEvictable) {
  World w;
  const NodeId tail = w.Remember(Tokens(12, 1), 10);
  const NodeId shared = w.tree.nodes().Parent(w.tree.nodes().Parent(tail));
  w.tree.Use(tail, 20);
  w.tree.Use(shared, 20);
  w.plan.Reset(30);
  EXPECT_EQ(w.plan.evictable(), 0);
  EXPECT_EQ(w.plan.PagesWithOneUser(tail), 2);
  EXPECT_EQ(w.plan.UsedDepth(tail), 3);
  w.plan.EndUse(tail, 20);
  EXPECT_EQ(w.plan.evictable(), 2);
  EXPECT_EQ(w.plan.UsedDepth(tail), 1);
  EXPECT_EQ(w.EvictNext(20), tail);
  EXPECT_EQ(w.plan.Staying(tail), w.tree.nodes().Parent(tail));
}

TEST(KvEvictionPlan, WhatWaitingRequestsWantGoesLast) {
  World w;
  const NodeId wanted = w.Remember(Tokens(4, 1), 10);
  const NodeId other = w.Remember(Tokens(4, 2), 20);
  w.tree.Want(wanted);
  w.plan.Reset(30);
  EXPECT_EQ(w.EvictNext(30), other);
  const auto last = w.plan.Next(30);
  ASSERT_TRUE(last.has_value());
  EXPECT_TRUE(last->wanted);
  EXPECT_EQ(last->node, wanted);
}

// LRU that records its arguments.
class Listener final : public EvictionPolicy {
 public:
  double Score(const EvictionCandidate& candidate, const EvictionContext& context) const override {
    told.push_back({candidate, context});
    return static_cast<double>(candidate.last_use);
  }
  std::string_view name() const override { return "listener"; }

  struct Told {
    EvictionCandidate candidate;
    EvictionContext context;
  };
  mutable std::vector<Told> told;
};

TEST(KvEvictionPlan, PoliciesAreToldWhatAPageIs) {
  World w;
  const Listener listener;
  KvEvictionPlan plan(w.tree, listener);
  EXPECT_FALSE(plan.oldest_use().has_value());
  w.Remember(Tokens(4, 1), 10);
  w.Remember(Tokens(4, 1), 20);
  w.Remember(Tokens(4, 2), 15);
  plan.set_context({.now = 1, .total_visits = 7, .low_lora = 3, .made_at = 2});
  plan.Reset(30);
  ASSERT_GE(listener.told.size(), 2u);
  for (const auto& [candidate, context] : listener.told) {
    EXPECT_EQ(candidate.kind, CandidateKind::kKeysAndValues);
    EXPECT_EQ(candidate.pages, 1);
    EXPECT_EQ(candidate.reload, ReloadFrom::kComputation);
    EXPECT_FALSE(candidate.queued);
    EXPECT_EQ(candidate.frequency_at, candidate.last_use);
    EXPECT_NEAR(candidate.frequency, candidate.last_use == 20 ? 2 : 1, 1e-6);  // visits
    EXPECT_EQ(candidate.frequency, candidate.uses);
    EXPECT_EQ(context.now, 30);
    EXPECT_EQ(context.made_at, 2);
    EXPECT_EQ(context.total_visits, 7);
    EXPECT_EQ(context.low_lora, 3);
  }
  plan.Refresh(kNsPerSecond);  // walks over all leaves
  EXPECT_EQ(plan.oldest_use(), 15);
}

// A page wanted after scoring is recognised when its turn comes.
TEST(KvEvictionPlan, AWishThatCameAfterTheScoresCounts) {
  World w;
  std::vector<NodeId> tails;
  for (TokenId i = 0; i < 600; ++i) tails.push_back(w.Remember(Tokens(4, i), i));
  w.plan.Refresh(1000);
  w.tree.Want(tails[0]);
  w.plan.Reset(1000);
  EXPECT_EQ(w.EvictNext(1000), tails[1]);
}

// The tree stops listing new leaves when there are too many; the next walk finds the others.
TEST(KvEvictionPlan, LeavesThatWereNotListedAreFound) {
  constexpr std::int64_t kLong = 70000;  // pages of one session
  const auto pool = std::move(PagePool::Create("device", (kLong + 1) * 64, 64)).value();
  DependencyTree tree(kPageTokens, pool.get());
  const auto policy = std::move(MakeEvictionPolicy("lru")).value();
  KvEvictionPlan plan(tree, *policy);
  const BranchId base = tree.Hold(""), adapter = tree.Hold("weights");
  const auto append = [&](NodeId parent) {
    PageHandle page;
    CHECK(pool->Allocate(PageCategory::kKv, std::span(&page, 1)));
    return tree.Insert(parent, Tokens(kPageTokens, 1), page, 1).node;
  };
  NodeId tail = tree.branches().Top(adapter);
  for (std::int64_t i = 0; i < kLong; ++i) tail = append(tail);
  tree.EndUse(tail, 2);
  const NodeId running = append(tree.branches().Top(base));
  plan.Refresh(10);
  tree.Clear(adapter);       // the adapter is unloaded
  tree.EndUse(running, 11);  // a request ends in the same step
  plan.Refresh(12);
  plan.Reset(13);
  EXPECT_EQ(plan.evictable(), 1);
  const auto victim = plan.Next(13);
  ASSERT_TRUE(victim.has_value());
  EXPECT_EQ(victim->node, running);
}

// Compares with a full walk over all leaves, whatever was scored before, used since, or evicted by a plan that was not
// carried out.
TEST(KvEvictionPlan, AgreesWithAWalkOverAllLeaves) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World w;
    Prng prng(seed);
    const auto below = [&prng](std::uint64_t bound) { return static_cast<TokenId>(prng.NextBelow(bound)); };
    TimeNs now = 0;
    for (int round = 0; round < 40; ++round) {
      for (TokenId i = below(60); i > 0; --i) {
        auto tokens = Tokens(static_cast<std::size_t>(below(40)), below(3));
        for (TokenId& token : tokens) token = below(12) == 0 ? below(100) : token;
        if (w.pool->free_pages() > 12) w.Remember(tokens, now += below(5));
      }
      if (below(2) == 0) w.plan.Refresh(now);
      const std::int64_t count = std::min<std::int64_t>(w.tree.tiers().idle_pages(), below(40));
      for (const bool carried_out : {false, true}) {
        w.plan.Reset(now);
        std::vector<NodeId> victims;
        std::set<std::uint32_t> gone;
        std::map<std::uint32_t, std::int32_t> children_gone;
        for (std::int64_t i = 0; i < count; ++i) {
          TimeNs oldest = now + 1;
          // The leaves if the plan is carried out.
          for (std::uint32_t index = 0; index < w.tree.nodes().slots(); ++index) {
            const NodeId node = w.tree.nodes().IdOf(index);
            if (!w.tree.nodes().Exists(node) || w.tree.nodes().Depth(node) == 0 || gone.contains(index)) continue;
            const auto found = children_gone.find(index);
            const std::int32_t children =
                w.tree.View(node).device_children - (found == children_gone.end() ? 0 : found->second);
            if (children == 0) oldest = std::min(oldest, w.tree.View(node).last_use);
          }
          victims.push_back(w.EvictNext(now));
          ASSERT_EQ(w.tree.View(victims.back()).last_use, oldest);
          ASSERT_TRUE(gone.insert(victims.back().index).second);
          ++children_gone[w.tree.nodes().Parent(victims.back()).index];
        }
        if (!carried_out || below(3) == 0) continue;
        for (const NodeId victim : victims) w.tree.Evict(victim);
        w.tree.CheckIntegrity();
      }
    }
  }
}

// More leaves than one Refresh scores. Leaves appear, are used again and disappear meanwhile; the walk misses none.
// Times of use are random, so old leaves may stand anywhere in the list.
TEST(KvEvictionPlan, AWalkInPartsAgreesWithAWalkOverAllLeaves) {
  constexpr std::int64_t kLeaves = 30'000;
  const auto pool = std::move(PagePool::Create("device", kLeaves * 64, 64)).value();
  DependencyTree tree(1, pool.get());
  const auto policy = std::move(MakeEvictionPolicy("lru")).value();
  KvEvictionPlan plan(tree, *policy);
  const NodeId top = tree.branches().Top(tree.Hold(""));
  Prng prng(1);
  TimeNs now = 0;
  TokenId next = 0;
  std::set<std::pair<TimeNs, std::uint32_t>> by_use;
  std::vector<NodeId> leaves;
  const auto add = [&] {
    PageHandle page;
    CHECK(pool->Allocate(PageCategory::kKv, std::span(&page, 1)));
    const auto time = static_cast<TimeNs>(prng.NextBelow(1'000'000'000));
    leaves.push_back(tree.Insert(top, std::span(&++next, 1), page, time).node);
    tree.EndUse(leaves.back(), time);
    by_use.emplace(time, leaves.back().index);
  };
  const auto use = [&](NodeId leaf) {
    if (!tree.nodes().Exists(leaf)) return;
    by_use.erase({tree.View(leaf).last_use, leaf.index});
    const auto time = static_cast<TimeNs>(prng.NextBelow(1'000'000'000));
    tree.Use(leaf, time);
    tree.EndUse(leaf, time);
    by_use.emplace(time, leaf.index);
  };
  while (pool->free_pages() > 0) add();
  plan.Refresh(now);
  for (int round = 0; round < 300; ++round) {
    now += 20 * kNsPerMs;
    for (std::uint64_t i = prng.NextBelow(200); i > 0; --i) use(leaves[prng.NextBelow(leaves.size())]);
    plan.Refresh(now);
    plan.Reset(now);
    std::vector<NodeId> victims;
    for (std::uint64_t i = prng.NextBelow(60); i > 0; --i) {
      const auto victim = plan.Next(now);
      ASSERT_TRUE(victim.has_value());
      ASSERT_EQ(victim->last_use, by_use.begin()->first) << "round " << round;
      plan.Evict(*victim, now);
      by_use.erase(by_use.begin());
      victims.push_back(victim->node);
    }
    for (const NodeId victim : victims) tree.Evict(victim);
    while (pool->free_pages() > 20) add();
  }
  tree.CheckIntegrity();
}

// The looks bound each piece, however long the paths are that a policy weighs; later pieces score the rest.
TEST(KvEvictionPlan, APieceOfAWalkIsBoundedByWhatItLooksAt) {
  constexpr std::int64_t kHistories = 1000, kPages = 40;
  for (const auto& [name, pages_of_query] : {std::pair{"lru", 1L}, {"fastlibra", kPages}}) {
    SCOPED_TRACE(name);
    const auto pool = std::move(PagePool::Create("device", kHistories * kPages * 64, 64)).value();
    DependencyTree tree(1, pool.get());
    const auto policy = std::move(MakeEvictionPolicy(name)).value();
    KvEvictionPlan plan(tree, *policy);
    const BranchId branch = tree.Hold("");
    for (TokenId history = 0; history < kHistories; ++history) {
      NodeId tail = tree.branches().Top(branch);
      for (TokenId at = 0; at < kPages; ++at) {
        PageHandle page;
        CHECK(pool->Allocate(PageCategory::kKv, std::span(&page, 1)));
        const TokenId token = at == 0 ? history : at;
        tail = tree.Insert(tail, std::span(&token, 1), page, 0).node;
      }
      tree.EndUse(tail, 0);
    }
    for (std::int64_t seen = -1; seen != plan.looks();) {  // the first walk and the new leaves
      seen = plan.looks();
      plan.Refresh(kNsPerSecond);
    }
    const TimeNs due = 2 * kNsPerSecond;
    const std::int64_t of_history = KvEvictionPlan::kLooksOfNode + pages_of_query;
    // The last node of a piece may exceed the bound.
    const std::int64_t of_piece = (KvEvictionPlan::kLooksOfPiece + of_history - 1) / of_history;
    std::int64_t left = kHistories;
    for (TimeNs now = due; left > 0; ++now) {
      const std::int64_t before = plan.looks();
      plan.Refresh(now);
      ASSERT_EQ(plan.looks() - before, std::min(left, of_piece) * pages_of_query);
      left -= std::min(left, of_piece);
    }
    const std::int64_t before = plan.looks();
    plan.Refresh(due + kNsPerMs);
    EXPECT_EQ(plan.looks(), before);  // all leaves have been scored
  }
}

}  // namespace
}  // namespace loramux::kv_eviction_plan_test
