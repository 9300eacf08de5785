#include "prefix/prefix_index.h"

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "base/prng.h"
#include "prefix/tree_world_for_test.h"

namespace loramux::prefix_index_test {
namespace {

using tree_world::kPageTokens;
using tree_world::Tokens;
using tree_world::World;

// `count` tokens: the first `alike` ones from 0 on, then `others`.
std::vector<TokenId> PartingAt(int alike, int count, TokenId others = 1000) {
  std::vector<TokenId> tokens = Tokens(count);
  for (int i = alike; i < count; ++i) tokens[static_cast<std::size_t>(i)] = others + i;
  return tokens;
}

TEST(PrefixIndex, FindsTheLongestPrefixOfFullPages) {
  World w;
  const BranchId base = w.tree->Hold("");
  w.Remember(base, Tokens(10), 0);  // two full pages
  EXPECT_EQ(w.tree->tiers().pages(), 2);
  EXPECT_EQ(w.Matched(base, Tokens(10)), 2);
  EXPECT_EQ(w.Matched(base, Tokens(8)), 2);
  EXPECT_EQ(w.Matched(base, Tokens(7)), 1);
  EXPECT_EQ(w.Matched(base, Tokens(10, 1)), 0);
  auto other = Tokens(10);
  other[5] = 99;
  EXPECT_EQ(w.Matched(base, other), 1);
  const NodeId first = w.tree->index().Match(w.tree->branches().Top(base), Tokens(10), /*max_pages=*/1);
  EXPECT_EQ(w.tree->nodes().Depth(first), 1);
  EXPECT_EQ(w.tree->nodes().Depth(w.tree->index().Match(first, Tokens(10), 1000)),
            2);  // continues where an earlier match ended
  w.tree->Release(base);
  EXPECT_EQ(w.pool->free_pages(), 64);
}

TEST(PrefixIndex, FindsThePageThatBeginsAsThePromptGoesOn) {
  World w(64, kNsPerSecond, /*page_tokens=*/16);
  const BranchId base = w.tree->Hold("");
  const NodeId top = w.tree->branches().Top(base);
  EXPECT_EQ(w.tree->index().MatchInPage(top, Tokens(16)).tokens, 0);
  const NodeId whole = w.Remember(base, Tokens(32), 0), first = w.tree->nodes().Parent(whole);
  const auto alike = [&](NodeId parent, const std::vector<TokenId>& next) {
    return w.tree->index().MatchInPage(parent, next).tokens;
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
  EXPECT_EQ(w.tree->index().MatchInPage(first, Tokens(12, 16)).node, whole);
  const NodeId nine = w.Remember(base, PartingAt(9, 16), 0), five = w.Remember(base, PartingAt(5, 16, 2000), 0);
  EXPECT_EQ(w.tree->index().MatchInPage(top, PartingAt(12, 16, 3000)).node, first);
  EXPECT_EQ(w.tree->index().MatchInPage(top, PartingAt(9, 12)).node, nine);
  EXPECT_EQ(alike(top, PartingAt(9, 12)), 12);
  EXPECT_EQ(w.tree->index().MatchInPage(top, PartingAt(5, 9, 2000)).node, five);
  w.tree->Evict(five);
  EXPECT_EQ(alike(top, PartingAt(5, 9, 2000)), 5);
  w.tree->Evict(whole);
  w.tree->Evict(first);  // without it, all children are in groups
  EXPECT_EQ(w.tree->index().MatchInPage(top, Tokens(14)).node, nine);
  w.tree->CheckIntegrity();
  const BranchId other = w.tree->Hold("other weights");
  EXPECT_EQ(alike(w.tree->branches().Top(other), Tokens(14)), 0);
  w.tree->Release(other);
  w.tree->Release(base);
}

// Among thousands of children, the search skips those that begin differently and examines only the youngest few that
// begin alike.
TEST(PrefixIndex, LooksAtFewOfThousandsOfChildren) {
  World w(5000, kNsPerSecond, /*page_tokens=*/16);
  const BranchId base = w.tree->Hold("");
  const NodeId top = w.tree->branches().Top(base);
  for (TokenId i = 0; i < 2000; ++i) w.Remember(base, Tokens(16, 100 * i), 0);
  for (const TokenId i : {0, 1, 777, 1999}) {
    const auto found = w.tree->index().MatchInPage(top, Tokens(11, 100 * i));
    EXPECT_EQ(found.tokens, 11) << i;
    EXPECT_EQ(found.node, w.tree->index().Match(top, Tokens(16, 100 * i), 1)) << i;
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
    return w.tree->index().MatchInPage(top, tokens);
  };
  EXPECT_EQ(found_for(1999).tokens, 15);
  EXPECT_EQ(found_for(2000 - PrefixIndex::kMostLookedAt).tokens, 15);
  EXPECT_EQ(found_for(2000 - PrefixIndex::kMostLookedAt - 1).tokens, 6);
  EXPECT_EQ(found_for(5).node, alike.back());  // the youngest of equal matches
  w.tree->CheckIntegrity();
  w.tree->Release(base);
}

// Only pages that can be read on the device are found.
TEST(PrefixIndex, APageThatIsNotOnTheDeviceIsNotCopied) {
  World w;
  const auto host = std::move(PagePool::Create("host", 64 * 64, 64)).value();
  w.tree = std::make_unique<DependencyTree>(kPageTokens, w.pool.get(), host.get());
  const BranchId base = w.tree->Hold("");
  const NodeId top = w.tree->branches().Top(base), tail = w.Remember(base, Tokens(4), 0);
  std::vector<DependencyTree::MovingPages> backed_up;
  w.tree->BeginBackUp(std::span(&tail, 1), backed_up);
  EXPECT_EQ(w.tree->index().MatchInPage(top, Tokens(3)).tokens, 3);  // in transfer to the host tier, but still readable
  w.tree->EndMove(backed_up, /*failed=*/false);
  w.tree->Evict(tail);
  EXPECT_EQ(w.tree->index().MatchInPage(top, Tokens(3)).tokens, 0);
  std::vector<DependencyTree::MovingPages> moving;
  w.tree->BeginFetch(tail, moving);
  EXPECT_EQ(w.tree->index().MatchInPage(top, Tokens(3)).tokens, 0);
  w.tree->EndMove(moving, /*failed=*/false);
  EXPECT_EQ(w.tree->index().MatchInPage(top, Tokens(3)).node, tail);
  w.tree->CheckIntegrity();
}

// ---------------------------------------------------------------- The index alone

// The trie as a set of paths.
struct Fuzz {
  Prng prng;
  TreeNodes nodes{2};
  PrefixIndex index{&nodes, /*hash_seed=*/7};
  std::map<std::vector<TokenId>, std::uint32_t> by_path;

  explicit Fuzz(std::uint64_t seed) : prng(seed) { by_path[{}] = index.AddTop(0, "top"); }

  std::vector<TokenId> AnyPath(std::size_t pages) {
    std::vector<TokenId> path(2 * pages);
    for (TokenId& token : path) token = static_cast<TokenId>(prng.NextBelow(3));
    return path;
  }
  std::size_t PagesInModel(const std::vector<TokenId>& path) const {
    std::size_t pages = 0;
    for (auto prefix = path; pages * 2 < path.size(); ++pages) {
      prefix.assign(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(2 * (pages + 1)));
      if (!by_path.contains(prefix)) break;
    }
    return pages;
  }
  void Insert() {
    const auto path = AnyPath(1 + prng.NextBelow(6));
    const std::size_t found = PagesInModel(path);
    const NodeId tail = index.Match(nodes.IdOf(by_path[{}]), path, 1000);
    ASSERT_EQ(nodes.Depth(tail), static_cast<std::int64_t>(found));
    const auto prefix = std::vector(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(2 * found));
    ASSERT_EQ(by_path.at(prefix), tail.index);
    if (found * 2 == path.size()) return;
    const auto page = std::span(path).subspan(2 * found, 2);
    const PrefixIndex::Place place = index.Find(tail.index, page);
    ASSERT_EQ(place.node, TreeNodes::kNone);
    auto longer = prefix;
    longer.insert(longer.end(), page.begin(), page.end());
    by_path[longer] = index.Insert(tail.index, page, place.hash);
    ASSERT_EQ(index.Find(tail.index, page).node, by_path[longer]);
  }
  void RemoveALeaf() {
    auto it = std::next(by_path.begin(), static_cast<std::ptrdiff_t>(prng.NextBelow(by_path.size())));
    if (it->first.empty() || nodes[it->second].first_child != TreeNodes::kNone) return;
    const NodeId id = nodes.IdOf(it->second);
    index.Remove(it->second);
    ASSERT_FALSE(nodes.Exists(id));
    by_path.erase(it);
  }
};

TEST(PrefixIndex, AloneAgreesWithASetOfPaths) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Fuzz fuzz(seed);
    for (int i = 0; i < 4000 && !HasFatalFailure(); ++i) {
      if (fuzz.prng.NextBelow(3) > 0)
        fuzz.Insert();
      else
        fuzz.RemoveALeaf();
      if (i % 256 == 0) fuzz.index.CheckIntegrity();
    }
    EXPECT_EQ(fuzz.nodes.size(), fuzz.by_path.size());
    EXPECT_GT(fuzz.nodes.size(), 600u);  // the table has grown
    fuzz.index.CheckIntegrity();
    fuzz.nodes.CheckIntegrity();
  }
}

TEST(PrefixIndex, ATopWithChildrenIsNotRemoved) {
  TreeNodes nodes(2);
  PrefixIndex index(&nodes, 0);
  const std::uint32_t top = index.AddTop(0, "a");
  const std::vector<TokenId> page = {1, 2};
  const std::uint32_t node = index.Insert(top, page, index.Find(top, page).hash);
  EXPECT_DEATH(index.RemoveTop(top), "first_child");
  index.Remove(node);
  index.RemoveTop(top);
  EXPECT_EQ(nodes.size(), 0u);
}

}  // namespace
}  // namespace loramux::prefix_index_test
