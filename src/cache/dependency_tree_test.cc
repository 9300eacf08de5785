#include "cache/dependency_tree.h"

#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <set>

#include "base/prng.h"

namespace loramux::dependency_tree_test {
namespace {

constexpr std::int64_t kPageTokens = 4;

struct World {
  std::unique_ptr<PagePool> pool;
  std::unique_ptr<DependencyTree> tree;

  explicit World(std::int64_t pages = 64, TimeNs half_life = kNsPerSecond, std::int64_t page_tokens = kPageTokens)
      : pool(std::move(PagePool::Create("device", pages * 64, 64)).value()),
        tree(std::make_unique<DependencyTree>(page_tokens, pool.get(), nullptr, half_life)) {}

  PageHandle NewPage() {
    PageHandle page;
    CHECK(pool->Allocate(PageCategory::kKv, std::span(&page, 1)));
    return page;
  }
  // Simulates a request that computes `tokens` and ends, so the path stays as history. Returns its tail.
  NodeId Remember(BranchId branch, const std::vector<TokenId>& tokens, TimeNs now) {
    NodeId tail = tree->Match(tree->Top(branch), tokens, 1000);
    tree->Lock(tail, now);
    const std::int64_t size = tree->page_tokens();
    for (std::int64_t at = tree->Depth(tail); (at + 1) * size <= static_cast<std::int64_t>(tokens.size()); ++at) {
      const auto page_of =
          std::span(tokens).subspan(static_cast<std::size_t>(at * size), static_cast<std::size_t>(size));
      tail = tree->Insert(tail, page_of, NewPage(), now).node;
    }
    tree->Unlock(tail, now);
    return tail;
  }
  void CopyToHost(NodeId node) {
    std::vector<DependencyTree::MovingPages> copying;
    tree->BeginBackUp(std::span(&node, 1), copying);
    tree->EndBackUp(copying, /*failed=*/false);
  }
  std::int64_t Matched(BranchId branch, const std::vector<TokenId>& tokens) {
    return tree->Depth(tree->Match(tree->Top(branch), tokens, 1000));
  }
};

std::vector<TokenId> Tokens(int count, TokenId first = 0) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = first + static_cast<TokenId>(i);
  return tokens;
}

TEST(DependencyTree, FindsTheLongestPrefixOfFullPages) {
  World w;
  const BranchId base = w.tree->Hold("");
  w.Remember(base, Tokens(10), 0);  // two full pages
  EXPECT_EQ(w.tree->pages(), 2);
  EXPECT_EQ(w.Matched(base, Tokens(10)), 2);
  EXPECT_EQ(w.Matched(base, Tokens(8)), 2);
  EXPECT_EQ(w.Matched(base, Tokens(7)), 1);
  EXPECT_EQ(w.Matched(base, Tokens(10, 1)), 0);
  auto other = Tokens(10);
  other[5] = 99;
  EXPECT_EQ(w.Matched(base, other), 1);
  const NodeId first = w.tree->Match(w.tree->Top(base), Tokens(10), /*max_pages=*/1);
  EXPECT_EQ(w.tree->Depth(first), 1);
  EXPECT_EQ(w.tree->Depth(w.tree->Match(first, Tokens(10), 1000)), 2);  // continues where an earlier match ended
  w.tree->Release(base);
  EXPECT_EQ(w.pool->free_pages(), 64);
}

// Equal tokens under different weights have different keys and values; equal weights under two names share them.
TEST(DependencyTree, Point2_BranchesAreKeyedByContentNeverByName) {
  World w;
  const BranchId first = w.tree->Hold("digest of the first weights"), second = w.tree->Hold("digest of the second");
  w.Remember(first, Tokens(8), 0);
  EXPECT_EQ(w.Matched(second, Tokens(8)), 0);
  const BranchId copy = w.tree->Hold("digest of the first weights");
  EXPECT_EQ(copy, first);
  EXPECT_EQ(w.Matched(copy, Tokens(8)), 2);
  w.tree->Release(first);
  EXPECT_EQ(w.Matched(copy, Tokens(8)), 2);  // the other name still holds the branch
  w.tree->Release(copy);
  EXPECT_EQ(w.tree->pages(), 0);
  const BranchId again = w.tree->Hold("digest of the first weights");
  EXPECT_EQ(w.Matched(again, Tokens(8)), 0);
  w.tree->Release(again);
  w.tree->Release(second);
}

// Equal tokens of two domains have pages of their own: neither a whole page nor the beginning of one is found.
TEST(DependencyTree, DomainsFindNoPagesOfEachOther) {
  World w;
  const BranchId base = w.tree->Hold("");
  w.Remember(base, Tokens(8), 0);
  const NodeId first = w.tree->HoldTop(base, "first"), second = w.tree->HoldTop(base, "second");
  EXPECT_EQ(w.tree->HoldTop(base, ""), w.tree->Top(base));
  const auto inserted = w.tree->Insert(first, Tokens(4), w.NewPage(), 0);
  EXPECT_EQ(inserted.outcome, DependencyTree::Inserted::kTaken);
  EXPECT_EQ(w.tree->Match(first, Tokens(8), 1000), inserted.node);
  EXPECT_EQ(w.tree->Match(second, Tokens(8), 1000), second);
  EXPECT_EQ(w.tree->MatchInPage(first, Tokens(3)).tokens, 3);
  EXPECT_EQ(w.tree->MatchInPage(second, Tokens(3)).tokens, 0);
  EXPECT_EQ(w.Matched(base, Tokens(8)), 2);
  EXPECT_EQ(w.tree->pages(base), 3);  // evictions count by branch
  w.tree->CheckIntegrity();
  w.tree->Unlock(inserted.node, 1);
  for (const NodeId top : {first, second}) w.tree->ReleaseTop(top);
  w.tree->Release(base);
  EXPECT_EQ(w.pool->free_pages(), 64);
}

// As many domains as requests have invented do not fill memory.
TEST(DependencyTree, ADomainIsForgottenWithItsLastPage) {
  World w;
  const BranchId base = w.tree->Hold("");
  for (int i = 0; i < 1000; ++i) {
    const NodeId top = w.tree->HoldTop(base, "invented " + std::to_string(i));
    const NodeId node = w.tree->Insert(top, Tokens(4), w.NewPage(), 0).node;
    w.tree->Unlock(node, 0);
    w.tree->ReleaseTop(top);
    EXPECT_TRUE(w.tree->Exists(top));  // its page stays as history
    if (i % 2 == 0)
      w.tree->Evict(node);
    else
      w.tree->Clear(base);
    EXPECT_FALSE(w.tree->Exists(top));
  }
  const NodeId top = w.tree->HoldTop(base, "empty");
  w.tree->Clear(base);
  EXPECT_TRUE(w.tree->Exists(top));  // held
  w.tree->CheckIntegrity();
  w.tree->ReleaseTop(top);
  EXPECT_EQ(w.tree->tops(), 1u);
  EXPECT_LE(w.tree->node_slots(), 3u);
  w.tree->Release(base);
}

TEST(DependencyTree, WhatIsLockedStaysAndOnlyLeavesGo) {
  World w;
  const BranchId base = w.tree->Hold("");
  const NodeId tail = w.Remember(base, Tokens(12), 0);
  ASSERT_EQ(w.tree->IdleLeaves().size(), 1u);
  EXPECT_EQ(w.tree->IdOf(w.tree->IdleLeaves()[0]), tail);
  const NodeId middle = w.tree->Parent(tail);
  w.tree->Lock(middle, 1);
  EXPECT_EQ(w.tree->idle_pages(), 1);
  w.tree->Evict(tail);
  EXPECT_FALSE(w.tree->Exists(tail));
  EXPECT_TRUE(w.tree->IdleLeaves().empty());
  EXPECT_DEATH(w.tree->Evict(middle), "");
  w.tree->Unlock(middle, 2);
  EXPECT_DEATH(w.tree->Evict(w.tree->Parent(middle)), "");
  w.tree->Evict(middle);
  EXPECT_EQ(w.Matched(base, Tokens(12)), 1);
  w.tree->CheckIntegrity();
  w.tree->Release(base);
}

TEST(DependencyTree, ThePageThatCameFirstIsTheOneThatStays) {
  World w;
  const BranchId base = w.tree->Hold("");
  const NodeId top = w.tree->Top(base);
  const PageHandle page = w.NewPage(), twin = w.NewPage();
  const auto first = w.tree->Insert(top, Tokens(4), page, 0);
  const auto second = w.tree->Insert(top, Tokens(4), twin, 0);
  EXPECT_EQ(first.outcome, DependencyTree::Inserted::kTaken);
  EXPECT_EQ(second.outcome, DependencyTree::Inserted::kExisted);
  EXPECT_EQ(first.node, second.node);
  EXPECT_EQ(w.tree->Page(second.node), page);
  EXPECT_EQ(w.tree->View(first.node).locks, 2);
  w.pool->Free(PageCategory::kKv, std::span(&twin, 1));
  w.tree->Unlock(first.node, 1);
  EXPECT_EQ(w.tree->idle_pages(), 0);
  w.tree->Unlock(first.node, 1);
  EXPECT_EQ(w.tree->idle_pages(), 1);
  w.tree->Release(base);
}

TEST(DependencyTree, FrequencyHalvesInAHalfLife) {
  World w(64, /*half_life=*/1000);
  const BranchId base = w.tree->Hold("");
  const NodeId tail = w.Remember(base, Tokens(4), 0);
  EXPECT_DOUBLE_EQ(w.tree->View(tail).frequency, 1.0);
  w.tree->Lock(tail, 1000);
  EXPECT_NEAR(w.tree->View(tail).frequency, 1.5, 1e-6);
  w.tree->Unlock(tail, 3000);  // a use of two half-lives counts as time, not as visits
  EXPECT_NEAR(w.tree->View(tail).frequency, 0.375, 1e-6);
  EXPECT_EQ(w.tree->View(tail).last_use, 3000);
  w.tree->Release(base);
}

TEST(DependencyTree, AWantedNodeMayGoAllTheSame) {
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

// ---------------------------------------------------------------- Within a page

// `count` tokens: the first `alike` ones from 0 on, then `others`.
std::vector<TokenId> PartingAt(int alike, int count, TokenId others = 1000) {
  std::vector<TokenId> tokens = Tokens(count);
  for (int i = alike; i < count; ++i) tokens[static_cast<std::size_t>(i)] = others + i;
  return tokens;
}

TEST(DependencyTree, FindsThePageThatBeginsAsThePromptGoesOn) {
  World w(64, kNsPerSecond, /*page_tokens=*/16);
  const BranchId base = w.tree->Hold("");
  const NodeId top = w.tree->Top(base);
  EXPECT_EQ(w.tree->MatchInPage(top, Tokens(16)).tokens, 0);
  const NodeId whole = w.Remember(base, Tokens(32), 0), first = w.tree->Parent(whole);
  const auto alike = [&](NodeId parent, const std::vector<TokenId>& next) {
    return w.tree->MatchInPage(parent, next).tokens;
  };
  EXPECT_EQ(alike(top, PartingAt(9, 16)), 9);
  EXPECT_EQ(alike(top, PartingAt(4, 16)), 4);
  EXPECT_EQ(alike(top, PartingAt(3, 16)), 0);  // less than a quarter of a page
  EXPECT_EQ(alike(top, Tokens(7)), 7);         // the prompt has no more tokens
  EXPECT_EQ(alike(top, Tokens(3)), 0);
  EXPECT_EQ(alike(top, {}), 0);
  EXPECT_EQ(alike(top, Tokens(40)), 15);  // a whole page is left to Match
  EXPECT_EQ(alike(whole, Tokens(16)), 0);
  EXPECT_EQ(alike(first, Tokens(12, 16)), 12);
  EXPECT_EQ(w.tree->MatchInPage(first, Tokens(12, 16)).node, whole);
  const NodeId nine = w.Remember(base, PartingAt(9, 16), 0), five = w.Remember(base, PartingAt(5, 16, 2000), 0);
  EXPECT_EQ(w.tree->MatchInPage(top, PartingAt(12, 16, 3000)).node, first);
  EXPECT_EQ(w.tree->MatchInPage(top, PartingAt(9, 12)).node, nine);
  EXPECT_EQ(alike(top, PartingAt(9, 12)), 12);
  EXPECT_EQ(w.tree->MatchInPage(top, PartingAt(5, 9, 2000)).node, five);
  w.tree->Evict(five);
  EXPECT_EQ(alike(top, PartingAt(5, 9, 2000)), 5);
  w.tree->Evict(whole);
  w.tree->Evict(first);  // without it, all children are in groups
  EXPECT_EQ(w.tree->MatchInPage(top, Tokens(14)).node, nine);
  w.tree->CheckIntegrity();
  const BranchId other = w.tree->Hold("other weights");
  EXPECT_EQ(alike(w.tree->Top(other), Tokens(14)), 0);
  w.tree->Release(other);
  w.tree->Release(base);
}

// A conversation is an edge: its last page has as many visits as the conversation has turns. After a fork, each edge
// counts by itself.
TEST(DependencyTree, AllPagesOfAnEdgeHaveTheVisitsOfItsFirst) {
  World w(64);
  const std::unique_ptr<PagePool> host = std::move(PagePool::Create("host", 64 * 64, 64)).value();
  w.tree = std::make_unique<DependencyTree>(kPageTokens, w.pool.get(), host.get(), /*half_life=*/1000 * kNsPerSecond);
  const BranchId base = w.tree->Hold("");
  const auto visits = [&](NodeId tail) {
    std::vector<double> of_edge;
    for (NodeId at = tail; w.tree->Depth(at) > 0; at = w.tree->Parent(at)) {
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

TEST(DependencyTree, WithoutAHostTierAPageHasItsOwnVisitsAlone) {
  World w(64, /*half_life=*/1000 * kNsPerSecond);
  const BranchId base = w.tree->Hold("");
  w.Remember(base, Tokens(8), 0);
  const NodeId tail = w.Remember(base, Tokens(12), 0);
  EXPECT_EQ(w.tree->View(tail).edge_frequency, w.tree->View(tail).frequency);
  EXPECT_LT(w.tree->View(tail).edge_frequency, w.tree->View(w.tree->Parent(tail)).edge_frequency);
  w.tree->Release(base);
}

// Of thousands of children, the search skips those that begin differently and examines only the youngest few that begin
// alike.
TEST(DependencyTree, LooksAtFewOfThousandsOfChildren) {
  World w(5000, kNsPerSecond, /*page_tokens=*/16);
  const BranchId base = w.tree->Hold("");
  const NodeId top = w.tree->Top(base);
  for (TokenId i = 0; i < 2000; ++i) w.Remember(base, Tokens(16, 100 * i), 0);
  for (const TokenId i : {0, 1, 777, 1999}) {
    const auto found = w.tree->MatchInPage(top, Tokens(11, 100 * i));
    EXPECT_EQ(found.tokens, 11) << i;
    EXPECT_EQ(found.node, w.tree->Match(top, Tokens(16, 100 * i), 1)) << i;
  }
  std::vector<NodeId> alike;  // 6 common tokens, then different ones
  for (TokenId i = 0; i < 2000; ++i) {
    auto tokens = Tokens(16, 1'000'000);
    for (std::size_t at = 6; at < 16; ++at) tokens[at] = 7 * i;
    alike.push_back(w.Remember(base, tokens, 0));
  }
  const auto found_for = [&](TokenId i) {
    auto tokens = Tokens(15, 1'000'000);
    for (std::size_t at = 6; at < 15; ++at) tokens[at] = 7 * i;
    return w.tree->MatchInPage(top, tokens);
  };
  EXPECT_EQ(found_for(1999).tokens, 15);
  EXPECT_EQ(found_for(2000 - DependencyTree::kMostLookedAt).tokens, 15);
  EXPECT_EQ(found_for(2000 - DependencyTree::kMostLookedAt - 1).tokens, 6);
  EXPECT_EQ(found_for(5).node, alike.back());  // the youngest of equal matches
  w.tree->CheckIntegrity();
  w.tree->Release(base);
}

// Only pages that can be read on the device are found.
TEST(DependencyTree, APageThatIsNotOnTheDeviceIsNotCopied) {
  World w;
  const auto host = std::move(PagePool::Create("host", 64 * 64, 64)).value();
  w.tree = std::make_unique<DependencyTree>(kPageTokens, w.pool.get(), host.get());
  const BranchId base = w.tree->Hold("");
  const NodeId top = w.tree->Top(base), tail = w.Remember(base, Tokens(4), 0);
  std::vector<DependencyTree::MovingPages> backed_up;
  w.tree->BeginBackUp(std::span(&tail, 1), backed_up);
  EXPECT_EQ(w.tree->MatchInPage(top, Tokens(3)).tokens, 3);  // in transfer to the host tier, but still readable
  w.tree->EndBackUp(backed_up, /*failed=*/false);
  w.tree->Evict(tail);
  EXPECT_EQ(w.tree->MatchInPage(top, Tokens(3)).tokens, 0);
  std::vector<DependencyTree::MovingPages> moving;
  w.tree->BeginFetch(tail, moving);
  EXPECT_EQ(w.tree->MatchInPage(top, Tokens(3)).tokens, 0);
  w.tree->EndFetch(moving, /*failed=*/false);
  EXPECT_EQ(w.tree->MatchInPage(top, Tokens(3)).node, tail);
  w.tree->CheckIntegrity();
}

TEST(DependencyTree, TheLastPageOfAPathIsLetGoAlone) {
  World w;
  const BranchId base = w.tree->Hold("");
  const NodeId tail = w.Remember(base, Tokens(12), 0);
  w.tree->Lock(tail, 1);
  w.tree->UnlockLast(tail, 2);
  w.tree->CheckIntegrity();
  EXPECT_EQ(w.tree->idle_pages(), 1);
  w.tree->Evict(tail);
  EXPECT_DEATH(w.tree->UnlockLast(w.tree->Top(base), 2), "");
  const NodeId middle = w.tree->Match(w.tree->Top(base), Tokens(12), 1000);
  EXPECT_EQ(w.tree->View(middle).locks, 1);
  w.tree->Unlock(middle, 3);
  EXPECT_EQ(w.tree->idle_pages(), 2);
  w.tree->Release(base);
}

// A path is used at one time. Without its beginning the rest would be useless, so the end is dropped first.
TEST(DependencyTree, TheEndOfASessionLeavesTheHostTierFirst) {
  World w;
  const auto host = std::move(PagePool::Create("host", 64 * 64, 64)).value();
  w.tree = std::make_unique<DependencyTree>(kPageTokens, w.pool.get(), host.get());
  std::vector<NodeId> path = {w.Remember(w.tree->Hold(""), Tokens(80), 5)};
  for (; w.tree->Depth(path.back()) > 1;) path.push_back(w.tree->Parent(path.back()));  // from the end upwards
  for (const NodeId node : path) w.CopyToHost(node);
  for (std::size_t i = 0; i < 10; ++i) w.tree->Evict(path[i]);  // the second half is in the host tier alone
  EXPECT_EQ(w.tree->host_pages(), 20);
  w.tree->DropHostPages(1);
  for (std::size_t i = 10; i < 20; ++i) w.tree->Evict(path[i]);
  EXPECT_EQ(w.tree->host_pages(), 19);
  EXPECT_EQ(w.tree->pages(), 0);
  w.tree->CheckIntegrity();
}

// The older path was used four times, the younger one once, a minute later. By recency alone the older one is dropped.
TEST(DependencyTree, ABonusKeepsWhatIsUsedOftenInTheHostTier) {
  for (const TimeNs bonus : {TimeNs{0}, 60 * kNsPerSecond}) {
    World w;
    const auto host = std::move(PagePool::Create("host", 64 * 64, 64)).value();
    w.tree = std::make_unique<DependencyTree>(kPageTokens, w.pool.get(), host.get());
    w.tree->set_host_bonus(bonus);
    const BranchId base = w.tree->Hold("");
    const NodeId often = w.Remember(base, Tokens(4, 0), 0), once = w.Remember(base, Tokens(4, 100), 60 * kNsPerSecond);
    for (int i = 0; i < 3; ++i) {
      w.tree->Lock(often, 0);
      w.tree->Unlock(often, 0);
    }
    for (const NodeId node : {often, once}) {
      w.CopyToHost(node);
      w.tree->Evict(node);
    }
    EXPECT_EQ(w.tree->LeastHostWorth(), bonus == 0 ? 0 : w.tree->HostWorth(once));
    w.tree->DropHostPages(1);
    EXPECT_EQ(w.tree->Exists(often), bonus > 0);
    EXPECT_EQ(w.tree->Exists(once), bonus == 0);
    EXPECT_DEATH(w.tree->set_host_bonus(1), "");  // the heap has entries of another order
    w.tree->CheckIntegrity();
  }
}

// A long lock does not lower the worth of a node, and no node is worth less than a child inserted meanwhile.
TEST(DependencyTree, WorthInTheHostTierNeverFallsAndNoChildHasMore) {
  World w(64, kNsPerSecond);
  const auto host = std::move(PagePool::Create("host", 64 * 64, 64)).value();
  w.tree = std::make_unique<DependencyTree>(kPageTokens, w.pool.get(), host.get(), kNsPerSecond);
  w.tree->set_host_bonus(3 * kNsPerSecond);
  const NodeId parent = w.Remember(w.tree->Hold(""), Tokens(4), 0);
  w.tree->Lock(parent, kNsPerSecond);
  const TimeNs visited = w.tree->HostWorth(parent);
  const NodeId child = w.tree->Insert(parent, Tokens(4, 100), w.NewPage(), 20 * kNsPerSecond).node;
  w.tree->Unlock(child, 60 * kNsPerSecond);
  EXPECT_EQ(w.tree->HostWorth(child), 60 * kNsPerSecond);
  EXPECT_GT(w.tree->HostWorth(parent), visited);
  EXPECT_GE(w.tree->HostWorth(parent), w.tree->HostWorth(child));
  w.tree->CheckIntegrity();
}

// A request computes a page that a fetch for another request is bringing. The request keeps its own page until the
// fetch ends.
TEST(DependencyTree, WhatIsBeingFetchedIsNotInsertedTwice) {
  World w;
  const auto host = std::move(PagePool::Create("host", 64 * 64, 64)).value();
  w.tree = std::make_unique<DependencyTree>(kPageTokens, w.pool.get(), host.get());
  const BranchId base = w.tree->Hold("");
  const NodeId tail = w.Remember(base, Tokens(4), 0);
  w.CopyToHost(tail);
  w.tree->Evict(tail);
  EXPECT_FALSE(w.tree->OnDevice(tail));
  std::vector<DependencyTree::MovingPages> moving;
  w.tree->BeginFetch(tail, moving);
  const PageHandle own = w.NewPage();
  EXPECT_EQ(w.tree->Insert(w.tree->Top(base), Tokens(4), own, 1).outcome, DependencyTree::Inserted::kNotNow);
  w.tree->CheckIntegrity();
  w.tree->EndFetch(moving, /*failed=*/false);
  const auto inserted = w.tree->Insert(w.tree->Top(base), Tokens(4), own, 2);
  EXPECT_EQ(inserted.outcome, DependencyTree::Inserted::kExisted);
  EXPECT_EQ(inserted.node, tail);
  w.pool->Free(PageCategory::kKv, std::span(&own, 1));
  w.tree->Unlock(tail, 3);
  w.tree->CheckIntegrity();
}

// ---------------------------------------------------------------- Against a trivial model

using Path = std::vector<TokenId>;

// The cache as a set of prefixes with their pages and locks.
struct Model {
  struct Entry {
    PageHandle page;
    int locks = 0;
  };
  std::map<std::string, std::map<Path, Entry>> branches;

  static Path Prefix(const Path& path, std::size_t pages) {
    return {path.begin(), path.begin() + static_cast<std::ptrdiff_t>(pages * kPageTokens)};
  }
  std::size_t Match(const std::string& branch, const Path& path) {
    std::size_t pages = 0;
    while ((pages + 1) * kPageTokens <= path.size() && branches[branch].contains(Prefix(path, pages + 1))) ++pages;
    return pages;
  }
  // The longest match, in tokens, of a page that follows the first `pages` pages of `path`; less than a page.
  std::size_t InPage(const std::string& branch, const Path& path, std::size_t pages) {
    const Path parent = Prefix(path, pages);
    const std::size_t end = std::min(path.size(), parent.size() + kPageTokens - 1);
    std::size_t best = 0;
    for (const auto& [entry, what] : branches[branch]) {
      if (entry.size() != parent.size() + kPageTokens || !std::equal(parent.begin(), parent.end(), entry.begin()))
        continue;
      std::size_t alike = parent.size();
      while (alike < end && entry[alike] == path[alike]) ++alike;
      best = std::max(best, alike - parent.size());
    }
    return best;
  }
  void Lock(const std::string& branch, const Path& path, std::size_t pages, int by) {
    for (std::size_t i = 1; i <= pages; ++i) branches[branch].at(Prefix(path, i)).locks += by;
  }
};

struct Runner {
  std::string key;
  BranchId branch;
  std::string trie;  // the key, and a sharing domain
  NodeId top;
  Path path;
  NodeId tail;
  std::size_t pages = 0;
};

struct Fuzz {
  Prng prng;
  World w;
  Model model;
  std::vector<Runner> runners;
  std::map<std::string, BranchId> held;
  int found_in_page = 0;

  explicit Fuzz(std::uint64_t seed) : prng(seed), w(40 + static_cast<std::int64_t>(prng.NextBelow(100))) {}

  std::size_t Below(std::size_t bound) { return static_cast<std::size_t>(prng.NextBelow(bound)); }

  void Begin() {
    Runner runner;
    runner.key = std::to_string(Below(4));
    if (!held.contains(runner.key)) held[runner.key] = w.tree->Hold(runner.key);
    runner.branch = w.tree->Hold(runner.key);
    ASSERT_EQ(runner.branch, held[runner.key]);
    const std::string domain = std::array<std::string, 3>{"", "a", "b"}[Below(3)];
    runner.trie = runner.key + "/" + domain;
    runner.top = w.tree->HoldTop(runner.branch, domain);
    runner.path.resize(Below(40));
    // Few distinct tokens, so that paths share much.
    for (TokenId& token : runner.path) token = static_cast<TokenId>(Below(8) == 0);
    runner.pages = model.Match(runner.trie, runner.path);
    runner.tail = w.tree->Match(runner.top, runner.path, 1000);
    ASSERT_EQ(static_cast<std::size_t>(w.tree->Depth(runner.tail)), runner.pages);
    std::vector<PageHandle> pages(runner.pages);
    w.tree->CopyPath(runner.tail, pages);
    for (std::size_t i = 0; i < pages.size(); ++i) {
      ASSERT_EQ(pages[i], model.branches[runner.trie].at(Model::Prefix(runner.path, i + 1)).page);
    }
    CheckInPage(runner);
    w.tree->Lock(runner.tail, 0);
    model.Lock(runner.trie, runner.path, runner.pages, 1);
    runners.push_back(std::move(runner));
  }

  // Exact, because no page has more than 16 children here.
  void CheckInPage(const Runner& runner) {
    const auto next = std::span(runner.path).subspan(runner.pages * kPageTokens);
    const auto found = w.tree->MatchInPage(runner.tail, next);
    ASSERT_EQ(static_cast<std::size_t>(found.tokens), model.InPage(runner.trie, runner.path, runner.pages));
    if (found.tokens == 0) return;
    ++found_in_page;
    ASSERT_EQ(w.tree->Parent(found.node), runner.tail);
    Path page(runner.path.begin(), runner.path.begin() + static_cast<std::ptrdiff_t>(runner.pages * kPageTokens));
    page.insert(page.end(), next.begin(), next.begin() + found.tokens);
    const auto& entries = model.branches[runner.trie];
    ASSERT_TRUE(std::any_of(entries.begin(), entries.end(), [&](const auto& entry) {
      return entry.first.size() == (runner.pages + 1) * kPageTokens && entry.second.page == w.tree->Page(found.node) &&
             std::equal(page.begin(), page.end(), entry.first.begin());
    }));
  }

  void Extend(Runner& runner) {
    if ((runner.pages + 1) * kPageTokens > runner.path.size() || w.pool->free_pages() == 0) return;
    const PageHandle page = w.NewPage();
    const auto tokens = std::span(runner.path).subspan(runner.pages * kPageTokens, kPageTokens);
    const auto inserted = w.tree->Insert(runner.tail, tokens, page, 0);
    auto& entries = model.branches[runner.trie];
    const Path prefix = Model::Prefix(runner.path, runner.pages + 1);
    const bool existed = inserted.outcome == DependencyTree::Inserted::kExisted;
    ASSERT_EQ(existed, entries.contains(prefix));
    if (existed)
      w.pool->Free(PageCategory::kKv, std::span(&page, 1));
    else
      entries[prefix].page = page;
    ASSERT_EQ(w.tree->Page(inserted.node), entries[prefix].page);
    ++entries[prefix].locks;
    runner.tail = inserted.node;
    ++runner.pages;
  }

  void End(std::size_t at) {
    Runner& runner = runners[at];
    w.tree->Unlock(runner.tail, 0);
    model.Lock(runner.trie, runner.path, runner.pages, -1);
    w.tree->ReleaseTop(runner.top);
    w.tree->Release(runner.branch);
    runners.erase(runners.begin() + static_cast<std::ptrdiff_t>(at));
  }

  void Evict() {
    const auto leaves = w.tree->IdleLeaves();
    if (leaves.empty()) return;
    const NodeId victim = w.tree->IdOf(leaves[Below(leaves.size())]);
    const PageHandle page = w.tree->Page(victim);
    for (auto& [key, entries] : model.branches) {
      for (auto it = entries.begin(); it != entries.end(); ++it) {
        if (it->second.page != page) continue;
        ASSERT_EQ(it->second.locks, 0);
        const auto next = std::next(it);  // a child would follow directly
        ASSERT_FALSE(next != entries.end() && next->first.size() > it->first.size() &&
                     std::equal(it->first.begin(), it->first.end(), next->first.begin()));
        entries.erase(it);
        w.tree->Evict(victim);
        return;
      }
    }
    FAIL() << "the tree chose a victim that the test's model does not hold";
  }

  void Forget() {
    if (held.empty()) return;
    const auto it = std::next(held.begin(), static_cast<std::ptrdiff_t>(Below(held.size())));
    const std::string key = it->first;
    w.tree->Release(it->second);
    held.erase(it);
    for (const Runner& runner : runners) {
      if (runner.key == key) return;
    }
    ForgetInModel(key);
  }
  void ForgetInModel(const std::string& key) {
    for (const char* domain : {"", "a", "b"}) model.branches.erase(key + "/" + domain);
  }

  void Check() {
    w.tree->CheckIntegrity();
    w.pool->CheckIntegrity();
    std::int64_t pages = 0, idle = 0;
    for (const auto& [key, entries] : model.branches) {
      for (const auto& [path, entry] : entries) {
        ++pages;
        idle += entry.locks == 0;
      }
    }
    ASSERT_EQ(w.tree->pages(), pages);
    ASSERT_EQ(w.tree->idle_pages(), idle);
    ASSERT_EQ(w.pool->Stats().used(PageCategory::kKv), pages);
  }

  void Run(int operations) {
    for (int i = 0; i < operations && !testing::Test::HasFatalFailure(); ++i) {
      const std::size_t what = Below(20);
      if (what < 4 && runners.size() < 12)
        Begin();
      else if (what < 13 && !runners.empty())
        Extend(runners[Below(runners.size())]);
      else if (what < 15 && !runners.empty())
        EndOne();
      else if (what < 19)
        Evict();
      else if (Below(8) == 0)
        Forget();
      if (i % 16 == 0) Check();
    }
    while (!runners.empty()) EndOne();
    while (!held.empty() && !testing::Test::HasFatalFailure()) Forget();
    ASSERT_EQ(w.tree->tops(), 0u);
    ASSERT_EQ(w.pool->free_pages(), w.pool->capacity_pages());
  }
  // A branch without holds is removed with its last request.
  void EndOne() {
    const std::size_t at = Below(runners.size());
    const std::string key = runners[at].key;
    End(at);
    for (const Runner& runner : runners) {
      if (runner.key == key) return;
    }
    if (!held.contains(key)) ForgetInModel(key);
  }
};

TEST(DependencyTree, AgreesWithATrivialModelUnderRandomUse) {
  int found_in_page = 0;
  for (std::uint64_t seed = 1; seed <= 60 && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Fuzz fuzz(seed);
    fuzz.Run(1500);
    found_in_page += fuzz.found_in_page;
  }
  EXPECT_GT(found_in_page, 3000);
}

// The same prompt every ten seconds, or a different one each time.
TEST(DependencyTree, LearnsHowIdlePagesAreUsedAgain) {
  const auto factor_after = [](bool same) {
    World w(4096);
    const BranchId base = w.tree->Hold("");
    for (TimeNs now = 0; now < 1000 * kNsPerSecond; now += 20 * kNsPerMs) {
      const auto tens = static_cast<TokenId>(now / (10 * kNsPerSecond));
      if (now % (10 * kNsPerSecond) == 0) w.Remember(base, Tokens(40 * kPageTokens, same ? 0 : 1000 * tens), now);
      w.tree->ObserveIdlePages(now, 30);
    }
    w.tree->CheckIntegrity();
    return w.tree->reuse().Factor(
        1, 9 * kNsPerSecond);  // visits decay within a second here, so every visit counts as the first
  };
  EXPECT_GT(factor_after(true), 1.5);  // the prior remembers 30 seconds
  EXPECT_LT(factor_after(false), 0.5);
}

}  // namespace
}  // namespace loramux::dependency_tree_test
