#include <set>

#include "residency/moves_for_test.h"
#include "schedule/scheduler_world_for_test.h"

namespace loramux::scheduler_test {
namespace {

using World = SchedulerWorld;

TEST(Scheduler, PrefillIsChunkedAndDecodesGoFirst) {
  World w(64, {.max_batch_tokens = 8, .prefill_chunk = 6});
  Request* first = w.Add(3);
  EXPECT_EQ(w.Step().chunks.size(), 1u);  // 3 prompt tokens, and one token sampled
  Request* second = w.Add(20);
  std::vector<std::int32_t> sizes;
  while (second->state != RequestState::kFinished && second->generated().empty()) {
    for (const PlannedChunk& chunk : w.Step().chunks) {
      if (chunk.request == second) sizes.push_back(chunk.num_tokens);
    }
  }
  EXPECT_EQ(sizes, (std::vector<std::int32_t>{6, 6, 6, 2}));
  EXPECT_EQ(first->state, RequestState::kFinished);  // it decoded beside the prompt
}

// Without history and predictions there is nothing to look up and nothing to be right about.
TEST(Scheduler, PartsThatDoNothingCountNothing) {
  World w(64);
  w.AddAdapter(1, 4);
  for (const std::uint32_t adapter : {0u, 1u, 0u, 1u}) {
    const Request* request = w.Add(20, adapter);
    w.RunToEnd();
    EXPECT_EQ(request->cached_tokens, -1);
    EXPECT_EQ(request->predicted_output, 0);
    EXPECT_FALSE(w.scheduler.Prepare(w.clock.Now()));
  }
  const SchedulerStats stats = w.scheduler.stats();
  EXPECT_EQ(stats.prefix.looked_up_tokens + stats.prefix.found_tokens + stats.prefix.copied_pages, 0);
  EXPECT_EQ(stats.predictions.right + stats.predictions.low + stats.predictions.high, 0);
  EXPECT_EQ(stats.predictions.error_tokens, 0);
  EXPECT_EQ(w.scheduler.history_pages(), 0);
  EXPECT_EQ(w.device->free_pages(), w.device->capacity_pages() - 4);  // the adapter is idle
}

// Steps of up to eight tokens take equally long (ridge_tokens).
class SpreadPromptsTest : public testing::Test {
 protected:
  // Tokens of the first chunk of a prompt, beside one request that decodes. `next_prompt` > 0: another request waits.
  static std::int32_t FirstChunk(SystemSpec options, std::int64_t prompt, std::int64_t next_prompt,
                                 std::int64_t pages) {
    options.max_batch_tokens = options.prefill_chunk = 1000;
    World w(pages, options);
    w.Add(4, 0, 40);
    w.Step();
    Request* const request = w.Add(prompt);
    if (next_prompt > 0) w.Add(next_prompt);
    const StepPlan plan = w.Step();
    std::int32_t tokens = 0;
    for (const PlannedChunk& chunk : plan.chunks) {
      if (chunk.request == request) tokens = chunk.num_tokens;
    }
    w.RunToEnd();
    return tokens;
  }
  const SystemSpec kSpread = {.ridge_tokens = 8, .spread_prompts = true};
};

TEST_F(SpreadPromptsTest, WhereMemoryLetsNobodyElseInDecodingStepsAreFilled) {
  EXPECT_EQ(FirstChunk(kSpread, 32, 40, 20), 7);  // 2 + 9 pages, and 11 for the next
  EXPECT_EQ(FirstChunk(kSpread, 5, 60, 20), 5);
}

TEST_F(SpreadPromptsTest, OtherwiseThePromptIsComputedAtOnce) {
  EXPECT_EQ(FirstChunk(kSpread, 32, 0, 20), 32);   // no other request waits
  EXPECT_EQ(FirstChunk(kSpread, 32, 40, 40), 32);  // memory has room for the waiting request
  EXPECT_EQ(FirstChunk({.ridge_tokens = 8}, 32, 40, 20), 32);
  EXPECT_EQ(FirstChunk({.spread_prompts = true}, 32, 40, 20), 32);  // ridge_tokens is unknown
  // The decoding request alone fills the step up to ridge_tokens.
  EXPECT_EQ(FirstChunk({.ridge_tokens = 1, .spread_prompts = true}, 32, 40, 20), 32);
}

// Otherwise the backlog would grow.
TEST_F(SpreadPromptsTest, MuchThatWaitsIsNotSpreadThin) { EXPECT_EQ(FirstChunk(kSpread, 320, 40, 90), 40); }

TEST(Scheduler, WholePromptsAreNeverSplit) {
  World w(200, {.max_batch_tokens = 100 + 256, .prefill_chunk = 100, .whole_prompt_tokens = 32});
  w.Add(20);
  w.Add(10);
  w.Add(100);  // exceeds whole_prompt_tokens, so it is computed alone
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
  ASSERT_EQ(Loaded(plan.moves).size(), 1u);
  ASSERT_EQ(plan.chunks.size(), 1u);
  EXPECT_EQ(plan.chunks[0].request, base);
  w.RunToEnd();
  EXPECT_EQ(cold->state, RequestState::kFinished);
}

// One request decodes. Adapters of two pages are on disk; a load takes slightly more than 1 us.
class LoadOnArrivalTest : public testing::Test {
 protected:
  static void Begin(SchedulerWorld& w) {
    for (std::uint32_t generation = 1; generation <= 3; ++generation) w.AddAdapter(generation, 2);
    w.Add(3, 0, 40);
    w.Step();
  }
  static bool Load(SchedulerWorld& w) {
    const bool began = w.scheduler.LoadForNewcomer(w.clock.Now());
    w.scheduler.CheckIntegrity();
    w.residency.CheckIntegrity();
    w.device->CheckIntegrity();
    return began;
  }
  static TierState StateOf(SchedulerWorld& w, std::uint32_t generation) {
    return w.residency.Get(AdapterGeneration{generation}).device;
  }
  // Loads go from disk to the host tier, and on to the device.
  static void EndLoads(SchedulerWorld& w) {
    std::vector<ResidencyManager::LoadFailure> failures;
    while (w.residency.Stats().loading > 0) {
      w.clock.Advance(10 * kNsPerUs);
      w.residency.Poll(w.clock.Now(), failures);
    }
    ASSERT_TRUE(failures.empty());
  }
};

TEST_F(LoadOnArrivalTest, WhoComesNeedNotWaitForTheNextPlan) {
  SchedulerWorld w(64, {.load_on_arrival = true});
  Begin(w);
  EXPECT_FALSE(Load(w));  // no request arrived
  const Request* const newcomer = w.Add(3, 1);
  EXPECT_TRUE(Load(w));
  EXPECT_EQ(StateOf(w, 1), TierState::kLoading);
  EXPECT_EQ(w.scheduler.stats().loads_on_arrival, 1);
  EndLoads(w);
  const StepPlan plan = w.Step();
  EXPECT_TRUE(plan.moves.empty());
  ASSERT_EQ(plan.admissions.size(), 1u);
  EXPECT_EQ(plan.admissions[0].request, newcomer);
  w.RunToEnd();
}

TEST_F(LoadOnArrivalTest, OnlyWhereThatWasAskedFor) {
  SchedulerWorld w(64);
  Begin(w);
  w.Add(3, 1);
  EXPECT_FALSE(Load(w));
  SchedulerWorld stalls(64, {.load_on_arrival = true, .cold_start = ColdStart::kStall});
  Begin(stalls);
  stalls.Add(3, 1);
  EXPECT_FALSE(Load(stalls));
}

TEST_F(LoadOnArrivalTest, OneAfterTheOther) {
  SchedulerWorld w(64, {.load_on_arrival = true});
  Begin(w);
  w.Add(3, 1);
  w.Add(3);
  w.Add(3, 2);
  EXPECT_TRUE(Load(w));
  EXPECT_FALSE(Load(w));  // the first load is under way
  EXPECT_EQ(StateOf(w, 2), TierState::kAbsent);
  EndLoads(w);
  EXPECT_TRUE(Load(w));
  EXPECT_EQ(StateOf(w, 2), TierState::kLoading);
  EndLoads(w);
  EXPECT_FALSE(Load(w));
  w.RunToEnd();
}

TEST_F(LoadOnArrivalTest, NobodyGoesBeforeThoseWhoseLoadsWait) {
  SchedulerWorld w(64, {.max_loads_in_flight = 1, .load_on_arrival = true});
  Begin(w);
  w.Add(3, 1);
  w.Add(3, 2);
  EXPECT_EQ(Loaded(w.Step().moves).size(), 1u);
  EndLoads(w);
  w.Add(3, 3);
  EXPECT_FALSE(Load(w));
  EXPECT_EQ(StateOf(w, 3), TierState::kAbsent);
  w.RunToEnd();
}

// The free pages are needed by the decoding request and by new requests.
TEST_F(LoadOnArrivalTest, NothingThatRequestsUseGoesForIt) {
  SchedulerWorld w(5, {.load_on_arrival = true});
  Begin(w);
  w.AddAdapter(4, 4);
  w.Add(3, 4, 1);
  const std::int64_t free = w.device->free_pages();
  EXPECT_FALSE(Load(w));
  EXPECT_EQ(w.device->free_pages(), free);
  EXPECT_FALSE(Load(w));  // each request is considered once
}

// In the same call, because another call may happen in a step that recordings do not contain.
TEST_F(LoadOnArrivalTest, TheNextIsLookedAtWhereOneDoesNotFit) {
  SchedulerWorld w(9, {.load_on_arrival = true});
  Begin(w);
  w.AddAdapter(4, 8);
  w.Add(3, 4);
  w.Add(3, 1);
  EXPECT_TRUE(Load(w));
  EXPECT_EQ(StateOf(w, 4), TierState::kAbsent);
  EXPECT_EQ(StateOf(w, 1), TierState::kLoading);
}

// The new request does not start with the next step anyway.
TEST_F(LoadOnArrivalTest, NotBehindALongQueue) {
  SchedulerWorld w(64, {.max_running = 1, .lookahead = 2, .load_on_arrival = true});
  Begin(w);
  w.Add(3);
  w.Add(3);
  w.Add(3, 1);
  EXPECT_FALSE(Load(w));
  w.RunToEnd();
}

// The adapter must leave the pages that the decoding request and the waiting requests need next. Without them there
// would be room.
TEST_F(LoadOnArrivalTest, WhatTheNextPlanNeedsIsLeft) {
  const auto loads = [](std::int64_t pages, std::int64_t prompt) {
    SchedulerWorld w(pages, {.load_on_arrival = true});
    Begin(w);
    w.Add(prompt);
    w.Add(3, 1);
    return Load(w);
  };
  EXPECT_TRUE(loads(9, 3));    // 2 pages are in use, 1 for each of three, 2 for the adapter
  EXPECT_FALSE(loads(9, 20));  // 6 for the waiting request
  EXPECT_TRUE(loads(14, 20));
}

TEST_F(LoadOnArrivalTest, AnIdleAdapterGoesForIt) {
  SchedulerWorld w(14, {.load_on_arrival = true});
  Begin(w);
  w.AddAdapter(4, 6);
  w.AddAdapter(5, 6);
  Request* const first = w.Add(3, 4, 1);
  w.Step();
  EndLoads(w);
  w.Step();
  ASSERT_EQ(first->state, RequestState::kFinished);
  ASSERT_EQ(StateOf(w, 4), TierState::kResident);
  w.Add(3, 5);
  EXPECT_TRUE(Load(w));
  EXPECT_EQ(StateOf(w, 4), TierState::kAbsent);
  EXPECT_EQ(StateOf(w, 5), TierState::kLoading);
  EndLoads(w);
  w.RunToEnd();
}

TEST_F(LoadOnArrivalTest, AnAdapterTooManyWaits) {
  SchedulerWorld w(64, {.max_distinct_adapters = 1, .load_on_arrival = true});
  Begin(w);
  w.Add(3, 1, 40);
  w.Step();
  EndLoads(w);
  w.Step();
  w.Add(3, 2);
  EXPECT_FALSE(Load(w));
  w.RunToEnd();
}

TEST(Scheduler, MemoryThatTheHeadWaitsForIsNotTakenByThoseBehind) {
  World w(8);
  Request* running = w.Add(16, 0, 8);  // 5 pages
  w.Step();
  Request* big = w.Add(20);   // 6 pages: must wait
  Request* small = w.Add(1);  // would fit now
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
  EXPECT_EQ(w.residency.Residents(Tier::kDevice).size(), 3u);
  w.Add(2, 1);  // 1 is used again, so 2 is the least recently used
  w.RunToEnd();
  w.Add(20, 0, 4);  // needs 6 pages, 4 are free
  const StepPlan plan = w.Step();
  EXPECT_EQ(Leaving(plan.moves, Tier::kDevice), std::vector{2u});
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
  Request* old = w.Add(4, 0, 20);  // 2 pages now, 6 in the end
  w.Step();
  w.Add(2, 1);  // its load takes 3 pages
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

// 64 tokens of memory, and requests that may have 24 each. The third one waits until the others are so near their ends
// that all fit, though memory for its prompt is free. Without the reservation one of them is preempted.
TEST(Scheduler, AReservationKeepsTheWholeOutputFree) {
  for (const bool reserves : {true, false}) {
    World w(16, {.reserve_output = reserves});
    for (int i = 0; i < 3; ++i) w.Add(4, 0, 20);
    for (int i = 0; i < 5; ++i) w.Step();
    EXPECT_EQ(w.scheduler.running().size(), reserves ? 2u : 3u);
    w.RunToEnd();
    EXPECT_EQ(w.scheduler.stats().preemptions > 0, !reserves);
    for (const Request& request : w.requests) EXPECT_EQ(request.tokens.size(), 24u);
  }
}

// A stream of requests with one adapter holds the only place in the batch. A request with another adapter still gets
// its turn.
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

// ---------------------------------------------------------------- vLLM-LoRA

// All adapters are registered in the host tier, as the document's are.
SystemSpec VllmLora(SystemSpec spec = {}) {
  spec.cold_start = ColdStart::kOverlap;
  spec.skip_beyond_distinct = true;
  return spec;
}
bool Computes(const StepPlan& plan, const Request* request) {
  return std::any_of(plan.chunks.begin(), plan.chunks.end(),
                     [&](const PlannedChunk& chunk) { return chunk.request == request; });
}

// "While the prompt tokens are being prefilled, the adapter weights are transferred in parallel": the request joins the
// next step, whose load begins with it, and the running request computes in every step.
TEST(VllmLora, ALoadOverlapsWithThePromptOfItsRequest) {
  World w(64, VllmLora());
  w.AddInHost(1, 1);
  const Request* running = w.Add(4, 0, 12);
  w.Step();
  const Request* cold = w.Add(8, 1);
  const StepPlan plan = w.Step();
  EXPECT_TRUE(plan.stalls.empty());
  EXPECT_TRUE(Computes(plan, running) && Computes(plan, cold));
  ASSERT_EQ(Loaded(plan.moves).size(), 1u);
  EXPECT_EQ(plan.moves.front().why, MoveReason::kBegins);
  EXPECT_EQ(w.scheduler.stats().cold_starts, 1);
  w.Add(8, 1);
  EXPECT_EQ(w.Step().admissions.size(), 1u) << "it is arriving, or there";
  EXPECT_EQ(w.scheduler.stats().cold_starts, 1) << "a load that was awaited already";
  w.RunToEnd();
}

// The text knows no adapter that is on disk alone. It loads beside the steps of others.
TEST(VllmLora, AnAdapterThatIsOnDiskAloneIsPassedOver) {
  World w(64, VllmLora());
  w.AddAdapter(1, 1);
  const Request* running = w.Add(4, 0, 12);
  w.Step();
  const Request* cold = w.Add(8, 1);
  const StepPlan plan = w.Step();
  EXPECT_TRUE(Computes(plan, running));
  EXPECT_FALSE(Computes(plan, cold));
  EXPECT_EQ(Loaded(plan.moves).size(), 1u);
  w.RunToEnd();
}

// "waiting_requests[:lookahead]" of the reordered queue, in which requests whose adapters are on the device come first.
TEST(VllmLora, LookaheadTakesTheFirstOfTheReorderedQueue) {
  for (const std::int64_t lookahead : {0, 3, 4}) {
    World w(64, VllmLora({.queue = "residency", .max_running = 1, .prefetch_lookahead = lookahead}));
    for (std::uint32_t g = 1; g <= 4; ++g) w.AddInHost(g, 1);
    w.LoadNow(1);
    w.Add(2, 0, 20);
    w.Step();
    for (const std::uint32_t g : {2, 3, 4, 1, 1}) w.Add(2, g);  // reordered: 1, 1, 2, 3, 4
    const std::vector<std::uint32_t> loaded = Loaded(w.Step().moves);
    EXPECT_EQ(loaded.size(), static_cast<std::size_t>(lookahead == 0 ? 0 : lookahead - 2)) << lookahead;
    for (std::size_t i = 0; i < loaded.size(); ++i) EXPECT_EQ(loaded[i], i + 2);
    w.RunToEnd();
  }
}

// "The batch should not exceed max_adapters_per_batch distinct adapters", at each step anew. The adapter of an older
// request arrives while younger requests run: it joins, and the youngest adapter's request pauses.
TEST(VllmLora, TheBoundOnAdaptersIsOfAStep) {
  for (const AdapterBound bound : {AdapterBound::kStep, AdapterBound::kRunning}) {
    World w(
        64,
        VllmLora({.queue = "residency", .max_distinct_adapters = 2, .adapter_bound = bound, .prefetch_lookahead = 10}));
    for (std::uint32_t g = 1; g <= 3; ++g) w.AddInHost(g, 1);
    w.LoadNow(1);
    w.LoadNow(3);
    const Request* first = w.Add(4, 1, 30);
    const Request* late = w.Add(4, 2, 30);
    const Request* young = w.Add(4, 3, 30);
    bool all_run = false, young_pauses = false;
    for (int i = 0; i < 20; ++i) {
      std::set<AdapterGeneration> adapters;
      const StepPlan plan = w.Step();
      for (const PlannedChunk& chunk : plan.chunks) adapters.insert(chunk.request->adapter);
      EXPECT_EQ(adapters.size(), 2u);
      EXPECT_TRUE(Computes(plan, first));
      EXPECT_EQ(Computes(plan, young), i == 0 || bound == AdapterBound::kRunning) << i;
      all_run |= w.scheduler.running().size() == 3;
      young_pauses |= Computes(plan, late) && young->state == RequestState::kRunning;
    }
    EXPECT_EQ(all_run, bound == AdapterBound::kStep);
    EXPECT_EQ(young_pauses, bound == AdapterBound::kStep);
    w.RunToEnd();
  }
}

// The adapter of an older request is there, but memory has no room for it. It may not keep its place in the step, or no
// step would compute.
TEST(VllmLora, WhoCannotBeginKeepsNoStepFromComputing) {
  World w(12, VllmLora({.queue = "residency",
                        .max_distinct_adapters = 1,
                        .adapter_bound = AdapterBound::kStep,
                        .prefetch_lookahead = 10}));
  w.AddInHost(1, 1);
  w.AddInHost(2, 1);
  w.LoadNow(2);
  const Request* old = w.Add(30, 1, 4);  // 9 pages
  const Request* young = w.Add(12, 2, 12);
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(Computes(w.Step(), young)) << i;
  EXPECT_EQ(old->state, RequestState::kWaiting);
  w.RunToEnd();
}

// ---------------------------------------------------------------- CaraServe

// Figure 2: "the decoding phase is preempted to perform prompt processing upon a request arrival, which involves
// loading the requested adapter and prefilling"; then all decode together.
TEST(CaraServe, APromptInterruptsDecodingAndIsAStepOfItsOwn) {
  for (const bool stalls : {false, true}) {
    World w(64, {.whole_prompt_tokens = 64,
                 .cold_start = stalls ? ColdStart::kStall : ColdStart::kPassOver,
                 .separate_phases = true,
                 .decode_turns = 0});
    if (stalls) w.AddInHost(1, 1);
    const Request* decodes = w.Add(4, 0, 30);
    w.Step();
    EXPECT_TRUE(Computes(w.Step(), decodes));
    const Request* arrives = w.Add(8, stalls ? 1 : 0, 30);
    StepPlan plan = w.Step();
    if (stalls) {
      EXPECT_EQ(plan.stalls.size(), 1u);
      EXPECT_TRUE(plan.chunks.empty());
      for (int i = 0; i < 10 && plan.chunks.empty(); ++i) plan = w.Step();
    }
    EXPECT_TRUE(Computes(plan, arrives));
    EXPECT_FALSE(Computes(plan, decodes));
    const Request* next = w.Add(8, 0, 30);  // no decoding step is owed between two prompts
    plan = w.Step();
    EXPECT_TRUE(Computes(plan, next));
    EXPECT_EQ(plan.chunks.size(), 1u);
    EXPECT_EQ(w.Step().chunks.size(), 3u);
    w.RunToEnd();
  }
}

// The client disconnects before the first token.
void GoAway(World& w, Request* request) {
  ASSERT_EQ(request->state, RequestState::kWaiting);
  w.scheduler.Remove(request, w.clock.Now());
  w.residency.Release(request->adapter);
}

// Clients request absent adapters and disconnect before these are loaded. If each of them could make the step wait
// again, the running request would never compute.
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
  EXPECT_EQ(w.scheduler.stats().cold_starts, 10);
  EXPECT_EQ(running->generated().size(), 11u);
}

// A request for which a step waited computes before the next wait.
TEST(Scheduler, AStepThatWaitedComputesBeforeTheNextOneWaits) {
  World w(64, {.cold_start = ColdStart::kStall});
  w.AddAdapter(1, 1);
  w.AddAdapter(2, 1);
  const Request* running = w.Add(4, 0, 30);
  w.Step();
  const Request* first = w.Add(2, 1, 30);
  EXPECT_EQ(w.Step().stalls.size(), 1u);
  const Request* second = w.Add(2, 2, 30);  // arrives while the step waits
  const auto computes = [](const StepPlan& plan, const Request* request) {
    return std::any_of(plan.chunks.begin(), plan.chunks.end(),
                       [&](const PlannedChunk& chunk) { return chunk.request == request; });
  };
  StepPlan plan;
  for (int i = 0; i < 10 && plan.chunks.empty(); ++i) {
    plan = w.Step();
    EXPECT_TRUE(plan.stalls.empty());  // the step waits only for the first load, and then computes
  }
  EXPECT_TRUE(computes(plan, running) && computes(plan, first));
  ASSERT_EQ(Loaded(plan.moves).size(), 1u);  // the second load begins beside that step
  plan = w.Step();
  EXPECT_EQ(plan.stalls, std::vector<AdapterGeneration>{second->adapter});
  EXPECT_TRUE(plan.chunks.empty());
  for (int i = 0; i < 10 && plan.chunks.empty(); ++i) plan = w.Step();
  EXPECT_TRUE(computes(plan, running) && computes(plan, first) && computes(plan, second));
  EXPECT_EQ(w.scheduler.stats().cold_starts, 2);
  w.RunToEnd();
}

struct BeyondTheBound {
  ColdStart cold_start;
  bool tenants;  // true: two tenants
};

class DistinctAdapters : public testing::TestWithParam<BeyondTheBound> {};

// A batch may have one adapter. Requests with another one are passed, until they have waited too long (with several
// tenants: until their tenant has). Then no request passes them, and they get the place once the other adapter is
// unused.
TEST_P(DistinctAdapters, WhoIsBeyondTheBoundLetsOthersByUntilItIsOverdue) {
  constexpr TimeNs kBound = 20 * 500;
  World w(200, {.max_distinct_adapters = 1,
                .cold_start = GetParam().cold_start,
                .skip_beyond_distinct = true,
                .fairness = {.max_wait = kBound},
                .age_bound = kBound});
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
      EXPECT_FALSE(overdue) << "a request was admitted before one that had waited too long";
      ++went_by;
    }
  }
  ASSERT_GE(beyond->first_scheduled, 0) << "starved";
  EXPECT_GT(went_by, 10);
  EXPECT_GT(beyond->first_scheduled - beyond->arrival, kBound);
  // Six steps until the running requests have ended, and a load.
  EXPECT_LE(beyond->first_scheduled - beyond->arrival, kBound + 12 * 500);
  w.RunToEnd();
}

INSTANTIATE_TEST_SUITE_P(Scheduler, DistinctAdapters,
                         testing::Values(BeyondTheBound{ColdStart::kPassOver, false},
                                         BeyondTheBound{ColdStart::kStall, false},
                                         BeyondTheBound{ColdStart::kPassOver, true},
                                         BeyondTheBound{ColdStart::kStall, true}),
                         [](const auto& info) {
                           return std::string(info.param.cold_start == ColdStart::kStall ? "StepsWait" : "StepsGoOn") +
                                  (info.param.tenants ? "TwoTenants" : "OneTenant");
                         });

// A request waits for its adapter. Younger requests run meanwhile and then need pages: the youngest is preempted, and
// the adapter stays.
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
  w.AddAdapter(1, 3);  // larger than the host tier
  w.AddAdapter(2, 2);
  w.AddAdapter(3, 2);
  for (const std::uint32_t g : {1u, 2u, 3u}) w.Add(2, g);
  w.RunToEnd();
  EXPECT_EQ(w.residency.Get(AdapterGeneration{1}).host, TierState::kAbsent);
  EXPECT_EQ(w.residency.Residents(Tier::kDevice).size(), 3u);
}

// Number of steps until the first token of the request; -1 after 2000 steps.
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
    *preemptions = w.scheduler.stats().preemptions;
    return result;
  };
  std::int64_t preemptions = -1;
  EXPECT_GT(steps(kNone, &preemptions), 200);
  EXPECT_LE(steps(kVtc, &preemptions), 3);
  EXPECT_EQ(preemptions, 0);  // a paused request keeps its memory
}

TEST(Scheduler, NoMoreComputeInAStepThanThereAreSeats) {
  World w(400, {.max_running = 4});
  for (int i = 0; i < 40; ++i) w.AddFor(std::string(1, static_cast<char>('a' + i % 7)), 4, 10 + i);
  std::size_t most_running = 0;
  while (!(w.scheduler.running().empty() && w.scheduler.waiting().empty())) {
    EXPECT_LE(w.Step().chunks.size(), 4u);
    most_running = std::max(most_running, w.scheduler.running().size());
  }
  EXPECT_GT(most_running, 4u);  // some paused
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

// Requests of one tenant keep arriving while another tenant holds the memory. Requests of the second are preempted
// for them, but the discarded computation stays within discard_share of all work.
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
  EXPECT_LE(discarded, computed / 10 + 32 + 100);  // at the start one step's tokens; the last victim may overdraw
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
    for (const PlannedChunk& chunk : w.Step().chunks)
      (chunk.request->tenant_name == "heavy" ? heavy : light) += chunk.num_tokens;
  }
  EXPECT_NEAR(static_cast<double>(heavy) / static_cast<double>(light), 3.0, 0.15);
  w.RunToEnd();
}

}  // namespace
}  // namespace loramux::scheduler_test
