#include "schedule/plan/first_tokens.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "base/prng.h"
#include "schedule/plan/planning_world_for_test.h"
#include "schedule/plan/prompts.h"

namespace loramux::first_tokens_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// A prompt of one tenant; due in the order in which they are made, in seconds. A token takes a second.
AwaitedToken Prompt(std::size_t at, double tokens, double seconds_left, double service = 0) {
  return {.standing = {.service = service},
          .urgency = {.due = static_cast<TimeNs>(seconds_left * kNsPerSecond), .id = RequestId{at + 1}},
          .tokens = tokens,
          .seconds_left = seconds_left,
          .at = at};
}

std::vector<std::size_t> Places(const std::vector<AwaitedToken>& prompts) {
  std::vector<std::size_t> places;
  for (const AwaitedToken& prompt : prompts) places.push_back(prompt.at);
  return places;
}

constexpr FirstTokens::Pace kPace{.seconds_per_token = 1, .objective = 100};
constexpr FirstTokens::Pace kFair{.seconds_per_token = 1, .objective = 100, .fair = true};

TEST(FirstTokens, TheOrderOfServiceStaysWhileHalfTheObjectiveIsToSpare) {
  std::vector<AwaitedToken> prompts{Prompt(0, 10, 99), Prompt(1, 30, 95), Prompt(2, 5, 96)};
  FirstTokens tokens;
  EXPECT_EQ(tokens.Arrange(kFair, prompts), 3u);
  EXPECT_THAT(Places(prompts), ElementsAre(0, 1, 2));
  prompts[2].seconds_left = prompts[2].tokens + 10 + 30 + 49;  // less than half
  prompts[2].urgency.due = 1;
  EXPECT_EQ(tokens.Arrange(kFair, prompts), 3u);
  EXPECT_THAT(Places(prompts), ElementsAre(2, 1, 0)) << "not by due time";
}

TEST(FirstTokens, TheLargestGivesWayEvenIfItIsDueFirst) {
  std::vector<AwaitedToken> prompts{Prompt(0, 60, 70), Prompt(1, 20, 75), Prompt(2, 20, 80)};
  FirstTokens tokens;
  EXPECT_EQ(tokens.Arrange(kPace, prompts), 2u);
  EXPECT_THAT(Places(prompts), ElementsAre(1, 2, 0));
  EXPECT_TRUE(prompts[2].late);
  prompts = {Prompt(0, 60, 70), Prompt(1, 20, 75), Prompt(2, 20, 80)};
  prompts[0].may_be_late = false;
  EXPECT_EQ(tokens.Arrange(kPace, prompts), 1u);
  EXPECT_THAT(Places(prompts), ElementsAre(0, 1, 2));
}

TEST(FirstTokens, WhatCannotBeOnTimeAtAllIsLast) {
  std::vector<AwaitedToken> prompts{Prompt(0, 40, 30), Prompt(1, 40, 60)};
  EXPECT_EQ(FirstTokens().Arrange(kPace, prompts), 1u);
  EXPECT_THAT(Places(prompts), ElementsAre(1, 0));
}

// Behind a prompt that must not be late, no other one could make room for the last.
TEST(FirstTokens, NoneGivesWayInVain) {
  std::vector<AwaitedToken> prompts{Prompt(0, 20, 40), Prompt(1, 100, 41), Prompt(2, 10, 60)};
  prompts[1].may_be_late = false;
  EXPECT_EQ(FirstTokens().Arrange(kPace, prompts), 2u);
  EXPECT_THAT(Places(prompts), ElementsAre(0, 1, 2));
}

TEST(FirstTokens, WhoWasGivenUpHasNoSay) {
  std::vector<AwaitedToken> prompts{Prompt(0, 5, 1), Prompt(1, 20, 90)};
  prompts[0].given_up = true;
  FirstTokens tokens;
  EXPECT_EQ(tokens.Arrange(kPace, prompts), 2u);  // it does no harm
  EXPECT_THAT(Places(prompts), ElementsAre(0, 1));
  prompts[1].tokens = 95;
  EXPECT_EQ(tokens.Arrange(kPace, prompts), 0u);
  prompts = {Prompt(0, 5, 1), Prompt(1, 20, 25), Prompt(2, 20, 50)};
  prompts[0].given_up = true;
  EXPECT_EQ(tokens.Arrange(kPace, prompts), 2u);
  EXPECT_THAT(Places(prompts), ElementsAre(1, 2, 0));
}

TEST(FirstTokens, ATenantThatGotMoreThanAnObjectivesWorkComesLast) {
  // The first three are of a tenant that floods.
  std::vector<AwaitedToken> prompts{Prompt(0, 30, 60, 250), Prompt(1, 30, 61, 280), Prompt(2, 30, 62, 310),
                                    Prompt(3, 25, 90, 140)};
  FirstTokens tokens;
  EXPECT_EQ(tokens.Arrange(kFair, prompts), 2u);
  EXPECT_EQ(prompts[0].at, 3u);  // it would be late if it were last
  for (AwaitedToken& prompt : prompts) prompt.standing.service = prompt.at == 3 ? 220 : 250;
  EXPECT_EQ(tokens.Arrange(kFair, prompts), 2u);
  EXPECT_EQ(prompts[0].at, 0u) << "a little more service counts";
}

TEST(FirstTokens, SmallPromptsDoNotDisplaceALargeOneOfATenantThatGotLess) {
  std::vector<AwaitedToken> prompts{Prompt(0, 40, 90, 0), Prompt(1, 20, 50, 300), Prompt(2, 20, 55, 320),
                                    Prompt(3, 20, 70, 340)};
  EXPECT_EQ(FirstTokens().Arrange(kFair, prompts), 2u);
  EXPECT_THAT(Places(prompts), ElementsAre(0, 3, 1, 2));
}

TEST(FirstTokens, AnOverdueTenantIsFirst) {
  std::vector<AwaitedToken> prompts{Prompt(0, 30, 50), Prompt(1, 30, 61), Prompt(2, 10, 99)};
  prompts[2].standing.overdue = true;
  FirstTokens tokens;
  EXPECT_EQ(tokens.Arrange(kFair, prompts), 2u);
  EXPECT_EQ(prompts[0].at, 2u);
  prompts[0].seconds_left = -1;  // even if it is late, or was given up
  prompts[0].given_up = true;
  EXPECT_EQ(tokens.Arrange(kFair, prompts), 2u);
  EXPECT_EQ(prompts[0].at, 2u);
}

// Most prompts that can be on time, by trying all sets in the order of due times.
std::size_t MostOnTime(const std::vector<AwaitedToken>& prompts) {
  std::size_t most = 0;
  for (std::uint32_t set = 0; set < 1u << prompts.size(); ++set) {
    double seconds = 0.05 * kPace.objective;
    std::size_t count = 0;
    bool fits = true;
    for (std::size_t i = 0; i < prompts.size() && fits; ++i) {
      if ((set >> i & 1) == 0) continue;
      seconds += prompts[i].tokens;
      fits = seconds <= prompts[i].seconds_left;
      ++count;
    }
    if (fits) most = std::max(most, count);
  }
  return most;
}

TEST(FirstTokens, NoLargerSetIsOnTime) {
  Prng prng(7);
  FirstTokens tokens;
  int some_late = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<AwaitedToken> prompts;
    double left = 5;
    for (std::size_t i = 0, n = 1 + prng.NextBelow(10); i < n; ++i) {
      left += static_cast<double>(prng.NextBelow(30));
      prompts.push_back(Prompt(i, static_cast<double>(1 + prng.NextBelow(60)), left));
    }
    const std::size_t most = MostOnTime(prompts), all = prompts.size();
    EXPECT_EQ(tokens.Arrange(kPace, prompts), most) << round;
    some_late += most < all;
    std::vector<std::size_t> places = Places(prompts);
    std::sort(places.begin(), places.end());
    for (std::size_t i = 0; i < all; ++i) EXPECT_EQ(places[i], i);
  }
  EXPECT_GT(some_late, 100);
}

TEST(PromptPace, FitsALine) {
  PromptPace pace;
  for (int i = 0; i < 8; ++i) pace.Add(100 * i, (30 + 20 * i) * kNsPerMs);
  EXPECT_FALSE(pace.SecondsPerToken(512).has_value()) << "too few steps";
  for (int i = 0; i < 4; ++i) pace.Add(100 * i, (30 + 20 * i) * kNsPerMs);
  EXPECT_NEAR(*pace.SecondsPerToken(300), 0.2e-3 + 0.1e-3, 1e-9);
  EXPECT_NEAR(*pace.SecondsPerToken(3000), 0.2e-3 + 0.01e-3, 1e-9);
  pace.Add(5, 0);  // no time passed: not counted
  EXPECT_NEAR(*pace.SecondsPerToken(300), 0.3e-3, 1e-9);
}

TEST(PromptPace, EqualStepsHaveAMeanAndDecodesNone) {
  PromptPace pace;
  for (int i = 0; i < 20; ++i) pace.Add(500, 100 * kNsPerMs);
  EXPECT_NEAR(*pace.SecondsPerToken(64), 0.2e-3, 1e-9);
  PromptPace decodes;
  for (int i = 0; i < 20; ++i) decodes.Add(0, 30 * kNsPerMs);
  EXPECT_FALSE(decodes.SecondsPerToken(512).has_value());
}

// A token takes a millisecond, the objective is a second.
struct World {
  explicit World(bool by_objective, const FairnessOptions& fairness = {})
      : w(4000, {.queue = "objective",
                 .max_batch_tokens = 64,
                 .prompts_by_objective = by_objective,
                 .fairness = fairness,
                 .objective = kNsPerSecond}) {
    for (int i = 0; i < 20; ++i) w.prompt_pace().Add(100 * (i % 4), 100 * (i % 4) * kNsPerMs + 1);
  }
  // The requests that the step computes.
  std::vector<std::uint64_t> Plan() {
    StepDraft& draft = w.Begin();
    Admitter admitter(draft);
    Prompts(draft, admitter).Plan();
    std::vector<std::uint64_t> ids;
    for (const PlannedChunk& chunk : draft.plan.chunks) ids.push_back(chunk.request->id.value);
    return ids;
  }
  PlanningWorld w;
};

// It has computed some of its prompt. The three others need 600 ms, and 700 ms are left to them.
TEST(Prompts, ALongPromptThatWasBegunGivesWay) {
  for (const bool by_objective : {true, false}) {
    World world(by_objective);
    Request* const large = world.w.Run(900);
    large->tokens.pop_back();
    large->computed = 64;  // the world let it compute all
    world.w.clock().Advance(400 * kNsPerMs);
    for (int i = 0; i < 3; ++i) world.w.Wait(200);
    EXPECT_THAT(world.Plan(), ElementsAre(by_objective ? 2 : 1));
    EXPECT_THAT(world.w.draft().plan.deferred, IsEmpty());
  }
}

TEST(Prompts, WaitingOnesThatArePassedOverAreNamed) {
  World world(/*by_objective=*/true);
  Request* const large = world.w.Wait(960);
  for (int i = 0; i < 3; ++i) world.w.Wait(200);
  EXPECT_THAT(world.Plan(), ElementsAre(2));
  EXPECT_THAT(world.w.draft().plan.deferred, ElementsAre(large));
  world.w.clock().Advance(31 * kNsPerSecond);  // beyond the age bound: no longer
  EXPECT_EQ(world.Plan().front(), large->id.value);
  EXPECT_THAT(world.w.draft().plan.deferred, IsEmpty());
}

// No tenant is overdue, so that only the age of the request counts.
TEST(Prompts, AmongTenantsNoneIsPassedOverBeyondTheAgeBound) {
  for (const bool begun : {false, true}) {
    World world(/*by_objective=*/true, {.max_wait = 3600 * kNsPerSecond});
    Request* const large = begun ? world.w.Run(960, 0, "a") : world.w.Wait(960, 0, "a");
    if (begun) {
      large->tokens.pop_back();
      large->computed = 64;  // the world let it compute all
    }
    const auto plan_after = [&](TimeNs time) {
      world.w.clock().Advance(time);
      for (int i = 0; i < 3; ++i) world.w.Wait(300, 0, "b");
      return world.Plan().front();
    };
    EXPECT_NE(plan_after(20 * kNsPerSecond), large->id.value);
    EXPECT_EQ(plan_after(11 * kNsPerSecond), large->id.value);
  }
}

}  // namespace
}  // namespace loramux::first_tokens_test
