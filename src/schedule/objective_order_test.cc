#include "schedule/objective_order.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"

namespace loramux {
namespace {

constexpr TimeNs kObjective = 20 * kNsPerSecond, kMargin = kObjective / 20, kAgeBound = 100 * kNsPerSecond;
constexpr std::int64_t kRate = 1000;  // tokens per second that it is taught

// What the test says.
struct Loads final : AdapterLoads {
  std::map<AdapterGeneration, double> seconds;
  double under_way = 0;
  double SecondsUnderWay() const override { return under_way; }
  double SecondsToLoad(AdapterGeneration adapter) const override {
    const auto found = seconds.find(adapter);
    return found == seconds.end() ? 0 : found->second;
  }
};

// An order with the requests that wait in it.
struct Queue {
  ObjectiveOrder order{kObjective, kAgeBound};
  std::deque<Request> requests;
  std::set<const Request*> waiting;
  TimeNs now = 0;
  Loads loads;

  // It waits for this adapter, whose load takes so long.
  Request* AddFor(std::uint32_t adapter, double seconds, TimeNs deadline = 0, std::int64_t work = 1) {
    Request* const request = Add(work, deadline);
    request->adapter = AdapterGeneration{adapter};
    loads.seconds[request->adapter] = seconds;
    return request;
  }
  Request* Add(std::int64_t work, TimeNs deadline = 0, std::int32_t priority = 0) {
    Request& request = requests.emplace_back();
    request.id = RequestId{requests.size()};
    request.arrival = now;
    request.deadline = deadline;
    request.priority = priority;
    PlaceInQueue(order, kAgeBound, request);
    order.BeginsToWait(&request, work, now);
    waiting.insert(&request);
    return &request;
  }
  void End(Request* request, bool let_in = true) {
    order.EndsWait(request, let_in, now);
    waiting.erase(request);
  }
  // One request after the other, each as large as what is done in a tenth of a second.
  void TeachRate(int rounds = 100) {
    for (int i = 0; i < rounds; ++i) {
      Request* const request = Add(kRate / 10);
      now += kNsPerSecond / 10;
      End(request);
    }
  }
  std::set<const Request*> GiveUp() {
    const auto given_up = order.GiveUp(now, loads);
    order.CheckIntegrity();
    EXPECT_EQ(order.on_time() + order.late(), waiting.size());  // nobody is lost
    for (const Request* request : given_up) {
      EXPECT_TRUE(request->late);
      EXPECT_TRUE(waiting.contains(request));
    }
    return {given_up.begin(), given_up.end()};
  }
};

// Moore's example has six jobs; the third and the fifth by their due times are late in the best schedule.
TEST(ObjectiveOrder, MooreAndHodgson) {
  Queue queue;
  queue.TeachRate();
  const auto job = [&](std::int64_t seconds, std::int64_t due) {
    return queue.Add(kRate * seconds, queue.now + kMargin + due * kNsPerSecond + kNsPerMs);
  };
  Request* const j1 = job(10, 15);
  Request* const j2 = job(3, 6);
  Request* const j3 = job(4, 9);
  Request* const j4 = job(8, 23);
  Request* const j5 = job(10, 20);
  Request* const j6 = job(6, 30);
  EXPECT_EQ(queue.GiveUp(), (std::set<const Request*>{j1, j5}));
  for (const Request* request : {j2, j3, j4, j6}) EXPECT_FALSE(request->late);
  EXPECT_TRUE(queue.GiveUp().empty());  // the others can all be on time
}

// Of one job after the other on one machine: how many of them, at most, can end in time. By trying all sets.
struct Job {
  double seconds, due;
};
std::size_t MostInTime(std::vector<Job> jobs) {
  std::sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) { return a.due < b.due; });
  std::size_t most = 0;
  for (std::uint32_t chosen = 0; chosen < 1U << jobs.size(); ++chosen) {
    double seconds = 0;
    std::size_t number = 0;
    bool fits = true;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      if ((chosen >> i & 1) == 0) continue;
      seconds += jobs[i].seconds;
      ++number;
      fits = fits && seconds <= jobs[i].due + 1e-6;
    }
    if (fits) most = std::max(most, number);
  }
  return most;
}

// Of all sets that could be on time, none is larger.
TEST(ObjectiveOrder, NobodyGivesUpFewer) {
  Prng prng(7);
  for (int round = 0; round < 200; ++round) {
    Queue queue;
    queue.TeachRate();
    std::vector<Job> jobs;
    for (std::uint64_t n = 1 + prng.NextBelow(9); n > 0; --n) {
      const auto work = 1 + static_cast<std::int64_t>(prng.NextBelow(6000));
      const auto due = static_cast<TimeNs>(prng.NextBelow(19));
      jobs.push_back({static_cast<double>(work) / kRate, static_cast<double>(due)});
      queue.Add(work, queue.now + kMargin + due * kNsPerSecond);
    }
    EXPECT_EQ(queue.GiveUp().size(), jobs.size() - MostInTime(jobs)) << round;
  }
}

// With one objective for all the due times are those of first come, first served.
TEST(ObjectiveOrder, TheLargestIsGivenUpAndOfEqualOnesTheYoungest) {
  Queue queue;
  queue.TeachRate();
  Request* const small = queue.Add(4 * kRate);
  Request* const large = queue.Add(9 * kRate);
  queue.Add(4 * kRate);
  EXPECT_TRUE(queue.GiveUp().empty());  // 17 of 19 s
  queue.Add(4 * kRate);
  EXPECT_EQ(queue.GiveUp(), std::set<const Request*>{large});
  queue.Add(4 * kRate);
  EXPECT_TRUE(queue.GiveUp().empty());
  const Request* const youngest = queue.Add(4 * kRate);
  EXPECT_EQ(queue.GiveUp(), std::set<const Request*>{youngest});
  EXPECT_FALSE(small->late);
  // It waits behind those that come within the age bound after it.
  PlaceInQueue(queue.order, kAgeBound, *large);
  EXPECT_EQ(large->due, large->arrival + kAgeBound);
}

// Those who go before it by their priority have until later, so that all of them are more than fits before it is due.
// Once it is given up, that is nobody's loss any more.
TEST(ObjectiveOrder, WhoseOwnWorkIsGivenUpTakesNobodyWithHim) {
  Queue queue;
  queue.TeachRate();
  const Request* const a = queue.Add(9 * kRate, 0, -10);
  const Request* const b = queue.Add(9 * kRate, 0, -10);  // 18 of 19 s
  const Request* const largest = queue.Add(10 * kRate, queue.now + kMargin + 11 * kNsPerSecond);
  EXPECT_EQ(queue.GiveUp(), std::set<const Request*>{largest});
  EXPECT_FALSE(a->late || b->late);
}

// ---------------------------------------------------------------- The link

// No rate is known: loads alone count.
TEST(ObjectiveOrder, OfLoadsTheOneThatTakesLongestForEachOfItsRequestsIsGivenUp) {
  Queue queue;
  Request* const a = queue.AddFor(1, 8);
  const Request* const b = queue.AddFor(2, 9);  // three wait for this one
  queue.AddFor(2, 9);
  queue.AddFor(2, 9);
  EXPECT_TRUE(queue.GiveUp().empty());  // 17 of 19 s
  const Request* const c = queue.AddFor(3, 6);
  EXPECT_EQ(queue.GiveUp(), std::set<const Request*>{a});
  EXPECT_TRUE(queue.GiveUp().empty());
  EXPECT_FALSE(b->late || c->late);
  Request* const again = queue.AddFor(1, 8);  // 23 s once more: it is the largest still
  EXPECT_EQ(queue.GiveUp(), std::set<const Request*>{again});
}

// All who wait for an adapter are given up with it.
TEST(ObjectiveOrder, WhoWaitsForTheSameAdapterIsGivenUpTogether) {
  Queue queue;
  const Request* const first = queue.AddFor(1, 18);
  queue.AddFor(2, 5);
  const Request* const second = queue.AddFor(1, 18);
  EXPECT_EQ(queue.GiveUp(), (std::set<const Request*>{first, second}));
}

TEST(ObjectiveOrder, ALoadThatCannotEndInTimeIsNotWaitedFor) {
  Queue queue;
  const Request* const large = queue.AddFor(1, 25);  // never
  queue.AddFor(2, 15);
  EXPECT_EQ(queue.GiveUp(), std::set<const Request*>{large});
  queue.loads.under_way = 3.9;
  EXPECT_TRUE(queue.GiveUp().empty());
  queue.loads.under_way = 4.1;  // behind those under way
  EXPECT_EQ(queue.GiveUp().size(), 1U);
}

// The last must end before the others need, since a long prompt follows it; that is no reason to give up one of them as
// well.
TEST(ObjectiveOrder, WhoIsGivenUpTakesNobodyWithHim) {
  Queue queue;
  queue.TeachRate();
  queue.AddFor(1, 9);
  queue.AddFor(2, 9);
  const Request* const last = queue.AddFor(3, 10, 0, 8 * kRate);  // until 11
  EXPECT_EQ(queue.GiveUp(), std::set<const Request*>{last});
}

TEST(ObjectiveOrder, ThePromptIsComputedAfterTheLoad) {
  Queue queue;
  queue.TeachRate();
  queue.AddFor(1, 13, 0, 5 * kRate);
  EXPECT_TRUE(queue.GiveUp().empty());  // 18 of 19 s
  Queue other;
  other.TeachRate();
  const Request* const request = other.AddFor(1, 15, 0, 5 * kRate);
  EXPECT_EQ(other.GiveUp(), std::set<const Request*>{request});
}

// Behind what is under way it cannot end in time even alone: nobody is given up to make way for it.
TEST(ObjectiveOrder, NobodyMakesWayForALoadThatIsTooLateAnyway) {
  Queue queue;
  queue.TeachRate();
  queue.loads.under_way = 1.5;
  queue.AddFor(1, 10);
  const Request* const hopeless = queue.AddFor(2, 1, 0, 17 * kRate);  // until 2
  EXPECT_EQ(queue.GiveUp(), std::set<const Request*>{hopeless});
}

TEST(ObjectiveOrder, WhoNeedsNoLoadIsNotInTheSum) {
  Queue queue;
  queue.AddFor(1, 18);
  for (int i = 0; i < 9; ++i) queue.Add(1);
  for (int i = 0; i < 9; ++i) queue.AddFor(7, 0);  // on the device
  EXPECT_TRUE(queue.GiveUp().empty());
}

// With a request for each adapter: of all sets of loads that could be in time, none is larger.
TEST(ObjectiveOrder, NoOtherLoadsAreInTimeForMore) {
  Prng prng(11);
  for (int round = 0; round < 200; ++round) {
    Queue queue;
    std::vector<Job> jobs;
    for (std::uint64_t n = 1 + prng.NextBelow(9); n > 0; --n) {
      jobs.push_back({0.1 + 0.1 * static_cast<double>(prng.NextBelow(60)), static_cast<double>(prng.NextBelow(19))});
      queue.AddFor(static_cast<std::uint32_t>(n), jobs.back().seconds,
                   queue.now + kMargin + static_cast<TimeNs>(jobs.back().due * kNsPerSecond) + kNsPerMs, 0);
    }
    EXPECT_EQ(queue.GiveUp().size(), jobs.size() - MostInTime(jobs)) << round;
  }
}

TEST(ObjectiveOrder, WithoutAMeasuredRateNobodyIsGivenUp) {
  Queue queue;
  for (int i = 0; i < 100; ++i) queue.Add(1000 * kRate);
  queue.now += 90 * kNsPerSecond;  // nothing was done, so nothing is known
  EXPECT_TRUE(queue.GiveUp().empty());
  Queue idle;  // what nobody waits for is no measure
  for (int i = 0; i < 100; ++i) {
    idle.End(idle.Add(1));
    idle.now += kNsPerSecond;
  }
  idle.Add(1000 * kRate);
  EXPECT_TRUE(idle.GiveUp().empty());
}

// A quiet hour, in which all were let in as they came, says nothing about how fast a queue gets shorter.
TEST(ObjectiveOrder, WhatWasLetInWithoutWaitingIsNoRate) {
  Queue queue;
  for (int i = 0; i < 7200; ++i) {
    queue.End(queue.Add(kRate));
    queue.now += kNsPerSecond / 2;
  }
  queue.TeachRate(10);                                // a second of a queue
  for (int i = 0; i < 30; ++i) queue.Add(kRate - 1);  // a little less, for rounding
  EXPECT_EQ(queue.GiveUp().size(), 11U);              // 19 s of 30
}

// A quiet time is forgotten as fast as a busy one.
TEST(ObjectiveOrder, TheRateIsThatOfLate) {
  Queue queue;
  for (int i = 0; i < 1000; ++i) {  // ten times as fast, with hardly any waiting
    Request* const request = queue.Add(kRate);
    queue.now += kNsPerSecond / 10;
    queue.End(request);
  }
  queue.now += 10 * kObjective;
  queue.TeachRate(100);
  for (int i = 0; i < 30; ++i) queue.Add(kRate - 1);  // a little less, for rounding
  EXPECT_EQ(queue.GiveUp().size(), 11U);
}

// All others wait for their adapters, which will be there in a moment.
TEST(ObjectiveOrder, OneThatWasLetInIsNoRate) {
  Queue queue;
  Request* const first = queue.Add(10);
  for (int i = 0; i < 20; ++i) queue.Add(kRate / 2);
  queue.now += kNsPerMs;
  queue.End(first);
  queue.now += 2 * kNsPerSecond;
  EXPECT_TRUE(queue.GiveUp().empty());
}

// 20,000 at once, as a flood on an unlimited queue: this test would take minutes if each looked at all others.
TEST(ObjectiveOrder, AFloodIsGivenUpAtOnce) {
  Queue queue;
  queue.TeachRate();
  for (int i = 0; i < 20000; ++i) queue.Add(kRate - i % 100);
  EXPECT_GT(queue.GiveUp().size(), 19900U);
  EXPECT_EQ(queue.order.on_time(), 20000 - queue.order.late());
}

TEST(ObjectiveOrder, WhoseTimeIsOverIsGivenUpAlone) {
  Queue queue;
  queue.TeachRate();
  Request* const missed = queue.Add(1, queue.now + kNsPerSecond / 2);  // within the margin
  Request* const impossible = queue.Add(3 * kRate, queue.now + kMargin + 2 * kNsPerSecond);
  Request* const possible = queue.Add(10 * kRate);
  EXPECT_EQ(queue.GiveUp(), (std::set<const Request*>{missed, impossible}));
  EXPECT_FALSE(possible->late);
  // A deadline that is missed is no wish any more; a priority still is.
  PlaceInQueue(queue.order, kAgeBound, *missed);
  EXPECT_EQ(missed->due, missed->arrival + kAgeBound);
  missed->priority = -5;
  PlaceInQueue(queue.order, kAgeBound, *missed);
  EXPECT_EQ(missed->due, missed->arrival + kAgeBound / 2);
}

// Who has no deadline is thought to want its first token within the objective.
TEST(ObjectiveOrder, DeadlinesStandBesideTheObjective) {
  Queue queue;
  Request* const plain = queue.Add(1);
  Request* const soon = queue.Add(1, queue.now + kObjective / 2);
  Request* const patient = queue.Add(1, queue.now + 2 * kObjective);
  EXPECT_EQ(plain->due, queue.now);
  EXPECT_EQ(soon->due, queue.now - kObjective / 2);
  EXPECT_EQ(patient->due, queue.now);  // a late deadline is no wish to wait
  const Request* const urgent = queue.Add(1, 0, -10);
  EXPECT_EQ(urgent->due, queue.now - kAgeBound);
  queue.order.CheckIntegrity();
}

// Who was let in and is preempted waits again, unknown to the order.
TEST(ObjectiveOrder, APreemptedRequestIsNotCountedTwice) {
  Queue queue;
  queue.TeachRate();
  Request* const request = queue.Add(kRate);
  queue.End(request);
  EXPECT_EQ(request->work_tokens, -1);
  queue.End(request);
  queue.End(request, /*let_in=*/false);
  EXPECT_EQ(queue.order.on_time() + queue.order.late(), 0U);
}

// Random arrivals, ends and cancellations, in twos: the same happens to both, and nobody is lost.
TEST(ObjectiveOrder, IsDeterministicAndLosesNobody) {
  std::size_t given_up = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Prng prng(seed);
    std::array<Queue, 2> twins;
    for (int step = 0; step < 400; ++step) {
      const auto passed = static_cast<TimeNs>(prng.NextBelow(static_cast<std::uint64_t>(kNsPerSecond)));
      const auto work = 1 + static_cast<std::int64_t>(prng.NextBelow(3 * kRate));
      const bool wish = prng.NextBelow(4) == 0;
      const auto deadline = static_cast<TimeNs>(prng.NextBelow(40 * static_cast<std::uint64_t>(kNsPerSecond)));
      const auto priority = static_cast<std::int32_t>(prng.NextBelow(8) == 0 ? prng.NextBelow(21) : 10) - 10;
      const std::uint64_t ends = prng.NextBelow(3), which = prng.NextBelow(1000);
      std::array<std::vector<std::uint64_t>, 2> late;
      for (std::size_t twin = 0; twin < 2; ++twin) {
        Queue& queue = twins[twin];
        queue.now += passed;
        queue.Add(work, wish ? queue.now + deadline : 0, priority);
        for (std::uint64_t i = 0; i < ends && !queue.waiting.empty(); ++i) {
          Request* first = nullptr;
          for (Request& request : queue.requests) {
            if (!queue.waiting.contains(&request)) continue;
            const bool before = first == nullptr || UrgencyOf(request) < UrgencyOf(*first);
            if (before || request.id.value % 1000 == which) first = &request;
          }
          queue.End(first, /*let_in=*/which > 50);
        }
        for (const Request* request : queue.GiveUp()) late[twin].push_back(request->id.value);
        std::sort(late[twin].begin(), late[twin].end());
        for (Request& request : queue.requests) {
          if (queue.waiting.contains(&request) && request.late) PlaceInQueue(queue.order, kAgeBound, request);
        }
      }
      EXPECT_EQ(late[0], late[1]);
      given_up += late[0].size();
    }
  }
  EXPECT_GT(given_up, 100U);
}

}  // namespace
}  // namespace loramux
