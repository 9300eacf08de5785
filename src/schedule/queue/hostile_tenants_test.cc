// What one tenant gets while another one does its worst. Steps of a virtual clock; no wall time.
#include <algorithm>
#include <vector>

#include "schedule/scheduler_world_for_test.h"

namespace loramux::hostile_tenants_test {
namespace {

using World = SchedulerWorld;

constexpr TimeNs kStep = 500;  // SchedulerWorld::Step

// Keeps a number of requests present, each of a tenant that was invented for it.
class Inventor {
 public:
  Inventor(World& world, std::size_t present) : world_(world), requests_(present) {}
  void Refill() {
    for (Request*& request : requests_) {
      if (request != nullptr && request->state != RequestState::kFinished) continue;
      request = world_.AddFor("invented " + std::to_string(++invented_), 4, 8);
    }
  }

 private:
  World& world_;
  std::vector<Request*> requests_;
  std::int64_t invented_ = 0;
};

// The longest time in steps in which the running request computes nothing, while `before_each` acts.
template <typename Act>
int LongestPause(World& w, const Request* victim, int steps, Act before_each) {
  int pause = 0, longest = 0;
  for (int i = 0; i < steps && victim->state != RequestState::kFinished; ++i) {
    before_each();
    const std::size_t tokens = victim->generated().size();
    w.Step();
    pause = victim->generated().size() > tokens ? 0 : pause + 1;
    longest = std::max(longest, pause);
  }
  return longest;
}

// 48 connections with invented tenants, eight seats. Before the virtual time, each new tenant began at the counter of
// those that waited, which never rose: the victim got no token at all.
TEST(HostileTenants, InventedTenantsDoNotStarveARunningRequest) {
  World w(4000, {.max_running = 8});
  const Request* victim = w.AddFor("victim", 4, 400);
  for (int i = 0; i < 40; ++i) w.Step();
  Inventor inventor(w, 48);
  const auto refill = [&] { inventor.Refill(); };
  // At first each of the 48 receives what the victim received since they came: about 18 units, of 20 in a step.
  EXPECT_LE(LongestPause(w, victim, 100, refill), 60);
  // Then its share is a 49th: two units, one output token, in about five steps.
  EXPECT_LE(LongestPause(w, victim, 1900, refill), 12);
  EXPECT_GT(victim->generated().size(), 200u);
}

TEST(HostileTenants, InventedTenantsDoNotStarveAWaitingRequest) {
  World w(4000, {.max_running = 8});
  Inventor inventor(w, 48);
  const auto steps_to_first_token = [&](const Request* request) {
    int steps = 0;
    for (; request->generated().empty() && steps < 3000; ++steps) {
      inventor.Refill();
      w.Step();
    }
    return steps;
  };
  inventor.Refill();
  w.Step();
  w.AddFor("victim", 100, 1);
  const Request* second = w.AddFor("victim", 4, 1);  // behind 100 units more than the others have
  EXPECT_LE(steps_to_first_token(second), 400);      // 49 times 100 units, 16 or more in a step
}

// The tenant's weight makes its counter so high that it would pause until the others have ended. It gets a token each
// time that it has made no progress for max_wait.
TEST(HostileTenants, PausedTimeCountsAsWaiting) {
  World w(4000, {.max_running = 4, .fairness = {.weights = {{"victim", 0.001}}, .max_wait = 20 * kStep}});
  const Request* victim = w.AddFor("victim", 4, 50);
  for (int i = 0; i < 5; ++i) w.Step();
  for (int i = 0; i < 6; ++i) w.AddFor("busy", 4, 900);
  EXPECT_LE(LongestPause(w, victim, 1000, [] {}), 22);
  EXPECT_GE(victim->generated().size(), 45u);
}

// Tenant A fills what it may have in flight: four requests of 8 prompts with 32 choices of 1,000 tokens. Tenant B sends
// one short request after another, to the same model. Alone, B has its first token after one step; its share of two
// tenants is half the server, so two steps; it may take 1.5 times that. As the same tenant it waits for A.
TEST(HostileTenants, AFloodOfChoicesDelaysAnotherTenantByItsShareAtMost) {
  const auto p99 = [](const std::string& tenant, int requests, int choices) {
    World w(200'000, {.max_running = 256});
    for (int i = 0; i < 4 * 8 * 32; ++i) w.AddFor("A", 16, 1000);
    for (int i = 0; i < 20; ++i) w.Step();
    std::vector<int> steps;
    for (int i = 0; i < requests; ++i) {
      std::vector<const Request*> asked;
      for (int choice = 0; choice < choices; ++choice) asked.push_back(w.AddFor(tenant, 16, 1));
      const auto answered = [](const Request* request) { return request->state == RequestState::kFinished; };
      int taken = 0;
      for (; taken < 200 && !std::all_of(asked.begin(), asked.end(), answered); ++taken) w.Step();
      steps.push_back(taken);
    }
    std::sort(steps.begin(), steps.end());
    return steps[static_cast<std::size_t>((requests - 1) * 99 / 100)];
  };
  EXPECT_EQ(p99("A", 1, 1), 200);
  for (const int choices : {1, 8}) EXPECT_LE(p99("B", 100, choices), 3) << choices << " choices";
}

}  // namespace
}  // namespace loramux::hostile_tenants_test
