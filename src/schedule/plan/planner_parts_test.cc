// Each part of the planner alone, on a small world.
#include <gmock/gmock.h>

#include "residency/moves_for_test.h"
#include "schedule/plan/background_planner.h"
#include "schedule/plan/planning_world_for_test.h"
#include "schedule/plan/preemption.h"
#include "schedule/plan/prompts.h"
#include "schedule/plan/seats.h"
#include "schedule/plan/step_planner.h"

namespace loramux::planner_parts_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr auto kKv = PageCategory::kKv;

std::vector<std::uint32_t> Numbers(const std::vector<AdapterGeneration>& adapters) {
  std::vector<std::uint32_t> numbers;
  for (const AdapterGeneration adapter : adapters) numbers.push_back(adapter.value);
  return numbers;
}
std::vector<std::uint64_t> Paused(const Runners& runners) {
  std::vector<std::uint64_t> ids;
  for (const Runner& runner : runners) {
    if (runner.paused) ids.push_back(runner.request->id.value);
  }
  return ids;
}

// ---------------------------------------------------------------- Draft

TEST(Draft, MakesRoomAllOrNothing) {
  PlanningWorld w(20);
  w.AddAdapter(1, 5);
  w.AddAdapter(2, 6);
  Draft& room = w.Begin().room;
  EXPECT_EQ(room.free_kv(), 9);
  EXPECT_EQ(room.evictable(kKv, false), 11);
  EXPECT_FALSE(room.MakeRoom(kKv, 21));
  EXPECT_THAT(w.draft().plan.moves, IsEmpty());
  EXPECT_TRUE(room.MakeRoom(kKv, 10));
  EXPECT_THAT(Leaving(w.draft().plan.moves, Tier::kDevice), ElementsAre(1));  // the least recently used
  EXPECT_EQ(room.free_kv(), 14);
  EXPECT_EQ(room.evictable(kKv, false), 6);
  EXPECT_EQ(w.residency().Residents(Tier::kDevice).size(), 2u) << "a plan changed the residency";
}

TEST(Draft, WhatAnEarlierRequestWantsStaysUntilTheEnd) {
  PlanningWorld w(20);
  const AdapterGeneration wanted = w.AddAdapter(1, 5);
  w.AddAdapter(2, 6);
  Draft& room = w.Begin().room;
  room.Want(wanted);
  EXPECT_EQ(room.evictable(kKv, /*even_wanted=*/false), 6);
  EXPECT_EQ(room.evictable(kKv, /*even_wanted=*/true), 11);
  EXPECT_TRUE(room.EvictOne(kKv, /*even_wanted=*/false));
  EXPECT_FALSE(room.EvictOne(kKv, /*even_wanted=*/false));
  room.RankAnew();
  EXPECT_TRUE(room.EvictOne(kKv, /*even_wanted=*/true));
  EXPECT_THAT(Leaving(w.draft().plan.moves, Tier::kDevice), ElementsAre(2, 1));
}

TEST(Draft, UsersAreCountedByAdapter) {
  PlanningWorld w(20, {.max_distinct_adapters = 1});
  const AdapterGeneration adapter = w.AddAdapter(1, 5);
  w.AddAdapter(2, 5);
  Request* const other = w.Wait(4, 2);
  Draft& room = w.Begin().room;
  EXPECT_EQ(room.evictable(PageCategory::kAdapter, true), 10);
  room.Use(adapter);
  room.Use(adapter);
  EXPECT_EQ(room.evictable(PageCategory::kAdapter, true), 5);
  EXPECT_EQ(room.distinct(), 1);
  EXPECT_TRUE(room.ExceedsDistinct(*other));
  room.EndUse(adapter);
  EXPECT_EQ(room.distinct(), 1);
  room.EndUse(adapter);
  EXPECT_EQ(room.distinct(), 0);
  EXPECT_EQ(room.evictable(PageCategory::kAdapter, true), 10);
  EXPECT_FALSE(room.ExceedsDistinct(*other));
}

// The copy of an adapter that a request waits for stays, and what was planned is taken back if it does not suffice.
TEST(HostDraft, TheLeastRecentlyUsedCopyGivesWay) {
  PlanningWorld w(100, {}, /*host_pages=*/10);
  w.AddAdapter(1, 4);
  w.AddAdapter(2, 4);
  w.AddAdapter(3, 8, /*resident=*/false);
  w.AddAdapter(4, 11, /*resident=*/false);
  StepDraft& draft = w.Begin();
  EXPECT_FALSE(draft.room.host().Load(w.residency().Get(AdapterGeneration{4}))) << "larger than the tier";
  EXPECT_THAT(draft.plan.moves, IsEmpty());
  EXPECT_TRUE(draft.room.host().Load(w.residency().Get(AdapterGeneration{1})));  // its copy is needed
  EXPECT_FALSE(draft.room.host().Load(w.residency().Get(AdapterGeneration{3})));
  EXPECT_THAT(draft.plan.moves, IsEmpty()) << "evicted in vain";
  StepDraft& again = w.Begin();
  EXPECT_TRUE(again.room.host().Load(w.residency().Get(AdapterGeneration{3})));
  EXPECT_THAT(Leaving(again.plan.moves, Tier::kHost), ElementsAre(1, 2));
}

// Pages of less worth give way for copies of others, a path from its end upwards. A plan changes nothing.
TEST(HostDraft, HistoryIsCopiedInPlaceOfWhatIsWorthLess) {
  PlanningWorld w(40, {}, /*host_pages=*/3);
  const NodeId old = w.Remember(3, 1);
  const auto copy = [&w](NodeId tail) {
    HostDraft& host = w.Begin().room.host();
    host.Reset(w.draft().plan.moves, MoveReason::kBackUp, MoveReason::kBackUp);
    return host.BackUp(tail, 8);
  };
  EXPECT_EQ(copy(old), 3);
  w.tiers().BackUp(w.draft().plan.moves);
  w.clock().Advance(kNsPerSecond);
  w.Poll();
  std::vector<NodeId> path = {old, w.tree().nodes().Parent(old)};
  path.push_back(w.tree().nodes().Parent(path.back()));
  for (const NodeId node : path) w.tree().Evict(node);
  EXPECT_EQ(copy(w.Remember(2, 2)), 2);
  const Moves moves = w.draft().plan.moves;
  ASSERT_EQ(moves.size(), 4u);
  EXPECT_EQ(moves[0].item, ItemId(path[0]));
  EXPECT_TRUE(moves[0].leaves(Tier::kHost) && moves[2].leaves(Tier::kHost));
  EXPECT_EQ(moves[2].item, ItemId(path[1])) << "all below it goes";
  EXPECT_EQ(moves[1].to, Tier::kHost);
  EXPECT_EQ(moves[3].to, Tier::kHost);
  EXPECT_EQ(w.tree().nodes().Parent(moves[3].item.node), moves[1].item.node);
  w.Begin();
  ASSERT_NE(w.tree().NextToDrop(), nullptr);
  EXPECT_EQ(w.tree().NextToDrop()->item, path[0].index) << "a plan that was not carried out";
  w.tree().CheckIntegrity();
}

// ---------------------------------------------------------------- Seats

TEST(Seats, TheTenantWithTheMostServicePausesItsYoungest) {
  PlanningWorld w(100, {.max_running = 3, .max_batch_tokens = 8});
  w.Run(4, 0, "little");
  w.Run(8, 0, "much");
  w.Run(8, 0, "much");
  w.Run(8, 0, "much");
  Seats seats(w.Begin());
  seats.Plan(/*for_waiters=*/false);
  EXPECT_THAT(Paused(w.draft().runners), ElementsAre(4));
  EXPECT_EQ(w.draft().free_seats, 0);
}

TEST(Seats, AWaitingRequestTakesTheSeatOfATenantWithMoreService) {
  PlanningWorld w(100, {.max_running = 3, .max_batch_tokens = 8});
  w.Run(4, 0, "little");
  w.Run(40, 0, "much");
  w.Run(40, 0, "much");
  w.Wait(4, 0, "little");
  Seats seats(w.Begin());
  seats.Plan(/*for_waiters=*/false);
  EXPECT_THAT(Paused(w.draft().runners), IsEmpty());
  seats.Plan(/*for_waiters=*/true);
  EXPECT_THAT(Paused(w.draft().runners), ElementsAre(3));
  EXPECT_EQ(w.draft().free_seats, 1);
}

TEST(Seats, SeatsThatAreLeftGoBackToPausedRequests) {
  PlanningWorld w(100);
  Request* const request = w.Run(8);
  Seats seats(w.Begin());
  w.draft().runners[0].paused = true;
  seats.FillIdle();
  ASSERT_EQ(w.draft().plan.chunks.size(), 1u);
  EXPECT_EQ(w.draft().plan.chunks[0].request, request);
  EXPECT_EQ(w.draft().plan.chunks[0].new_pages, 1);
  EXPECT_FALSE(w.draft().runners[0].paused);
}

// ---------------------------------------------------------------- Preemption

TEST(Preemption, TheLowestRankLosesItsPagesToTheHighest) {
  PlanningWorld w(6);
  w.Run(8);
  w.Run(8);
  w.Run(8);  // memory is full
  Preemption preemption(w.Begin());
  preemption.LookAtWaiters();
  EXPECT_TRUE(preemption.ForGrowth(0, 1));
  EXPECT_THAT(IdsOf(w.draft().plan.preemptions), ElementsAre(3));
  EXPECT_EQ(w.draft().room.free_kv(), 1);
  EXPECT_TRUE(w.draft().memory_short);
}

TEST(Preemption, ARequestAloneIsNotPreempted) {
  PlanningWorld w(2);
  w.Run(8);
  Preemption preemption(w.Begin());
  preemption.LookAtWaiters();
  EXPECT_FALSE(preemption.ForGrowth(0, 1));
  EXPECT_THAT(w.draft().plan.preemptions, IsEmpty());
}

TEST(Preemption, IdleAdaptersGoBeforeRunningRequests) {
  PlanningWorld w(8);
  w.AddAdapter(1, 4);
  w.Run(8);
  w.Run(8);
  Preemption preemption(w.Begin());
  preemption.LookAtWaiters();
  EXPECT_TRUE(preemption.ForGrowth(0, 1));
  EXPECT_THAT(Leaving(w.draft().plan.moves, Tier::kDevice), ElementsAre(1));
  EXPECT_THAT(w.draft().plan.preemptions, IsEmpty());
}

// Enough is preempted for the whole request or nothing, and only while tokens may be discarded.
TEST(Preemption, AWaitingRequestOfATenantWithLessServiceGetsRoom) {
  const auto preempted = [](double discardable, std::int64_t prompt) {
    PlanningWorld w(13, {.max_batch_tokens = 8});
    w.set_discardable(discardable);
    w.Run(4, 0, "little");
    for (int i = 0; i < 3; ++i) w.Run(16, 0, "much");
    w.Wait(prompt, 0, "little");
    Preemption preemption(w.Begin());
    preemption.LookAtWaiters();
    preemption.Reclaim();
    return IdsOf(w.draft().plan.preemptions);
  };
  EXPECT_THAT(preempted(100, 8), ElementsAre(4, 3, 2));  // 3 pages, 4 to grow and 4 in reserve
  EXPECT_THAT(preempted(0, 8), IsEmpty());
  EXPECT_THAT(preempted(100, 400), IsEmpty());
}

// ---------------------------------------------------------------- Admitter

struct Admission {
  PlanningWorld w;
  std::unique_ptr<Admitter> admitter;

  explicit Admission(std::int64_t pages, const SystemSpec& options = {}) : w(pages, options) {}
  AdmissionOutcome Try(Request* request) {
    admitter = std::make_unique<Admitter>(w.Begin());
    return admitter->TryAdmit(request);
  }
};

TEST(Admitter, ARequestIsAdmittedWithAllPagesThatItsPromptNeeds) {
  Admission a(10);
  Request* const request = a.w.Wait(9);
  EXPECT_EQ(a.Try(request), AdmissionOutcome::kAdmitted);
  ASSERT_EQ(a.w.draft().plan.chunks.size(), 1u);
  EXPECT_EQ(a.w.draft().plan.chunks[0].new_pages, 3);  // 9 tokens and the next one
  EXPECT_EQ(a.w.draft().room.free_kv(), 7);
  EXPECT_EQ(request->state, RequestState::kWaiting) << "a plan changed the request";
}

TEST(Admitter, WithoutRoomTheScanEnds) {
  Admission a(2);
  EXPECT_EQ(a.Try(a.w.Wait(9)), AdmissionOutcome::kBlocked);
  EXPECT_THAT(a.w.draft().plan.chunks, IsEmpty());
  EXPECT_EQ(a.w.draft().room.free_kv(), 2);
}

TEST(Admitter, AnAbsentAdapterIsLoadedAndItsRequestPassedOver) {
  Admission a(20);
  a.w.AddAdapter(1, 5, /*resident=*/false);
  EXPECT_EQ(a.Try(a.w.Wait(4, 1)), AdmissionOutcome::kPassedOver);
  ASSERT_EQ(Loaded(a.w.draft().plan.moves).size(), 1u);
  EXPECT_EQ(a.w.draft().room.free_kv(), 15);
  EXPECT_EQ(a.admitter->TryAdmit(a.w.Wait(4, 1)), AdmissionOutcome::kPassedOver);
  EXPECT_EQ(Loaded(a.w.draft().plan.moves).size(), 1u) << "loaded twice";
}

TEST(Admitter, LoadsBeyondTheBoundArePutOff) {
  Admission a(20, {.max_loads_in_flight = 1});
  a.w.AddAdapter(1, 2, /*resident=*/false);
  a.w.AddAdapter(2, 2, /*resident=*/false);
  EXPECT_EQ(a.Try(a.w.Wait(4, 1)), AdmissionOutcome::kPassedOver);
  EXPECT_FALSE(a.w.draft().loads_wait);
  EXPECT_EQ(a.admitter->TryAdmit(a.w.Wait(4, 2)), AdmissionOutcome::kPassedOver);
  EXPECT_TRUE(a.w.draft().loads_wait);
  EXPECT_EQ(Loaded(a.w.draft().plan.moves).size(), 1u);
}

// ---------------------------------------------------------------- Prompts

TEST(Prompts, TheFirstBlockedRequestEndsTheScan) {
  PlanningWorld w(6);
  w.Wait(8);
  Request* const large = w.Wait(40);
  w.Wait(8);
  Admitter admitter(w.Begin());
  Prompts prompts(w.draft(), admitter);
  prompts.Plan();
  ASSERT_EQ(w.draft().plan.admissions.size(), 1u);
  EXPECT_EQ(w.draft().plan.admissions[0].request->id.value, 1u);
  EXPECT_EQ(w.draft().blocked, large);
}

TEST(Prompts, AreSpreadIfMemoryAdmitsNoMore) {
  PlanningWorld w(6, {.max_batch_tokens = 512, .ridge_tokens = 32, .spread_prompts = true});
  w.Wait(400);
  Admitter admitter(w.Begin());
  Prompts prompts(w.draft(), admitter);
  prompts.Spread();
  EXPECT_EQ(w.draft().budget, 512) << "no decode shares the step";
  w.draft().plan.num_tokens = 4;
  w.draft().budget = 508;
  prompts.Spread();
  EXPECT_EQ(w.draft().budget, 28);
}

// ---------------------------------------------------------------- Rules of baselines

TEST(StepRules, SLorasLoopTakesTurns) {
  PlanningWorld w(100, {.cold_start = ColdStart::kHold, .separate_phases = true, .decode_turns = 2});
  w.Run(4);
  StepPlan prompts;
  prompts.chunks.push_back({});
  prompts.prefill_tokens = 8;
  w.rules().Committed(prompts, w.residency());
  for (int decodes = 0; decodes < 2; ++decodes) {
    StepDraft& draft = w.Begin();
    draft.plan.chunks.push_back({});
    w.rules().BeforePrompts(draft);
    EXPECT_EQ(draft.free_seats, 0) << decodes;
    StepPlan plan;
    plan.chunks.push_back({});
    w.rules().Committed(plan, w.residency());
  }
  StepDraft& draft = w.Begin();
  draft.plan.chunks.push_back({});
  w.rules().BeforePrompts(draft);
  EXPECT_GT(draft.free_seats, 0);
}

TEST(StepRules, AStallTakesTheSeatAndTheStepWaitsForTheLoad) {
  const SystemSpec options{.cold_start = ColdStart::kStall};
  Admission a(20, options);
  const AdapterGeneration adapter = a.w.AddAdapter(1, 5, /*resident=*/false);
  Request* const request = a.w.Wait(4, 1);
  EXPECT_EQ(a.Try(request), AdmissionOutcome::kPassedOver);
  StepPlan& plan = a.w.draft().plan;
  EXPECT_THAT(Numbers(plan.stalls), ElementsAre(1));
  EXPECT_EQ(a.w.draft().room.users(a.w.residency().Get(adapter)), 1);
  plan.chunks.push_back({});
  a.w.rules().Finish(plan);
  EXPECT_THAT(plan.chunks, IsEmpty());
  EXPECT_FALSE(a.w.rules().Waits(a.w.residency()));
  a.w.residency().BeginLoad(adapter, /*via_host=*/true, a.w.clock().Now());
  a.w.rules().Committed(plan, a.w.residency());
  EXPECT_TRUE(a.w.rules().Waits(a.w.residency()));
}

// ---------------------------------------------------------------- BackgroundPlanner

struct Background {
  PlanningWorld w;
  PlanOutlook outlook;
  BackgroundPlanner planner;

  explicit Background(std::int64_t pages, const SystemSpec& options = {})
      : w(pages, options), planner(w.view(), w.draft().room, w.rules(), outlook) {}
};

TEST(BackgroundPlanner, TheAdapterOfANewRequestIsLoadedBesideTheStep) {
  Background b(40, {.load_on_arrival = true});
  b.w.AddAdapter(1, 5, /*resident=*/false);
  EXPECT_EQ(b.planner.Plan(MoveReason::kNewcomer, 0), nullptr) << "no request has arrived";
  Request* const request = b.w.Wait(4, 1);
  const MovePlan* plan = b.planner.Plan(MoveReason::kNewcomer, 0);
  ASSERT_NE(plan, nullptr);
  EXPECT_EQ(Loaded(plan->moves).size(), 1u);
  EXPECT_EQ(plan->newest_seen, request->id);
  EXPECT_EQ(b.w.residency().Stats().loading, 0) << "a plan began a load";
  b.outlook.waits_for_room = true;
  EXPECT_EQ(b.planner.Plan(MoveReason::kNewcomer, 0), nullptr);
  b.outlook = {.newest_seen = request->id};
  EXPECT_EQ(b.planner.Plan(MoveReason::kNewcomer, 0), nullptr) << "considered twice";
}

TEST(BackgroundPlanner, ALoadLeavesTheRoomThatRequestsNeed) {
  Background b(40, {.load_on_arrival = true});
  b.w.AddAdapter(1, 35, /*resident=*/false);
  b.w.Wait(40, 1);  // 11 pages
  const MovePlan* plan = b.planner.Plan(MoveReason::kNewcomer, 0);
  ASSERT_NE(plan, nullptr);
  EXPECT_TRUE(plan->empty());
}

// History is copied once the device is filling up: what is evicted next, a small part of the device at a time.
TEST(BackgroundPlanner, HistoryIsCopiedBeforeItIsEvicted) {
  Background b(100);
  const NodeId old = b.w.Remember(8, 1);
  const TimeNs now = b.w.clock().Now();
  b.w.draft().room.history().Refresh(now);
  EXPECT_EQ(b.planner.Plan(MoveReason::kBackUp, now), nullptr) << "the device is nearly empty";
  b.w.Remember(70, 2);
  b.w.draft().room.history().Refresh(now);
  const MovePlan* plan = b.planner.Plan(MoveReason::kBackUp, now);
  ASSERT_NE(plan, nullptr);
  EXPECT_EQ(static_cast<std::int64_t>(plan->moves.size()), b.w.tiers().max_pages_of_job());
  NodeId top = old;
  while (b.w.tree().nodes().Depth(top) > 1) top = b.w.tree().nodes().Parent(top);
  EXPECT_EQ(plan->moves.front().item, ItemId(top));
  b.w.tiers().BackUp(plan->moves);
  EXPECT_EQ(b.planner.Plan(MoveReason::kBackUp, now), nullptr) << "one job at a time";
}

TEST(BackgroundPlanner, BusyMemoryIsSwappedOutFromTheLeastRecentlyUsed) {
  Background b(100, {.proactive_swapping = true});
  b.w.AddAdapter(1, 3);
  b.w.AddAdapter(2, 94);
  const auto reason = b.planner.ObserveMemory(b.w.clock().Now(), /*ending=*/false);
  ASSERT_EQ(reason, MoveReason::kSwapOut);
  const MovePlan* plan = b.planner.Plan(*reason, b.w.clock().Now());
  ASSERT_NE(plan, nullptr);
  EXPECT_THAT(Leaving(plan->moves, Tier::kDevice), ElementsAre(1));
  EXPECT_TRUE(b.planner.swaps_on());
}

}  // namespace
}  // namespace loramux::planner_parts_test
