#include "prefix/host_order.h"

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/prng.h"
#include "prefix/node_tiers.h"
#include "prefix/tree_world_for_test.h"

namespace loramux::host_order_test {
namespace {

using tree_world::kPageTokens;
using tree_world::Tokens;
using tree_world::World;

// Drops the page that goes first.
void DropNext(DependencyTree& tree) { tree.Drop(tree.nodes().IdOf(tree.NextToDrop()->item)); }

TEST(HostOrder, TheLeastWorthGoesFirstAndOfEqualWorthTheLowestTie) {
  HostOrder order;
  EXPECT_EQ(order.First(), nullptr);
  order.Set({.worth = 30, .tie = 1, .item = 5});
  order.Set({.worth = 10, .tie = 3, .item = 2});
  order.Set({.worth = 10, .tie = 2, .item = 7});
  EXPECT_EQ(order.First()->item, 7u);
  order.Set({.worth = 5, .tie = 1, .item = 5});  // worth may fall
  EXPECT_EQ(order.First()->item, 5u);
  EXPECT_TRUE(order.Has(5));
  order.Remove(5);
  order.Remove(5);
  order.Remove(1000);
  EXPECT_FALSE(order.Has(5) || order.Has(1000));
  EXPECT_EQ(order.First()->item, 7u);
  EXPECT_EQ(order.size(), 2u);
  order.CheckIntegrity();
}

TEST(HostOrder, AgreesWithASearchOfAllItems) {
  std::size_t found = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    HostOrder order;
    std::map<std::uint32_t, HostOrder::Entry> model;  // by item
    for (int i = 0; i < 3000 && !HasFailure(); ++i) {
      const auto item = static_cast<std::uint32_t>(prng.NextBelow(60));
      const auto worth = static_cast<TimeNs>(prng.NextBelow(12));  // many are equal
      if (prng.NextBelow(3) > 0) {
        model[item] = {worth, prng.Next(), item};
        order.Set(model[item]);
      } else {
        model.erase(item);
        order.Remove(item);
      }
      if (i % 3 != 0) continue;
      order.CheckIntegrity();
      std::vector<HostOrder::Entry> taken;  // several of one plan, which then return
      for (int n = 0; n < 1 + i % 7 && !model.empty(); ++n) {
        const auto best = std::min_element(model.begin(), model.end(),
                                           [](const auto& a, const auto& b) { return a.second < b.second; });
        ASSERT_EQ(*order.First(), best->second);
        taken.push_back(best->second);
        order.Remove(best->first);
        model.erase(best);
        ++found;
      }
      for (const HostOrder::Entry& entry : taken) {
        order.Set(entry);
        model[entry.item] = entry;
      }
      ASSERT_EQ(order.size(), model.size());
    }
  }
  EXPECT_GT(found, 50'000u);
}

// ---------------------------------------------------------------- Pages of history

// A path is used at one time. Without its beginning the rest would be useless, so the end is dropped first.
TEST(HostOrder, TheEndOfASessionLeavesTheHostTierFirst) {
  World w;
  const auto host = std::move(PagePool::Create("host", 64 * 64, 64)).value();
  w.tree = std::make_unique<DependencyTree>(kPageTokens, w.pool.get(), host.get());
  std::vector<NodeId> path = {w.Remember(w.tree->Hold(""), Tokens(80), 5)};
  for (; w.tree->nodes().Depth(path.back()) > 1;)
    path.push_back(w.tree->nodes().Parent(path.back()));  // from the end upwards
  for (const NodeId node : path) w.CopyToHost(node);
  for (std::size_t i = 0; i < 10; ++i) w.tree->Evict(path[i]);  // the second half is in the host tier alone
  EXPECT_EQ(w.tree->tiers().host_pages(), 20);
  DropNext(*w.tree);
  for (std::size_t i = 10; i < 20; ++i) w.tree->Evict(path[i]);
  EXPECT_EQ(w.tree->tiers().host_pages(), 19);
  EXPECT_EQ(w.tree->tiers().pages(), 0);
  w.tree->CheckIntegrity();
}

// The older path was used four times, the younger one once, a minute later. By recency alone the older one is dropped.
TEST(HostOrder, ABonusKeepsWhatIsUsedOftenInTheHostTier) {
  for (const TimeNs bonus : {TimeNs{0}, 60 * kNsPerSecond}) {
    World w;
    const auto host = std::move(PagePool::Create("host", 64 * 64, 64)).value();
    w.tree = std::make_unique<DependencyTree>(kPageTokens, w.pool.get(), host.get());
    w.tree->set_host_bonus(bonus);
    const BranchId base = w.tree->Hold("");
    const NodeId often = w.Remember(base, Tokens(4, 0), 0), once = w.Remember(base, Tokens(4, 100), 60 * kNsPerSecond);
    for (int i = 0; i < 3; ++i) {
      w.tree->Use(often, 0);
      w.tree->EndUse(often, 0);
    }
    for (const NodeId node : {often, once}) {
      w.CopyToHost(node);
      w.tree->Evict(node);
    }
    EXPECT_EQ(w.tree->NextToDrop()->worth, bonus == 0 ? 0 : w.tree->reuse().HostWorth(once));
    DropNext(*w.tree);
    EXPECT_EQ(w.tree->nodes().Exists(often), bonus > 0);
    EXPECT_EQ(w.tree->nodes().Exists(once), bonus == 0);
    EXPECT_DEATH(w.tree->set_host_bonus(1), "");  // the heap has entries of another order
    w.tree->CheckIntegrity();
  }
}

// The order alone.

// Host pages with random worths, of nodes in a random forest, against a search of all nodes.
struct Fuzz {
  Prng prng;
  TreeNodes nodes{1};
  PrefixIndex index{&nodes, 0};
  NodeTiers tiers{&nodes, nullptr, nullptr};
  std::uint32_t top = index.AddTop(0, "");
  TokenId next = 0;

  explicit Fuzz(std::uint64_t seed) : prng(seed) {}

  std::uint32_t AnyNode() { return static_cast<std::uint32_t>(prng.NextBelow(nodes.slots())); }
  void Add() {
    std::uint32_t parent = AnyNode();
    if (!nodes[parent].exists()) parent = top;
    const std::vector<TokenId> page = {next++};
    const std::uint32_t node = index.Insert(parent, page, index.Find(parent, page).hash);
    nodes[node].host_page = {.index = 1, .generation = 1};
    nodes[node].host_worth = static_cast<TimeNs>(prng.NextBelow(50));
    if (prng.NextBelow(3) == 0) nodes[node].page = {.index = 1, .generation = 1};
    tiers.OfferToDrop(node);
  }
  static bool IsDroppable(const TreeNode& node) {
    return node.exists() && node.has_host_page() && !node.moving() &&
           (node.has_device_page() || node.first_child == TreeNode::kNone);
  }
  // By the definition of the order.
  std::uint32_t NextInModel() const {
    std::uint32_t best = TreeNode::kNone;
    const auto key = [&](std::uint32_t i) { return std::tuple(nodes[i].host_worth, -nodes[i].depth, i); };
    for (std::uint32_t i = 0; i < nodes.slots(); ++i) {
      if (IsDroppable(nodes[i]) && (best == TreeNode::kNone || key(i) < key(best))) best = i;
    }
    return best;
  }
  void Raise() {
    const std::uint32_t node = AnyNode();
    nodes[node].host_worth += static_cast<TimeNs>(prng.NextBelow(20));
  }
  void Move() {  // a page in transfer is skipped and offered again at the end of the transfer
    const std::uint32_t node = AnyNode();
    if (!nodes[node].exists() || !nodes[node].has_host_page()) return;
    nodes[node].move = nodes[node].moving() ? TreeNode::Move::kNone : TreeNode::Move::kBackUp;
    if (!nodes[node].moving()) tiers.OfferToDrop(node);
  }
  void Take() {
    const std::uint32_t expected = NextInModel();
    const bool any = expected != TreeNode::kNone;
    const HostOrder::Entry* const next = tiers.NextToDrop();
    ASSERT_EQ(next != nullptr, any);
    if (!any) return;
    ASSERT_EQ(next->item, expected);
    ASSERT_EQ(next->worth, nodes[expected].host_worth);
    tiers.HoldFromDrop(expected);
    const std::uint32_t parent = nodes[expected].parent;
    if (nodes[expected].first_child != TreeNode::kNone) {  // a copy: the node stays, without a host page
      nodes[expected].host_page = {};
      return;
    }
    index.Remove(expected);
    if (parent != top) tiers.OfferToDrop(parent);
  }
};

TEST(HostOrder, OfPagesAgreesWithASearchOfAllNodes) {
  for (std::uint64_t seed = 1; seed <= 20 && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Fuzz fuzz(seed);
    for (int i = 0; i < 6000 && !HasFatalFailure(); ++i) {
      switch (fuzz.prng.NextBelow(5)) {
        case 0:
          fuzz.Add();
          break;
        case 1:
          fuzz.Move();
          break;
        case 2:
          fuzz.Take();
          break;
        default:
          fuzz.Raise();
      }
    }
  }
}

}  // namespace
}  // namespace loramux::host_order_test
