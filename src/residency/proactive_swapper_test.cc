#include "residency/proactive_swapper.h"

#include <algorithm>
#include <memory>
#include <set>

#include "base/prng.h"
#include "residency/kv_tiers.h"
#include "residency/moves_for_test.h"

namespace loramux::proactive_swapper_test {
namespace {

using Memory = ProactiveSwapper::Memory;
constexpr TimeNs kTick = SwapThresholds().interval;

// A page holds one token, so the tokens spell the path. With "lru" a score is the time of the last use.
struct World {
  std::unique_ptr<PagePool> device, host;
  std::unique_ptr<DependencyTree> tree;
  std::unique_ptr<EvictionPolicy> policy = std::move(MakeEvictionPolicy("lru")).value();
  std::unique_ptr<KvEvictionPlan> plan;
  std::unique_ptr<ProactiveSwapper> swapper;
  BranchId base, other;
  std::vector<bool> usable = {true, true};

  explicit World(std::int64_t pages = 256)
      : device(std::move(PagePool::Create("device", pages * 64, 64)).value()),
        host(std::move(PagePool::Create("host", pages * 64, 64)).value()),
        tree(std::make_unique<DependencyTree>(1, device.get(), host.get())),
        plan(std::make_unique<KvEvictionPlan>(*tree, *policy)),
        swapper(std::make_unique<ProactiveSwapper>(*tree)),
        base(tree->Hold("")),
        other(tree->Hold("another")) {}

  // Simulates a session with these tokens that ended at `at`.
  NodeId Remember(BranchId branch, const std::vector<TokenId>& tokens, TimeNs at) {
    NodeId tail = tree->index().Match(tree->branches().Top(branch), tokens, 1000);
    while (!tree->tiers().OnDevice(tail)) tail = tree->nodes().Parent(tail);
    tree->Use(tail, at);
    for (auto depth = static_cast<std::size_t>(tree->nodes().Depth(tail)); depth < tokens.size(); ++depth) {
      PageHandle page;
      CHECK(device->Allocate(PageCategory::kKv, std::span(&page, 1)));
      tail = tree->Insert(tail, std::span(tokens).subspan(depth, 1), page, at).node;
    }
    tree->EndUse(tail, at);
    return tail;
  }
  // Moves the end of the path, `pages` pages, to the host tier.
  void SwapOut(NodeId tail, std::int64_t pages) {
    std::vector<NodeId> path;
    for (NodeId at = tail; pages > 0; --pages, at = tree->nodes().Parent(at)) path.push_back(at);
    for (const NodeId node : path) {
      if (tree->nodes().At(node).has_host_copy()) continue;
      std::vector<DependencyTree::MovingPages> copying;
      tree->BeginBackUp(std::span(&node, 1), copying);
      tree->EndMove(copying, /*failed=*/false);
    }
    for (const NodeId node : path) tree->Evict(node);
  }
  const Moves& Choose(ProactiveSwapper::Room room, const std::vector<ProactiveSwapper::Candidate>& adapters = {}) {
    swapper->BeginWalk(usable);
    while (!swapper->Walk(*plan, 1000)) {
    }
    for (const auto& adapter : adapters) swapper->Offer(adapter);
    return swapper->Choose(room, usable, *plan, 1000);
  }
};

std::vector<ItemId> Items(const Moves& moves) {
  std::vector<ItemId> items;
  for (const Move& move : moves) items.push_back(move.item);
  return items;
}
std::int64_t Pages(const Moves& moves, bool adapters) {
  std::int64_t pages = 0;
  for (const Move& move : moves) pages += move.item.is_adapter() == adapters ? move.pages : 0;
  return pages;
}

TEST(ProactiveSwapper, BetweenTheThresholdsNothingMoves) {
  const DependencyTree nothing(1);
  ProactiveSwapper swapper(nothing);
  TimeNs now = 0;
  const auto observe = [&](std::int64_t used) { return swapper.Observe(used, 1000, now += kTick); };
  EXPECT_EQ(observe(951), Memory::kBusy);
  EXPECT_EQ(observe(950), Memory::kBalanced);
  EXPECT_EQ(observe(700), Memory::kBalanced);
  EXPECT_EQ(observe(699), Memory::kIdle);
  EXPECT_EQ(swapper.PagesAbove(960, 1000), 10);
  EXPECT_EQ(swapper.PagesAbove(940, 1000), 0);
  EXPECT_EQ(swapper.PagesBelow(690, 1000), 10);
  EXPECT_EQ(swapper.PagesBelow(710, 1000), 0);
}

// Between two ticks a movement may end, but none begins.
TEST(ProactiveSwapper, ItBeginsAtATickAndEndsAtOnce) {
  const DependencyTree nothing(1);
  ProactiveSwapper swapper(nothing);
  EXPECT_EQ(swapper.Observe(800, 1000, 0), Memory::kBalanced);
  EXPECT_EQ(swapper.Observe(999, 1000, kTick - 1), Memory::kBalanced);
  EXPECT_EQ(swapper.Observe(999, 1000, kTick), Memory::kBusy);
  EXPECT_EQ(swapper.Observe(960, 1000, kTick + 1), Memory::kBusy);
  EXPECT_EQ(swapper.Observe(950, 1000, kTick + 2), Memory::kBalanced);
  EXPECT_EQ(swapper.Observe(100, 1000, kTick + 3), Memory::kBalanced);
  EXPECT_EQ(swapper.Observe(100, 1000, 2 * kTick), Memory::kIdle);
  EXPECT_EQ(swapper.Observe(999, 1000, 2 * kTick + 1), Memory::kBalanced);
  EXPECT_EQ(swapper.Observe(999, 1000, 3 * kTick), Memory::kBusy);
}

// Content that was moved out stays out, and content that was moved in stays in, unless something else changes.
TEST(ProactiveSwapper, ThresholdsAndIntervalCanBeSet) {
  const World world;
  ProactiveSwapper swapper(*world.tree, {.upper = 0.5, .lower = 0.25, .interval = kNsPerSecond});
  EXPECT_EQ(swapper.UpperPages(256), 128);
  EXPECT_EQ(swapper.PagesBelow(60, 256), 4);
  EXPECT_EQ(swapper.Observe(200, 256, 10 * kNsPerSecond), Memory::kBusy);
  EXPECT_EQ(swapper.Observe(100, 256, 10 * kNsPerSecond + kTick), Memory::kBalanced);
  EXPECT_EQ(swapper.Observe(200, 256, 10 * kNsPerSecond + 5 * kTick), Memory::kBalanced);  // not yet another look
  EXPECT_EQ(swapper.Observe(200, 256, 11 * kNsPerSecond), Memory::kBusy);
}

TEST(ProactiveSwapper, NoPingPong) {
  const DependencyTree nothing(1);
  for (const std::int64_t capacity : {10, 24, 100, 1000, 4096}) {
    for (std::int64_t begin = 0; begin <= capacity; ++begin) {
      ProactiveSwapper swapper(nothing);
      std::int64_t used = begin;
      std::set<Memory> seen;
      for (int tick = 0; tick < 50; ++tick) {
        seen.insert(swapper.Observe(used, capacity, tick * kTick));
        used -= swapper.PagesAbove(used, capacity);
        used += swapper.PagesBelow(used, capacity);
      }
      ASSERT_FALSE(seen.contains(Memory::kBusy) && seen.contains(Memory::kIdle)) << begin << " of " << capacity;
      ASSERT_EQ(swapper.Observe(used, capacity, 50 * kTick), Memory::kBalanced);
    }
  }
}

TEST(ProactiveSwapper, TheMostValuableComeFirst) {
  World w;
  const NodeId old = w.Remember(w.base, {1, 2}, 10), young = w.Remember(w.base, {3, 4}, 30),
               middle = w.Remember(w.base, {5}, 20);
  for (const NodeId tail : {old, young}) w.SwapOut(tail, 2);
  w.SwapOut(middle, 1);
  EXPECT_EQ(w.tree->tiers().HostRoots().size(), 3u);
  const auto& moves = w.Choose({.pages = 3, .most = 100, .kv_pages = 100});
  ASSERT_EQ(moves.size(), 2u);
  EXPECT_EQ(moves[0].item.node, young);  // both of its pages: they have the same score
  EXPECT_EQ(moves[1].item.node, middle);
  EXPECT_EQ(moves[0].pages + moves[1].pages, 3);
}

// FastLibra 4.2: content comes from the roots of the host part down, and only where the adapter is.
TEST(ProactiveSwapper, NothingComesBeforeWhatItDependsOn) {
  World w;
  const NodeId deep = w.Remember(w.base, {1, 2, 3, 4}, 10), stranger = w.Remember(w.other, {1, 2}, 90);
  w.SwapOut(deep, 3);
  w.SwapOut(stranger, 2);
  w.usable = {true, false};
  const auto& moves = w.Choose({.pages = 2, .most = 100, .kv_pages = 100});
  ASSERT_EQ(moves.size(), 1u);
  EXPECT_EQ(w.tree->nodes().Depth(moves[0].item.node), 3);
  EXPECT_EQ(w.tree->nodes().Parent(deep), moves[0].item.node);
  w.usable = {false};
  EXPECT_TRUE(w.Choose({.pages = 2, .most = 100, .kv_pages = 100}).empty());
}

// Two paths of one job share no node: the better child continues the path, the other comes with a later job.
TEST(ProactiveSwapper, OfTwoChildrenTheBetterOneComes) {
  World w;
  const NodeId first = w.Remember(w.base, {1, 2, 3}, 10), second = w.Remember(w.base, {1, 2, 4}, 20);
  w.SwapOut(first, 1);
  w.SwapOut(second, 3);
  const auto moves = w.Choose({.pages = 10, .most = 100, .kv_pages = 100});
  ASSERT_EQ(moves.size(), 1u);
  EXPECT_EQ(moves[0].item.node, second);
  std::vector<DependencyTree::MovingPages> pages;
  w.tree->BeginFetch(second, pages);
  EXPECT_TRUE(w.Choose({.pages = 10, .most = 100, .kv_pages = 100}).empty());  // the parent is in transfer
  w.tree->EndMove(pages, /*failed=*/false);
  EXPECT_EQ(Items(w.Choose({.pages = 10, .most = 100, .kv_pages = 100})), std::vector<ItemId>{first});
}

// FastLibra brings back what its cost model values most. Adapters that no request has used yet are worth the same, and
// their numbers say nothing: which one comes is drawn.
TEST(ProactiveSwapper, AmongAdaptersOfOneWorthADrawDecides) {
  std::vector<ProactiveSwapper::Candidate> unused;
  for (std::uint32_t i = 1; i <= 8; ++i) unused.push_back({.score = 0, .adapter = AdapterGeneration{i}, .pages = 2});
  std::set<std::uint32_t> first;
  for (std::int64_t draw = 0; draw < 32; ++draw) {
    World w;
    w.swapper = std::make_unique<ProactiveSwapper>(*w.tree, SwapThresholds{.draw = draw});
    const ProactiveSwapper::Room room{.pages = 2, .most = 100, .kv_pages = 0, .adapters = 1};
    const std::vector<std::uint32_t> chosen = Loaded(w.Choose(room, unused));
    ASSERT_EQ(chosen.size(), 1u);
    EXPECT_EQ(Loaded(w.Choose(room, unused)), chosen);
    first.insert(chosen.front());
    std::vector<ProactiveSwapper::Candidate> used = unused;
    used[5].score = 0.1;
    EXPECT_EQ(Loaded(w.Choose(room, used)), std::vector<std::uint32_t>{6});
  }
  EXPECT_GE(first.size(), 6u);
}

TEST(ProactiveSwapper, RoomIsKept) {
  World w;
  for (TokenId i = 0; i < 20; ++i) w.SwapOut(w.Remember(w.base, {i, 100}, i), 2);
  const std::vector<ProactiveSwapper::Candidate> adapters = {
      {.score = 50, .adapter = AdapterGeneration{1}, .pages = 4},
      {.score = 40, .adapter = AdapterGeneration{2}, .pages = 30},
      {.score = 30, .adapter = AdapterGeneration{3}, .pages = 2}};
  auto moves = w.Choose({.pages = 20, .most = 25, .kv_pages = 8, .adapters = 2}, adapters);
  EXPECT_EQ(Loaded(moves), (std::vector{1u, 3u}));  // the second is too large
  EXPECT_EQ(Pages(moves, /*adapters=*/false), 8);
  EXPECT_EQ(Pages(moves, /*adapters=*/true), 6);
  moves = w.Choose({.pages = 3, .most = 25, .kv_pages = 8, .adapters = 2}, adapters);
  EXPECT_EQ(Items(moves), std::vector<ItemId>{AdapterGeneration{1}});  // the last one may exceed the wanted pages
  EXPECT_EQ(moves[0].pages, 4);
  EXPECT_TRUE(w.Choose({.pages = 20, .most = 0, .kv_pages = 8, .adapters = 2}, adapters).empty());
  EXPECT_TRUE(w.Choose({.pages = 20, .most = 20, .kv_pages = 0, .adapters = 0}, adapters).empty());
}

// With more roots than one call examines, nothing is chosen before all were seen.
TEST(ProactiveSwapper, AWalkIsBoundedAndSeesAll) {
  constexpr TokenId kRoots = 20'000;
  World w(kRoots + 10);
  for (TokenId i = 0; i < kRoots; ++i) w.SwapOut(w.Remember(w.base, {i}, i == 7 ? kRoots : i), 1);
  w.swapper->BeginWalk(w.usable);
  int calls = 1;
  for (; !w.swapper->Walk(*w.plan, 0); ++calls) {
  }
  constexpr std::int64_t kOfRoot = KvEvictionPlan::kLooksOfNode + 1;  // no query is weighed
  constexpr std::int64_t kOfCall = (KvEvictionPlan::kLooksOfPiece + kOfRoot - 1) / kOfRoot;
  EXPECT_EQ(calls, (kRoots + kOfCall - 1) / kOfCall);
  const auto& moves = w.swapper->Choose({.pages = 2, .most = 100, .kv_pages = 100}, w.usable, *w.plan, 0);
  ASSERT_EQ(moves.size(), 2u);
  EXPECT_EQ(w.tree->View(moves[0].item.node).last_use, kRoots);
  EXPECT_EQ(w.tree->View(moves[1].item.node).last_use, kRoots - 1);
}

// Between two calls of a walk a root arrives on the device. The last root, already seen, takes its place and is seen
// again.
TEST(ProactiveSwapper, ARootThatIsSeenTwiceComesOnce) {
  constexpr TokenId kRoots = 20'000;
  World w(kRoots + 10);
  for (TokenId i = 0; i < kRoots; ++i) w.SwapOut(w.Remember(w.base, {i}, i), 1);
  const NodeId last = w.tree->nodes().IdOf(w.tree->tiers().HostRoots().back());
  w.swapper->BeginWalk(w.usable);
  ASSERT_FALSE(w.swapper->Walk(*w.plan, 0));
  w.Remember(w.base, {3}, kRoots);  // computed again
  ASSERT_EQ(w.tree->nodes().IdOf(w.tree->tiers().HostRoots()[3]), last);
  while (!w.swapper->Walk(*w.plan, 0)) {
  }
  const auto& moves = w.swapper->Choose({.pages = 2, .most = 100, .kv_pages = 100}, w.usable, *w.plan, 0);
  ASSERT_EQ(moves.size(), 2u);
  EXPECT_EQ(moves[0].item.node, last);
  EXPECT_NE(moves[1].item.node, last);
}

// ---------------------------------------------------------------- Random use

// Sessions begin and end, pages are evicted, copies succeed and fail. Movements in both directions are random but
// follow the rules; a walk over all nodes checks the result.
struct Fuzz {
  Prng prng;
  World w;
  std::vector<DependencyTree::MovingPages> copying;
  struct Fetching {
    std::vector<DependencyTree::MovingPages> pages;
    std::vector<std::size_t> ends;
  };
  std::vector<Fetching> fetching;
  std::vector<NodeId> running;
  std::int64_t moved_in = 0, roots_seen = 0;
  TimeNs now = 0;

  explicit Fuzz(std::uint64_t seed) : prng(seed), w(40 + static_cast<std::int64_t>(prng.NextBelow(40))) {}

  bool OneIn(std::uint64_t n) { return prng.NextBelow(n) == 0; }

  void Begin() {
    std::vector<TokenId> tokens(1 + prng.NextBelow(8));
    for (TokenId& token : tokens) token = static_cast<TokenId>(OneIn(4));
    const BranchId branch = OneIn(2) ? w.base : w.other;
    NodeId tail = w.tree->index().Match(w.tree->branches().Top(branch), tokens, 1000);
    while (!w.tree->tiers().OnDevice(tail)) tail = w.tree->nodes().Parent(tail);
    w.tree->Use(tail, now);
    for (auto depth = static_cast<std::size_t>(w.tree->nodes().Depth(tail));
         depth < tokens.size() && w.device->free_pages() > 0; ++depth) {
      PageHandle page;
      CHECK(w.device->Allocate(PageCategory::kKv, std::span(&page, 1)));
      const auto inserted = w.tree->Insert(tail, std::span(tokens).subspan(depth, 1), page, now);
      if (inserted.outcome != DependencyTree::Inserted::kTaken) w.device->Free(PageCategory::kKv, std::span(&page, 1));
      if (inserted.outcome == DependencyTree::Inserted::kNotNow) break;
      tail = inserted.node;
    }
    running.push_back(tail);
  }
  void End() {
    const std::size_t at = prng.NextBelow(running.size());
    w.tree->EndUse(running[at], now);
    running.erase(running.begin() + static_cast<std::ptrdiff_t>(at));
  }
  void EvictOrCopy() {
    const auto leaves = w.tree->tiers().IdleLeaves();
    if (leaves.empty()) return;
    const NodeId leaf = w.tree->nodes().IdOf(leaves[prng.NextBelow(leaves.size())]);
    if (!w.tree->nodes().At(leaf).has_host_copy() && !OneIn(4)) {
      if (w.host->free_pages() > 0) w.tree->BeginBackUp(std::span(&leaf, 1), copying);
    } else {
      w.tree->Evict(leaf);
    }
  }
  void EndMoves() {
    while (!copying.empty() && !OneIn(3)) {
      w.tree->EndMove(std::span(copying).last(1), /*failed=*/OneIn(5));
      copying.pop_back();
    }
    if (fetching.empty()) return;
    const bool failed = OneIn(4);
    std::size_t begin = 0;
    for (const std::size_t end : fetching.back().ends) {
      w.tree->EndMove(std::span(fetching.back().pages).subspan(begin, end - begin), failed);
      begin = end;
    }
    fetching.pop_back();
  }
  void SwapIn() {
    w.usable = {true, OneIn(2)};
    roots_seen += static_cast<std::int64_t>(w.tree->tiers().HostRoots().size());
    const std::int64_t room =
        std::min<std::int64_t>(w.device->free_pages(), 1 + static_cast<std::int64_t>(prng.NextBelow(12)));
    const auto& moves = w.Choose({.pages = room, .most = room, .kv_pages = 8, .adapters = 0});
    const std::int64_t pages = Pages(moves, /*adapters=*/false);
    ASSERT_LE(pages, std::min<std::int64_t>(room, 8));
    Fetching job;
    for (const Move& move : moves) {
      const NodeId tail = move.item.node;
      ASSERT_TRUE(w.usable[w.tree->View(tail).branch.value]);
      w.tree->BeginFetch(tail, job.pages);  // aborts if the parent of a path is not on the device
      job.ends.push_back(job.pages.size());
    }
    ASSERT_EQ(static_cast<std::int64_t>(job.pages.size()), pages);
    moved_in += pages;
    if (!job.pages.empty()) fetching.push_back(std::move(job));
  }
  void Run() {
    for (int i = 0; i < 3000 && !testing::Test::HasFatalFailure(); ++i) {
      ++now;
      const std::uint64_t what = prng.NextBelow(20);
      if (what < 4 && running.size() < 6)
        Begin();
      else if (what < 8 && !running.empty())
        End();
      else if (what < 14)
        EvictOrCopy();
      else if (what < 16)
        EndMoves();
      else if (what < 19)
        SwapIn();
      else if (w.tree->tiers().droppable_host_pages() > 0 && OneIn(2))
        w.tree->Drop(w.tree->nodes().IdOf(w.tree->NextToDrop()->item));
      else if (OneIn(20) && running.empty())
        w.tree->Clear(w.other);
      if (i % 8 == 0) w.tree->CheckIntegrity();  // includes the host roots
    }
  }
};

TEST(ProactiveSwapper, RandomUseKeepsTheTreeInOrder) {
  std::int64_t moved = 0, roots = 0;
  for (std::uint64_t seed = 1; seed <= 40 && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Fuzz fuzz(seed);
    fuzz.Run();
    moved += fuzz.moved_in;
    roots += fuzz.roots_seen;
  }
  EXPECT_GT(moved, 1000);
  EXPECT_GT(roots, 1000);
}

}  // namespace
}  // namespace loramux::proactive_swapper_test
