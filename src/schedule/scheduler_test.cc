#include "schedule/scheduler.h"

#include <cmath>
#include <deque>

namespace loramux {
namespace {

// Pages hold 4 tokens; the pools are as small as each test needs.
struct World {
  VirtualClock clock;
  std::unique_ptr<PagePool> device;
  std::unique_ptr<PagePool> host;
  ModeledTransfer transfer{&clock, {.latency_ns = 1000}, {.latency_ns = 100}};
  ResidencyManager residency;
  std::unique_ptr<EvictionPolicy> policy = std::move(MakeEvictionPolicy("lru")).value();
  Scheduler scheduler;
  std::deque<Request> requests;
  std::uint64_t next_id = 1;

  explicit World(std::int64_t device_pages, SchedulerOptions options = {}, std::int64_t host_pages = 64)
      : device(std::move(PagePool::Create("device", device_pages * 64, 64)).value()),
        host(std::move(PagePool::Create("host", host_pages * 64, 64)).value()),
        residency(device.get(), host.get(), &transfer),
        scheduler(WithPageTokens(options), device.get(), &residency, policy.get()) {}

  static SchedulerOptions WithPageTokens(SchedulerOptions options) {
    options.page_tokens = 4;
    return options;
  }

  void AddAdapter(std::uint32_t generation, std::int64_t pages) {
    auto version = std::make_shared<AdapterVersion>();
    version->generation = AdapterGeneration{generation};
    version->layout.pages = pages;
    residency.Add(std::move(version));
  }
  Request* AddFor(const std::string& tenant, std::int64_t prompt, std::int32_t output) { return Add(prompt, 0, output, tenant); }
  Request* Add(std::int64_t prompt, std::uint32_t adapter = 0, std::int32_t output = 4, const std::string& tenant = "") {
    Request& request = requests.emplace_back();
    request.arrival = clock.Now();
    request.tenant_name = tenant;
    request.id = RequestId{next_id++};
    request.adapter = AdapterGeneration{adapter};
    request.tokens.assign(static_cast<std::size_t>(prompt), 1);
    request.prompt_tokens = static_cast<std::int32_t>(prompt);
    request.max_total_tokens = request.prompt_tokens + output;
    if (request.adapter != kBaseModel) residency.Acquire(request.adapter);
    scheduler.Add(&request);
    return &request;
  }
  // One engine step: plan, commit, compute, sample. Finished requests leave.
  StepPlan Step() {
    std::vector<ResidencyManager::LoadFailure> failures;
    residency.Poll(clock.Now(), failures);
    const StepPlan plan = scheduler.Plan(clock.Now());
    scheduler.Commit(clock.Now());
    for (const PlannedChunk& chunk : plan.chunks) {
      scheduler.Advance(chunk.request, chunk.num_tokens, clock.Now());
      if (!chunk.samples) continue;
      chunk.request->tokens.push_back(2);
      if (static_cast<std::int32_t>(chunk.request->tokens.size()) == chunk.request->max_total_tokens) {
        scheduler.Remove(chunk.request, clock.Now());
        if (chunk.request->adapter != kBaseModel) residency.Release(chunk.request->adapter);
      }
    }
    scheduler.CheckIntegrity();
    residency.CheckIntegrity();
    device->CheckIntegrity();
    clock.Advance(500);
    return plan;
  }
  void RunToEnd(int max_steps = 10000) {
    while (!(scheduler.running().empty() && scheduler.waiting().empty())) {
      ASSERT_GT(max_steps--, 0) << "no end in sight";
      Step();
    }
  }
};

// Where adapters have a share of the pages (here 8 of 40), the keys and values of others are no room for one that must be
// loaded, so nobody is preempted for it.
TEST(Scheduler, NobodyIsPreemptedForAnAdapterThatHasAShareOfItsOwn) {
  World w(40, {.max_batch_tokens = 16, .adapter_share = 0.2, .maintain_dependency = false});
  w.AddAdapter(1, 6);
  w.AddAdapter(2, 6);
  for (int i = 0; i < 3; ++i) w.Add(32, 1, 8, "flood");   // 30 of the 32 pages at last
  while (w.requests[2].generated().empty()) w.Step();
  Request* quiet = w.Add(4, 2, 2, "quiet");
  w.RunToEnd();
  EXPECT_EQ(w.scheduler.preemptions(), 0);
  EXPECT_EQ(quiet->state, RequestState::kFinished);
  EXPECT_EQ(w.residency.Stats().device_evictions, 1);   // adapter 1, when it was idle
}

// There a request that lacks room for its keys and values needs no more of it for its own idle adapter.
TEST(Scheduler, AnIdleAdapterWithAShareIsNotCountedAgainstItsRequest) {
  World w(40, {.max_batch_tokens = 16, .adapter_share = 0.2, .maintain_dependency = false});
  w.AddAdapter(1, 8);
  w.Add(2, 1, 1, "quiet");
  w.RunToEnd();
  for (int i = 0; i < 3; ++i) w.AddFor("flood", 32, 8);
  while (w.requests[3].generated().empty()) w.Step();
  Request* quiet = w.Add(20, 1, 2, "quiet");   // 6 pages
  while (quiet->state == RequestState::kWaiting) w.Step();
  EXPECT_EQ(w.scheduler.preemptions(), 1);
  EXPECT_EQ(w.requests[1].state, RequestState::kRunning);
  w.RunToEnd();
}

// ---------------------------------------------------------------- Pages that are copied

// With a tree; prompts are given token by token.
struct TreeWorld : World {
  DependencyTree tree;
  Scheduler with_tree;

  explicit TreeWorld(std::int64_t device_pages)
      : World(device_pages), tree(4, device.get()),
        with_tree({.page_tokens = 4}, device.get(), &residency, policy.get(), &tree) {}

  Request* Ask(std::vector<TokenId> prompt, std::int32_t output = 4) {
    Request& request = requests.emplace_back();
    request.id = RequestId{next_id++};
    request.tokens = std::move(prompt);
    request.prompt_tokens = static_cast<std::int32_t>(request.tokens.size());
    request.max_total_tokens = request.prompt_tokens + output;
    with_tree.Add(&request);
    return &request;
  }
  // The engine submits what this plans.
  StepPlan Begin() {
    const StepPlan plan = with_tree.Plan(clock.Now());
    with_tree.Commit(clock.Now());
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
  EXPECT_EQ(w.tree.Parent(plan.admissions[0].in_page.node), plan.admissions[0].tail);
  EXPECT_EQ(plan.chunks[0].num_tokens, 3);
  EXPECT_TRUE(plan.chunks[0].samples);
  EXPECT_EQ(request->computed, 6);
  EXPECT_EQ(request->tree_pages, 1);
  EXPECT_EQ(request->cached_tokens, 6);
  EXPECT_NE(request->page_table[1], w.tree.Page(plan.admissions[0].in_page.node).index);
  w.End(plan);
  EXPECT_EQ(request->tree_pages, 2);   // the page that was begun with a copy is full, and the tree's
  w.with_tree.Remove(request, w.clock.Now());
  EXPECT_EQ(w.with_tree.prefix_stats().copied_pages, 1);
  EXPECT_EQ(w.tree.idle_pages(), 3);
  w.Check();
}

// The copy is made while the step computes: until the step has ended, nothing beside it and no other end may free the page.
TEST(Scheduler, ThePageThatIsCopiedStaysUntilTheStepHasEnded) {
  TreeWorld w(8 * 32);   // a reserve of 8 pages
  w.Serve({1, 2, 3, 4});
  for (TokenId i = 0; w.device->free_pages() > 1; ++i) w.Serve({100 + i, 2, 3, 4});
  Request* request = w.Ask({1, 2, 9});   // what it copies was used least recently of all
  const StepPlan plan = w.Begin();
  ASSERT_EQ(plan.admissions[0].in_page.tokens, 2);
  const NodeId source = plan.admissions[0].in_page.node;
  EXPECT_EQ(w.tree.View(source).locks, 1);
  for (int i = 0; i < 4; ++i) w.with_tree.Prepare(w.clock.Now());
  EXPECT_GE(w.device->free_pages(), 8);   // others went
  ASSERT_TRUE(w.tree.OnDevice(source));
  w.Check();
  w.End(plan);
  EXPECT_FALSE(request->copied_from.has_value());
  EXPECT_EQ(w.tree.View(source).locks, 0);
}

// A request that ends before its step does, as where the step is given up: the page is let go once.
TEST(Scheduler, AnEndBeforeTheStepLetsGoOfThePage) {
  TreeWorld w(16);
  w.Serve({1, 2, 3, 4, 5, 6, 7, 8});
  for (const std::vector<TokenId>& prompt : {std::vector<TokenId>{1, 2, 9}, {1, 2, 3, 4, 5, 9, 9, 9, 9}}) {
    Request* request = w.Ask(prompt);
    const StepPlan plan = w.Begin();
    ASSERT_GT(plan.admissions[0].in_page.tokens, 0);
    EXPECT_LT(w.tree.idle_pages(), 2);
    w.with_tree.Remove(request, w.clock.Now());
    w.Check();
    EXPECT_EQ(w.tree.idle_pages(), 2);
  }
}

// LRU that remembers what it was told.
class Listener final : public EvictionPolicy {
 public:
  double Score(const EvictionCandidate& candidate, const EvictionContext& context) const override {
    told.push_back(candidate);
    now = context.now;
    return static_cast<double>(candidate.last_use);
  }
  std::string_view name() const override { return "listener"; }
  mutable std::vector<EvictionCandidate> told;
  mutable TimeNs now = 0;
};

TEST(Scheduler, PoliciesAreToldWhatAnAdapterIs) {
  World w(16);
  const Listener listener;
  Scheduler scheduler({.page_tokens = 4}, w.device.get(), &w.residency, &listener);
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
      scheduler.Plan(w.clock.Now());
      scheduler.Commit(w.clock.Now());
    }
    ASSERT_EQ(request.state, RequestState::kRunning);
    scheduler.Remove(&request, w.clock.Now());
    w.residency.Release(request.adapter);
  };
  run(requests[0], 1);
  run(requests[0], 1);
  run(requests[0], 2);
  EXPECT_TRUE(listener.told.empty());   // there was room
  const TimeNs last_use = w.residency.Get(AdapterGeneration{2}).last_use;
  for (int second = 0; second < 600; ++second) {   // in which nobody asks for either
    w.clock.Advance(kNsPerSecond);
    scheduler.Prepare(w.clock.Now());
  }
  w.residency.Acquire(AdapterGeneration{1});   // a request for it came
  run(requests[1], 3);                         // and this one has no room
  ASSERT_GE(listener.told.size(), 2u);
  for (const EvictionCandidate& candidate : listener.told) {
    const bool first = candidate.pages == 4;
    EXPECT_EQ(candidate.kind, CandidateKind::kAdapter);
    EXPECT_EQ(candidate.pages, first ? 4 : 6);
    EXPECT_EQ(candidate.uses, first ? 2 : 1);
    EXPECT_NEAR(candidate.frequency, first ? 2 : 1, 1e-6);
    EXPECT_LE(candidate.frequency_at, candidate.last_use);
    EXPECT_GT(candidate.frequency_at, 0);
    EXPECT_LT(candidate.reuse_factor, 0.99);   // as was learned from that
    EXPECT_EQ(candidate.queued, first);
    EXPECT_EQ(candidate.reload, ReloadFrom::kHost);
    if (!first) EXPECT_EQ(candidate.last_use, last_use);
  }
  EXPECT_GT(listener.now, last_use);
  w.residency.Release(AdapterGeneration{1});
}

// An adapter of 16 pages that left one page behind, and 8 pages of somebody's history, each used once at the same time: a page
// that would be fetched by itself is dear, but the 17 together are cheaper a page than the 8.
struct BranchWorld : World {
  const std::unique_ptr<EvictionPolicy> loramux = std::move(MakeEvictionPolicy("loramux")).value();
  DependencyTree tree{4, device.get(), host.get()};
  Scheduler with_tree{{.page_tokens = 4}, device.get(), &residency, loramux.get(), &tree};

  explicit BranchWorld(bool copies = true) : World(27) {
    AddAdapter(1, 16);
    std::vector<TokenId> other(33);
    for (TokenId i = 0; i < 33; ++i) other[static_cast<std::size_t>(i)] = 100 + i;
    const NodeId others = Serve(other, 0);
    const NodeId left_behind = Serve({1, 2, 3, 4, 5}, 1);
    if (copies) CopyToHost(left_behind);
    if (copies) CopyToHost(others);
    clock.Advance(100 * kNsPerSecond);
  }
  Request* Ask(std::vector<TokenId> prompt, std::uint32_t adapter) {
    Request& request = requests.emplace_back();
    request.id = RequestId{next_id++};
    request.adapter = AdapterGeneration{adapter};
    request.prompt_tokens = static_cast<std::int32_t>(prompt.size());
    request.max_total_tokens = request.prompt_tokens + 1;
    request.tokens = std::move(prompt);
    if (adapter != 0) residency.Acquire(request.adapter);
    with_tree.Add(&request);
    return &request;
  }
  StepPlan Plan() {
    std::vector<ResidencyManager::LoadFailure> failures;
    residency.Poll(clock.Now(), failures);
    const StepPlan plan = with_tree.Plan(clock.Now());
    with_tree.Commit(clock.Now());
    with_tree.CheckIntegrity();
    device->CheckIntegrity();
    return plan;
  }
  // Returns its tail.
  NodeId Serve(const std::vector<TokenId>& prompt, std::uint32_t adapter) {
    Request* request = Ask(prompt, adapter);
    while (true) {
      const StepPlan plan = Plan();
      clock.Advance(2000);
      if (plan.chunks.empty()) continue;
      with_tree.Advance(request, plan.chunks[0].num_tokens, clock.Now());
      if (plan.chunks[0].samples) break;
    }
    const NodeId tail = request->tail;
    with_tree.Remove(request, clock.Now());
    if (adapter != 0) residency.Release(request->adapter);
    return tail;
  }
  void CopyToHost(NodeId tail) {
    std::vector<NodeId> path;
    for (NodeId at = tail; tree.Depth(at) > 0; at = tree.Parent(at)) path.insert(path.begin(), at);
    std::vector<DependencyTree::MovingPages> copying;
    tree.BeginBackUp(path, copying);
    tree.EndBackUp(copying, /*failed=*/false);
  }
};

TEST(Scheduler, AnAdapterGoesWithWhatItLeftBehindWhereThatIsWorthLeast) {
  BranchWorld w;
  ASSERT_EQ(w.device->free_pages(), 2);
  w.with_tree.Prepare(w.clock.Now());
  w.Ask(std::vector<TokenId>(12, 7), 0);
  const StepPlan plan = w.Plan();
  ASSERT_EQ(plan.device_evictions.size(), 1u);
  EXPECT_EQ(plan.kv_evictions.size(), 1u);
  EXPECT_EQ(plan.admissions.size(), 1u);
  EXPECT_EQ(w.residency.Get(AdapterGeneration{1}).device, TierState::kAbsent);
  EXPECT_EQ(w.tree.idle_pages(), 8);   // the other history
  w.tree.CheckIntegrity();
}

// Neither while nobody has weighed it, nor while a request waits for it, nor when it was used since, nor where history would be
// computed again.
TEST(Scheduler, AnAdapterStaysWithItsHistoryWhereThatIsNotKnownToBeWorthLeast) {
  for (const std::string_view which : {"not weighed", "asked for", "used since", "no copies"}) {
    SCOPED_TRACE(which);
    BranchWorld w(which != "no copies");
    if (which != "not weighed") w.with_tree.Prepare(w.clock.Now());
    if (which == "asked for") w.residency.Acquire(AdapterGeneration{1});
    if (which == "used since") {
      w.clock.Advance(kNsPerSecond);
      w.Serve({1, 2, 3, 4, 5}, 1);
    }
    w.Ask(std::vector<TokenId>(12, 7), 0);
    const StepPlan plan = w.Plan();
    EXPECT_TRUE(plan.device_evictions.empty());
    EXPECT_GE(plan.kv_evictions.size(), 1u);
    EXPECT_EQ(w.residency.Get(AdapterGeneration{1}).device, TierState::kResident);
    if (which == "asked for") w.residency.Release(AdapterGeneration{1});
  }
}

// What the policies know of all candidates together, by hand: made at most every 100 ms, and beside the computation only.
TEST(Scheduler, TheContextOfThePolicies) {
  World w(64);
  w.AddAdapter(1, 2);
  w.AddAdapter(2, 5);
  w.AddAdapter(3, 9);   // known, and never used
  const TimeNs begin = w.clock.Now();
  for (const std::uint32_t adapter : {1u, 1u, 2u, 0u}) w.Add(3, adapter);
  double requests = 0, batches = 0;
  while (!(w.scheduler.running().empty() && w.scheduler.waiting().empty())) {
    const StepPlan plan = w.Step();
    requests += static_cast<double>(plan.chunks.size());
    batches += !plan.chunks.empty();
  }
  EXPECT_EQ(w.scheduler.eviction_context().total_visits, 0);   // no plan makes it
  w.clock.AdvanceTo(begin + kNsPerSecond);
  w.scheduler.Prepare(w.clock.Now());
  const EvictionContext context = w.scheduler.eviction_context();
  const double left = std::exp2(-1.0 / 60);                    // of a visit, after a second
  EXPECT_NEAR(context.total_visits, 4 * left, 1e-4);
  EXPECT_NEAR(context.max_frequency, 2 * left, 1e-4);
  EXPECT_EQ(context.resident_adapters, 2);
  EXPECT_EQ(context.max_pages, 5);
  EXPECT_EQ(context.oldest_use, std::min(w.residency.Get(AdapterGeneration{1}).last_use, w.residency.Get(AdapterGeneration{2}).last_use));
  // Half of the requests use adapter 1, a quarter adapter 2.
  EXPECT_NEAR(context.low_lora, 2 - std::pow(0.5, requests / batches) - std::pow(0.75, requests / batches), 1e-4);
  EXPECT_GT(context.low_lora, 0.75);
  w.Add(3, 1);
  w.Step();
  w.clock.AdvanceTo(begin + kNsPerSecond + 99 * kNsPerMs);
  w.scheduler.Prepare(w.clock.Now());
  EXPECT_EQ(w.scheduler.eviction_context().made_at, begin + kNsPerSecond);
  w.clock.AdvanceTo(begin + kNsPerSecond + 100 * kNsPerMs);
  w.scheduler.Prepare(w.clock.Now());
  EXPECT_NEAR(w.scheduler.eviction_context().total_visits, 4 * left + 1, 1e-2);
}

// An adapter that is asked for every 10 s, on a device that holds it or another one that comes between.
struct PeriodicWorld : World {
  explicit PeriodicWorld(AdapterPrefetch prefetch, bool keep_idle = true)
      : World(11, {.adapter_prefetch = prefetch, .keep_idle_adapters = keep_idle}) {
    AddAdapter(1, 4);
    AddAdapter(2, 6);
  }
  // As an engine without work: it wakes when the scheduler asks for it.
  void SleepUntil(TimeNs time) {
    std::vector<ResidencyManager::LoadFailure> failures;
    while (true) {
      residency.Poll(clock.Now(), failures);
      scheduler.Plan(clock.Now());
      scheduler.Commit(clock.Now());
      scheduler.Prepare(clock.Now());
      scheduler.CheckIntegrity();
      TimeNs next = time;
      for (const TimeNs at : {transfer.next_end(), scheduler.NextPrefetch().value_or(-1)}) {
        if (at >= 0) next = std::min(next, at);
      }
      if (clock.Now() >= time) return;
      ASSERT_TRUE(next > clock.Now() || transfer.next_end() >= 0) << "it would not sleep";
      clock.AdvanceTo(std::max(next, clock.Now() + 1));
    }
  }
  // The one that comes between at 3 s. How often the periodic one was there when it was asked for.
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
  EXPECT_EQ(without.scheduler.prefetch_stats().loads, 0);
  EXPECT_FALSE(without.scheduler.NextPrefetch().has_value());
  EXPECT_GE(with.Run(30), 30 - static_cast<int>(AdapterArrivalHistogram::kFewestSamples) - 1);
  const AdapterPrefetchStats stats = with.scheduler.prefetch_stats();
  EXPECT_GE(stats.used, 30 - 9);
  EXPECT_EQ(stats.wasted, 0);
}

// Where idle adapters leave at once, one that is expected stays until its window has passed.
TEST(Scheduler, AnExpectedAdapterStaysWhereIdleOnesLeave) {
  PeriodicWorld w(AdapterPrefetch::kHistogram, /*keep_idle=*/false);
  EXPECT_GE(w.Run(30), 20);
  const TimeNs now = w.clock.Now();
  w.SleepUntil(now + 6900 * kNsPerMs);   // it is expected again, and never comes
  EXPECT_EQ(w.residency.Get(AdapterGeneration{1}).device, TierState::kResident);
  w.SleepUntil(now + 60 * kNsPerSecond);
  EXPECT_EQ(w.residency.Get(AdapterGeneration{1}).device, TierState::kAbsent);
  EXPECT_GE(w.scheduler.prefetch_stats().wasted, 1);
  EXPECT_LE(w.scheduler.prefetch_stats().wasted, 2);   // the one between is expected too
  EXPECT_FALSE(w.scheduler.NextPrefetch().has_value());
}

// Nothing is taken from whom a request waits for: here the pages that a running one will need.
TEST(Scheduler, APrefetchTakesNothingThatIsInUse) {
  PeriodicWorld w(AdapterPrefetch::kHistogram);
  w.Run(12);
  const std::int64_t loads = w.scheduler.prefetch_stats().loads;
  EXPECT_GT(loads, 0);
  Request* running = w.Add(2, 2, 12);   // with 6 + 4 pages there is no room for it
  while (running->generated().empty()) w.Step();
  w.SleepUntil(w.clock.Now() + 30 * kNsPerSecond);
  EXPECT_EQ(w.residency.Get(AdapterGeneration{1}).device, TierState::kAbsent);
  EXPECT_EQ(w.scheduler.prefetch_stats().loads, loads);
  EXPECT_EQ(running->preemptions, 0);
  w.RunToEnd();
}

// Policies are told what loads and prefills take: here 2 ms a page of 4 tokens, and loads by the links' latencies alone.
TEST(Scheduler, ReloadCostsAreMeasured) {
  World w(64, {.max_batch_tokens = 32});
  w.AddAdapter(1, 4);
  std::vector<ResidencyManager::LoadFailure> failures;
  for (int i = 0; i < 40; ++i) {
    Request* request = w.Add(32, i % 2 == 0 ? 1 : 0, 1);
    while (request->state != RequestState::kFinished) {
      w.residency.Poll(w.clock.Now(), failures);
      const StepPlan plan = w.scheduler.Plan(w.clock.Now());
      w.scheduler.Commit(w.clock.Now());
      w.clock.AdvanceTo(plan.chunks.empty() ? w.transfer.next_end() : w.clock.Now() + plan.num_tokens * kNsPerMs / 2);
      for (const PlannedChunk& chunk : plan.chunks) {
        w.scheduler.Advance(chunk.request, chunk.num_tokens, w.clock.Now());
        w.scheduler.Remove(chunk.request, w.clock.Now());
        if (chunk.request->adapter != kBaseModel) w.residency.Release(chunk.request->adapter);
      }
    }
    if (i % 2 == 0) w.residency.EvictFromDevice(AdapterGeneration{1});
  }
  const ReloadCostEstimator& measured = w.scheduler.reload_costs();
  EXPECT_EQ(measured.Of(ReloadFrom::kComputation).samples, 40);
  EXPECT_NEAR(measured.Of(ReloadFrom::kComputation).page_ns, 2e6, 1);
  EXPECT_EQ(measured.Of(ReloadFrom::kDisk).samples, 1);
  EXPECT_EQ(measured.Of(ReloadFrom::kHost).samples, 19);
  const ReloadCostEstimator::Time host = measured.Of(ReloadFrom::kHost);
  EXPECT_NEAR(host.latency_ns + 4 * host.page_ns, 125.6, 1);   // 100 ns of latency, 256 bytes at 10 GB/s
  w.clock.Advance(kNsPerSecond);
  w.scheduler.Prepare(w.clock.Now());
  EXPECT_GT(w.scheduler.eviction_context().costs.computed_page, 1000);
}

TEST(Scheduler, PrefillIsChunkedAndDecodesGoFirst) {
  World w(64, {.max_batch_tokens = 8, .prefill_chunk = 6});
  Request* first = w.Add(3);
  EXPECT_EQ(w.Step().chunks.size(), 1u);       // 3 prompt tokens, sampled
  Request* second = w.Add(20);
  std::vector<std::int32_t> sizes;
  while (second->state != RequestState::kFinished && second->generated().empty()) {
    for (const PlannedChunk& chunk : w.Step().chunks) {
      if (chunk.request == second) sizes.push_back(chunk.num_tokens);
    }
  }
  EXPECT_EQ(sizes, (std::vector<std::int32_t>{6, 6, 6, 2}));
  EXPECT_EQ(first->state, RequestState::kFinished);   // it decoded beside
}

TEST(Scheduler, WholePromptsAreNeverSplit) {
  World w(200, {.max_batch_tokens = 100 + 256, .prefill_chunk = 100, .whole_prompt_tokens = 32});
  w.Add(20);
  w.Add(10);
  w.Add(100);   // longer than several prompts may have together: alone
  w.Add(8);
  const auto tokens = [](const StepPlan& plan) {
    std::vector<std::int32_t> sizes;
    for (const PlannedChunk& chunk : plan.chunks) sizes.push_back(chunk.num_tokens);
    return sizes;
  };
  EXPECT_EQ(tokens(w.Step()), (std::vector<std::int32_t>{20, 10}));
  EXPECT_EQ(tokens(w.Step()), (std::vector<std::int32_t>{1, 1, 100}));
  EXPECT_EQ(tokens(w.Step()), (std::vector<std::int32_t>{1, 1, 1, 8}));
  w.RunToEnd();
}

TEST(Scheduler, ChunksOfOneAdapterAreAdjacentBaseFirst) {
  World w(64);
  for (std::uint32_t g = 1; g <= 3; ++g) w.AddAdapter(g, 1);
  for (const std::uint32_t g : {3u, 0u, 1u, 3u, 2u, 0u, 1u}) w.Add(2, g, 20);
  StepPlan plan;
  for (int i = 0; i < 10 && plan.chunks.size() < 7; ++i) plan = w.Step();
  ASSERT_EQ(plan.chunks.size(), 7u);
  std::vector<std::uint32_t> order;
  for (const PlannedChunk& chunk : plan.chunks) order.push_back(chunk.request->adapter.value);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(Scheduler, AColdAdapterDoesNotHoldUpOthers) {
  World w(64);
  w.AddAdapter(1, 2);
  Request* cold = w.Add(3, 1);
  Request* base = w.Add(3, 0);
  const StepPlan plan = w.Step();
  ASSERT_EQ(plan.loads.size(), 1u);
  ASSERT_EQ(plan.chunks.size(), 1u);
  EXPECT_EQ(plan.chunks[0].request, base);
  w.RunToEnd();
  EXPECT_EQ(cold->state, RequestState::kFinished);
}

TEST(Scheduler, MemoryThatTheHeadWaitsForIsNotTakenByThoseBehind) {
  World w(8);
  Request* running = w.Add(16, 0, 8);           // 5 pages
  w.Step();
  Request* big = w.Add(20);                      // 6 pages: must wait
  Request* small = w.Add(1);                     // would fit now
  w.Step();
  EXPECT_EQ(big->state, RequestState::kWaiting);
  EXPECT_EQ(small->state, RequestState::kWaiting);
  w.RunToEnd();
  EXPECT_LE(running->first_scheduled, big->first_scheduled);
  EXPECT_LE(big->first_scheduled, small->first_scheduled);
}

TEST(Scheduler, IdleAdaptersGoFirstLeastRecentlyUsed) {
  World w(10);
  for (std::uint32_t g = 1; g <= 3; ++g) w.AddAdapter(g, 2);
  for (std::uint32_t g = 1; g <= 3; ++g) {
    w.Add(2, g);
    w.RunToEnd();
  }
  EXPECT_EQ(w.residency.DeviceResidents().size(), 3u);
  w.Add(2, 1);   // 1 is used again: 2 is the oldest now
  w.RunToEnd();
  w.Add(20, 0, 4);   // 6 pages, 4 are free
  const StepPlan plan = w.Step();
  ASSERT_EQ(plan.device_evictions.size(), 1u);
  EXPECT_EQ(plan.device_evictions[0], AdapterGeneration{2});
  w.RunToEnd();
}

TEST(Scheduler, PreemptsTheYoungestAndResumesIt) {
  World w(6);
  Request* old = w.Add(8, 0, 12);
  Request* young = w.Add(8, 0, 12);
  w.RunToEnd();
  EXPECT_EQ(old->preemptions, 0);
  EXPECT_GT(young->preemptions, 0);
  EXPECT_EQ(young->tokens.size(), 20u);
  EXPECT_EQ(w.device->free_pages(), 6);
}

TEST(Scheduler, TheOldestWaitsForALoadInFlightInsteadOfFailing) {
  World w(6);
  w.AddAdapter(1, 3);
  Request* old = w.Add(4, 0, 20);   // 2 pages now, 6 in the end
  w.Step();
  w.Add(2, 1);                      // its load takes 3 pages
  w.RunToEnd();
  EXPECT_EQ(old->tokens.size(), 24u);
}

TEST(Scheduler, DistinctAdaptersAreBoundedOnRequest) {
  World w(64, {.max_distinct_adapters = 2});
  for (std::uint32_t g = 1; g <= 4; ++g) w.AddAdapter(g, 1);
  for (std::uint32_t g = 1; g <= 4; ++g) w.Add(2, g, 6);
  while (!(w.scheduler.running().empty() && w.scheduler.waiting().empty())) {
    std::vector<bool> seen(5, false);
    for (const PlannedChunk& chunk : w.Step().chunks) seen[chunk.request->adapter.value] = true;
    EXPECT_LE(std::count(seen.begin(), seen.end(), true), 2);
  }
}

// A stream of requests of one adapter holds the only place in the batch: another adapter's request gets it in its turn.
TEST(Scheduler, TheBoundOnDistinctAdaptersStarvesNobody) {
  World w(64, {.max_distinct_adapters = 1});
  w.AddAdapter(1, 1);
  w.AddAdapter(2, 1);
  w.Add(2, 1, 6);
  for (int i = 0; i < 4; ++i) w.Step();
  Request* other = w.Add(2, 2, 4);
  for (int i = 0; i < 200 && other->state != RequestState::kFinished; ++i) {
    w.Add(2, 1, 6);
    w.Step();
  }
  EXPECT_EQ(other->state, RequestState::kFinished);
}

// It leaves before its first token.
void GoAway(World& w, Request* request) {
  ASSERT_EQ(request->state, RequestState::kWaiting);
  w.scheduler.Remove(request, w.clock.Now());
  w.residency.Release(request->adapter);
}

// Clients come for cold adapters and go away before these are there: each could make the step wait anew, and those that run
// would never compute.
TEST(Scheduler, StepsWaitAtMostOnceInARow) {
  World w(64, {.cold_start = ColdStart::kStall});
  for (std::uint32_t g = 1; g <= 20; ++g) w.AddAdapter(g, 1);
  const Request* running = w.Add(4, 0, 12);
  w.Step();
  for (std::uint32_t g = 1; g <= 20; ++g) {
    Request* cold = w.Add(2, g);
    const StepPlan plan = w.Step();
    const bool may_wait = g % 2 == 1;
    EXPECT_EQ(plan.stalls.empty(), !may_wait) << g;
    EXPECT_EQ(plan.chunks.empty(), may_wait) << g;
    GoAway(w, cold);
  }
  EXPECT_EQ(w.scheduler.cold_starts(), 10);
  EXPECT_EQ(running->generated().size(), 11u);
}

// Who was waited for computes before the step waits for the next one.
TEST(Scheduler, AStepThatWaitedComputesBeforeTheNextOneWaits) {
  World w(64, {.cold_start = ColdStart::kStall});
  w.AddAdapter(1, 1);
  w.AddAdapter(2, 1);
  const Request* running = w.Add(4, 0, 30);
  w.Step();
  const Request* first = w.Add(2, 1, 30);
  EXPECT_EQ(w.Step().stalls.size(), 1u);
  const Request* second = w.Add(2, 2, 30);   // while the step waits
  const auto computes = [](const StepPlan& plan, const Request* request) {
    return std::any_of(plan.chunks.begin(), plan.chunks.end(), [&](const PlannedChunk& chunk) { return chunk.request == request; });
  };
  StepPlan plan;
  for (int i = 0; i < 10 && plan.chunks.empty(); ++i) {
    plan = w.Step();
    EXPECT_TRUE(plan.stalls.empty());   // it goes on waiting for the first alone, and then computes
  }
  EXPECT_TRUE(computes(plan, running) && computes(plan, first));
  ASSERT_EQ(plan.loads.size(), 1u);     // beside it the second one's load begins
  plan = w.Step();
  EXPECT_EQ(plan.stalls, std::vector<AdapterGeneration>{second->adapter});
  EXPECT_TRUE(plan.chunks.empty());
  for (int i = 0; i < 10 && plan.chunks.empty(); ++i) plan = w.Step();
  EXPECT_TRUE(computes(plan, running) && computes(plan, first) && computes(plan, second));
  EXPECT_EQ(w.scheduler.cold_starts(), 2);
  w.RunToEnd();
}

struct BeyondTheBound {
  ColdStart cold_start;
  bool tenants;   // two
};

class DistinctAdapters : public testing::TestWithParam<BeyondTheBound> {};

// A batch may have one adapter, and requests beyond that let others by, until they have waited too long (of several tenants: until
// their tenant has). Then nobody goes before them, and the adapter that holds the only place gives it up.
TEST_P(DistinctAdapters, WhoIsBeyondTheBoundLetsOthersByUntilItIsOverdue) {
  constexpr TimeNs kBound = 20 * 500;
  World w(200, {.max_distinct_adapters = 1, .cold_start = GetParam().cold_start, .skip_beyond_distinct = true,
                .fairness = {.max_wait = kBound}, .age_bound = kBound});
  w.AddAdapter(1, 1);
  w.AddAdapter(2, 1);
  w.Add(2, 1, 6);
  while (w.scheduler.running().empty()) w.Step();
  const Request* beyond = w.Add(2, 2, 4, GetParam().tenants ? "other" : "");
  int went_by = 0;
  for (int i = 0; i < 200 && beyond->first_scheduled < 0; ++i) {
    w.Add(2, 1, 6);
    const bool overdue = w.clock.Now() - beyond->arrival > kBound;
    for (const PlannedAdmission& admission : w.Step().admissions) {
      if (admission.request == beyond) continue;
      EXPECT_FALSE(overdue) << "somebody went before one that waited too long";
      ++went_by;
    }
  }
  ASSERT_GE(beyond->first_scheduled, 0) << "starved";
  EXPECT_GT(went_by, 10);
  EXPECT_GT(beyond->first_scheduled - beyond->arrival, kBound);
  EXPECT_LE(beyond->first_scheduled - beyond->arrival, kBound + 12 * 500);   // six steps until those that run have ended, and a load
  w.RunToEnd();
}

INSTANTIATE_TEST_SUITE_P(Scheduler, DistinctAdapters,
                         testing::Values(BeyondTheBound{ColdStart::kPassOver, false}, BeyondTheBound{ColdStart::kStall, false},
                                         BeyondTheBound{ColdStart::kPassOver, true}, BeyondTheBound{ColdStart::kStall, true}),
                         [](const auto& info) {
                           return std::string(info.param.cold_start == ColdStart::kStall ? "StepsWait" : "StepsGoOn") +
                                  (info.param.tenants ? "TwoTenants" : "OneTenant");
                         });

// A waits for its adapter; younger requests run meanwhile and then need pages: the youngest gives way, not A's adapter.
TEST(Scheduler, YoungerRequestsDoNotTakeAnOlderOnesAdapter) {
  World w(12);
  w.AddAdapter(1, 4);
  Request* waiter = w.Add(4, 1, 4);
  w.Add(8, 0, 20);
  Request* youngest = w.Add(8, 0, 20);
  for (int i = 0; i < 100 && waiter->first_scheduled < 0; ++i) w.Step();
  EXPECT_GE(waiter->first_scheduled, 0);
  EXPECT_EQ(w.residency.Stats().device_evictions, 0);
  EXPECT_EQ(youngest->preemptions, 1);
  w.RunToEnd();
}

TEST(Scheduler, AHostTierThatIsTooSmallIsPassedBy) {
  World w(20, {}, /*host_pages=*/2);
  w.AddAdapter(1, 3);   // larger than the host tier
  w.AddAdapter(2, 2);
  w.AddAdapter(3, 2);
  for (const std::uint32_t g : {1u, 2u, 3u}) w.Add(2, g);
  w.RunToEnd();
  EXPECT_EQ(w.residency.Get(AdapterGeneration{1}).host, TierState::kAbsent);
  EXPECT_EQ(w.residency.DeviceResidents().size(), 3u);
}

// How many steps pass until the request's first token.
int StepsToFirstToken(World& w, const Request* request) {
  for (int steps = 1; steps < 2000; ++steps) {
    w.Step();
    if (!request->generated().empty()) return steps;
  }
  return -1;
}

FairnessOptions Fair(FairnessPolicy policy) { return {.policy = policy}; }
constexpr FairnessPolicy kNone = FairnessPolicy::kNone, kVtc = FairnessPolicy::kVtc;

TEST(Scheduler, AShortPromptGoesBetweenTheChunksOfAnotherTenantsLongOnes) {
  const auto steps = [](FairnessPolicy policy) {
    World w(400, {.max_batch_tokens = 8, .prefill_chunk = 8, .fairness = Fair(policy)});
    for (int i = 0; i < 10; ++i) w.AddFor("flood", 80, 4);
    w.Step();
    return StepsToFirstToken(w, w.AddFor("other", 6, 4));
  };
  EXPECT_GT(steps(kNone), 90);
  EXPECT_LE(steps(kVtc), 3);
}

TEST(Scheduler, AFloodDoesNotHoldAllSeats) {
  const auto steps = [](FairnessPolicy policy, std::int64_t* preemptions) {
    World w(400, {.max_running = 4, .fairness = Fair(policy)});
    for (int i = 0; i < 20; ++i) w.AddFor("flood", 4, 60);
    for (int i = 0; i < 10; ++i) w.Step();
    const int result = StepsToFirstToken(w, w.AddFor("other", 4, 10));
    w.RunToEnd();
    *preemptions = w.scheduler.preemptions();
    return result;
  };
  std::int64_t preemptions = -1;
  EXPECT_GT(steps(kNone, &preemptions), 200);
  EXPECT_LE(steps(kVtc, &preemptions), 3);
  EXPECT_EQ(preemptions, 0);   // who gives up a seat keeps its memory
}

TEST(Scheduler, NoMoreComputeInAStepThanThereAreSeats) {
  World w(400, {.max_running = 4});
  for (int i = 0; i < 40; ++i) w.AddFor(std::string(1, static_cast<char>('a' + i % 7)), 4, 10 + i);
  std::size_t most_running = 0;
  while (!(w.scheduler.running().empty() && w.scheduler.waiting().empty())) {
    EXPECT_LE(w.Step().chunks.size(), 4u);
    most_running = std::max(most_running, w.scheduler.running().size());
  }
  EXPECT_GT(most_running, 4u);   // some paused
  EXPECT_LE(most_running, 8u);
}

TEST(Scheduler, AFloodDoesNotHoldAllMemory) {
  const auto steps = [](FairnessPolicy policy, std::int64_t* preemptions) {
    World w(40, {.max_batch_tokens = 32, .fairness = Fair(policy)});
    for (int i = 0; i < 20; ++i) w.AddFor("flood", 24, 60);
    for (int i = 0; i < 30; ++i) w.Step();
    const int result = StepsToFirstToken(w, w.AddFor("other", 16, 10));
    w.RunToEnd();
    *preemptions = w.requests.back().preemptions;
    return result;
  };
  std::int64_t preemptions = -1;
  EXPECT_GT(steps(kNone, &preemptions), 200);
  EXPECT_LE(steps(kVtc, &preemptions), 12);
  EXPECT_EQ(preemptions, 0);
}

// A tenant that comes again and again while another holds the memory: the second is preempted for it, but what it had
// computed is thrown away only up to a share of all work.
TEST(Scheduler, LittleWorkIsThrownAwayForFairness) {
  World w(40, {.max_batch_tokens = 32, .discard_share = 0.1});
  for (int i = 0; i < 30; ++i) w.AddFor("flood", 40, 60);
  std::int64_t computed = 0, discarded = 0;
  for (int i = 0; i < 400; ++i) {
    if (i % 3 == 0) w.AddFor("other", 2, 2);
    const StepPlan plan = w.Step();
    computed += plan.num_tokens;
    discarded += plan.discarded_tokens;
  }
  EXPECT_GT(discarded, 0);
  EXPECT_LE(discarded, computed / 10 + 32 + 100);   // at the start a step's worth; the last victim may overdraw
  w.RunToEnd();
}

TEST(Scheduler, WeightsDivideTheSeats) {
  World w(4000, {.max_running = 8, .fairness = {.weights = {{"heavy", 3}}}});
  for (int i = 0; i < 200; ++i) {
    w.AddFor("light", 8, 30);
    w.AddFor("heavy", 8, 30);
  }
  std::int64_t heavy = 0, light = 0;
  for (int i = 0; i < 700; ++i) {
    for (const PlannedChunk& chunk : w.Step().chunks) (chunk.request->tenant_name == "heavy" ? heavy : light) += chunk.num_tokens;
  }
  EXPECT_NEAR(static_cast<double>(heavy) / static_cast<double>(light), 3.0, 0.15);
  w.RunToEnd();
}

}  // namespace
}  // namespace loramux
