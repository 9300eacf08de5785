#include "prefix/tree_branches.h"

#include <string>

#include "prefix/tree_world_for_test.h"

namespace loramux::tree_branches_test {
namespace {

using tree_world::kPageTokens;
using tree_world::Tokens;
using tree_world::World;

// Equal tokens under different weights have different keys and values; equal weights under two names share them.
TEST(TreeBranches, Point2_BranchesAreKeyedByContentNeverByName) {
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
  EXPECT_EQ(w.tree->tiers().pages(), 0);
  const BranchId again = w.tree->Hold("digest of the first weights");
  EXPECT_EQ(w.Matched(again, Tokens(8)), 0);
  w.tree->Release(again);
  w.tree->Release(second);
}

// Equal tokens of two domains have pages of their own: neither a whole page nor the beginning of one is found.
TEST(TreeBranches, DomainsFindNoPagesOfEachOther) {
  World w;
  const BranchId base = w.tree->Hold("");
  w.Remember(base, Tokens(8), 0);
  const NodeId first = w.tree->HoldTop(base, "first"), second = w.tree->HoldTop(base, "second");
  EXPECT_EQ(w.tree->HoldTop(base, ""), w.tree->branches().Top(base));
  const auto inserted = w.tree->Insert(first, Tokens(4), w.NewPage(), 0);
  EXPECT_EQ(inserted.outcome, DependencyTree::Inserted::kTaken);
  EXPECT_EQ(w.tree->index().Match(first, Tokens(8), 1000), inserted.node);
  EXPECT_EQ(w.tree->index().Match(second, Tokens(8), 1000), second);
  EXPECT_EQ(w.tree->index().MatchInPage(first, Tokens(3)).tokens, 3);
  EXPECT_EQ(w.tree->index().MatchInPage(second, Tokens(3)).tokens, 0);
  EXPECT_EQ(w.Matched(base, Tokens(8)), 2);
  EXPECT_EQ(w.tree->tiers().pages(base), 3);  // evictions count by branch
  w.tree->CheckIntegrity();
  w.tree->EndUse(inserted.node, 1);
  for (const NodeId top : {first, second}) w.tree->ReleaseTop(top);
  w.tree->Release(base);
  EXPECT_EQ(w.pool->free_pages(), 64);
}

// As many domains as requests have invented do not fill memory.
TEST(TreeBranches, ADomainIsForgottenWithItsLastPage) {
  World w;
  const BranchId base = w.tree->Hold("");
  for (int i = 0; i < 1000; ++i) {
    const NodeId top = w.tree->HoldTop(base, "invented " + std::to_string(i));
    const NodeId node = w.tree->Insert(top, Tokens(4), w.NewPage(), 0).node;
    w.tree->EndUse(node, 0);
    w.tree->ReleaseTop(top);
    EXPECT_TRUE(w.tree->nodes().Exists(top));  // its page stays as history
    if (i % 2 == 0)
      w.tree->Evict(node);
    else
      w.tree->Clear(base);
    EXPECT_FALSE(w.tree->nodes().Exists(top));
  }
  const NodeId top = w.tree->HoldTop(base, "empty");
  w.tree->Clear(base);
  EXPECT_TRUE(w.tree->nodes().Exists(top));  // held
  w.tree->CheckIntegrity();
  w.tree->ReleaseTop(top);
  EXPECT_EQ(w.tree->branches().tops(), 1u);
  EXPECT_LE(w.tree->nodes().slots(), 3u);
  w.tree->Release(base);
}

// ---------------------------------------------------------------- Branches alone

struct Branches {
  TreeNodes nodes{4};
  PrefixIndex index{&nodes, 0};
  TreeBranches branches{&nodes, &index};
};

TEST(TreeBranches, AloneTheLastReleaseAndOnlyItRemoves) {
  Branches b;
  const BranchId first = b.branches.Hold("digest");
  EXPECT_FALSE(b.branches.IsShared(first));
  EXPECT_EQ(b.branches.Hold("digest"), first);
  EXPECT_TRUE(b.branches.IsShared(first));
  EXPECT_FALSE(b.branches.Release(first));
  EXPECT_TRUE(b.branches.IsHeld(first));
  EXPECT_DEATH(b.branches.Remove(first), "holds");
  EXPECT_TRUE(b.branches.Release(first));
  b.branches.Remove(first);
  EXPECT_FALSE(b.branches.IsHeld(first));
  EXPECT_EQ(b.nodes.size(), 0u);
  EXPECT_EQ(b.branches.Hold("another"), first);  // the id is used again
  EXPECT_EQ(b.branches.slots(), 1u);
  b.branches.CheckIntegrity();
}

TEST(TreeBranches, AloneATopStaysWhileHeldOrAboveAPage) {
  Branches b;
  const BranchId branch = b.branches.Hold("");
  const NodeId top = b.branches.HoldTop(branch, "domain");
  EXPECT_EQ(b.branches.HoldTop(branch, "domain"), top);
  EXPECT_EQ(b.branches.tops(), 2u);
  std::vector<std::uint32_t> tops;
  b.branches.AppendTops(branch, tops);
  EXPECT_EQ(tops, (std::vector<std::uint32_t>{b.branches.Top(branch).index, top.index}));
  const std::uint32_t node = b.index.Insert(top.index, Tokens(4), b.index.Find(top.index, Tokens(4)).hash);
  b.branches.ReleaseTop(top);
  b.branches.ReleaseTop(top);
  EXPECT_DEATH(b.branches.ReleaseTop(top), "holds");
  EXPECT_TRUE(b.nodes.Exists(top));
  b.branches.CheckIntegrity();
  b.index.Remove(node);
  EXPECT_DEATH(b.branches.CheckIntegrity(), "top.holds");
  b.branches.RemoveTopIfUnused(top.index);
  EXPECT_FALSE(b.nodes.Exists(top));
  b.branches.ReleaseTop(b.branches.Top(branch));  // the shared domain's top takes no hold
  b.branches.CheckIntegrity();
}

}  // namespace
}  // namespace loramux::tree_branches_test
