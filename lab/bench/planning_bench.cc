// The cost of planning a step: 256 running and 1,000 queued requests over 200 adapters, in the steady state (every
// running request decodes, finished ones are replaced). Variants: one tenant, one tenant per adapter, 1,000 tenants,
// and `mlq` with the tree of keys and values in full memory (10,000 queued over 2,000 adapters). Counts heap
// allocations inside Plan and Commit, and times the work of fairness after a step (Advance).
// A case with a host tier: the device and the host tier are full, half of the prompts continue an earlier one, so that
// steps load adapters, evict from both tiers and fetch history. A transfer allocates its job, so allocations are
// counted apart in Plan, in Commits that start no transfer, and in those that do.
// Further cases, without a target: memory is short, so that adapters are loaded and evicted and requests are preempted
// (a load allocates its transfer), with every cache regime; and the step leaves none of the scheduler's data in the
// caches of the core. Prepare, which runs beside the computation, is timed separately.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>
#include <string_view>
#include <vector>
#include <sys/resource.h>

#include "base/check.h"
#include "base/prng.h"
#include "lab/bench/count_allocations.h"
#include "schedule/predict/history_predictor.h"
#include "schedule/scheduler.h"

namespace loramux {
namespace {

constexpr int kRunning = 256, kSteps = 20000, kWarmUp = 2000;
constexpr std::int64_t kPageBytes = 64;

struct Case {
  const char* name;
  int tenants = 0;                    // 0: one tenant per adapter
  std::int64_t device_pages = 40000;  // ample
  bool cold_caches = false;
  const char* cache = nullptr;  // a regime, with its dependency tree; null: LRU without a tree
  int adapters = 200, queued = 1000;
  bool popular = false;         // adapters by Zipf's law; false: equally likely
  const char* order = "fifo";   // lanes are fitted every ten seconds, not every five minutes
  std::int64_t host_pages = 0;  // pages of the host tier; 0: none
  bool returning = false;       // half of the prompts continue an earlier one, with its adapter
};

// How often the system has given this thread's core to others; a time measured meanwhile is not this program's.
long Preemptions() {
  rusage usage;
  CHECK_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
  return usage.ru_nivcsw;
}

struct World {
  const Case options;
  VirtualClock clock;
  std::unique_ptr<PagePool> device =
      std::move(PagePool::Create("device", options.device_pages* kPageBytes, kPageBytes)).value();
  std::unique_ptr<PagePool> host =
      options.host_pages == 0 ? PagePool::WithoutPages(kPageBytes)
                              : std::move(PagePool::Create("host", options.host_pages* kPageBytes, kPageBytes)).value();
  // With a host tier a transfer takes more than a step, so that plans see adapters and history on their way.
  const TimeNs latency = options.host_pages == 0 ? 1000 : 25 * kNsPerMs;
  ModeledTransfer transfer{&clock, {.latency_ns = latency}, {.latency_ns = latency}};
  ResidencyManager residency{*device, *host, transfer};
  std::unique_ptr<EvictionPolicy> policy;
  std::unique_ptr<DependencyTree> tree;
  std::unique_ptr<KvTiers> tiers;
  std::unique_ptr<QueueOrder> order;
  HistoryPredictor predictor;
  std::unique_ptr<Scheduler> scheduler;
  std::deque<Request> requests;
  // A prompt with its answer that a later one may continue.
  struct Conversation {
    AdapterGeneration adapter;
    std::vector<TokenId> tokens;
  };
  std::vector<Conversation> ended;  // a ring of kRemembered
  std::size_t next_ended = 0;
  std::vector<ResidencyManager::LoadFailure> failures;
  Prng prng{1};

  explicit World(const Case& c) : options(c) {
    const CacheRegime regime = *FindCacheRegime(c.cache == nullptr ? "lru" : c.cache);
    policy = std::move(MakeEvictionPolicy(regime.policy)).value();
    SystemSpec scheduling{.cache = std::string(regime.name),
                          .queue = c.order,
                          .max_running = kRunning,
                          .max_batch_tokens = 512,
                          .prefill_chunk = 256,
                          .lane_refresh = 10 * kNsPerSecond};
    CHECK(Complete(scheduling, 512).ok());
    scheduling.total_tokens = static_cast<double>(c.device_pages * scheduling.page_tokens);
    const bool keeps_history = c.cache != nullptr && regime.keep_history, host_tier = c.host_pages > 0;
    tree = keeps_history ? std::make_unique<DependencyTree>(scheduling.page_tokens, device.get(),
                                                            host_tier ? host.get() : nullptr)
                         : std::make_unique<DependencyTree>(scheduling.page_tokens);
    tiers = keeps_history && host_tier ? std::make_unique<KvTiers>(*tree, *device, *host, transfer)
                                       : std::make_unique<KvTiers>(*tree);
    order = std::move(MakeQueueOrder(scheduling)).value();
    scheduler = std::make_unique<Scheduler>(scheduling, SchedulerParts{.device = *device,
                                                                       .residency = residency,
                                                                       .eviction = *policy,
                                                                       .tree = *tree,
                                                                       .tiers = *tiers,
                                                                       .queue = *order,
                                                                       .predictor = predictor});
  }

  // 0: the base model.
  std::uint32_t DrawAdapter() {
    const auto most = static_cast<double>(options.adapters + 1);
    if (options.popular) return static_cast<std::uint32_t>(std::pow(most, prng.NextDouble())) - 1;
    return static_cast<std::uint32_t>(prng.NextBelow(static_cast<std::uint64_t>(options.adapters) + 1));
  }

  // Makes the request the next turn of an earlier conversation, which began up to four turns ago.
  void Continue(Request& request) {
    const Conversation& earlier = ended[prng.NextBelow(ended.size())];
    if (earlier.tokens.size() > 1200) return;
    request.adapter = earlier.adapter;
    if (options.tenants == 0) request.tenant_name = std::to_string(request.adapter.value);
    request.prompt_tokens = static_cast<std::int32_t>(earlier.tokens.size()) + 50;
    request.max_total_tokens = request.prompt_tokens + 100;
    request.tokens = earlier.tokens;
    request.tokens.resize(static_cast<std::size_t>(request.prompt_tokens), 2);
    request.tokens.reserve(static_cast<std::size_t>(request.max_total_tokens));
  }
  void Remember(const Request& request) {
    constexpr std::size_t kRemembered = 1024;
    if (!options.returning) return;
    if (ended.size() < kRemembered) ended.emplace_back();
    ended[next_ended++ % kRemembered] = {request.adapter, request.tokens};
  }

  void Poll() {
    residency.Poll(clock.Now(), failures, [&](const TransferCompletion& done) { tiers->End(done, clock.Now()); });
    tiers->Look();
  }
  // As an executor waits for the layers of requests that began while they arrived.
  void WaitForArrivals(const StepPlan& plan) {
    const auto arrives = [this](const PlannedChunk& chunk) {
      const Request& request = *chunk.request;
      return (request.adapter != kBaseModel && residency.Get(request.adapter).arriving()) ||
             !tree->tiers().OnDevice(request.tail);
    };
    while (std::any_of(plan.chunks.begin(), plan.chunks.end(), arrives)) {
      clock.Advance(kNsPerMs);
      Poll();
    }
  }

  void AddRequest() {
    Request& request = requests.emplace_back();
    request.id = RequestId{requests.size()};
    request.adapter = AdapterGeneration{DrawAdapter()};
    request.arrival = clock.Now();
    const auto tenants = static_cast<std::uint64_t>(options.tenants);
    request.tenant_name = std::to_string(tenants == 0 ? request.adapter.value : prng.NextBelow(tenants));
    request.prompt_tokens = 100 + static_cast<std::int32_t>(prng.NextBelow(400));
    request.max_total_tokens = request.prompt_tokens + 100 + static_cast<std::int32_t>(prng.NextBelow(400));
    request.tokens.reserve(static_cast<std::size_t>(request.max_total_tokens));
    request.tokens.assign(static_cast<std::size_t>(request.prompt_tokens), 1);
    if (tree->keeps_history()) request.tokens[0] = static_cast<TokenId>(requests.size());  // no two prompts begin alike
    if (options.returning && !ended.empty() && prng.NextBelow(2) == 0) Continue(request);
    request.pages.reserve(100);
    request.page_table.reserve(100);
    if (request.adapter != kBaseModel) residency.Acquire(request.adapter);
    scheduler->Add(&request);
  }
};

// More than the caches of a core hold.
void EvictCaches() {
  static std::vector<char> bytes(std::size_t{8} << 20);
  for (std::size_t i = 0; i < bytes.size(); i += 64) ++bytes[i];
}

std::string only;  // only cases with this in their name; empty: all

void Run(const Case& c) {
  if (std::string_view(c.name).find(only) == std::string_view::npos) return;
  World w(c);
  for (std::uint32_t g = 1; g <= static_cast<std::uint32_t>(c.adapters); ++g) {
    auto version = std::make_shared<AdapterVersion>();
    version->generation = AdapterGeneration{g};
    version->layout.pages = 20 + static_cast<std::int64_t>(g % 60);
    w.residency.Add(std::move(version));
  }
  for (int i = 0; i < kRunning + c.queued; ++i) w.AddRequest();
  std::vector<double> microseconds, planning, moving, advancing, preparing;
  std::vector<Request*> finished;
  long in_plan = 0, in_commit = 0, in_transfers = 0, transfers = 0, interrupted = 0;
  for (int step = 0; step < kSteps; ++step) {
    w.clock.Advance(20 * kNsPerMs);
    w.Poll();
    const bool measured = step >= kWarmUp;
    if (c.cold_caches) EvictCaches();
    allocations = 0;
    counting_allocations = measured;
    const long preemptions = Preemptions();
    const auto begin = std::chrono::steady_clock::now();
    const StepPlan& plan = w.scheduler->Plan(w.clock.Now());
    const long planned = allocations;
    const auto made = std::chrono::steady_clock::now();
    w.scheduler->Commit(plan, w.clock.Now());
    const auto end = std::chrono::steady_clock::now();
    counting_allocations = false;
    if (measured) {
      const bool undisturbed = Preemptions() == preemptions;
      const auto comes = [](const Move& move) { return move.comes_to_device(); };
      const auto coming = std::count_if(plan.moves.begin(), plan.moves.end(), comes);
      const bool moves = coming > 0;
      if (undisturbed) {
        microseconds.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
        planning.push_back(std::chrono::duration<double, std::micro>(made - begin).count());
        if (moves) moving.push_back(microseconds.back());
      }
      interrupted += !undisturbed;
      in_plan += planned;
      (moves ? in_transfers : in_commit) += allocations - planned;
      transfers += static_cast<long>(coming);
    }
    w.WaitForArrivals(plan);
    finished.clear();
    const auto advance_begin = std::chrono::steady_clock::now();
    for (const PlannedChunk& chunk : plan.chunks) w.scheduler->Advance(chunk.request, chunk.num_tokens, w.clock.Now());
    const auto advance_end = std::chrono::steady_clock::now();
    if (measured) advancing.push_back(std::chrono::duration<double, std::micro>(advance_end - advance_begin).count());
    for (const PlannedChunk& chunk : plan.chunks) {
      if (!chunk.samples) continue;
      chunk.request->tokens.push_back(1);
      if (static_cast<std::int32_t>(chunk.request->tokens.size()) == chunk.request->max_total_tokens) {
        finished.push_back(chunk.request);
      }
    }
    const auto prepare_begin = std::chrono::steady_clock::now();
    w.scheduler->Prepare(w.clock.Now());
    const auto prepare_end = std::chrono::steady_clock::now();
    if (measured) preparing.push_back(std::chrono::duration<double, std::micro>(prepare_end - prepare_begin).count());
    for (Request* request : finished) {
      w.Remember(*request);
      w.scheduler->Remove(request, w.clock.Now());
      if (request->adapter != kBaseModel) w.residency.Release(request->adapter);
      w.AddRequest();
    }
  }
  std::sort(microseconds.begin(), microseconds.end());
  std::sort(planning.begin(), planning.end());
  std::sort(moving.begin(), moving.end());
  std::sort(advancing.begin(), advancing.end());
  std::sort(preparing.begin(), preparing.end());
  const auto quantile = [](const std::vector<double>& sorted, double q) {
    return sorted.empty() ? 0.0 : sorted[static_cast<std::size_t>(q * static_cast<double>(sorted.size() - 1))];
  };
  std::printf("planning a step at %zu running, %zu queued, %d adapters, %s, %zu steps:\n",
              w.scheduler->running().size(), w.scheduler->waiting().size(), c.adapters, c.name, microseconds.size());
  std::printf("  p50 %.1f us (target 20), p90 %.1f us, p99 %.1f us (target 50), max %.1f us\n",
              quantile(microseconds, 0.5), quantile(microseconds, 0.9), quantile(microseconds, 0.99),
              microseconds.back());
  std::printf("    Plan alone: p50 %.1f us, p99 %.1f us; %zu steps that start transfers: p50 %.1f us, p99 %.1f us\n",
              quantile(planning, 0.5), quantile(planning, 0.99), moving.size(), quantile(moving, 0.5),
              quantile(moving, 0.99));
  std::printf("  after the step (Advance of all requests): p50 %.1f us\n", advancing[advancing.size() / 2]);
  if (w.tree->keeps_history()) {
    std::printf("  beside the computation (Prepare): p50 %.1f us, p99 %.1f us, max %.1f us\n",
                preparing[preparing.size() / 2], preparing[preparing.size() * 99 / 100], preparing.back());
    std::printf("  history %ld pages, found %ld of %ld prompt tokens\n",
                static_cast<long>(w.tree->tiers().idle_pages()),
                static_cast<long>(w.scheduler->stats().prefix.found_tokens),
                static_cast<long>(w.scheduler->stats().prefix.looked_up_tokens));
  }
  std::printf(
      "  heap allocations in %zu steps: Plan %ld, Commit %ld; %ld more in the Commits that start %ld transfers\n",
      microseconds.size(), in_plan, in_commit, in_transfers, transfers);
  if (interrupted > 0) std::printf("  excludes %ld steps that other work on the core interrupted\n", interrupted);
  const AdapterStats adapters = w.residency.Stats();
  std::printf("  preemptions %ld, adapter loads %ld, evictions %ld\n",
              static_cast<long>(w.scheduler->stats().preemptions), static_cast<long>(adapters.device_loads),
              static_cast<long>(adapters.device_evictions));
  if (c.host_pages == 0) return;
  std::printf("  host tier: %ld of %ld pages free, %ld adapters (evictions %ld), history fetched %ld pages\n",
              static_cast<long>(w.host->free_pages()), static_cast<long>(w.host->capacity_pages()),
              static_cast<long>(adapters.host_resident), static_cast<long>(adapters.host_evictions),
              static_cast<long>(w.tiers->stats().pages_fetched + w.tiers->stats().pages_fetched_ahead));
  w.scheduler->CheckIntegrity();
}

}  // namespace

void RunFifo() {
  Run({.name = "1 tenant", .tenants = 1});
  Run({.name = "a tenant each adapter"});
  Run({.name = "1000 tenants", .tenants = 1000});
  Run({.name = "a tenant each adapter, memory short", .device_pages = 16000});
  Run({.name = "1000 tenants, memory short", .tenants = 1000, .device_pages = 16000});
  Run({.name = "a tenant each adapter, ample memory full of history", .cache = "lru"});
  Run({.name = "a tenant each adapter, cold caches", .cold_caches = true});
  for (const char* const regime : {"loramux", "fastlibra"}) {
    const std::string name = "a tenant each adapter, host tier full and fetched from, --cache " + std::string(regime);
    Run({.name = name.c_str(),
         .device_pages = 28000,
         .cache = regime,
         .popular = true,
         .host_pages = 12000,
         .returning = true});
  }
  for (const CacheRegime& regime : CacheRegimes()) {
    const std::string name = "a tenant each adapter, memory short, --cache " + std::string(regime.name);
    Run({.name = name.c_str(), .device_pages = 16000, .cache = regime.name.data()});
  }
}

}  // namespace loramux

int main(int argc, char** argv) {
  const bool only_last = argc > 1 && std::string(argv[1]) == "--mlq";  // only the last cases
  if (argc > 2 && std::string(argv[1]) == "--only") loramux::only = argv[2];
  if (!only_last) loramux::RunFifo();
  for (const int queued : {1000, 10000}) {
    loramux::Run({.name = "a tenant each adapter, memory full, --cache loramux --schedule mlq",
                  .cache = "loramux",
                  .adapters = 2000,
                  .queued = queued,
                  .popular = true,
                  .order = "mlq"});
    loramux::Run({.name = "1 tenant, memory full, --cache loramux --schedule objective",
                  .tenants = 1,
                  .cache = "loramux",
                  .adapters = 2000,
                  .queued = queued,
                  .popular = true,
                  .order = "objective"});
    loramux::Run({.name = "1 tenant, memory full, --cache loramux --schedule mlq",
                  .tenants = 1,
                  .cache = "loramux",
                  .adapters = 2000,
                  .queued = queued,
                  .popular = true,
                  .order = "mlq"});
  }
  return 0;
}
