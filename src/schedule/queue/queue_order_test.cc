#include "schedule/queue/queue_order.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "schedule/scheduler.h"

namespace loramux::queue_order_test {
namespace {

// Predicts the hint of the request, and records what it observes.
class Hints final : public LengthPredictor {
 public:
  std::string_view name() const override { return "hints"; }
  std::int32_t Predict(const LengthQuery& query) override { return std::clamp(query.hint, 1, query.max_output_tokens); }
  void Observe(const LengthQuery& query, std::int32_t output_tokens) override {
    observed.emplace_back(query.hint, output_tokens);
  }
  std::vector<std::pair<std::int32_t, std::int32_t>> observed;
};

// Pages hold 4 tokens. Keeps no history unless told to. All requests belong to one tenant unless they name another. The
// objective is a quarter of age_bound.
struct World {
  VirtualClock clock;
  std::unique_ptr<PagePool> device, host;
  ModeledTransfer transfer{&clock, {.latency_ns = 1000}, {.latency_ns = 2000}, {.latency_ns = 500}};
  ResidencyManager residency;
  std::unique_ptr<EvictionPolicy> policy = std::move(MakeEvictionPolicy("lru")).value();
  Hints hints;
  std::unique_ptr<QueueOrder> order;
  DependencyTree tree;  // with `history`, keys and values are kept, and move between the tiers
  KvTiers tiers;
  Scheduler scheduler;
  std::deque<Request> requests;
  std::vector<Request*> begun;  // in the order of their first admission

  World(const std::string& name, std::int64_t device_pages, SystemSpec spec = {}, double quota_tokens = 0,
        bool history = false)
      : World(device_pages, Described(name, device_pages, std::move(spec), quota_tokens), history) {}
  World(std::int64_t device_pages, const SystemSpec& spec, bool history, std::unique_ptr<QueueOrder> made = nullptr)
      : device(std::move(PagePool::Create("device", device_pages * 64, 64)).value()),
        host(std::move(PagePool::Create("host", 256 * 64, 64)).value()),
        residency(*device, *host, transfer),
        order(made != nullptr ? std::move(made) : std::move(MakeQueueOrder(spec)).value()),
        tree(history ? DependencyTree(4, device.get(), host.get()) : DependencyTree(4)),
        tiers(history ? KvTiers(tree, *device, *host, transfer) : KvTiers(tree)),
        scheduler(spec, {.device = *device,
                         .residency = residency,
                         .eviction = *policy,
                         .tree = tree,
                         .tiers = tiers,
                         .queue = *order,
                         .predictor = hints}) {}

  static SystemSpec Described(const std::string& name, std::int64_t device_pages, SystemSpec spec,
                              double quota_tokens) {
    spec.queue = name;
    spec.page_tokens = 4;
    spec.objective = spec.age_bound / 4;
    spec.total_tokens = quota_tokens > 0 ? quota_tokens : static_cast<double>(device_pages * 4);
    return spec;
  }
  void AddAdapter(std::uint32_t generation, std::int64_t pages) {
    auto version = std::make_shared<AdapterVersion>();
    version->generation = AdapterGeneration{generation};
    version->layout.pages = pages;
    residency.Add(std::move(version));
  }
  struct Ask {
    std::int64_t prompt = 4;
    std::int32_t output = 4;
    std::int32_t guess = 0;  // predicted output; 0: the right one
    std::uint32_t adapter = 0;
    std::int32_t priority = 0;
    TimeNs deadline = 0;
    std::string tenant = "all";
    TokenId first = 1;  // first token of the prompt; the others are 1
  };
  Request* Add(const Ask& ask) {
    Request& request = requests.emplace_back();
    request.arrival = clock.Now();
    request.id = RequestId{requests.size()};
    request.adapter = AdapterGeneration{ask.adapter};
    request.tokens.assign(static_cast<std::size_t>(ask.prompt), 1);
    request.tokens.front() = ask.first;
    request.prompt_tokens = static_cast<std::int32_t>(ask.prompt);
    request.max_total_tokens = request.prompt_tokens + ask.output;
    request.length_hint = ask.guess > 0 ? ask.guess : ask.output;
    request.priority = ask.priority;
    request.deadline = ask.deadline;
    request.tenant_name = ask.tenant;
    if (request.adapter != kBaseModel) residency.Acquire(request.adapter);
    scheduler.Add(&request);
    return &request;
  }
  StepPlan Step() {
    std::vector<ResidencyManager::LoadFailure> failures;
    residency.Poll(clock.Now(), failures, [&](const TransferCompletion& done) { tiers.End(done, clock.Now()); });
    tiers.Look();
    const StepPlan plan = scheduler.Plan(clock.Now());
    for (const PlannedAdmission& admission : plan.admissions) {
      if (admission.request->first_scheduled < 0) begun.push_back(admission.request);
    }
    scheduler.Commit(plan, clock.Now());
    for (const PlannedChunk& chunk : plan.chunks) {
      scheduler.Advance(chunk.request, chunk.num_tokens, clock.Now());
      if (!chunk.samples) continue;
      chunk.request->tokens.push_back(2);
      if (static_cast<std::int32_t>(chunk.request->tokens.size()) < chunk.request->max_total_tokens) continue;
      scheduler.Remove(chunk.request, clock.Now());
      if (chunk.request->adapter != kBaseModel) residency.Release(chunk.request->adapter);
    }
    scheduler.Prepare(clock.Now());
    scheduler.CheckIntegrity();
    residency.CheckIntegrity();
    device->CheckIntegrity();
    clock.Advance(1000);
    return plan;
  }
  void RunToEnd(int max_steps = 20000) {
    while (!(scheduler.running().empty() && scheduler.waiting().empty())) {
      ASSERT_GT(max_steps--, 0) << "no end in sight";
      Step();
    }
  }
  std::vector<std::uint64_t> Begun() const {
    std::vector<std::uint64_t> ids;
    for (const Request* request : begun) ids.push_back(request->id.value);
    return ids;
  }
};

using Ids = std::vector<std::uint64_t>;

TEST(QueueOrder, UnknownNamesListTheKnownOnes) {
  const auto made = MakeQueueOrder({.queue = "lifo"});
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.error().message.find("fifo, sjf, residency, objective, mlq, mlq-static"), std::string::npos)
      << made.error().message;
}

TEST(QueueOrder, ShortestPredictionFirst) {
  World w("sjf", 100, {.max_running = 1});
  for (const std::int32_t output : {20, 10, 30, 5}) w.Add({.output = output});
  w.RunToEnd();
  EXPECT_EQ(w.Begun(), (Ids{4, 2, 1, 3}));
  EXPECT_EQ(w.hints.observed.size(), 4u);
  EXPECT_EQ(w.hints.observed[0], (std::pair<std::int32_t, std::int32_t>(5, 5)));
}

// Short requests that arrive much later do not overtake the long one.
TEST(QueueOrder, AgeBoundsHowManyShortOnesGoFirst) {
  World w("sjf", 100, {.max_running = 1, .age_bound = 20 * 1000});
  w.Add({.output = 5});
  Request* longest = w.Add({.output = 50});
  for (int i = 0; i < 200; ++i) {
    if (i % 6 == 0) w.Add({.output = 5});
    w.Step();
  }
  ASSERT_GE(longest->first_scheduled, 0) << "starved";
  EXPECT_GT(longest->first_scheduled, 10 * 1000);  // some short ones went first
  EXPECT_LT(longest->first_scheduled, 20 * 1000 + 8 * 1000);
}

TEST(QueueOrder, PrioritiesAndDeadlinesComeEarlier) {
  for (const std::string name : {"fifo", "mlq"}) {
    SCOPED_TRACE(name);
    World w(name, 100, {.max_running = 1, .age_bound = kNsPerSecond});
    w.Add({});
    w.Add({.priority = 5});
    w.Add({});
    w.Add({.priority = -3});
    w.Add({.deadline = kNsPerSecond / 2});
    w.RunToEnd();
    EXPECT_EQ(w.Begun(), (Ids{5, 4, 1, 3, 2}));
  }
}

// Only requests that arrive soon enough pass the request of the lowest priority.
TEST(QueueOrder, ALowPriorityIsNotForEver) {
  World w("fifo", 100, {.max_running = 1, .age_bound = 50 * 1000});
  w.Add({});
  Request* last = w.Add({.priority = 10});
  for (int i = 0; i < 400; ++i) {
    if (i % 4 == 0) w.Add({.output = 4, .priority = -10});
    w.Step();
  }
  ASSERT_GE(last->first_scheduled, 0) << "starved";
  EXPECT_LT(last->first_scheduled, 60 * 1000);
}

// A step with room for several requests admits all overdue ones before any other, not only one of them.
TEST(QueueOrder, AllThatWaitedTooLongGoFirst) {
  World w("fifo", 100, {.max_running = 2, .age_bound = 20 * 1000});
  for (int i = 0; i < 2; ++i) w.Add({.output = 30});  // they hold all seats for 30 steps
  w.Step();
  Request* const low[] = {w.Add({.priority = 10}), w.Add({.priority = 10})};
  for (int i = 0; i < 10; ++i) w.Add({.priority = -10});
  for (int i = 0; i < 30; ++i) w.Step();
  EXPECT_EQ(w.Begun(), (Ids{1, 2, low[0]->id.value, low[1]->id.value}));
}

// With one seat, the request with a resident adapter goes first, although it arrived last.
TEST(QueueOrder, ResidentsFirst) {
  World w("residency", 100, {.max_running = 1});
  for (std::uint32_t adapter = 1; adapter <= 3; ++adapter) w.AddAdapter(adapter, 4);
  w.Add({.adapter = 3});
  w.RunToEnd();
  w.Add({.adapter = 1});
  w.Add({.adapter = 2});
  w.Add({.adapter = 3});
  w.Add({});
  w.RunToEnd();
  ASSERT_EQ(w.begun.size(), 5u);
  EXPECT_EQ(w.Begun()[1], 4u);
}

// A stream of another tenant's requests with a resident adapter does not starve a request that needs a load.
TEST(QueueOrder, ResidentsStarveNobody) {
  World w("residency", 400,
          {.max_running = 4, .lookahead = 16, .fairness = {.max_wait = 50 * 1000}, .age_bound = 50 * 1000});
  w.AddAdapter(1, 4);
  w.AddAdapter(2, 4);
  w.Add({.adapter = 1, .tenant = "hot"});
  w.RunToEnd();
  for (int i = 0; i < 100; ++i) w.Add({.adapter = 1, .tenant = "hot"});
  Request* cold = w.Add({.adapter = 2, .tenant = "cold"});
  for (int i = 0; i < 300 && cold->first_scheduled < 0; ++i) {
    w.Step();
    while (w.scheduler.waiting().size() < 101) w.Add({.adapter = 1, .tenant = "hot"});
  }
  ASSERT_GE(cold->first_scheduled, 0) << "starved";
  EXPECT_LT(cold->first_scheduled - cold->arrival, 80 * 1000);
}

// A large prompt arrives before many small ones. Either it misses the objective, or many of those do. It is served at
// the end, when no other request is left.
TEST(QueueOrder, AsFewAsPossibleMissTheObjective) {
  std::map<std::string, int> late;
  for (const std::string name : {"fifo", "objective"}) {
    World w(name, 400, {.max_running = 1, .max_batch_tokens = 8, .age_bound = 400 * 1000});  // objective: 100 steps
    const World::Ask small{.prompt = 8, .output = 1};                                        // one step each
    for (int i = 0; i < 150; ++i) {
      while (w.scheduler.waiting().size() < 3) w.Add(small);
      w.Step();
    }
    w.RunToEnd();
    const std::size_t before = w.requests.size();
    Request* const large = w.Add({.prompt = 400, .output = 1});
    for (int i = 0; i < 90; ++i) w.Add(small);
    w.scheduler.Prepare(w.clock.Now());
    w.RunToEnd();
    for (std::size_t i = before; i < w.requests.size(); ++i) {
      late[name] += w.requests[i].first_scheduled - w.requests[i].arrival + 1000 > 100 * 1000;
    }
    EXPECT_EQ(w.begun.back() == large, name == "objective");
  }
  EXPECT_GT(late["fifo"], 30);
  EXPECT_LE(late["objective"], 1);
}

// Each lane has its quota, so small requests do not wait behind large ones.
TEST(QueueOrder, LanesKeepAWayOpenForSmallRequests) {
  std::map<std::string, TimeNs> waited;
  for (const std::string name : {"fifo", "mlq", "mlq-static"}) {
    World w(name, 200, {.max_running = 64, .max_batch_tokens = 64});
    for (int i = 0; i < 100; ++i) {  // the lanes are fitted to these
      w.Add({.prompt = i % 2 == 0 ? 4 : 40, .output = i % 2 == 0 ? 4 : 100});
      w.RunToEnd();
    }
    ASSERT_EQ(w.order->lanes(), name == "fifo" ? 1 : name == "mlq" ? 2 : 4) << name;
    for (int i = 0; i < 40; ++i) w.Add({.prompt = 40, .output = 100});
    w.Step();
    Request* small = w.Add({});
    w.RunToEnd();
    waited[name] = small->first_scheduled - small->arrival;
  }
  EXPECT_LE(waited["mlq"], 10 * 1000);
  EXPECT_LE(waited["mlq-static"], 10 * 1000);
  EXPECT_GT(waited["fifo"], 100 * 1000);
}

// Queues for requests of 10, 20 and 50 tokens, with fixed quotas.
class ThreeQueues final : public QueueOrder {
 public:
  std::string_view name() const override { return "three"; }
  std::int32_t lanes() const override { return 3; }
  std::int32_t LaneOf(const Request& request) const override {
    return request.prompt_tokens < 10 ? 0 : request.prompt_tokens < 25 ? 1 : 2;
  }
  bool has_quotas() const override { return true; }
  double Quota(std::int32_t lane) const override {
    return std::array{30.0, 40.0, 100.0}[static_cast<std::size_t>(lane)];
  }
};

// Chameleon's figure 10. (a) The small queue admits three requests, and the fourth waits for quota; so it goes with the
// others, and nothing is left over. (b) The medium queue has a single request. Its spare tokens admit the small
// queue's pending request; what is then left is not enough for the large queue's.
TEST(QueueOrder, TheTwoPhasesOfAlgorithm1AreThoseOfFigure10) {
  for (const int mediums : {3, 1}) {
    SCOPED_TRACE(mediums);
    World w(400,
            World::Described("mlq", 400, {.max_running = 64, .max_batch_tokens = 512, .overdue_first = false}, 170),
            false, std::make_unique<ThreeQueues>());
    std::vector<Request*> small, medium, large;
    for (int i = 0; i < 4; ++i) small.push_back(w.Add({.prompt = 4, .output = 6}));
    for (int i = 0; i < mediums; ++i) medium.push_back(w.Add({.prompt = 10, .output = 10}));
    for (int i = 0; i < 3; ++i) large.push_back(w.Add({.prompt = 25, .output = 25}));
    w.Step();
    const auto running = [](const std::vector<Request*>& queue) {
      return std::count_if(queue.begin(), queue.end(),
                           [](const Request* request) { return request->state == RequestState::kRunning; });
    };
    EXPECT_EQ(running(small), mediums == 1 ? 4 : 3);
    EXPECT_EQ(running(medium), mediums == 1 ? 1 : 2);
    EXPECT_EQ(running(large), 2);
    w.RunToEnd();
  }
}

// By the letter a request waits for the quota of its queue however long it has waited.
TEST(QueueOrder, NoneGoesOutsideTheQuotasUnlessOverdueOnesGoFirst) {
  for (const bool overdue_first : {false, true}) {
    SCOPED_TRACE(overdue_first);
    World w("mlq", 64,
            {.max_running = 8, .max_batch_tokens = 64, .age_bound = 5 * 1000, .overdue_first = overdue_first},
            /*quota_tokens=*/100);
    Request* const holder = w.Add({.prompt = 20, .output = 60});
    w.Step();
    Request* const waits = w.Add({.prompt = 20, .output = 20});
    for (int i = 0; i < 20; ++i) w.Step();
    EXPECT_EQ(holder->state, RequestState::kRunning);
    EXPECT_EQ(waits->state == RequestState::kRunning, overdue_first);
    w.RunToEnd();
  }
}

// A second turn of a dialogue: the cache has all of its prompt but the last page. Each request waits in the lane of the
// work that it brings, and takes from the quota what it adds.
TEST(QueueOrder, LanesCountTheWorkThatTheCacheDoesNotSave) {
  for (const CountCached count : {CountCached::kEverywhere, CountCached::kQuota, CountCached::kNowhere}) {
    SCOPED_TRACE(static_cast<int>(count));
    World w("mlq", 400, {.max_running = 8, .max_batch_tokens = 64, .count_cached = count}, 0, /*history=*/true);
    for (int i = 0; i < 100; ++i) {  // the lanes are fitted to these: short ones and long ones
      w.Add({.prompt = i % 2 == 0 ? 4 : 40, .output = 4, .first = 10 + i});
      w.RunToEnd();
    }
    ASSERT_EQ(w.order->lanes(), 2);
    Request* const turn = w.Add({.prompt = 40, .output = 4, .first = 109});  // as the last of the long ones
    EXPECT_EQ(turn->found_on_arrival, 36);
    EXPECT_EQ(turn->lane, count == CountCached::kEverywhere ? 1 : 0);
    EXPECT_EQ(turn->quota_tokens, count == CountCached::kNowhere ? 8 : 44);
    w.Step();
    EXPECT_EQ(turn->state, RequestState::kRunning);
    w.RunToEnd();
  }
}

// Memory has no room for the adapter of the first request. A short request overtakes it, a long one does not. The
// prediction for the short one is wrong, so it is squashed and computed again later. Its output stays valid.
TEST(QueueOrder, BypassAndSquash) {
  World w("mlq", 24, {.max_running = 8, .max_batch_tokens = 64, .discard_share = 0}, /*quota_tokens=*/1000);
  w.AddAdapter(1, 4);
  w.AddAdapter(2, 15);
  Request* holder = w.Add({.prompt = 20, .output = 30, .adapter = 1});  // 4 pages for the adapter, and 13 in the end
  for (int i = 0; i < 8; ++i) w.Step();
  ASSERT_EQ(holder->state, RequestState::kRunning);
  Request* large = w.Add({.prompt = 8, .output = 4, .adapter = 2});  // its adapter needs 15 pages: no room
  Request* longer = w.Add({.prompt = 4, .output = 60, .adapter = 1});
  Request* shorter = w.Add({.prompt = 4, .output = 40, .guess = 3, .adapter = 1});
  RequestId overtaken;  // by the short one
  for (int i = 0; i < 4; ++i) {
    for (const PlannedAdmission& admission : w.Step().admissions) {
      if (admission.request == shorter) overtaken = admission.overtakes;
    }
  }
  EXPECT_EQ(large->state, RequestState::kWaiting);
  EXPECT_EQ(longer->state, RequestState::kWaiting);
  ASSERT_EQ(shorter->state, RequestState::kRunning);
  EXPECT_EQ(overtaken, large->id);
  w.RunToEnd();
  EXPECT_EQ(w.scheduler.stats().squashes, 1);  // once; it never overtakes again
  EXPECT_EQ(shorter->preemptions, 1);
}

// "Chameleon first predicts how soon will the memory needed by R1 become available": its keys and values need memory
// too, not its adapter alone. One holder ends soon and would leave room for the adapter; the other ends late.
TEST(QueueOrder, MemoryOfTheOvertakenIsAdapterAndKeysAndValues) {
  for (const std::int64_t prompt : {4, 40}) {  // 2 pages, and 11
    SCOPED_TRACE(prompt);
    World w("mlq", 40, {.max_running = 8, .max_batch_tokens = 128, .discard_share = 0}, /*quota_tokens=*/1000);
    w.AddAdapter(1, 2);
    w.AddAdapter(2, 17);
    w.Add({.prompt = 32, .output = 8, .adapter = 1});  // 9 pages
    Request* const late = w.Add({.prompt = 40, .output = 40, .adapter = 1});
    for (int i = 0; i < 20 && late->state != RequestState::kRunning; ++i) w.Step();
    ASSERT_EQ(w.scheduler.running().size(), 2u);
    Request* const large = w.Add({.prompt = prompt, .output = 4, .adapter = 2});
    Request* const younger = w.Add({.prompt = 4, .output = 20, .adapter = 1});  // longer than the first holder
    const StepPlan plan = w.Step();
    EXPECT_EQ(large->state, RequestState::kWaiting);
    EXPECT_EQ(younger->state == RequestState::kRunning, prompt == 40);
    if (prompt == 40) {
      ASSERT_EQ(plan.admissions.size(), 1u);
      EXPECT_EQ(plan.admissions[0].overtakes, large->id);
    }
    w.RunToEnd();
  }
}

// Chameleon 4.2 "prefetches the missing adapters required by the waiting requests before they are admitted": also of a
// request that waits for the quota of its lane.
TEST(QueueOrder, AdaptersOfRequestsThatWaitForQuotaAreLoaded) {
  for (const std::int64_t lookahead : {0, 64}) {
    SCOPED_TRACE(lookahead);
    World w("mlq", 64, {.max_running = 8, .max_batch_tokens = 64, .prefetch_lookahead = lookahead},
            /*quota_tokens=*/100);
    w.AddAdapter(1, 2);
    w.AddAdapter(2, 2);
    Request* const holder = w.Add({.prompt = 20, .output = 60, .adapter = 1});
    for (int i = 0; i < 20 && holder->state != RequestState::kRunning; ++i) w.Step();
    Request* const waits = w.Add({.prompt = 20, .output = 20, .adapter = 2});
    for (int i = 0; i < 20; ++i) w.Step();
    EXPECT_EQ(holder->state, RequestState::kRunning);
    EXPECT_EQ(waits->state, RequestState::kWaiting);
    EXPECT_EQ(w.residency.Get(AdapterGeneration{2}).device, lookahead > 0 ? TierState::kResident : TierState::kAbsent);
    w.RunToEnd();
  }
}

// With history the full pages of a squashed request stay, and are copied to the host tier before the older request
// takes their room. So only what was in its last page is computed again.
TEST(QueueOrder, ASquashCostsAFetchAndNotAComputation) {
  for (const bool history : {false, true}) {
    SCOPED_TRACE(history);
    World w("mlq", 96, {.max_running = 8, .max_batch_tokens = 64, .discard_share = 0}, 4000, history);
    w.AddAdapter(1, 16);
    w.AddAdapter(2, 60);
    w.Add({.prompt = 80, .output = 120, .adapter = 1, .first = 10});
    for (int i = 0; i < 8; ++i) w.Step();
    Request* const large = w.Add({.prompt = 32, .output = 4, .adapter = 2});
    Request* const shorter = w.Add({.prompt = 16, .output = 160, .guess = 3, .adapter = 1, .first = 20});
    while (shorter->preemptions == 0 && shorter->state != RequestState::kFinished) w.Step();
    ASSERT_EQ(w.scheduler.stats().squashes, 1);
    const std::int64_t before = shorter->computed_before;
    ASSERT_GE(before, 2 * 16);
    StepPlan plan;
    while (shorter->state == RequestState::kWaiting) plan = w.Step();
    EXPECT_EQ(large->state, RequestState::kFinished);
    const std::int64_t found = history ? before / 4 * 4 : 0;
    const auto chunk = std::find_if(plan.chunks.begin(), plan.chunks.end(),
                                    [&](const PlannedChunk& chunk) { return chunk.request == shorter; });
    ASSERT_NE(chunk, plan.chunks.end());
    EXPECT_EQ(chunk->num_tokens, std::min<std::int64_t>(64, before + 1 - found));  // with the last output token
    EXPECT_EQ(w.scheduler.stats().resumed_squashes.found, found);
    EXPECT_EQ(w.scheduler.stats().resumed_squashes.recomputed, before - found);
    EXPECT_EQ(shorter->fetched_tokens > 0, history);
    w.RunToEnd();
    EXPECT_EQ(w.scheduler.stats().squashes, 1);
  }
}

// A bypass with a performance model. A long prompt takes as long as many steps, so it may not overtake, although it
// might by its number of steps.
TEST(QueueOrder, BypassBySeconds) {
  PerformanceModel model;
  model.step = 1e-3;
  model.per_prefill_token = 5e-3;  // a prompt of four takes as long as 20 steps
  for (const bool by_profile : {false, true}) {
    SCOPED_TRACE(by_profile);
    SystemSpec options{.max_running = 8, .max_batch_tokens = 64, .discard_share = 0};
    if (by_profile) options.costs = std::make_shared<const PerformanceModel>(model);
    World w("mlq", 24, options, /*quota_tokens=*/1000);
    w.AddAdapter(1, 4);
    w.AddAdapter(2, 15);
    w.Add({.prompt = 20, .output = 30, .adapter = 1});
    for (int i = 0; i < 8; ++i) w.Step();
    Request* large = w.Add({.prompt = 8, .output = 4, .adapter = 2});
    Request* tiny = w.Add({.prompt = 1, .output = 3, .adapter = 1});
    // Takes 11 steps, or the time of 31 steps; there is room in 23 steps.
    Request* prompt = w.Add({.prompt = 4, .output = 10, .adapter = 1});
    w.Step();
    EXPECT_EQ(large->state, RequestState::kWaiting);
    EXPECT_EQ(tiny->state, RequestState::kRunning);
    EXPECT_EQ(prompt->state, by_profile ? RequestState::kWaiting : RequestState::kRunning);
    w.RunToEnd();
  }
}

// Wrong predictions, adapters, priorities, deadlines, and little memory. In every order, all requests finish; the
// oldest request is not overtaken once it is beyond the age bound; and quotas count exactly the running requests
// (CheckIntegrity after each step).
void RunRandomLoad(const std::string& name, std::uint64_t seed) {
  SCOPED_TRACE(name + ", seed " + std::to_string(seed));
  Prng prng(seed);
  const bool tenants = prng.NextBelow(2) == 0;
  std::shared_ptr<const PerformanceModel> costs;
  TimeNs bound = 0;  // between 1 and 6 sequences or adapters
  if (seed % 3 == 0) {
    costs = std::make_shared<const PerformanceModel>(
        PerformanceModel{.step = 1e-6, .per_prefill_token = 1e-7, .per_decode_sequence = 1e-7, .per_adapter = 2e-7});
    if (seed % 2 == 0) bound = 1200 + 100 * static_cast<TimeNs>(seed / 6 % 10);
  }
  World w(name, 40 + static_cast<std::int64_t>(prng.NextBelow(60)),
          {.max_running = 1 + static_cast<std::int64_t>(prng.NextBelow(12)),
           .max_batch_tokens = 8 + static_cast<std::int64_t>(prng.NextBelow(40)),
           .max_distinct_adapters = static_cast<std::int64_t>(prng.NextBelow(4)),
           .max_decode_step = bound,
           .age_bound = 30 * 1000,
           .request_size = static_cast<RequestSizeForm>(prng.NextBelow(3)),
           .count_cached = static_cast<CountCached>(seed / 2 % 3),
           .lane_refresh = 100 * 1000,
           .costs = costs},
          0, /*history=*/seed % 2 == 0);
  for (std::uint32_t adapter = 1; adapter <= 6; ++adapter)
    w.AddAdapter(adapter, 1 + static_cast<std::int64_t>(prng.NextBelow(12)));
  for (int i = 0; i < 250; ++i) {
    for (std::uint64_t more = prng.NextBelow(3); more > 0; --more) {
      const bool large = prng.NextBelow(4) == 0;
      w.Add({.prompt = 1 + static_cast<std::int64_t>(prng.NextBelow(large ? 60 : 12)),
             .output = 1 + static_cast<std::int32_t>(prng.NextBelow(large ? 30 : 6)),
             .guess = 1 + static_cast<std::int32_t>(prng.NextBelow(30)),
             .adapter = static_cast<std::uint32_t>(prng.NextBelow(7)),
             .priority = static_cast<std::int32_t>(prng.NextBelow(24)) - 12,
             .deadline = prng.NextBelow(3) == 0 ? w.clock.Now() + static_cast<TimeNs>(prng.NextBelow(100000)) : 0,
             .tenant = tenants ? std::string(1, static_cast<char>('a' + prng.NextBelow(3))) : "all"});
    }
    Request* const oldest = w.scheduler.waiting().empty() ? nullptr : w.scheduler.waiting().front();
    const bool overdue = oldest != nullptr && w.clock.Now() - oldest->arrival > 30 * 1000 && !tenants &&
                         !w.tree.keeps_history();  // it may wait for a fetch
    const StepPlan plan = w.Step();
    if (!overdue || plan.admissions.empty() || oldest->state != RequestState::kWaiting) continue;
    // Others may pass it only while its adapter is loading.
    const AdapterGeneration adapter = oldest->adapter;
    ASSERT_TRUE(adapter != kBaseModel && w.residency.Get(adapter).device != TierState::kAbsent);
  }
  w.RunToEnd();
  while (!w.tiers.idle()) w.Step();
  EXPECT_EQ(w.device->Stats().used(PageCategory::kKv), w.scheduler.history_pages());
}

TEST(QueueOrder, RandomLoadsEnd) {
  for (const std::string& name : QueueOrderNames()) {
    for (std::uint64_t seed = 1; seed <= 60 && !testing::Test::HasFatalFailure(); ++seed) RunRandomLoad(name, seed);
  }
}

}  // namespace
}  // namespace loramux::queue_order_test
