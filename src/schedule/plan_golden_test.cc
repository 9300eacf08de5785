// Random loads for the scheduler. Checks the invariants of every plan, and that plans are exactly the recorded ones.
#include <algorithm>
#include <deque>
#include <set>

#include "base/check.h"
#include "base/prng.h"
#include "schedule/scheduler.h"

namespace loramux::plan_golden_test {
namespace {

// Digests of all plans of all loads below. A faster planner must not change them; update them only with a change of
// policy.
constexpr std::uint64_t kGolden = 16792278793292539361u, kGoldenWithTree = 604081490155942001u;
// The same for loads of the order "objective", with one tenant and with several.
constexpr std::uint64_t kGoldenObjective = 10516431032296906606u, kGoldenObjectiveOfTenants = 6099329885045343103u;

constexpr TimeNs kAgeBound = kNsPerSecond;  // with the order "objective"

struct Scale {
  int adapters, requests, arrivals;  // arrivals: bound per step
  std::int64_t max_running, max_batch_tokens, prompt, output;
  std::int64_t device_pages, host_pages;
  std::uint64_t tenants;  // 0: each adapter is a tenant
  // TTFT objective. If there is one, some requests have deadlines and priorities.
  TimeNs objective = 0;
};

// A random choice of everything that influences plans: scarce and ample memory, few and many tenants.
Scale RandomScale(Prng& prng, bool large) {
  const auto below = [&prng](std::uint64_t bound) { return static_cast<std::int64_t>(prng.NextBelow(bound)); };
  if (large) {
    return {.adapters = 60,
            .requests = 900,
            .arrivals = 200,
            .max_running = 64 + below(128),
            .max_batch_tokens = 128 + below(200),
            .prompt = 120,
            .output = 60,
            .device_pages = 900 + below(4000),
            .host_pages = 100 + below(300),
            .tenants = prng.NextBelow(3) * 150};
  }
  return {.adapters = 12,
          .requests = 80,
          .arrivals = 8,
          .max_running = 1 + below(16),
          .max_batch_tokens = 8 + below(40),
          .prompt = 40,
          .output = 24,
          .device_pages = 24 + below(40),
          .host_pages = 4 + below(30),
          .tenants = prng.NextBelow(5)};
}

// Slightly more requests than can be served in time, for several objectives.
struct Overload {
  std::string order;
  std::uint64_t tenants;
};

Scale RandomScale(Prng& prng, const Overload& overload) {
  const auto below = [&prng](std::uint64_t bound) { return static_cast<std::int64_t>(prng.NextBelow(bound)); };
  return {.adapters = 8,
          .requests = 400,
          .arrivals = 3,
          .max_running = 8 + below(24),
          .max_batch_tokens = 16 + below(24),
          .prompt = 40,
          .output = 8,
          .device_pages = 60 + below(200),
          .host_pages = 64,
          .tenants = overload.tenants,
          .objective = (40 + below(80)) * kNsPerMs};
}

SystemSpec RandomOptions(Prng& prng, const Scale& scale) {
  SystemSpec options;
  options.page_tokens = 4;
  options.max_running = scale.max_running;
  options.max_batch_tokens = scale.max_batch_tokens;
  options.prefill_chunk = 1 + static_cast<std::int64_t>(prng.NextBelow(30));
  options.lookahead = 1 + static_cast<std::int64_t>(prng.NextBelow(static_cast<std::uint64_t>(scale.adapters) * 2));
  options.max_distinct_adapters = prng.NextBelow(2) == 0 ? 0 : 1 + static_cast<std::int64_t>(prng.NextBelow(6));
  options.fairness.policy = prng.NextBelow(5) == 0 ? FairnessPolicy::kNone : FairnessPolicy::kVtc;
  options.fairness.weights = {{"1", 4}, {"2", 0.5}};
  options.fairness.max_wait = static_cast<TimeNs>(prng.NextBelow(3)) * 100 * kNsPerMs;
  options.discard_share = prng.NextBelow(3) == 0 ? 0 : 0.25;
  return options;
}

std::uint64_t Mix(std::uint64_t digest, std::uint64_t value) { return SplitMix64(digest ^ value); }

std::uint64_t Digest(const StepPlan& plan) {
  std::uint64_t digest = 0;
  for (const Request* request : plan.preemptions) digest = Mix(digest, request->id.value);
  digest = Mix(digest, static_cast<std::uint64_t>(plan.discarded_tokens));
  for (const Move& move : plan.moves) {
    if (move.leaves(Tier::kDevice) && !move.item.is_adapter()) digest = Mix(digest, move.item.node.index);
  }
  for (const Move& move : plan.moves) {
    if (move.leaves(Tier::kDevice) && move.item.is_adapter()) digest = Mix(digest, move.item.adapter.value);
  }
  digest = Mix(digest, 1);
  for (const Move& move : plan.moves) {
    if (move.leaves(Tier::kHost)) digest = Mix(digest, move.item.adapter.value);
  }
  for (const PlannedChunk& chunk : plan.chunks) {
    digest = Mix(digest, chunk.request->id.value);
    digest =
        Mix(digest, static_cast<std::uint64_t>(chunk.num_tokens) << 32 | static_cast<std::uint64_t>(chunk.new_pages));
    digest = Mix(digest, static_cast<std::uint64_t>(chunk.admits) << 1 | static_cast<std::uint64_t>(chunk.samples));
  }
  for (const Move& move : plan.moves) {
    const std::uint32_t via_host = move.from == Tier::kHost;
    if (move.is_load()) digest = Mix(digest, move.item.adapter.value << 1 | via_host);
  }
  return Mix(digest,
             static_cast<std::uint64_t>(plan.num_tokens) << 32 | static_cast<std::uint64_t>(plan.prefill_tokens));
}

struct Load {
  Prng prng;
  Scale scale;
  SystemSpec options;
  VirtualClock clock;
  std::unique_ptr<PagePool> device, host;
  ModeledTransfer transfer{&clock, {.latency_ns = 3 * kNsPerMs}, {.latency_ns = kNsPerMs}};
  std::unique_ptr<ResidencyManager> residency;
  std::unique_ptr<EvictionPolicy> policy;
  std::unique_ptr<DependencyTree> tree;
  std::unique_ptr<KvTiers> unmoving;
  std::unique_ptr<QueueOrder> order = std::move(MakeQueueOrder({})).value();
  NoPredictor predictor;
  std::unique_ptr<Scheduler> scheduler;
  std::deque<Request> requests;
  std::vector<Request*> alive;
  std::uint64_t digest = 0;
  std::int64_t preemptions = 0, discarded = 0, evictions = 0, steps = 0, paused = 0;
  std::int64_t late = 0;  // first tokens after the objective

  // With a regime, or, if null, with LRU or GDSF.
  Load(std::uint64_t seed, bool large, bool with_tree, const CacheRegime* regime = nullptr)
      : prng(seed), scale(RandomScale(prng, large)) {
    Build(seed, with_tree, regime);
  }
  Load(std::uint64_t seed, const Overload& overload)
      : prng(seed),
        scale(RandomScale(prng, overload)),
        order(std::move(MakeQueueOrder({.queue = overload.order, .age_bound = kAgeBound, .objective = scale.objective}))
                  .value()) {
    Build(seed, /*with_tree=*/seed % 2 == 0, nullptr);
  }

  void Build(std::uint64_t seed, bool with_tree, const CacheRegime* regime) {
    options = RandomOptions(prng, scale);
    if (scale.objective > 0) options.age_bound = kAgeBound;
    device = std::move(PagePool::Create("device", scale.device_pages * 64, 64)).value();
    const bool host_tier = prng.NextBelow(4) != 0;
    host =
        host_tier ? std::move(PagePool::Create("host", scale.host_pages * 64, 64)).value() : PagePool::WithoutPages(64);
    residency = std::make_unique<ResidencyManager>(*device, *host, transfer);
    const std::string_view baseline = prng.NextBelow(2) == 0 ? "lru" : "gdsf";
    policy = std::move(MakeEvictionPolicy(regime == nullptr ? baseline : regime->policy)).value();
    if (regime != nullptr) {
      options.cache = regime->name;
      CHECK(Complete(options, /*max_model_len=*/256).ok());
    }
    tree = with_tree ? std::make_unique<DependencyTree>(options.page_tokens, device.get())
                     : std::make_unique<DependencyTree>(options.page_tokens);
    unmoving = std::make_unique<KvTiers>(*tree);
    scheduler = std::make_unique<Scheduler>(options, SchedulerParts{.device = *device,
                                                                    .residency = *residency,
                                                                    .eviction = *policy,
                                                                    .tree = *tree,
                                                                    .tiers = *unmoving,
                                                                    .queue = *order,
                                                                    .predictor = predictor});
    if (prng.NextBelow(2) == 0) {
      transfer.set_fault([broken = Prng(seed + 1)](const TransferJob&) mutable {
        return broken.NextBelow(4) == 0 ? std::optional<Error>(IoError("injected")) : std::nullopt;
      });
    }
    for (std::uint32_t generation = 1; generation <= static_cast<std::uint32_t>(scale.adapters); ++generation) {
      auto version = std::make_shared<AdapterVersion>();
      version->generation = AdapterGeneration{generation};
      version->layout.pages = 1 + static_cast<std::int64_t>(prng.NextBelow(8));
      if (const std::int64_t share = AdapterPartPages(options, scale.device_pages, 1); share > 0) {
        version->layout.pages = std::min(version->layout.pages, share);  // the engine refuses larger ones
      }
      residency->Add(std::move(version));
    }
  }

  // The longest sequence and the largest adapter fit the smallest device together: 16 + 8 pages.
  void AddRequest() {
    Request& request = requests.emplace_back();
    request.id = RequestId{requests.size()};
    request.arrival = clock.Now();
    request.adapter =
        AdapterGeneration{static_cast<std::uint32_t>(prng.NextBelow(static_cast<std::uint64_t>(scale.adapters) + 1))};
    request.tenant_name = std::to_string(scale.tenants == 0 ? request.adapter.value : prng.NextBelow(scale.tenants));
    request.tokens.assign(1 + prng.NextBelow(static_cast<std::uint64_t>(scale.prompt)), 1);
    if (tree->keeps_history()) {  // prompts with common prefixes
      for (TokenId& token : request.tokens) token = static_cast<TokenId>(prng.NextBelow(16) == 0);
    }
    request.prompt_tokens = static_cast<std::int32_t>(request.tokens.size());
    const auto output = 1 + static_cast<std::int32_t>(prng.NextBelow(static_cast<std::uint64_t>(scale.output)));
    request.max_total_tokens = request.prompt_tokens + output;
    if (scale.objective > 0) {
      const TimeNs tenth = scale.objective / 10;
      if (prng.NextBelow(8) == 0) request.deadline = clock.Now() + static_cast<TimeNs>(5 + prng.NextBelow(10)) * tenth;
      if (prng.NextBelow(8) == 0) request.priority = static_cast<std::int32_t>(prng.NextBelow(3)) - 1;
    }
    if (request.adapter != kBaseModel) residency->Acquire(request.adapter);
    scheduler->Add(&request);
    alive.push_back(&request);
  }
  void End(Request* request) {
    std::erase(alive, request);
    scheduler->Remove(request, clock.Now());
    if (request->adapter != kBaseModel) residency->Release(request->adapter);
  }

  // A copied page is on the device, a child of the tail, and not evicted by the same plan. The last token remains to
  // be computed.
  void CheckCopy(const StepPlan& plan, const PlannedAdmission& admission) {
    ASSERT_TRUE(tree->keeps_history());
    EXPECT_TRUE(tree->tiers().OnDevice(admission.in_page.node));
    EXPECT_EQ(tree->nodes().Parent(admission.in_page.node), admission.tail);
    for (const Move& move : plan.moves) EXPECT_NE(move.item, ItemId(admission.in_page.node));
    EXPECT_LT(admission.in_page.tokens, options.page_tokens);
    EXPECT_LT(tree->nodes().Depth(admission.tail) * options.page_tokens + admission.in_page.tokens,
              admission.request->uncomputed());
  }

  void CheckPlan(const StepPlan& plan) {
    std::set<const Request*> seen;
    std::int64_t tokens = 0;
    for (const PlannedChunk& chunk : plan.chunks) {
      EXPECT_TRUE(seen.insert(chunk.request).second) << "two chunks of one request";
      EXPECT_EQ(chunk.admits, chunk.request->state == RequestState::kWaiting);
      EXPECT_GT(chunk.num_tokens, 0);
      const auto admission = std::find_if(plan.admissions.begin(), plan.admissions.end(),
                                          [&](const PlannedAdmission& a) { return a.request == chunk.request; });
      EXPECT_EQ(admission != plan.admissions.end(), chunk.admits);
      const std::int64_t cached = chunk.admits ? tree->nodes().Depth(admission->tail) : 0;  // pages
      const std::int64_t in_page = chunk.admits ? admission->in_page.tokens : 0;
      if (in_page > 0) CheckCopy(plan, *admission);
      const std::int64_t uncomputed = chunk.request->uncomputed() - cached * options.page_tokens - in_page;
      EXPECT_LE(chunk.num_tokens, std::min(options.Chunk(), uncomputed));
      EXPECT_EQ(chunk.samples, chunk.num_tokens == uncomputed);
      const auto pages = static_cast<std::int64_t>(chunk.request->pages.size()) + cached + chunk.new_pages;
      EXPECT_GE(pages * options.page_tokens,
                chunk.request->computed + cached * options.page_tokens + in_page + chunk.num_tokens);
      tokens += chunk.num_tokens;
    }
    EXPECT_EQ(tokens, plan.num_tokens);
    EXPECT_LE(tokens, options.max_batch_tokens);
    EXPECT_LE(static_cast<std::int64_t>(plan.chunks.size()), options.max_running);
    for (const Request* request : plan.preemptions)
      EXPECT_TRUE(seen.insert(request).second) << "preempted and computed";
    EXPECT_TRUE(std::is_sorted(
        plan.chunks.begin(), plan.chunks.end(),
        [](const PlannedChunk& a, const PlannedChunk& b) { return a.request->adapter < b.request->adapter; }));
  }

  // REQUIRES: the step of the request has been computed, and its token is not appended yet.
  void CountLate(const Request& request) {
    if (!request.generated().empty()) return;
    late += clock.Now() + kNsPerMs > (request.deadline > 0 ? request.deadline : request.arrival + scale.objective);
  }

  void Step() {
    std::vector<ResidencyManager::LoadFailure> failures;
    residency->Poll(clock.Now(), failures);
    const std::uint64_t once = Digest(scheduler->Plan(clock.Now()));
    const StepPlan& plan = scheduler->Plan(clock.Now());
    ASSERT_EQ(once, Digest(plan)) << "planning changed something";
    CheckPlan(plan);
    digest = Mix(digest, once);
    const auto before = static_cast<std::int64_t>(scheduler->running().size());
    scheduler->Commit(plan, clock.Now());
    preemptions += static_cast<std::int64_t>(plan.preemptions.size());
    discarded += plan.discarded_tokens;
    for (const Move& move : plan.moves) evictions += move.leaves(Tier::kDevice) && move.item.is_adapter();
    paused += before > static_cast<std::int64_t>(plan.chunks.size() + plan.preemptions.size());
    for (const PlannedChunk& chunk : plan.chunks) {
      scheduler->Advance(chunk.request, chunk.num_tokens, clock.Now());
      if (!chunk.samples) continue;
      CountLate(*chunk.request);
      chunk.request->tokens.push_back(2);
      if (static_cast<std::int32_t>(chunk.request->tokens.size()) == chunk.request->max_total_tokens)
        End(chunk.request);
    }
    if (!alive.empty() && prng.NextBelow(12) == 0) End(alive[prng.NextBelow(alive.size())]);  // a client disconnected
    if ((tree->keeps_history() || scale.objective > 0) && prng.NextBelow(2) == 0) scheduler->Prepare(clock.Now());
    if (++steps % 8 != 0) return;
    scheduler->CheckIntegrity();
    residency->CheckIntegrity();
    device->CheckIntegrity();
  }

  void Run() {
    for (int to_add = scale.requests; (to_add > 0 || !alive.empty()) && !testing::Test::HasFailure();) {
      const int burst = std::min(to_add, static_cast<int>(prng.NextBelow(static_cast<std::uint64_t>(scale.arrivals))));
      for (int i = 0; i < burst; ++i) AddRequest();
      to_add -= burst;
      Step();
      clock.Advance(kNsPerMs);
      ASSERT_LT(steps, 100000) << "no end in sight";
    }
  }
};

class Plan : public testing::TestWithParam<bool> {};

TEST_P(Plan, IsExactlyWhatItWas) {
  const bool with_tree = GetParam();
  std::uint64_t digest = 0;
  std::int64_t preemptions = 0, discarded = 0, evictions = 0, paused = 0, found = 0, history_evictions = 0,
               copied_pages = 0;
  for (std::uint64_t seed = 1; seed <= 320 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Load load(seed, /*large=*/seed > 300, with_tree);
    load.Run();
    digest = Mix(digest, load.digest);
    preemptions += load.preemptions;
    discarded += load.discarded;
    evictions += load.evictions;
    paused += load.paused;
    found += load.scheduler->stats().prefix.found_tokens;
    history_evictions += load.scheduler->stats().history_evictions;
    copied_pages += load.scheduler->stats().prefix.copied_pages;
  }
  EXPECT_EQ(digest, with_tree ? kGoldenWithTree : kGolden);
  // Ensures that the loads exercise the rare paths.
  EXPECT_GT(preemptions, 1000);
  EXPECT_GT(discarded, 10000);
  EXPECT_GT(evictions, 1000);
  EXPECT_GT(paused, 1000);
  if (!with_tree) return;
  EXPECT_GT(found, 10000);
  EXPECT_GT(copied_pages, 1000);
  EXPECT_GT(history_evictions, 10000);
}

INSTANTIATE_TEST_SUITE_P(Tree, Plan, testing::Bool());

class PlanOfObjective : public testing::TestWithParam<std::uint64_t> {};

// More requests arrive than can be served in time, so the order decides which are late. The plans differ from first
// come, first served, and fewer requests are late.
TEST_P(PlanOfObjective, IsExactlyWhatItWas) {
  const std::uint64_t tenants = GetParam();
  std::uint64_t digest = 0;
  std::int64_t given_up = 0, late = 0, late_of_fifo = 0, others = 0;
  for (std::uint64_t seed = 1; seed <= 40 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Load load(seed, {.order = "objective", .tenants = tenants}), fifo(seed, {.order = "fifo", .tenants = tenants});
    load.Run();
    fifo.Run();
    digest = Mix(digest, load.digest);
    given_up += load.scheduler->stats().given_up;
    late += load.late;
    late_of_fifo += fifo.late;
    others += load.digest != fifo.digest;
    ASSERT_EQ(fifo.scheduler->stats().given_up, 0);
  }
  EXPECT_EQ(digest, tenants == 1 ? kGoldenObjective : kGoldenObjectiveOfTenants);
  EXPECT_GT(others, 30);
  EXPECT_GT(given_up, 1000);
  EXPECT_LT(late, late_of_fifo);
}

INSTANTIATE_TEST_SUITE_P(Tenants, PlanOfObjective, testing::Values(1, 4));

class PlanOfRegime : public testing::TestWithParam<CacheRegime> {};

// CheckPlan and CheckIntegrity hold for every plan and state, and every request finishes.
TEST_P(PlanOfRegime, EveryRequestEnds) {
  const CacheRegime regime = GetParam();
  std::int64_t preemptions = 0, evictions = 0, found = 0;
  for (std::uint64_t seed = 1; seed <= 62 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Load load(seed, /*large=*/seed > 60, regime.keep_history, &regime);
    load.Run();
    preemptions += load.preemptions;
    evictions += load.evictions;
    found += load.scheduler->stats().prefix.found_tokens;
    ASSERT_TRUE(load.scheduler->running().empty() && load.scheduler->waiting().empty());
  }
  EXPECT_GT(preemptions, 20);
  EXPECT_GT(evictions, 200);
  EXPECT_EQ(found > 1000, regime.keep_history);
}

INSTANTIATE_TEST_SUITE_P(All, PlanOfRegime, testing::ValuesIn(CacheRegimes().begin(), CacheRegimes().end()),
                         [](const auto& info) {
                           std::string name(info.param.name);
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace loramux::plan_golden_test
