#include "prefix/dependency_tree.h"

#include <array>
#include <map>
#include <memory>
#include <set>

#include "base/prng.h"
#include "prefix/tree_world_for_test.h"

namespace loramux::dependency_tree_test {
namespace {

using tree_world::kPageTokens;
using tree_world::Tokens;
using tree_world::World;

TEST(DependencyTree, ThePageThatCameFirstIsTheOneThatStays) {
  World w;
  const BranchId base = w.tree->Hold("");
  const NodeId top = w.tree->branches().Top(base);
  const PageHandle page = w.NewPage(), twin = w.NewPage();
  const auto first = w.tree->Insert(top, Tokens(4), page, 0);
  const auto second = w.tree->Insert(top, Tokens(4), twin, 0);
  EXPECT_EQ(first.outcome, DependencyTree::Inserted::kTaken);
  EXPECT_EQ(second.outcome, DependencyTree::Inserted::kExisted);
  EXPECT_EQ(first.node, second.node);
  EXPECT_EQ(w.tree->tiers().Page(second.node), page);
  EXPECT_EQ(w.tree->View(first.node).users, 2);
  w.pool->Free(PageCategory::kKv, std::span(&twin, 1));
  w.tree->EndUse(first.node, 1);
  EXPECT_EQ(w.tree->tiers().idle_pages(), 0);
  w.tree->EndUse(first.node, 1);
  EXPECT_EQ(w.tree->tiers().idle_pages(), 1);
  w.tree->Release(base);
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
  EXPECT_FALSE(w.tree->tiers().OnDevice(tail));
  std::vector<DependencyTree::MovingPages> moving;
  w.tree->BeginFetch(tail, moving);
  const PageHandle own = w.NewPage();
  EXPECT_EQ(w.tree->Insert(w.tree->branches().Top(base), Tokens(4), own, 1).outcome, DependencyTree::Inserted::kNotNow);
  w.tree->CheckIntegrity();
  w.tree->EndMove(moving, /*failed=*/false);
  const auto inserted = w.tree->Insert(w.tree->branches().Top(base), Tokens(4), own, 2);
  EXPECT_EQ(inserted.outcome, DependencyTree::Inserted::kExisted);
  EXPECT_EQ(inserted.node, tail);
  w.pool->Free(PageCategory::kKv, std::span(&own, 1));
  w.tree->EndUse(tail, 3);
  w.tree->CheckIntegrity();
}

// ---------------------------------------------------------------- Snapshots

// Inserts the pages of a snapshot below `tail`, which is in use. Returns its last page.
NodeId TakeSnapshot(World& w, NodeId tail, TimeNs now) {
  NodeId end = tail;
  for (std::int64_t i = 0; i < w.tree->state_pages(); ++i) {
    const auto inserted = w.tree->InsertState(end, w.NewPage(), now);
    EXPECT_EQ(inserted.outcome, DependencyTree::Inserted::kTaken);
    end = inserted.node;
  }
  w.tree->EndUseAfter(tail, end, now);
  return end;
}

// A request begins after a whole snapshot: without its last page it is none, and what lies behind it is no beginning.
TEST(DependencyTree, ARequestBeginsAfterAWholeSnapshot) {
  World w;
  w.tree->set_state_pages(2);
  const BranchId base = w.tree->Hold("");
  const NodeId top = w.tree->branches().Top(base), tail = w.Remember(base, Tokens(12), 1);
  EXPECT_EQ(w.tree->Beginning(tail), top);
  w.tree->Use(tail, 2);
  const NodeId middle = w.tree->nodes().Parent(tail), first = TakeSnapshot(w, middle, 2);
  EXPECT_EQ(w.tree->Beginning(tail), first);
  const NodeId second = TakeSnapshot(w, tail, 3);
  EXPECT_EQ(w.tree->Beginning(tail), second);
  EXPECT_EQ(w.tree->Beginning(middle), first);
  EXPECT_EQ(w.tree->BeginningBefore(second), first);
  EXPECT_EQ(w.tree->BeginningBefore(first), top);
  EXPECT_EQ(w.tree->nodes().KvNode(second), tail);
  EXPECT_EQ(w.tree->nodes().KvDepth(second), 3);
  w.tree->CheckIntegrity();

  // The same state once more stays with its request.
  const PageHandle twin = w.NewPage();
  EXPECT_EQ(w.tree->InsertState(tail, twin, 4).outcome, DependencyTree::Inserted::kExisted);
  w.pool->Free(PageCategory::kKv, std::span(&twin, 1));
  w.tree->EndUseAfter(tail, w.tree->nodes().Parent(second), 4);
  w.tree->EndUse(tail, 5);

  w.tree->Renew(second, 9);
  EXPECT_EQ(w.tree->View(second).last_use, 9);
  EXPECT_EQ(w.tree->View(second).users, 0);
  EXPECT_EQ(w.tree->View(tail).last_use, 5);
  w.tree->Evict(second);
  EXPECT_EQ(w.tree->Beginning(tail), first);
  EXPECT_EQ(w.Matched(base, Tokens(12)), 3);  // keys and values are there, and no tokens find a snapshot
  w.tree->CheckIntegrity();
  w.tree->Release(base);
  EXPECT_EQ(w.pool->free_pages(), w.pool->capacity_pages());
}

// A snapshot that has left the device with a copy is still a beginning, to be fetched.
TEST(DependencyTree, ASnapshotInTheHostTierIsABeginning) {
  World w;
  const auto host = std::move(PagePool::Create("host", 64 * 64, 64)).value();
  w.tree = std::make_unique<DependencyTree>(kPageTokens, w.pool.get(), host.get());
  w.tree->set_state_pages(1);
  const BranchId base = w.tree->Hold("");
  const NodeId tail = w.Remember(base, Tokens(4), 1);
  w.tree->Use(tail, 2);
  const NodeId snapshot = TakeSnapshot(w, tail, 2);
  w.tree->EndUse(tail, 3);
  w.CopyToHost(snapshot);
  w.tree->Evict(snapshot);
  EXPECT_EQ(w.tree->Beginning(tail), snapshot);
  EXPECT_FALSE(w.tree->tiers().OnDevice(snapshot));
  w.tree->Drop(snapshot);
  EXPECT_EQ(w.tree->Beginning(tail), w.tree->branches().Top(base));
  w.tree->CheckIntegrity();
  w.tree->Release(base);
}

// ---------------------------------------------------------------- Against a trivial model

using Path = std::vector<TokenId>;

// The cache as a set of prefixes with their pages and users.
struct Model {
  struct Entry {
    PageHandle page;
    int users = 0;
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
  void Use(const std::string& branch, const Path& path, std::size_t pages, int by) {
    for (std::size_t i = 1; i <= pages; ++i) branches[branch].at(Prefix(path, i)).users += by;
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
    runner.tail = w.tree->index().Match(runner.top, runner.path, 1000);
    ASSERT_EQ(static_cast<std::size_t>(w.tree->nodes().Depth(runner.tail)), runner.pages);
    std::vector<PageHandle> pages(runner.pages);
    w.tree->tiers().CopyPath(runner.tail, pages);
    for (std::size_t i = 0; i < pages.size(); ++i) {
      ASSERT_EQ(pages[i], model.branches[runner.trie].at(Model::Prefix(runner.path, i + 1)).page);
    }
    CheckInPage(runner);
    w.tree->Use(runner.tail, 0);
    model.Use(runner.trie, runner.path, runner.pages, 1);
    runners.push_back(std::move(runner));
  }

  // Exact, because no page has more than 16 children here.
  void CheckInPage(const Runner& runner) {
    const auto next = std::span(runner.path).subspan(runner.pages * kPageTokens);
    const auto found = w.tree->index().MatchInPage(runner.tail, next);
    ASSERT_EQ(static_cast<std::size_t>(found.tokens), model.InPage(runner.trie, runner.path, runner.pages));
    if (found.tokens == 0) return;
    ++found_in_page;
    ASSERT_EQ(w.tree->nodes().Parent(found.node), runner.tail);
    Path page(runner.path.begin(), runner.path.begin() + static_cast<std::ptrdiff_t>(runner.pages * kPageTokens));
    page.insert(page.end(), next.begin(), next.begin() + found.tokens);
    const auto& entries = model.branches[runner.trie];
    ASSERT_TRUE(std::any_of(entries.begin(), entries.end(), [&](const auto& entry) {
      return entry.first.size() == (runner.pages + 1) * kPageTokens &&
             entry.second.page == w.tree->tiers().Page(found.node) &&
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
    ASSERT_EQ(w.tree->tiers().Page(inserted.node), entries[prefix].page);
    ++entries[prefix].users;
    runner.tail = inserted.node;
    ++runner.pages;
  }

  void End(std::size_t at) {
    Runner& runner = runners[at];
    w.tree->EndUse(runner.tail, 0);
    model.Use(runner.trie, runner.path, runner.pages, -1);
    w.tree->ReleaseTop(runner.top);
    w.tree->Release(runner.branch);
    runners.erase(runners.begin() + static_cast<std::ptrdiff_t>(at));
  }

  void Evict() {
    const auto leaves = w.tree->tiers().IdleLeaves();
    if (leaves.empty()) return;
    const NodeId victim = w.tree->nodes().IdOf(leaves[Below(leaves.size())]);
    const PageHandle page = w.tree->tiers().Page(victim);
    for (auto& [key, entries] : model.branches) {
      for (auto it = entries.begin(); it != entries.end(); ++it) {
        if (it->second.page != page) continue;
        ASSERT_EQ(it->second.users, 0);
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
        idle += entry.users == 0;
      }
    }
    ASSERT_EQ(w.tree->tiers().pages(), pages);
    ASSERT_EQ(w.tree->tiers().idle_pages(), idle);
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
    ASSERT_EQ(w.tree->branches().tops(), 0u);
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

// A tree that keeps nothing serves requests as any other tree does, but each keeps its pages, and the next finds none.
TEST(DependencyTree, ATreeThatKeepsNothingFindsNothing) {
  World w;  // for the pages
  DependencyTree nothing(kPageTokens);
  EXPECT_TRUE(w.tree->keeps_history());
  EXPECT_FALSE(nothing.keeps_history());
  nothing.set_host_bonus(kNsPerSecond);
  const BranchId base = nothing.Hold("");
  for (const char* const domain : {"", "a"}) {
    for (TimeNs now = 0; now < 3; ++now) {
      const NodeId top = nothing.HoldTop(base, domain);
      nothing.Want(top);
      EXPECT_EQ(nothing.index().Match(top, Tokens(8), 1000), top);
      EXPECT_EQ(nothing.index().MatchInPage(top, Tokens(8)).tokens, 0);
      nothing.Unwant(top);
      nothing.Use(top, now);
      const PageHandle page = w.NewPage();
      nothing.PrefetchInsert(top, Tokens(8));
      const auto inserted = nothing.Insert(top, Tokens(4), page, now);
      EXPECT_EQ(inserted.outcome, DependencyTree::Inserted::kNotNow);
      EXPECT_EQ(inserted.node, top);
      EXPECT_TRUE(w.pool->IsCurrent(page));
      nothing.EndUse(top, now);
      nothing.ReleaseTop(top);
      nothing.ObserveIdlePages(now * kNsPerSecond, 1);
      nothing.CheckIntegrity();
    }
  }
  EXPECT_EQ(nothing.tiers().pages() + nothing.tiers().idle_pages() + nothing.tiers().host_pages(), 0);
  EXPECT_EQ(nothing.tiers().IdleLeaves().size(), 0u);
  EXPECT_EQ(nothing.reuse().HostWorth(7, /*frequency=*/100), 7);  // no bonus for visits
  nothing.Release(base);
  EXPECT_EQ(nothing.nodes().size(), 0u);
}

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

}  // namespace
}  // namespace loramux::dependency_tree_test
