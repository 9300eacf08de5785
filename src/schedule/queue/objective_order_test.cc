#include "schedule/queue/objective_order.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"

namespace loramux::objective_order_test {
namespace {

constexpr TimeNs kObjective = 20 * kNsPerSecond, kMargin = kObjective / 20, kAgeBound = 100 * kNsPerSecond;
constexpr std::int64_t kRate = 1000;  // tokens per second, by TeachRate

// Loads with times that the test sets, in seconds.
struct Loads final : AdapterLoads {
  std::map<AdapterGeneration, double> seconds;
  double under_way = 0;
  double SecondsUnderWay() const override { return under_way; }
  double SecondsToLoad(AdapterGeneration adapter) const override {
    const auto found = seconds.find(adapter);
    return found == seconds.end() ? 0 : found->second;
  }
};

// An ObjectiveOrder and the requests that wait in it. `work` is in tokens.
struct Queue {
  ObjectiveOrder order{kObjective, kAgeBound};
  std::deque<Request> requests;
  std::set<const Request*> waiting;
  TimeNs now = 0;
  Loads loads;

  // Adds a request that waits for `adapter`. The load takes `seconds`.
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
  // Admits one request after the other. Each waits for a tenth of a second and has that much work at kRate.
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
    EXPECT_EQ(order.on_time() + order.late(), waiting.size());  // no request is lost
    for (const Request* request : given_up) {
      EXPECT_TRUE(request->late);
      EXPECT_TRUE(waiting.contains(request));
    }
    return {given_up.begin(), given_up.end()};
  }
};

// Moore's example has six jobs. In the best schedule, the third and the fifth by due time are late.
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
  EXPECT_TRUE(queue.GiveUp().empty());  // all others can be on time
}

// One machine runs the jobs one after the other. Returns how many can end in time at most, by trying all subsets.
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

// The set of requests on time is as large as the largest possible one.
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

// Without deadlines all requests have the same objective, so the order of service is first come, first served.
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
  // A request that is given up waits behind requests that arrive within the age bound after it.
  PlaceInQueue(queue.order, kAgeBound, *large);
  EXPECT_EQ(large->due, large->arrival + kAgeBound);
}

// Requests that go before it by their priority are due later than it, so all of them together do not fit before it is
// due. Once it is given up, all of them fit.
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

// No rate was measured, so only loads count.
TEST(ObjectiveOrder, OfLoadsTheOneThatTakesLongestForEachOfItsRequestsIsGivenUp) {
  Queue queue;
  Request* const a = queue.AddFor(1, 8);
  const Request* const b = queue.AddFor(2, 9);  // three requests wait for this load
  queue.AddFor(2, 9);
  queue.AddFor(2, 9);
  EXPECT_TRUE(queue.GiveUp().empty());  // 17 of 19 s
  const Request* const c = queue.AddFor(3, 6);
  EXPECT_EQ(queue.GiveUp(), std::set<const Request*>{a});
  EXPECT_TRUE(queue.GiveUp().empty());
  EXPECT_FALSE(b->late || c->late);
  Request* const again = queue.AddFor(1, 8);  // 23 s again: still the largest
  EXPECT_EQ(queue.GiveUp(), std::set<const Request*>{again});
}

// All requests for an adapter are given up together.
TEST(ObjectiveOrder, WhoWaitsForTheSameAdapterIsGivenUpTogether) {
  Queue queue;
  const Request* const first = queue.AddFor(1, 18);
  queue.AddFor(2, 5);
  const Request* const second = queue.AddFor(1, 18);
  EXPECT_EQ(queue.GiveUp(), (std::set<const Request*>{first, second}));
}

TEST(ObjectiveOrder, ALoadThatCannotEndInTimeIsNotWaitedFor) {
  Queue queue;
  const Request* const large = queue.AddFor(1, 25);  // cannot end in time
  queue.AddFor(2, 15);
  EXPECT_EQ(queue.GiveUp(), std::set<const Request*>{large});
  queue.loads.under_way = 3.9;
  EXPECT_TRUE(queue.GiveUp().empty());
  queue.loads.under_way = 4.1;  // plus the loads under way
  EXPECT_EQ(queue.GiveUp().size(), 1U);
}

// The last load must end before the others, because a long prompt follows it. Once it is given up, the others fit and
// stay.
TEST(ObjectiveOrder, WhoIsGivenUpTakesNobodyWithHim) {
  Queue queue;
  queue.TeachRate();
  queue.AddFor(1, 9);
  queue.AddFor(2, 9);
  const Request* const last = queue.AddFor(3, 10, 0, 8 * kRate);  // due in 11 s
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

// After the loads under way, this one cannot end in time even alone. So no other load is given up for it.
TEST(ObjectiveOrder, NobodyMakesWayForALoadThatIsTooLateAnyway) {
  Queue queue;
  queue.TeachRate();
  queue.loads.under_way = 1.5;
  queue.AddFor(1, 10);
  const Request* const hopeless = queue.AddFor(2, 1, 0, 17 * kRate);  // due in 2 s
  EXPECT_EQ(queue.GiveUp(), std::set<const Request*>{hopeless});
}

TEST(ObjectiveOrder, WhoNeedsNoLoadIsNotInTheSum) {
  Queue queue;
  queue.AddFor(1, 18);
  for (int i = 0; i < 9; ++i) queue.Add(1);
  for (int i = 0; i < 9; ++i) queue.AddFor(7, 0);  // on the device
  EXPECT_TRUE(queue.GiveUp().empty());
}

// With one request per adapter, the set of loads in time is as large as the largest possible one.
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
  queue.now += 90 * kNsPerSecond;  // no work was done, so there is no rate
  EXPECT_TRUE(queue.GiveUp().empty());
  Queue idle;  // only time in which a request waits is measured
  for (int i = 0; i < 100; ++i) {
    idle.End(idle.Add(1));
    idle.now += kNsPerSecond;
  }
  idle.Add(1000 * kRate);
  EXPECT_TRUE(idle.GiveUp().empty());
}

// An idle hour, in which all requests were admitted on arrival, does not tell how fast a queue drains.
TEST(ObjectiveOrder, WhatWasLetInWithoutWaitingIsNoRate) {
  Queue queue;
  for (int i = 0; i < 7200; ++i) {
    queue.End(queue.Add(kRate));
    queue.now += kNsPerSecond / 2;
  }
  queue.TeachRate(10);                                // one second of waiting
  for (int i = 0; i < 30; ++i) queue.Add(kRate - 1);  // slightly less, for rounding
  EXPECT_EQ(queue.GiveUp().size(), 11U);              // 19 s of 30
}

// Old observations fade in idle time as fast as in busy time.
TEST(ObjectiveOrder, TheRateIsThatOfLate) {
  Queue queue;
  for (int i = 0; i < 1000; ++i) {  // ten times as fast, with hardly any waiting
    Request* const request = queue.Add(kRate);
    queue.now += kNsPerSecond / 10;
    queue.End(request);
  }
  queue.now += 10 * kObjective;
  queue.TeachRate(100);
  for (int i = 0; i < 30; ++i) queue.Add(kRate - 1);  // slightly less, for rounding
  EXPECT_EQ(queue.GiveUp().size(), 11U);
}

// All other requests wait for adapters that are about to arrive, so one admission is no rate.
TEST(ObjectiveOrder, OneThatWasLetInIsNoRate) {
  Queue queue;
  Request* const first = queue.Add(10);
  for (int i = 0; i < 20; ++i) queue.Add(kRate / 2);
  queue.now += kNsPerMs;
  queue.End(first);
  queue.now += 2 * kNsPerSecond;
  EXPECT_TRUE(queue.GiveUp().empty());
}

// 20,000 requests at once, as in a flood on an unlimited queue. With quadratic time this test would take minutes.
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
  // A missed deadline has no effect on the due time; a priority still has.
  PlaceInQueue(queue.order, kAgeBound, *missed);
  EXPECT_EQ(missed->due, missed->arrival + kAgeBound);
  missed->priority = -5;
  PlaceInQueue(queue.order, kAgeBound, *missed);
  EXPECT_EQ(missed->due, missed->arrival + kAgeBound / 2);
}

// A request without a deadline is assumed to want its first token within the objective.
TEST(ObjectiveOrder, DeadlinesStandBesideTheObjective) {
  Queue queue;
  Request* const plain = queue.Add(1);
  Request* const soon = queue.Add(1, queue.now + kObjective / 2);
  Request* const patient = queue.Add(1, queue.now + 2 * kObjective);
  EXPECT_EQ(plain->due, queue.now);
  EXPECT_EQ(soon->due, queue.now - kObjective / 2);
  EXPECT_EQ(patient->due, queue.now);  // a late deadline does not delay the request
  const Request* const urgent = queue.Add(1, 0, -10);
  EXPECT_EQ(urgent->due, queue.now - kAgeBound);
  queue.order.CheckIntegrity();
}

// A preempted request waits again without BeginsToWait.
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

// Random arrivals, ends and cancellations go to two equal queues. Both must decide alike, and no request is lost.
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
}  // namespace loramux::objective_order_test
