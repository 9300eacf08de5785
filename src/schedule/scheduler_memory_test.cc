// Memory of the scheduler: shares, copied pages, the input of eviction policies, adapters and the history that
// depends on them, expected adapters.
#include <cmath>
#include <numeric>

#include "schedule/scheduler_world_for_test.h"

namespace loramux::scheduler_memory_test {
namespace {

using World = SchedulerWorld;

// Adapters have a share of 8 of 40 pages. Freeing keys and values makes no room for an adapter, so no request is
// preempted for one.
TEST(Scheduler, NobodyIsPreemptedForAnAdapterThatHasAShareOfItsOwn) {
  World w(40, {.max_batch_tokens = 16, .adapter_share = 0.2, .maintain_dependency = false});
  w.AddAdapter(1, 6);
  w.AddAdapter(2, 6);
  for (int i = 0; i < 3; ++i) w.Add(32, 1, 8, "flood");  // 30 of the 32 pages in the end
  while (w.requests[2].generated().empty()) w.Step();
  Request* quiet = w.Add(4, 2, 2, "quiet");
  w.RunToEnd();
  EXPECT_EQ(w.scheduler.stats().preemptions, 0);
  EXPECT_EQ(quiet->state, RequestState::kFinished);
  EXPECT_EQ(w.residency.Stats().device_evictions, 1);  // adapter 1, while idle
}

// With a share for adapters, a request that lacks room for keys and values does not need more of it because its own
// adapter is idle.
TEST(Scheduler, AnIdleAdapterWithAShareIsNotCountedAgainstItsRequest) {
  World w(40, {.max_batch_tokens = 16, .adapter_share = 0.2, .maintain_dependency = false});
  w.AddAdapter(1, 8);
  w.Add(2, 1, 1, "quiet");
  for (int i = 0; i < 3; ++i) w.AddFor("flood", 32, 8);
  while (w.requests[3].generated().empty()) w.Step();
  Request* quiet = w.Add(20, 1, 2, "quiet");  // 6 pages
  while (quiet->state == RequestState::kWaiting) w.Step();
  EXPECT_EQ(w.scheduler.stats().preemptions, 1);
  EXPECT_EQ(w.requests[1].state, RequestState::kRunning);
  w.RunToEnd();
}

// ---------------------------------------------------------------- States

// Each request has 3 pages beside those of its tokens; with 28 tokens it has 10 in the end, so that two of them fill
// the device.
TEST(Scheduler, StatesTakePagesOfEachRequest) {
  World w(20, {.state_pages = 3, .max_batch_tokens = 16});
  std::vector<Request*> requests;
  for (int i = 0; i < 2; ++i) requests.push_back(w.Add(8, 0, 20));
  w.Step();
  for (const Request* request : requests) {
    EXPECT_EQ(request->states.size(), 3u);
    EXPECT_EQ(request->pages.size(), 3u);  // 9 tokens: the next one too
  }
  w.RunToEnd();
  EXPECT_EQ(w.scheduler.stats().preemptions, 0);
  for (int i = 0; i < 3; ++i) requests.push_back(w.Add(8, 0, 20));
  while (!w.scheduler.running().empty() || !w.scheduler.waiting().empty()) {
    w.Step();
    for (const Request* request : w.scheduler.running()) {
      ASSERT_GE(4 * static_cast<std::int64_t>(request->pages.size()), request->computed);
    }
  }
  EXPECT_GT(w.scheduler.stats().preemptions, 0);
  EXPECT_EQ(w.device->Stats().used(PageCategory::kKv), 0);
}

// ---------------------------------------------------------------- Copied pages

// Has a dependency tree. Prompts are given as tokens.
struct TreeWorld : World {
  DependencyTree tree{4, device.get()};
  Scheduler with_tree{{.page_tokens = 4}, Parts(*policy, tree, unmoving)};

  explicit TreeWorld(std::int64_t device_pages) : World(device_pages) {}

  Request* Ask(std::vector<TokenId> prompt, std::int32_t output = 4) {
    Request& request = NewRequest(std::move(prompt), 0, output);
    with_tree.Add(&request);
    return &request;
  }
  // Plans and commits a step, as the engine does before it submits one.
  StepPlan Begin() {
    const StepPlan plan = with_tree.Plan(clock.Now());
    with_tree.Commit(plan, clock.Now());
    Check();
    return plan;
  }
  void End(const StepPlan& plan) {
    clock.Advance(500);
    for (const PlannedChunk& chunk : plan.chunks) {
      with_tree.Advance(chunk.request, chunk.num_tokens, clock.Now());
      if (!chunk.samples) continue;
      chunk.request->tokens.push_back(2);
      const bool full = static_cast<std::int32_t>(chunk.request->tokens.size()) == chunk.request->max_total_tokens;
      if (full) with_tree.Remove(chunk.request, clock.Now());
    }
    Check();
  }
  void Serve(std::vector<TokenId> prompt) {
    const Request* request = Ask(std::move(prompt), 1);
    while (request->state != RequestState::kFinished) End(Begin());
  }
  void Check() {
    with_tree.CheckIntegrity();
    device->CheckIntegrity();
  }
};

TEST(Scheduler, APromptBeginsWithinAPageOfAnother) {
  TreeWorld w(16);
  w.Serve({1, 2, 3, 4, 5, 6, 7, 8});
  Request* request = w.Ask({1, 2, 3, 4, 5, 6, 9, 9, 9});
  const StepPlan plan = w.Begin();
  ASSERT_EQ(plan.admissions.size(), 1u);
  EXPECT_EQ(plan.admissions[0].in_page.tokens, 2);
  EXPECT_EQ(w.tree.nodes().Parent(plan.admissions[0].in_page.node), plan.admissions[0].tail);
  EXPECT_EQ(plan.chunks[0].num_tokens, 3);
  EXPECT_TRUE(plan.chunks[0].samples);
  EXPECT_EQ(request->computed, 6);
  EXPECT_EQ(request->tree_pages, 1);
  EXPECT_EQ(request->cached_tokens, 6);
  EXPECT_NE(request->page_table[1], w.tree.tiers().Page(plan.admissions[0].in_page.node).index);
  w.End(plan);
  EXPECT_EQ(request->tree_pages, 2);  // the page that began with a copy is full and belongs to the tree
  w.with_tree.Remove(request, w.clock.Now());
  EXPECT_EQ(w.with_tree.stats().prefix.copied_pages, 1);
  EXPECT_EQ(w.tree.tiers().idle_pages(), 3);
  w.Check();
}

// The copy is made while the step computes. Until the step has ended, neither background work nor the end of another
// request may free the page.
TEST(Scheduler, ThePageThatIsCopiedStaysUntilTheStepHasEnded) {
  TreeWorld w(8 * 32);  // a reserve of 8 pages
  w.Serve({1, 2, 3, 4});
  for (TokenId i = 0; w.device->free_pages() > 1; ++i) w.Serve({100 + i, 2, 3, 4});
  Request* request = w.Ask({1, 2, 9});  // the page that it copies is the least recently used
  const StepPlan plan = w.Begin();
  ASSERT_EQ(plan.admissions[0].in_page.tokens, 2);
  const NodeId source = plan.admissions[0].in_page.node;
  EXPECT_EQ(w.tree.View(source).users, 1);
  for (int i = 0; i < 4; ++i) w.with_tree.Prepare(w.clock.Now());
  EXPECT_GE(w.device->free_pages(), 8);  // other pages were evicted
  ASSERT_TRUE(w.tree.tiers().OnDevice(source));
  w.Check();
  w.End(plan);
  EXPECT_FALSE(request->copied_from.has_value());
  EXPECT_EQ(w.tree.View(source).users, 0);
}

// A request is removed before its step has ended, as when the step is abandoned. The use of the page ends exactly once.
TEST(Scheduler, AnEndBeforeTheStepLetsGoOfThePage) {
  TreeWorld w(16);
  w.Serve({1, 2, 3, 4, 5, 6, 7, 8});
  for (const std::vector<TokenId>& prompt : {std::vector<TokenId>{1, 2, 9}, {1, 2, 3, 4, 5, 9, 9, 9, 9}}) {
    Request* request = w.Ask(prompt);
    const StepPlan plan = w.Begin();
    ASSERT_GT(plan.admissions[0].in_page.tokens, 0);
    EXPECT_LT(w.tree.tiers().idle_pages(), 2);
    w.with_tree.Remove(request, w.clock.Now());
    w.Check();
    EXPECT_EQ(w.tree.tiers().idle_pages(), 2);
  }
}

// LRU that records its input.
class Listener final : public EvictionPolicy {
 public:
  double Score(const EvictionCandidate& candidate, const EvictionContext& context) const override {
    told.push_back(candidate);
    now = context.now;
    return static_cast<double>(candidate.last_use);
  }
  std::string_view name() const override { return "listener"; }
  bool weighs_reuse() const override { return true; }
  mutable std::vector<EvictionCandidate> told;
  mutable TimeNs now = 0;
};

TEST(Scheduler, PoliciesAreToldWhatAnAdapterIs) {
  World w(16);
  const Listener listener;
  Scheduler scheduler({.page_tokens = 4}, w.Parts(listener, w.nothing, w.unmoving));
  w.AddAdapter(1, 4);
  w.AddAdapter(2, 6);
  w.AddAdapter(3, 12);
  Request requests[3];
  const auto run = [&](Request& request, std::uint32_t adapter) {
    request = {};
    request.id = RequestId{w.next_id++};
    request.adapter = AdapterGeneration{adapter};
    request.tokens = {1, 2};
    request.prompt_tokens = 2;
    request.max_total_tokens = 3;
    w.residency.Acquire(request.adapter);
    scheduler.Add(&request);
    std::vector<ResidencyManager::LoadFailure> failures;
    for (int i = 0; i < 40 && request.state != RequestState::kRunning; ++i) {
      w.clock.Advance(500);
      w.residency.Poll(w.clock.Now(), failures);
      scheduler.Commit(scheduler.Plan(w.clock.Now()), w.clock.Now());
    }
    ASSERT_EQ(request.state, RequestState::kRunning);
    scheduler.Remove(&request, w.clock.Now());
    w.residency.Release(request.adapter);
  };
  run(requests[0], 1);
  run(requests[0], 1);
  run(requests[0], 2);
  EXPECT_TRUE(listener.told.empty());  // there was room
  const TimeNs last_use = w.residency.Get(AdapterGeneration{2}).last_use;
  for (int second = 0; second < 600; ++second) {  // without requests for either adapter
    w.clock.Advance(kNsPerSecond);
    scheduler.Prepare(w.clock.Now());
  }
  w.residency.Acquire(AdapterGeneration{1});  // a request arrived for it
  run(requests[1], 3);                        // has no room
  ASSERT_GE(listener.told.size(), 2u);
  for (const EvictionCandidate& candidate : listener.told) {
    const bool first = candidate.pages == 4;
    EXPECT_EQ(candidate.kind, CandidateKind::kAdapter);
    EXPECT_EQ(candidate.pages, first ? 4 : 6);
    EXPECT_EQ(candidate.uses, first ? 2 : 1);
    EXPECT_NEAR(candidate.frequency, first ? 2 : 1, 1e-6);
    EXPECT_LE(candidate.frequency_at, candidate.last_use);
    EXPECT_GT(candidate.frequency_at, 0);
    EXPECT_LT(candidate.reuse_factor, 0.99);  // learned from the idle time
    EXPECT_EQ(candidate.queued, first);
    EXPECT_EQ(candidate.reload, ReloadFrom::kHost);
    if (!first) EXPECT_EQ(candidate.last_use, last_use);
  }
  EXPECT_GT(listener.now, last_use);
  w.residency.Release(AdapterGeneration{1});
}

// An adapter of 16 pages in the host tier, and 8 pages of its history, which could only be recomputed.
struct HistoryWorld : World {
  const std::unique_ptr<EvictionPolicy> loramux = std::move(MakeEvictionPolicy("loramux")).value();
  DependencyTree tree{4, device.get(), host.get()};
  Scheduler with_tree;

  explicit HistoryWorld(bool maintain_dependency)
      : World(27),
        with_tree({.page_tokens = 4, .maintain_dependency = maintain_dependency}, Parts(*loramux, tree, unmoving)) {
    AddAdapter(1, 16);
    Serve(LongPrompt(), 1);
    clock.Advance(kNsPerSecond);
  }
  static std::vector<TokenId> LongPrompt() {
    std::vector<TokenId> prompt(33);
    std::iota(prompt.begin(), prompt.end(), 100);
    return prompt;
  }
  StepPlan Plan() {
    std::vector<ResidencyManager::LoadFailure> failures;
    residency.Poll(clock.Now(), failures);
    const StepPlan plan = with_tree.Plan(clock.Now());
    with_tree.Commit(plan, clock.Now());
    with_tree.CheckIntegrity();
    tree.CheckIntegrity();
    device->CheckIntegrity();
    return plan;
  }
  // Runs a request up to its only output token. Returns how many prompt tokens were computed.
  std::int64_t Serve(std::vector<TokenId> prompt, std::uint32_t adapter) {
    Request& request = NewRequest(std::move(prompt), adapter, 1);
    with_tree.Add(&request);
    for (std::int64_t computed = 0;;) {
      const StepPlan plan = Plan();
      clock.Advance(2000);
      if (plan.chunks.empty()) continue;
      computed += plan.chunks[0].num_tokens;
      with_tree.Advance(&request, plan.chunks[0].num_tokens, clock.Now());
      if (!plan.chunks[0].samples) continue;
      with_tree.Remove(&request, clock.Now());
      if (adapter != 0) residency.Release(request.adapter);
      return computed;
    }
  }
};

// GDSF's clock, by hand. A load costs 8 + 0.1 a page, so that a use is worth 1.7 for the adapter of 5 pages, and 2.1
// for one of 4. The first is used four times, and there is room for one other. What is loaded anew is worth its use and
// all that was evicted before, until the first one is worth least although it was used most.
TEST(Scheduler, GdsfForgetsWhatIsNotUsedAnyLonger) {
  SchedulerWorld w(11, {.max_running = 4, .max_batch_tokens = 64}, 64, "gdsf");
  w.AddAdapter(1, 5);
  w.AddAdapter(2, 4);
  w.AddAdapter(3, 4);
  const auto use = [&](std::uint32_t adapter) {
    w.Add(3, adapter, 1);
    w.RunToEnd();
    w.scheduler.Prepare(w.clock.Now());
  };
  const auto on_device = [&] {
    std::vector<std::uint32_t> found;
    for (std::uint32_t adapter = 1; adapter <= 3; ++adapter) {
      if (w.residency.Get(AdapterGeneration{adapter}).device == TierState::kResident) found.push_back(adapter);
    }
    return found;
  };
  using Found = std::vector<std::uint32_t>;
  for (int i = 0; i < 4; ++i) use(1);  // 6.8
  use(2);                              // 2.1
  EXPECT_EQ(on_device(), (Found{1, 2}));
  use(3);  // 4.2: K is 2.1
  EXPECT_EQ(on_device(), (Found{1, 3}));
  use(2);  // 6.3: K is 4.2
  EXPECT_EQ(on_device(), (Found{1, 2}));
  use(3);  // 8.4: K is 6.3
  EXPECT_EQ(on_device(), (Found{1, 3}));
  use(2);  // 6.8 goes
  EXPECT_EQ(on_device(), (Found{2, 3}));
}

// Expensive history stays although it is unusable, and is used again once a request has loaded its adapter.
TEST(Scheduler, AnAdapterMayGoBeforeItsHistoryWhereThatIsWorthMore) {
  HistoryWorld w(/*maintain_dependency=*/false);
  ASSERT_EQ(w.device->free_pages(), 3);
  w.Serve(std::vector<TokenId>(16, 7), 0);
  EXPECT_EQ(w.residency.Get(AdapterGeneration{1}).device, TierState::kAbsent);
  EXPECT_EQ(w.with_tree.CountInvalidHistory(), 8);
  EXPECT_EQ(w.Serve(HistoryWorld::LongPrompt(), 1), 1);
  EXPECT_EQ(w.with_tree.CountInvalidHistory(), 0);
}

TEST(Scheduler, AnAdapterStaysForItsHistoryWhereTheDependencyIsMaintained) {
  HistoryWorld w(/*maintain_dependency=*/true);
  w.Serve(std::vector<TokenId>(16, 7), 0);
  EXPECT_EQ(w.residency.Get(AdapterGeneration{1}).device, TierState::kResident);
  EXPECT_EQ(w.with_tree.CountInvalidHistory(), 0);
  EXPECT_GT(w.Serve(HistoryWorld::LongPrompt(), 1), 1);
}

TEST(Scheduler, TheContextOfThePolicies) {
  World w(64, {}, 64, "fastlibra");
  w.AddAdapter(1, 2);
  w.AddAdapter(2, 5);
  w.AddAdapter(3, 9);  // known, and never used
  const TimeNs begin = w.clock.Now();
  for (const std::uint32_t adapter : {1u, 1u, 2u, 0u}) w.Add(3, adapter);
  double requests = 0, batches = 0;
  while (!(w.scheduler.running().empty() && w.scheduler.waiting().empty())) {
    const StepPlan plan = w.Step();
    requests += static_cast<double>(plan.chunks.size());
    batches += !plan.chunks.empty();
  }
  EXPECT_EQ(w.scheduler.worth().context().total_visits, 0);  // Plan does not refresh it
  w.clock.AdvanceTo(begin + kNsPerSecond);
  w.scheduler.Prepare(w.clock.Now());
  const EvictionContext context = w.scheduler.worth().context();
  const double left = std::exp2(-1.0 / 60);  // part of a visit that is left after a second
  EXPECT_NEAR(context.total_visits, 4 * left, 1e-4);
  EXPECT_NEAR(context.max_frequency, 2 * left, 1e-4);
  EXPECT_EQ(context.resident_adapters, 2);
  EXPECT_EQ(context.max_pages, 5);
  EXPECT_EQ(context.oldest_use,
            std::min(w.residency.Get(AdapterGeneration{1}).last_use, w.residency.Get(AdapterGeneration{2}).last_use));
  // Half of the requests use adapter 1, a quarter adapter 2.
  EXPECT_NEAR(context.low_lora, 2 - std::pow(0.5, requests / batches) - std::pow(0.75, requests / batches), 1e-4);
  EXPECT_GT(context.low_lora, 0.75);
  w.Add(3, 1);
  w.Step();
  w.clock.AdvanceTo(begin + kNsPerSecond + 99 * kNsPerMs);
  w.scheduler.Prepare(w.clock.Now());
  EXPECT_EQ(w.scheduler.worth().context().made_at, begin + kNsPerSecond);
  w.clock.AdvanceTo(begin + kNsPerSecond + 100 * kNsPerMs);
  w.scheduler.Prepare(w.clock.Now());
  EXPECT_NEAR(w.scheduler.worth().context().total_visits, 4 * left + 1, 1e-2);
}

// What a policy does not ask for is not computed: neither the adapters that batches need, nor rates of reuse.
TEST(Scheduler, ThePoliciesThatAskForLess) {
  for (const bool asks : {true, false}) {
    World w(64, {}, 64, asks ? "loramux" : "lru");
    w.AddAdapter(1, 2);
    for (int round = 0; round < 20; ++round) {
      w.Add(3, 1);
      w.RunToEnd();
      w.clock.Advance(2 * kNsPerSecond);
      w.scheduler.Prepare(w.clock.Now());
    }
    const EvictionContext context = w.scheduler.worth().context();
    EXPECT_GT(context.max_frequency, 5);
    EXPECT_EQ(context.low_lora > 0, asks);
  }
}

// An adapter is requested every 10 s. The device has room for it or for another adapter, which is requested in
// between.
struct PeriodicWorld : World {
  explicit PeriodicWorld(AdapterPrefetch prefetch, bool keep_idle = true)
      : World(11, {.adapter_prefetch = prefetch, .keep_idle_adapters = keep_idle}) {
    AddAdapter(1, 4);
    AddAdapter(2, 6);
  }
  // Runs as an idle engine does: it wakes only when a transfer ends or the scheduler asks for it.
  void SleepUntil(TimeNs time) {
    std::vector<ResidencyManager::LoadFailure> failures;
    while (true) {
      residency.Poll(clock.Now(), failures);
      scheduler.Commit(scheduler.Plan(clock.Now()), clock.Now());
      scheduler.Prepare(clock.Now());
      scheduler.CheckIntegrity();
      TimeNs next = time;
      for (const TimeNs at : {transfer.next_end(), scheduler.NextMove().value_or(-1)}) {
        if (at >= 0) next = std::min(next, at);
      }
      if (clock.Now() >= time) return;
      ASSERT_TRUE(next > clock.Now() || transfer.next_end() >= 0)
          << "the next event is not in the future, so the engine would not sleep";
      clock.AdvanceTo(std::max(next, clock.Now() + 1));
    }
  }
  // The other adapter is requested 3 s into each period. Returns how often the periodic one was resident when it was
  // requested.
  int Run(int periods) {
    int there = 0;
    const TimeNs begin = clock.Now();
    for (int i = 0; i < periods; ++i) {
      SleepUntil(begin + i * 10 * kNsPerSecond);
      there += residency.Get(AdapterGeneration{1}).device == TierState::kResident;
      Add(2, 1);
      RunToEnd();
      SleepUntil(begin + (i * 10 + 3) * kNsPerSecond);
      Add(2, 2);
      RunToEnd();
    }
    return there;
  }
};

TEST(Scheduler, AnAdapterThatIsExpectedIsThereBeforeItsRequest) {
  PeriodicWorld with(AdapterPrefetch::kHistogram), without(AdapterPrefetch::kNone);
  EXPECT_EQ(without.Run(30), 0);
  EXPECT_EQ(without.scheduler.stats().prefetches.loads, 0);
  EXPECT_FALSE(without.scheduler.NextMove().has_value());
  EXPECT_GE(with.Run(30), 30 - static_cast<int>(AdapterArrivalHistogram::kFewestSamples) - 1);
  const AdapterPrefetchStats stats = with.scheduler.stats().prefetches;
  EXPECT_GE(stats.used, 30 - 9);
  EXPECT_EQ(stats.wasted, 0);
}

// Idle adapters are evicted at once, but an expected one stays until its window has passed.
TEST(Scheduler, AnExpectedAdapterStaysWhereIdleOnesLeave) {
  PeriodicWorld w(AdapterPrefetch::kHistogram, /*keep_idle=*/false);
  EXPECT_GE(w.Run(30), 20);
  const TimeNs now = w.clock.Now();
  w.SleepUntil(now + 6900 * kNsPerMs);  // it is expected again, but never requested
  EXPECT_EQ(w.residency.Get(AdapterGeneration{1}).device, TierState::kResident);
  w.SleepUntil(now + 60 * kNsPerSecond);
  EXPECT_EQ(w.residency.Get(AdapterGeneration{1}).device, TierState::kAbsent);
  EXPECT_GE(w.scheduler.stats().prefetches.wasted, 1);
  EXPECT_LE(w.scheduler.stats().prefetches.wasted, 2);  // the other adapter is expected too
  EXPECT_FALSE(w.scheduler.NextMove().has_value());
}

// A prefetch evicts nothing that requests need: here the pages that a running request will need.
TEST(Scheduler, APrefetchTakesNothingThatIsInUse) {
  PeriodicWorld w(AdapterPrefetch::kHistogram);
  w.Run(12);
  const std::int64_t loads = w.scheduler.stats().prefetches.loads;
  EXPECT_GT(loads, 0);
  Request* running = w.Add(2, 2, 12);  // with 6 + 4 pages there is no room for the prefetch
  while (running->generated().empty()) w.Step();
  w.SleepUntil(w.clock.Now() + 30 * kNsPerSecond);
  EXPECT_EQ(w.residency.Get(AdapterGeneration{1}).device, TierState::kAbsent);
  EXPECT_EQ(w.scheduler.stats().prefetches.loads, loads);
  EXPECT_EQ(running->preemptions, 0);
  w.RunToEnd();
}

// Measures loads and prefills: 2 ms per page of 4 tokens, and loads with the latencies of the links alone.
TEST(Scheduler, ReloadCostsAreMeasured) {
  World w(64, {.max_batch_tokens = 32});
  w.AddAdapter(1, 4);
  std::vector<ResidencyManager::LoadFailure> failures;
  for (int i = 0; i < 40; ++i) {
    Request* request = w.Add(32, i % 2 == 0 ? 1 : 0, 1);
    while (request->state != RequestState::kFinished) {
      w.residency.Poll(w.clock.Now(), failures);
      const StepPlan plan = w.scheduler.Plan(w.clock.Now());
      w.scheduler.Commit(plan, w.clock.Now());
      w.clock.AdvanceTo(plan.chunks.empty() ? w.transfer.next_end() : w.clock.Now() + plan.num_tokens * kNsPerMs / 2);
      for (const PlannedChunk& chunk : plan.chunks) {
        w.scheduler.Advance(chunk.request, chunk.num_tokens, w.clock.Now());
        w.scheduler.Remove(chunk.request, w.clock.Now());
        if (chunk.request->adapter != kBaseModel) w.residency.Release(chunk.request->adapter);
      }
    }
    if (i % 2 == 0) w.residency.Evict(AdapterGeneration{1}, Tier::kDevice);
  }
  const ReloadCostEstimator& measured = w.scheduler.worth().reload_costs();
  EXPECT_EQ(measured.Of(ReloadFrom::kComputation).samples, 40);
  EXPECT_NEAR(measured.Of(ReloadFrom::kComputation).page_ns, 2e6, 1);
  EXPECT_EQ(measured.Of(ReloadFrom::kDisk).samples, 1);
  EXPECT_EQ(measured.Of(ReloadFrom::kHost).samples, 19);
  const ReloadCostEstimator::Time host = measured.Of(ReloadFrom::kHost);
  EXPECT_NEAR(host.latency_ns + 4 * host.page_ns, 125.6, 1);  // 100 ns of latency, 256 bytes at 10 GB/s
  w.clock.Advance(kNsPerSecond);
  w.scheduler.Prepare(w.clock.Now());
  EXPECT_GT(w.scheduler.worth().context().costs.computed_page, 1000);
}

// Eight adapters in turn, with room for three: each request evicts one, ten times a second.
TEST(Scheduler, VisitsAreRememberedForAsLongAsWhatIsIdleStays) {
  World w(16, {.max_batch_tokens = 32});
  for (int adapter = 1; adapter <= 8; ++adapter) w.AddAdapter(adapter, 4);
  const auto remembered_after = [&](TimeNs wait) {
    w.clock.Advance(wait);
    w.scheduler.Prepare(w.clock.Now());
    return w.scheduler.worth().context().remembered_s;
  };
  EXPECT_EQ(remembered_after(kNsPerSecond), 30);
  for (int i = 0; i < 300; ++i) {
    w.Add(4, 1 + i % 8, 1);
    w.RunToEnd();
    remembered_after(100 * kNsPerMs);
  }
  const double churning = remembered_after(100 * kNsPerMs);
  EXPECT_GT(churning, 0.3);  // at most 16 pages are idle, and 40 are evicted per second
  EXPECT_LT(churning, 1);
  for (int i = 0; i < 600; ++i) remembered_after(500 * kNsPerMs);
  EXPECT_EQ(remembered_after(kNsPerSecond), 30);  // no eviction for minutes
}

}  // namespace
}  // namespace loramux::scheduler_memory_test
