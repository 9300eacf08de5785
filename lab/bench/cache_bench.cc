// The cost of the dependency tree at 2,000 adapters and 100,000 nodes, in the steady state of a full device. Each
// prompt of 4,096 tokens is matched, the history to evict is chosen and evicted, and the new pages are inserted. Times:
// - the match and the update (Match, MatchInPage, Use, Insert, EndUse);
// - MatchInPage at a node with all others as its children;
// - an eviction decision (Refresh with all scores recomputed, Reset, Next and Evict of a plan), with few idle leaves
//   and with every node a leaf;
// - a swap-in decision (ProactiveSwapper) with every node a root of the host part, the worst case for its walk.
// Finally runs ten million operations without growth and checks heap allocations and resident memory. Requests during
// which the system ran other work are excluded, and counted.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>
#include <sys/resource.h>
#include <unistd.h>

#include "base/check.h"
#include "base/prng.h"
#include "lab/bench/count_allocations.h"
#include "prefix/dependency_tree.h"
#include "residency/kv_eviction_plan.h"
#include "residency/proactive_swapper.h"
#include "workload/statistics.h"

namespace loramux {
namespace {

constexpr std::int64_t kPageTokens = 16, kPromptTokens = 4096, kPromptPages = kPromptTokens / kPageTokens;
constexpr std::int64_t kChunkPages = 16;  // pages of a prefill's chunk, in a step
constexpr std::int64_t kNodes = 100'000;
constexpr std::uint64_t kBranches = 2000, kPrompts = 128;
constexpr std::int64_t kOperations = 10'000'000;
constexpr TimeNs kStep = 100 * kNsPerMs;  // so that each Refresh recomputes all scores
constexpr std::uint64_t kVocabulary = 32'000;

using Clock = std::chrono::steady_clock;

double Microseconds(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::micro>(end - begin).count();
}

void Print(const char* what, std::vector<double>& us, const char* target) {
  if (us.empty()) {
    std::printf("  %-38s every request was interrupted\n", what);
    return;
  }
  std::sort(us.begin(), us.end());
  std::printf("  %-38s p50 %7.2f us  p99 %7.2f us  max %7.1f us%s%s\n", what, Quantile(us, 0.5), Quantile(us, 0.99),
              us.back(), *target != '\0' ? "  target " : "", target);
}

// How often the system has given this thread's core to others; a time measured meanwhile is not this program's.
long Preemptions() {
  rusage usage;
  CHECK_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
  return usage.ru_nivcsw;
}

// More than the caches of a core hold.
void EvictCaches() {
  static std::vector<char> bytes(std::size_t{8} << 20);
  for (std::size_t i = 0; i < bytes.size(); i += 64) ++bytes[i];
}

struct World {
  std::unique_ptr<PagePool> device = std::move(PagePool::Create("device", kNodes * 64, 64)).value();
  DependencyTree tree{kPageTokens, device.get()};
  std::unique_ptr<EvictionPolicy> policy;
  KvEvictionPlan plan;
  Prng prng{1};
  TimeNs now = 0;
  std::int64_t operations = 0;
  std::vector<BranchId> branches;
  std::vector<PageHandle> pages;  // pages of the current request
  std::vector<NodeId> victims;
  std::vector<double> refreshing, deciding, choosing, matching_and_updating;  // samples, us
  std::int64_t in_page = 0;
  std::int64_t requests = 0, preempted = 0;  // those without samples

  explicit World(const std::string& policy_name)
      : policy(std::move(MakeEvictionPolicy(policy_name)).value()), plan(tree, *policy) {
    for (std::uint64_t i = 0; i < kBranches; ++i) branches.push_back(tree.Hold("adapter " + std::to_string(i)));
    victims.reserve(kPromptPages);
  }
  ~World() { tree.CheckIntegrity(); }

  BranchId AnyBranch() { return branches[prng.NextBelow(kBranches)]; }
  void FillWithAnything(std::span<TokenId> tokens) {
    for (TokenId& token : tokens) token = static_cast<TokenId>(prng.NextBelow(kVocabulary));
  }

  // A plan that evicts `count` pages, and its commit.
  void Evict(std::int64_t count) {
    victims.clear();
    const auto begin = Clock::now();
    plan.Refresh(now);
    const auto refreshed = Clock::now();
    plan.Reset(now);
    auto last = Clock::now();
    operations += 2;
    if (count == 0) return;
    deciding.push_back(Microseconds(begin, last));
    refreshing.push_back(Microseconds(begin, refreshed));
    for (std::int64_t i = 0; i < count; ++i) {
      const auto victim = plan.Next(now);
      plan.Evict(*victim, now);
      const auto end = Clock::now();
      choosing.push_back(Microseconds(last, end));
      last = end;
      victims.push_back(victim->node);
    }
    deciding.back() += choosing[choosing.size() - static_cast<std::size_t>(count)];
    for (const NodeId victim : victims) tree.Evict(victim);
    operations += 2 * count;
  }

  // Makes the path's history the most recently used.
  void Touch(NodeId tail) {
    tree.Use(tail, now);
    tree.EndUse(tail, now);
    operations += 2;
  }

  // Serves a request with this prompt, timed. Returns how many pages were found.
  std::int64_t Serve(BranchId branch, std::span<const TokenId> tokens) {
    const std::array<std::size_t, 4> sizes = {refreshing.size(), deciding.size(), choosing.size(),
                                              matching_and_updating.size()};
    const long preemptions = Preemptions();
    const std::int64_t found = ServeTimed(branch, tokens);
    ++requests;
    if (Preemptions() == preemptions) return found;
    ++preempted;
    refreshing.resize(sizes[0]);
    deciding.resize(sizes[1]);
    choosing.resize(sizes[2]);
    matching_and_updating.resize(sizes[3]);
    return found;
  }

  std::int64_t ServeTimed(BranchId branch, std::span<const TokenId> tokens) {
    const auto total = static_cast<std::int64_t>(tokens.size()) / kPageTokens;
    auto begin = Clock::now();
    NodeId tail = tree.index().Match(tree.branches().Top(branch), tokens, total);
    const std::int64_t found = tree.nodes().Depth(tail);
    in_page += tree.index().MatchInPage(tail, tokens.subspan(static_cast<std::size_t>(found * kPageTokens))).tokens > 0;
    tree.Use(tail, now);
    double us = Microseconds(begin, Clock::now());
    Evict(std::max<std::int64_t>(0, total - found - device->free_pages()));
    pages.resize(static_cast<std::size_t>(total - found));
    CHECK(device->Allocate(PageCategory::kKv, pages));
    begin = Clock::now();
    for (std::int64_t at = found; at < total; ++at) {
      if ((at - found) % kChunkPages == 0) {
        const std::int64_t chunk = std::min(kChunkPages, total - at);
        const auto first = static_cast<std::size_t>(at * kPageTokens);
        tree.index().PrefetchInsert(tail, tokens.subspan(first, static_cast<std::size_t>(chunk * kPageTokens)));
      }
      const auto of_page = tokens.subspan(static_cast<std::size_t>(at * kPageTokens), kPageTokens);
      tail = tree.Insert(tail, of_page, pages[static_cast<std::size_t>(at - found)], now).node;
    }
    tree.EndUse(tail, now);
    us += Microseconds(begin, Clock::now());
    matching_and_updating.push_back(us);
    operations += 3 + total - found;
    return found;
  }

  // Clears the samples and reserves memory for those of `coming` requests.
  void Forget(std::size_t coming) {
    for (auto* samples : {&refreshing, &deciding, &matching_and_updating}) samples->reserve(coming);
    choosing.reserve(coming * kPromptPages);
    requests = preempted = 0;
    for (auto* samples : {&refreshing, &deciding, &choosing, &matching_and_updating}) samples->clear();
  }
};

void PrintPreempted(const World& w) {
  if (w.preempted == 0) return;
  std::printf("    excludes %ld of %ld requests that other work on the core interrupted\n",
              static_cast<long>(w.preempted), static_cast<long>(w.requests));
}

// ---------------------------------------------------------------- Match and update

// Prompts that are repeated, among others that occur once.
struct Prompts {
  World& w;
  std::vector<std::vector<TokenId>> tokens;
  std::vector<BranchId> branch;
  std::vector<NodeId> tail;
  std::vector<TokenId> fresh = std::vector<TokenId>(kPromptTokens);
  std::size_t next = 0;

  // Inserted page by page in turns, as requests of one batch do, so that the nodes of a path are not adjacent in
  // memory.
  explicit Prompts(World& world) : w(world) {
    for (std::uint64_t i = 0; i < kPrompts; ++i) {
      w.FillWithAnything(tokens.emplace_back(kPromptTokens));
      branch.push_back(w.AnyBranch());
      tail.push_back(w.tree.branches().Top(branch.back()));
    }
    for (std::int64_t at = 0; at < kPromptPages; ++at) {
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        PageHandle page;
        CHECK(w.device->Allocate(PageCategory::kKv, std::span(&page, 1)));
        const auto of_page = std::span(tokens[i]).subspan(static_cast<std::size_t>(at * kPageTokens), kPageTokens);
        tail[i] = w.tree.Insert(tail[i], of_page, page, 0).node;
      }
    }
    for (const NodeId node : tail) w.tree.EndUse(node, 0);
    while (w.tree.tiers().pages() < kNodes) {  // short histories in all branches
      const auto pages =
          std::min<std::int64_t>(kNodes - w.tree.tiers().pages(), 1 + static_cast<std::int64_t>(w.prng.NextBelow(33)));
      const auto prompt = std::span(fresh).first(static_cast<std::size_t>(pages * kPageTokens));
      w.FillWithAnything(prompt);
      w.Serve(w.AnyBranch(), prompt);
      w.plan.Reset(w.now);
    }
    w.now += kStep;
    for (const NodeId node : tail) w.Touch(node);
  }

  // Serves the next prompt in turn: the first `found` pages are in the tree, the rest is new; 0: of any adapter.
  // REQUIRES: a policy that keeps recently used pages.
  void Serve(std::int64_t found) {
    w.now += kStep;
    next = (next + 1) % kPrompts;
    w.Touch(tail[(next + kPrompts / 2) % kPrompts]);  // not the current one: its nodes must be as cold as others
    std::copy_n(tokens[next].begin(), found * kPageTokens, fresh.begin());
    w.FillWithAnything(std::span(fresh).subspan(static_cast<std::size_t>(found * kPageTokens)));
    CHECK_EQ(w.Serve(found == 0 ? w.AnyBranch() : branch[next], fresh), found);
  }
};

void BenchMatchAndUpdate() {
  World w("lru");
  Prompts prompts(w);
  std::printf("match and update of a prompt of %ld tokens; %zu adapters, %ld nodes, pages of %ld tokens:\n",
              static_cast<long>(kPromptTokens), w.branches.size(), static_cast<long>(w.tree.tiers().pages()),
              static_cast<long>(kPageTokens));
  for (const bool cold : {false, true}) {
    const int samples = cold ? 1000 : 4000, warm_up = samples / 4;
    for (const auto& [found, name] :
         {std::pair{kPromptPages, "all found"}, {kPromptPages / 2, "half found"}, {0L, "none found"}}) {
      w.Forget(static_cast<std::size_t>(samples));
      for (int i = 0; i < samples; ++i) {
        if (i == warm_up) w.Forget(0);
        if (cold) EvictCaches();
        prompts.Serve(found);
      }
      Print((std::string(name) + (cold ? ", cold caches" : "")).c_str(), w.matching_and_updating, cold ? "" : "50 us");
      PrintPreempted(w);
    }
  }
}

// One branch in which all first pages begin alike, or all differently: one node with 100,000 children.
void BenchMatchInPage() {
  std::printf("MatchInPage at a node with %ld children:\n", static_cast<long>(kNodes));
  for (const bool alike : {false, true}) {
    World w("lru");
    std::vector<std::vector<TokenId>> pages;
    for (std::int64_t i = 0; i < kNodes; ++i) {
      auto& page = pages.emplace_back(kPageTokens);
      w.FillWithAnything(page);
      if (alike) std::fill_n(page.begin(), kPageTokens / 4, 1);
      w.Serve(w.branches[0], page);
    }
    for (const bool cold : {false, true}) {
      std::vector<double> us;
      for (int i = 0; i < 4000; ++i) {
        auto page = pages[w.prng.NextBelow(pages.size())];
        page[kPageTokens / 2] = -1;
        if (cold) EvictCaches();
        const long preemptions = Preemptions();
        const auto begin = Clock::now();
        const DependencyTree::InPage found = w.tree.index().MatchInPage(w.tree.branches().Top(w.branches[0]), page);
        const double taken = Microseconds(begin, Clock::now());
        CHECK_GE(found.tokens, kPageTokens / 4);
        if (Preemptions() == preemptions) us.push_back(taken);
      }
      Print((std::string(alike ? "all alike" : "none alike") + (cold ? ", cold caches" : "")).c_str(), us, "");
    }
  }
}

// ---------------------------------------------------------------- The decision to evict

void PrintDecisions(World& w, std::size_t leaves_at_first, const char* shape) {
  std::printf("eviction decision, %s, %ld nodes, %zu idle leaves (at first %zu), %s:\n",
              std::string(w.policy->name()).c_str(), static_cast<long>(w.tree.tiers().pages()),
              w.tree.tiers().IdleLeaves().size(), leaves_at_first, shape);
  Print("whole decision, one page", w.deciding, "500 us");
  Print("Refresh, one piece of a walk", w.refreshing, "");
  Print("Next and Evict, each page of a plan", w.choosing, "");
  PrintPreempted(w);
}

// Histories of hundreds of pages, at first among thousands of short ones: few nodes are leaves.
void BenchDecisionsOnPaths(const std::string& policy) {
  World w(policy);
  Prompts prompts(w);
  const auto serve = [&](std::size_t requests) {
    w.Forget(requests);
    for (std::size_t i = 0; i < requests; ++i) {
      w.now += kStep;
      w.FillWithAnything(prompts.fresh);
      w.Serve(w.AnyBranch(), prompts.fresh);
    }
  };
  serve(16);  // the first ones grow their working memory
  std::vector<double> growing = w.deciding;
  const std::size_t leaves = w.tree.tiers().IdleLeaves().size();
  serve(500);
  PrintDecisions(w, leaves, "long histories");
  Print("before: the first 16, which grow their buffers", growing, "");
}

// Histories of one page: each is a leaf, the worst case for a walk over all leaves.
void BenchDecisionsOnLeaves(const std::string& policy) {
  World w(policy);
  std::vector<TokenId> tokens(kPageTokens);
  const auto serve = [&] {
    w.FillWithAnything(tokens);
    w.Serve(w.AnyBranch(), tokens);
  };
  while (w.device->free_pages() > 0) {
    ++w.now;
    serve();
    w.plan.Reset(w.now);
  }
  const std::size_t leaves = w.tree.tiers().IdleLeaves().size();
  w.Forget(3000);
  for (int i = 0; i < 3000; ++i) {
    w.now += kStep;
    serve();
  }
  PrintDecisions(w, leaves, "histories of one page each");
  // More pages than scores are kept: all leaves are scored again within the plan.
  std::vector<double> longest;
  tokens.resize(2000 * kPageTokens);
  for (int i = 0; i < 30; ++i) {
    w.now += kStep;
    w.Forget(1);
    w.FillWithAnything(tokens);
    w.Serve(w.AnyBranch(), tokens);
    if (!w.choosing.empty()) longest.push_back(*std::max_element(w.choosing.begin(), w.choosing.end()));
  }
  Print("slowest page of a plan of 2000 pages", longest, "");
}

// ---------------------------------------------------------------- The decision to swap in

// Each call runs between two steps; a decision takes several calls.
void BenchSwapIn(const std::string& policy_name) {
  const auto device = std::move(PagePool::Create("device", 4096 * 64, 64)).value();
  const auto host = std::move(PagePool::Create("host", kNodes * 64, 64)).value();
  DependencyTree tree(1, device.get(), host.get());
  const auto policy = std::move(MakeEvictionPolicy(policy_name)).value();
  KvEvictionPlan plan(tree, *policy);
  ProactiveSwapper swapper(tree);
  std::vector<BranchId> branches;
  for (std::uint64_t i = 0; i < kBranches; ++i) branches.push_back(tree.Hold("adapter " + std::to_string(i)));
  Prng prng(1);
  std::vector<DependencyTree::MovingPages> copying;
  for (std::int64_t i = 0; i < kNodes; ++i) {
    PageHandle page;
    CHECK(device->Allocate(PageCategory::kKv, std::span(&page, 1)));
    const auto token = static_cast<TokenId>(i);
    const NodeId node =
        tree.Insert(tree.branches().Top(branches[prng.NextBelow(kBranches)]), std::span(&token, 1), page, i).node;
    tree.EndUse(node, i);
    copying.clear();
    tree.BeginBackUp(std::span(&node, 1), copying);
    tree.EndMove(copying, /*failed=*/false);
    tree.Evict(node);
  }
  CHECK_EQ(tree.tiers().HostRoots().size(), static_cast<std::size_t>(kNodes));
  const std::vector<bool> usable(tree.branches().slots(), true);
  std::vector<double> calls, choices;
  std::size_t pieces = 0;
  TimeNs now = kNodes;
  std::int64_t moved = 0;
  const long preemptions = Preemptions();
  for (int i = 0; i < 100; ++i) {
    now += kStep;
    swapper.BeginWalk(usable);
    pieces = 0;
    for (bool done = false; !done; ++pieces) {
      const long before = Preemptions();
      const auto begin = Clock::now();
      done = swapper.Walk(plan, now);
      if (Preemptions() == before) calls.push_back(Microseconds(begin, Clock::now()));
    }
    const long before = Preemptions();
    const auto begin = Clock::now();
    const Moves& moves = swapper.Choose({.pages = 64, .most = 64, .kv_pages = 64}, usable, plan, now);
    if (Preemptions() == before) choices.push_back(Microseconds(begin, Clock::now()));
    for (const Move& move : moves) moved += move.pages;
  }
  CHECK_EQ(moved, 100 * 64);
  const auto roots = tree.tiers().HostRoots().size();
  std::printf("swap-in decision, %s, %zu host roots in %zu branches, %zu calls:\n", policy_name.c_str(), roots,
              branches.size(), pieces);
  Print("Walk, each call", calls, "500 us");
  Print("Choose, 64 pages", choices, "500 us");
  if (Preemptions() != preemptions) std::printf("    excludes calls that other work on the core interrupted\n");
}

// ---------------------------------------------------------------- Growth

std::int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

void BenchGrowth() {
  World w("lru");
  Prompts prompts(w);
  const auto run = [&](std::int64_t operations) {
    for (const std::int64_t end = w.operations + operations; w.operations < end;) {
      w.Forget(1);
      prompts.Serve(static_cast<std::int64_t>(w.prng.NextBelow(3)) * kPromptPages / 2);
    }
  };
  run(kOperations / 10);  // warm-up
  const std::int64_t resident = ResidentBytes(), begin = w.operations;
  allocations = 0;
  counting_allocations = true;
  run(kOperations);
  counting_allocations = false;
  std::printf("growth over %ld operations, all cases mixed:\n", static_cast<long>(w.operations - begin));
  std::printf("  heap allocations %ld (target 0), resident memory %+ld KB of %ld\n", allocations.load(),
              static_cast<long>(ResidentBytes() - resident) / 1024, static_cast<long>(resident) / 1024);
}

}  // namespace
}  // namespace loramux

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  loramux::BenchMatchAndUpdate();
  loramux::BenchMatchInPage();
  for (const std::string& policy : loramux::EvictionPolicyNames()) {
    loramux::BenchDecisionsOnPaths(policy);
    loramux::BenchDecisionsOnLeaves(policy);
  }
  for (const std::string& policy : loramux::EvictionPolicyNames()) loramux::BenchSwapIn(policy);
  loramux::BenchGrowth();
  return 0;
}
