#include "schedule/queue/fairness.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>

#include "base/prng.h"

namespace loramux::fairness_test {
namespace {

// A TenantCounters without a scheduler, and its requests.
struct World {
  TenantCounters tenants;
  std::deque<Request> requests;
  TimeNs now = 0;
  ServiceOrder order;

  explicit World(FairnessOptions options = {}) : tenants(std::move(options)) {}

  Request* Add(const std::string& tenant, std::int64_t prompt = 10) {
    Request& request = requests.emplace_back();
    request.id = RequestId{requests.size()};
    request.tenant_name = tenant;
    request.tokens.assign(static_cast<std::size_t>(prompt), 1);
    request.prompt_tokens = static_cast<std::int32_t>(prompt);
    tenants.Add(&request, now);
    return &request;
  }
  void Admit(Request* request) {
    tenants.Admit(request, now);
    request->state = RequestState::kRunning;
  }
  void Compute(Request* request, std::int64_t tokens) {
    request->computed += tokens;
    tenants.Charge(request, now);
  }
  void Return(Request* request) {
    request->state = RequestState::kWaiting;
    request->computed = 0;
    tenants.Return(request, now);
  }
  void Remove(Request* request) {
    tenants.Remove(request);
    request->state = RequestState::kFinished;
  }
  // Admits the request, computes its prompt and `outputs` tokens, and removes it.
  void Serve(Request* request, std::int64_t outputs = 0) {
    Admit(request);
    Compute(request, request->prompt_tokens + outputs);
    Remove(request);
  }
  const std::vector<Turn>& Order(std::size_t limit = 1000, std::int32_t lane = 0) {
    tenants.Order(now, lane, limit, order);
    tenants.CheckIntegrity();
    return order.turns;
  }
  Request* Next() { return Order(1)[0].request; }
};

std::string Names(const std::vector<Turn>& turns) {
  std::string names;
  for (const Turn& turn : turns) names += turn.request->tenant_name;
  return names;
}

TEST(TenantCounters, OneTenantIsFirstComeFirstServed) {
  World w;
  std::vector<Request*> all;
  for (int i = 0; i < 20; ++i) all.push_back(w.Add("a", 1 + (i * 7) % 13));
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(w.Order().size(), all.size() - static_cast<std::size_t>(i));
    ASSERT_EQ(w.Next(), all[static_cast<std::size_t>(i)]);
    w.Serve(w.Next(), i);
  }
}

TEST(TenantCounters, NoneIsFirstComeFirstServedForAll) {
  World w({.policy = FairnessPolicy::kNone});
  for (const char* tenant : {"a", "a", "b", "a", "c", "b"}) w.Add(tenant);
  EXPECT_EQ(Names(w.Order()), "aabacb");
  w.Serve(w.Next(), 100);
  EXPECT_EQ(Names(w.Order()), "abacb");
  EXPECT_EQ(w.tenants.known_tenants(), 1u);
}

// The order accounts for the prompts of all requests before each turn.
TEST(TenantCounters, TheOrderAlternatesByPromptTokens) {
  World w;
  for (int i = 0; i < 3; ++i) w.Add("a", 20);
  for (int i = 0; i < 6; ++i) w.Add("b", 10);
  EXPECT_EQ(Names(w.Order()), "abbabbabb");
  EXPECT_EQ(Names(w.Order(4)), "abba");
}

// Tenants that were lifted to the same floor have equal service. They are served in the order of arrival, independent
// of the order in the heap.
TEST(TenantCounters, TenantsThatGotTheSameAreServedInOrderOfArrival) {
  World w;
  std::vector<Request*> waiting;
  for (int i = 0; i < 40; ++i) waiting.push_back(w.Add("t" + std::to_string(i)));
  w.Add("t5");  // not the first request of its tenant
  Prng prng(1);
  while (!waiting.empty()) {
    std::vector<Request*> first;
    for (const Turn& turn : w.Order(waiting.size())) {
      if (turn.standing.service == 0) first.push_back(turn.request);
    }
    ASSERT_EQ(first, waiting);
    Request* const gone = waiting[prng.NextBelow(waiting.size())];
    if (gone->tenant_name == "t5") break;  // the next request of t5 would come first, with its own place
    std::erase(waiting, gone);
    w.Remove(gone);
  }
  EXPECT_LT(waiting.size(), 35u);
}

TEST(TenantCounters, ThroughputFollowsTheWeights) {
  World w({.weights = {{"b", 3}}});
  Prng prng(5);
  std::map<std::string, double> served;
  for (int i = 0; i < 50; ++i) {
    w.Add("a", 10);
    w.Add("b", 10);
  }
  for (int i = 0; i < 4000; ++i) {
    Request* next = w.Next();
    const auto outputs = static_cast<std::int64_t>(prng.NextBelow(40));
    served[next->tenant_name] += static_cast<double>(next->prompt_tokens + 2 * outputs);
    w.Serve(next, outputs);
    w.Add(next->tenant_name, 1 + static_cast<std::int64_t>(prng.NextBelow(60)));  // both tenants always have work
  }
  EXPECT_NEAR(served["b"] / served["a"], 3.0, 0.1);
}

TEST(TenantCounters, IdleTimeEarnsNoCredit) {
  World w;
  for (int i = 0; i < 100; ++i) w.Add("a");
  for (int i = 0; i < 50; ++i) w.Serve(w.Next(), 10);  // "b" was absent; that costs "a" nothing
  for (int i = 0; i < 20; ++i) w.Add("b");
  std::string names;
  for (int i = 0; i < 20; ++i) {
    names += w.Next()->tenant_name;
    w.Serve(w.Next(), 10);
  }
  EXPECT_EQ(std::count(names.begin(), names.end(), 'b'), 10);
}

// "a" runs without a queue and gets far ahead. "b" arrives then and has no claim to earlier service.
TEST(TenantCounters, LiftedToThoseWhoRunWhenNobodyWaits) {
  World w;
  Request* running = w.Add("a", 10);
  w.Admit(running);
  w.Compute(running, 10000);
  w.Add("b");
  w.Add("a");
  const auto& turns = w.Order();
  EXPECT_EQ(turns[0].standing.service, turns[1].standing.service);
  EXPECT_EQ(w.tenants.Service(*turns[0].request), 10.0 + 2 * 9990);
}

TEST(TenantCounters, WhatIsComputedAgainIsNotChargedAgain) {
  World w;
  w.Add("b");
  Request* request = w.Add("a", 10);
  w.Admit(request);
  w.Compute(request, 30);
  const double service = w.tenants.Service(*request);
  EXPECT_EQ(service, 10.0 + 2 * 20);
  w.Return(request);
  w.Admit(request);
  w.Compute(request, 30);
  EXPECT_EQ(w.tenants.Service(*request), service);
  w.Compute(request, 1);
  EXPECT_EQ(w.tenants.Service(*request), service + 2);
}

TEST(TenantCounters, PreemptedRequestsWaitInOrderOfArrival) {
  World w;
  Request* first = w.Add("a");
  Request* second = w.Add("a");
  Request* third = w.Add("a");
  Request* fourth = w.Add("a");
  for (Request* request : {first, second, third}) w.Admit(request);
  for (Request* request : {second, third, first}) w.Return(request);
  std::vector<Request*> order;
  for (const Turn& turn : w.Order()) order.push_back(turn.request);
  EXPECT_EQ(order, (std::vector<Request*>{first, second, third, fourth}));
}

// New tenants keep arriving, each at the floor. They cannot starve a tenant above it: it gets a turn after max_wait.
TEST(TenantCounters, NewTenantsStarveNobody) {
  World w({.max_wait = 100});
  w.Add("first", 1);  // a tenant at the floor always has a request
  w.Serve(w.Add("a", 50));
  Request* waiter = w.Add("a");
  int turns = 0;
  for (; w.Next() != waiter; ++turns, w.now += 10) {
    ASSERT_LT(turns, 100) << "starved";
    w.Add("new-" + std::to_string(turns), 1);
    w.Serve(w.Next());
  }
  EXPECT_EQ(w.now, 110);
  EXPECT_TRUE(w.Order()[0].standing.overdue);
}

TEST(TenantCounters, MillionsOfTenantsDoNotGrowMemory) {
  World w({.max_idle_tenants = 100});
  Request* steady = w.Add("steady");  // a tenant at the floor always has a request
  Prng prng(3);
  for (int i = 0; i < 200000; ++i) {
    Request* request = w.Add("tenant-" + std::to_string(i), 1 + static_cast<std::int64_t>(prng.NextBelow(100)));
    w.Serve(request);
    w.requests.pop_back();
    ASSERT_LE(w.tenants.known_tenants(), 102u);
  }
  w.tenants.CheckIntegrity();
  EXPECT_GT(w.tenants.known_tenants(), 50u);  // debts are remembered within the bound
  w.Serve(steady);
  EXPECT_EQ(w.tenants.known_tenants(), 0u);  // all are forgotten when no tenant has requests
}

TEST(TenantCounters, ADebtOutlivesAPause) {
  World w;
  w.Add("b");
  w.Serve(w.Add("a", 500));  // far above "b", then without requests
  Request* again = w.Add("a");
  EXPECT_EQ(w.tenants.Service(*again), 500);
  EXPECT_EQ(Names(w.Order()), "ba");
}

// Beyond the bound, tenants without a debt are forgotten first.
TEST(TenantCounters, ForgottenOnceTheOthersCaughtUp) {
  World w({.max_idle_tenants = 2});
  for (int i = 0; i < 3; ++i) w.Add("b", 10);
  w.Serve(w.Add("debtor", 50'000));
  w.Serve(w.Add("a", 10));  // begins at half of that
  w.Serve(w.Next(), 15'000);
  EXPECT_EQ(w.tenants.Floor(), 30'010);  // where "b" stands: beyond "a", not beyond the debtor
  w.Serve(w.Add("c", 10));               // one of three must go
  EXPECT_EQ(w.tenants.known_tenants(), 3u);
  EXPECT_EQ(w.tenants.Service(*w.Add("debtor")), 50'000);
  EXPECT_GT(w.tenants.Service(*w.Add("a")), 30'010);  // as a new tenant
}

// An unknown tenant has earned no credit. A known one that was idle has.
TEST(TenantCounters, OnlyKnownTenantsHaveCredit) {
  World w({.burst = 30});
  for (int i = 0; i < 20; ++i) w.Add("b", 10);
  w.Serve(w.Add("known", 10));
  for (int i = 0; i < 10; ++i) w.Serve(w.Next());
  const double floor = w.tenants.Floor();
  EXPECT_GT(floor, 60);
  EXPECT_GE(w.tenants.Service(*w.Add("new")), floor);
  EXPECT_EQ(w.tenants.Service(*w.Add("known")), floor - 30);
}

// Each would begin lower than the one before if credit lowered the floor.
TEST(TenantCounters, CreditDoesNotLowerTheFloor) {
  World w({.burst = 30});
  w.Add("b", 10);
  for (int i = 0; i < 10; ++i) w.Serve(w.Add("t" + std::to_string(i), 10));
  Request* ahead = w.Add("b", 400);
  w.Add("b", 10);
  w.Serve(ahead);
  const double floor = w.tenants.Floor();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(w.tenants.Service(*w.Add("t" + std::to_string(i))), floor - 30) << i;
}

// 48 tenants are present at a time, each invented for one request. The victim gets its 49th part; before, it got
// nothing, because each new tenant began at the counter of those before it.
TEST(TenantCounters, InventedTenantsTakeNoMoreThanTheirShare) {
  World w({.burst = 100, .max_wait = std::numeric_limits<TimeNs>::max()});
  for (int i = 0; i < 48; ++i) w.Add("invented " + std::to_string(i), 10);
  w.Serve(w.Add("victim", 10));
  Request* waiting = w.Add("victim", 10);
  int served = 0, turn = 0;
  for (; turn < 48 * 40; ++turn) {
    Request* const next = w.Next();
    const bool victim = next == waiting;
    w.Serve(next);
    served += victim;
    if (victim) {
      waiting = w.Add("victim", 10);
    } else {
      w.Add("another " + std::to_string(turn), 10);
    }
  }
  EXPECT_NEAR(served, turn / 49, 2);
}

// To be admitted and preempted at once is no turn.
TEST(TenantCounters, APreemptionDoesNotRestartTheClock) {
  World w({.max_wait = 100});
  Request* victim = w.Add("a");
  w.now = 50;
  Request* other = w.Add("b", 1);
  const auto is_overdue = [&w] { return w.Order()[0].standing.overdue; };
  for (; w.now < 90; w.now += 10) {
    w.Admit(victim);
    w.Return(victim);
    EXPECT_FALSE(is_overdue()) << w.now;
  }
  w.now = 101;
  EXPECT_TRUE(is_overdue());
  EXPECT_EQ(w.Next(), victim);
  w.Admit(victim);
  w.Compute(victim, 5);  // progress: from now on it waits anew
  w.Return(victim);
  EXPECT_FALSE(is_overdue());
  w.now = 102;
  w.Remove(other);
  w.Add("b", 1);
  w.now = 202;
  EXPECT_TRUE(is_overdue());
  Request* second = w.Add("a");
  w.Admit(victim);
  w.Compute(victim, 5);  // what is computed again is no progress
  w.Return(victim);
  EXPECT_TRUE(is_overdue());
  w.Remove(victim);
  EXPECT_EQ(w.Next(), second);
}

// A direct implementation of the rules of TenantCounters.
struct Model {
  struct Tenant {
    double service = 0;
    std::vector<Request*> waiting;
    int running = 0;
  };
  std::map<std::string, Tenant> tenants;
  double floor = 0, virtual_time = 0;

  static double WeightOf(const std::string& name) { return name == "t1" ? 2 : 1; }
  double ActiveWeight() const {
    double sum = 0;
    for (const auto& [name, tenant] : tenants) {
      if (!tenant.waiting.empty() || tenant.running > 0) sum += WeightOf(name);
    }
    return sum;
  }
  void Charge(const std::string& name, double cost) {
    tenants[name].service += cost / WeightOf(name);
    virtual_time += cost / ActiveWeight();
  }
  double Floor() const {
    double waiting = INFINITY, running = INFINITY;
    for (const auto& [name, tenant] : tenants) {
      if (!tenant.waiting.empty()) waiting = std::min(waiting, tenant.service);
      if (tenant.running > 0) running = std::min(running, tenant.service);
    }
    return std::max(floor, waiting < INFINITY ? waiting : running < INFINITY ? running : 0);
  }
  void Wait(Request* request) {
    const bool is_new = tenants.count(request->tenant_name) == 0;
    floor = Floor();
    Tenant& tenant = tenants[request->tenant_name];
    if (tenant.waiting.empty())
      tenant.service = std::max(tenant.service, is_new ? std::max(floor, virtual_time) : floor);
    tenant.waiting.push_back(request);
    std::sort(tenant.waiting.begin(), tenant.waiting.end(), [](Request* a, Request* b) { return a->id < b->id; });
  }
  void Unwait(Request* request) { std::erase(tenants[request->tenant_name].waiting, request); }
  void ForgetIfEmpty() {
    for (const auto& [name, tenant] : tenants) {
      if (!tenant.waiting.empty() || tenant.running > 0) return;
    }
    *this = {};
  }
};

void FuzzOnce(std::uint64_t seed) {
  Prng prng(seed);
  World w({.weights = {{"t1", 2}}, .max_wait = std::numeric_limits<TimeNs>::max()});
  Model model;
  std::vector<Request*> waiting, running;
  const auto take = [&prng](std::vector<Request*>& from) {
    const std::size_t i = prng.NextBelow(from.size());
    Request* request = from[i];
    from.erase(from.begin() + static_cast<std::ptrdiff_t>(i));
    return request;
  };
  for (int step = 0; step < 600; ++step) {
    const std::uint64_t choice = prng.NextBelow(10);
    if (choice < 3) {
      const std::string name = {'t', static_cast<char>('0' + prng.NextBelow(6))};
      Request* request = w.Add(name, 1 + static_cast<std::int64_t>(prng.NextBelow(9)));
      model.Wait(request);
      waiting.push_back(request);
    } else if (choice < 5 && !waiting.empty()) {
      Request* request = take(waiting);
      w.Admit(request);
      model.Unwait(request);
      ++model.tenants[request->tenant_name].running;
      running.push_back(request);
    } else if (choice < 7 && !running.empty()) {
      Request* request = running[prng.NextBelow(running.size())];
      const std::int64_t before = std::max(request->charged, request->computed);
      w.Compute(request, 1 + static_cast<std::int64_t>(prng.NextBelow(8)));
      double cost = 0;
      for (std::int64_t at = before; at < request->computed; ++at) cost += at < request->prompt_tokens ? 1 : 2;
      if (cost > 0) model.Charge(request->tenant_name, cost);
    } else if (choice < 8 && !running.empty()) {
      Request* request = take(running);
      --model.tenants[request->tenant_name].running;
      model.Wait(request);
      w.Return(request);
      waiting.push_back(request);
    } else if (!running.empty() || !waiting.empty()) {
      Request* request =
          running.empty() || (!waiting.empty() && prng.NextBelow(2) == 0) ? take(waiting) : take(running);
      if (request->state == RequestState::kWaiting)
        model.Unwait(request);
      else
        --model.tenants[request->tenant_name].running;
      w.Remove(request);
      model.ForgetIfEmpty();
    }
    const auto& turns = w.Order();
    ASSERT_EQ(turns.size(), waiting.size());
    for (std::size_t i = 1; i < turns.size(); ++i) {
      ASSERT_LE(turns[i - 1].standing.service, turns[i].standing.service);
      const bool in_order = turns[i - 1].standing.service < turns[i].standing.service ||
                            UrgencyOf(*turns[i - 1].request) < UrgencyOf(*turns[i].request);
      ASSERT_TRUE(in_order) << "step " << step << ", turn " << i;
    }
    for (const std::vector<Request*>* requests : {&waiting, &running}) {
      for (const Request* request : *requests) {
        ASSERT_NEAR(w.tenants.Service(*request), model.tenants[request->tenant_name].service, 1e-6) << "step " << step;
      }
    }
    if (turns.empty()) continue;
    ASSERT_EQ(turns[0].request, model.tenants[turns[0].request->tenant_name].waiting[0]);
  }
}

TEST(TenantCounters, FuzzAgainstAModel) {
  for (std::uint64_t seed = 1; seed <= 200 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    FuzzOnce(seed);
  }
}

TEST(Fairness, Flags) {
  EXPECT_EQ(*ParseFairnessPolicy("vtc"), FairnessPolicy::kVtc);
  EXPECT_NE(ParseFairnessPolicy("fair").error().message.find("none or vtc"), std::string::npos);
  const auto weight = ParseTenantWeight("team=a=2.5");
  ASSERT_TRUE(weight.ok());
  EXPECT_EQ(weight->first, "team=a");
  EXPECT_EQ(weight->second, 2.5);
  for (const char* bad : {"", "=1", "a", "a=", "a=0", "a=-1", "a=1x", "a=nan", "a=inf", "a=1e9"}) {
    EXPECT_FALSE(ParseTenantWeight(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace loramux::fairness_test
