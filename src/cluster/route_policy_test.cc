// Policies on worlds made by hand: each chooses what its description says.
#include "cluster/route_policy.h"

#include <algorithm>
#include <memory>
#include <set>

#include "base/prng.h"
#include "cluster/filters.h"
#include "cluster/prefix_blocks.h"
#include "cluster/request_cost.h"
#include "cluster/route_world_for_test.h"
#include "cluster/scorers.h"

namespace loramux::route_policy_test {
namespace {

using World = HandMadeWorld;
using Server = HandMadeServer;

OwnDispatch Sent(const World& world, RouteRequest request) { return {.at = world.now, .request = std::move(request)}; }

TEST(RoutePolicy, UnknownNameListsTheValidOnes) {
  const auto policy = MakeRoutePolicy("best");
  ASSERT_FALSE(policy.ok());
  EXPECT_EQ(policy.error().message,
            "routing policy: expected one of loramux, algorithm1, algorithm1-bgmv, algorithm1-mbgmv, most-idle, "
            "first-fit, random, p2c, rendezvous, lora-affinity, prefix-affinity, seconds, found 'best'");
  for (const RoutePolicyName& each : RoutePolicies()) EXPECT_TRUE(MakeRoutePolicy(each.name).ok());
}

// A world with random snapshots, dispatches and shares; some servers were not heard.
World RandomWorld(Prng& prng) {
  World world;
  world.replicas = 1 + static_cast<std::int64_t>(prng.NextBelow(6));
  world.tpot_objective = prng.NextBelow(2) == 0 ? 0 : 30 * kNsPerMs;
  const auto servers = 1 + prng.NextBelow(30);
  for (std::uint64_t s = 0; s < servers; ++s) {
    const auto running = static_cast<std::int64_t>(prng.NextBelow(300));
    Server& server = world.Add("server-" + std::to_string(s), running, static_cast<std::int64_t>(prng.NextBelow(20)));
    server.heard = prng.NextBelow(8) != 0;
    server.share = 0.1 + 0.9 * prng.NextDouble();
    server.snapshot.free_pages = static_cast<std::int64_t>(prng.NextBelow(1000));
    server.snapshot.history_pages = static_cast<std::int64_t>(prng.NextBelow(1000));
    if (prng.NextBelow(4) == 0) server.snapshot.device_pages = server.snapshot.page_tokens = 0;
    for (int a = 0; a < 5; ++a) {
      if (prng.NextBelow(2) == 0) continue;
      World::List(server, "adapter-" + std::to_string(a), static_cast<AdapterPlace>(prng.NextBelow(4)),
                  static_cast<std::int32_t>(8 << prng.NextBelow(5)), static_cast<std::int64_t>(prng.NextBelow(3)));
    }
    for (std::uint64_t d = prng.NextBelow(4); d > 0; --d)
      server.sent.push_back(Sent(world, RequestFor("adapter-" + std::to_string(prng.NextBelow(6)))));
  }
  return world;
}

TEST(RoutePolicy, EachIsAFunctionOfWhatItSees) {
  Prng prng(7);
  for (int round = 0; round < 100; ++round) {
    World world = RandomWorld(prng);
    RouteRequest request = RequestFor(prng.NextBelow(6) == 0 ? "" : "adapter-" + std::to_string(prng.NextBelow(6)));
    request.prefix = PrefixBlocks(request.adapter, std::string(1000, 'x'));
    const std::uint64_t random = prng.Next();
    for (const RoutePolicyName& each : RoutePolicies()) {
      const std::string first = world.Choose(each.name, request, random);
      EXPECT_EQ(first, world.Choose(each.name, request, random)) << each.name;
      World copy = world;
      EXPECT_EQ(first, copy.Choose(each.name, request, random)) << each.name;
    }
  }
}

TEST(RoutePolicy, ServersThatWereNotHeardComeLast) {
  World world;
  world.Add("busy", 50);
  world.Add("unknown").heard = false;
  for (const RoutePolicyName& each : RoutePolicies()) {
    if (each.name == "random" || each.name == "rendezvous") continue;  // they look at no snapshot
    EXPECT_EQ(world.Choose(each.name, RequestFor("a")), "busy") << each.name;
  }
  world.servers[0].heard = false;
  for (const RoutePolicyName& each : RoutePolicies()) EXPECT_FALSE(world.Choose(each.name, RequestFor("a")).empty());
}

TEST(RoutePolicy, RandomFollowsTheShares) {
  World world;
  for (int s = 0; s < 4; ++s) world.Add("s" + std::to_string(s));
  world.servers[3].share = 0.2;
  const std::vector<int> counts = world.Frequencies("random", RequestFor("a"));
  for (int s = 0; s < 3; ++s) EXPECT_NEAR(counts[static_cast<std::size_t>(s)], 312, 60);
  EXPECT_NEAR(counts[3], 62, 30);
}

TEST(RoutePolicy, MostIdleCountsRunningWaitingAndSent) {
  World world;
  world.Add("a", 5, 1);
  world.Add("b", 3, 2);
  world.Add("c", 4, 0);
  EXPECT_EQ(world.Choose("most-idle", RequestFor("x")), "c");
  world.servers[2].sent.assign(2, Sent(world, RequestFor("x")));
  EXPECT_EQ(world.Choose("most-idle", RequestFor("x")), "b");
  world.servers[1].share = 0.5;  // as if it had twice as many
  EXPECT_NE(world.Choose("most-idle", RequestFor("x")), "b");
}

TEST(RoutePolicy, EqualServersAreChosenByChance) {
  World world;
  for (int s = 0; s < 4; ++s) world.Add("s" + std::to_string(s), 2);
  world.Add("busier", 3);
  const std::vector<int> counts = world.Frequencies("most-idle", RequestFor("x"));
  for (int s = 0; s < 4; ++s) EXPECT_NEAR(counts[static_cast<std::size_t>(s)], 250, 60);
  EXPECT_EQ(counts[4], 0);
}

TEST(RoutePolicy, TwoChoicesNeverTakeTheBusiest) {
  World world;
  for (int s = 0; s < 5; ++s) world.Add("s" + std::to_string(s), s);
  const std::vector<int> counts = world.Frequencies("p2c", RequestFor("x"));
  EXPECT_EQ(counts[4], 0);
  EXPECT_NEAR(counts[0], 400, 70);  // 4 of 10 pairs
  EXPECT_NEAR(counts[3], 100, 50);  // 1 of 10
}

TEST(RoutePolicy, FirstFitFillsTheFullestServerWithRoom) {
  World world;
  world.Add("empty");
  world.Add("half", 100);
  world.Add("full", 256);
  Server& tight = world.Add("tight", 200);
  tight.snapshot.free_pages = 10;  // 400 tokens need 25
  EXPECT_EQ(world.Choose("first-fit", RequestFor("")), "half");
  tight.snapshot.history_pages = 100;  // may be evicted
  EXPECT_EQ(world.Choose("first-fit", RequestFor("")), "tight");
  // An objective that only small batches keep.
  world.tpot_objective =
      static_cast<TimeNs>(1e9 * world.model->SecondsOf({.decode_sequences = 50, .decode_context = 20000}));
  EXPECT_EQ(world.Choose("first-fit", RequestFor("")), "empty");
  world.servers.pop_front();
  EXPECT_EQ(world.Choose("first-fit", RequestFor("")), "half");  // none has room: the least requests
}

TEST(RoutePolicy, RendezvousKeepsAnAdapterWhereItIsWithinTheBound) {
  World world;
  for (int s = 0; s < 20; ++s) world.Add("s" + std::to_string(s), 10);
  std::set<std::string> homes;
  for (int a = 0; a < 200; ++a) {
    const RouteRequest request = RequestFor("adapter-" + std::to_string(a));
    const std::string home = world.Choose("rendezvous", request, 1);
    EXPECT_EQ(world.Choose("rendezvous", request, 2), home);
    homes.insert(home);
    World fewer = world;
    const std::string gone = home == "s0" ? "s1" : "s0";
    std::erase_if(fewer.servers, [&](const Server& server) { return server.name == gone; });
    EXPECT_EQ(fewer.Choose("rendezvous", request), home);
  }
  EXPECT_EQ(homes.size(), 20u);
  const std::string home = world.Choose("rendezvous", RequestFor("hot"));
  Server& server = *std::ranges::find(world.servers, home, &Server::name);
  server.snapshot.running = 12;  // the bound is 1.25 * 203 / 20 = 12.7
  const std::string next = world.Choose("rendezvous", RequestFor("hot"));
  EXPECT_NE(next, home);
  EXPECT_EQ(world.Choose("rendezvous", RequestFor("hot"), 9), next);
}

TEST(RoutePolicy, LoraAffinityHasFourSteps) {
  World world;
  Server& nothing = world.Add("nothing", 0);
  nothing.snapshot.free_pages = 0;
  Server& waiting = world.Add("waiting", 3, 3);
  waiting.snapshot.free_pages = 0;
  World::List(waiting, "x", AdapterPlace::kDisk, 16, 0, 1);
  world.Add("free", 9, 5);
  world.Add("free, shorter queue", 9, 4);
  Server& active = world.Add("active", 20, 10);
  World::List(active, "x", AdapterPlace::kDevice, 16, 2);
  for (const char* expected : {"active", "free, shorter queue", "free", "waiting", "nothing"}) {
    EXPECT_EQ(world.Choose("lora-affinity", RequestFor("x")), expected);
    std::erase_if(world.servers, [&](const Server& server) { return server.name == expected; });
  }
}

TEST(RoutePolicy, LongestPrefixUnlessUneven) {
  World world;
  RouteRequest request = RequestFor("x");
  request.prefix = PrefixBlocks("x", std::string(2560, 'p'));
  ASSERT_EQ(request.prefix.size(), 10u);
  const auto give = [&](Server& server, std::size_t blocks) {
    server.snapshot.prefixes.assign(request.prefix.begin(),
                                    request.prefix.begin() + static_cast<std::ptrdiff_t>(blocks));
    std::ranges::sort(server.snapshot.prefixes);
  };
  world.Add("idle");
  give(world.Add("short", 10), 4);
  Server& longest = world.Add("long", 60);
  give(longest, 7);
  EXPECT_EQ(world.Choose("prefix-affinity", request), "long");
  longest.snapshot.running = 65;  // 65 above the idle one
  EXPECT_EQ(world.Choose("prefix-affinity", request), "idle");
  world.servers.pop_back();
  EXPECT_EQ(world.Choose("prefix-affinity", request), "short");
  give(world.servers[1], 2);  // under 0.3 of the blocks
  EXPECT_EQ(world.Choose("prefix-affinity", request), "idle");
  world.servers[1].sent.push_back(Sent(world, request));  // it will have the prefix soon
  EXPECT_EQ(world.Choose("prefix-affinity", request), "short");
}

// Algorithm 1 in the words of the document, for decoding alone: a step takes 10 ms, 1 ms per sequence, and by the shape
// 0.1 ms per rank, or per sequence and padded rank.
std::shared_ptr<PerformanceModel> RankModel() {
  auto model = std::make_shared<PerformanceModel>();
  model->step = 10e-3;
  model->per_decode_sequence = 1e-3;
  model->per_prefill_token = 0.1e-3;
  model->per_rank = 0.1e-3;
  model->per_padded_rank = 0.01e-3;
  return model;
}

TEST(Algorithm1, CostIsThatOfTheDocument) {
  World world;
  world.model = RankModel();
  Server& server = world.Add("s", 4, 2);  // the queue has 400 tokens
  World::List(server, "big", AdapterPlace::kDevice, 64, 3, 1);
  const RouteRequest request = RequestFor("small", 8);  // 300 tokens, 100 to answer
  const auto cost = [&] {
    return world.With(request, 1,
                      [](const RouteContext& context) { return RankAwareCost(context, context.servers[0]); });
  };
  // PrePerf: 300 tokens and rank 8 more. DecPerf: a sequence and rank 8 more.
  EXPECT_NEAR(cost(), 6 * ((30e-3 + 0.8e-3) / 100 + 1e-3 + 0.8e-3), 1e-9);
  world.tpot_objective = 23 * kNsPerMs;  // the step with it: 10 + 7 + 0.1 * 72 = 24.2 ms
  EXPECT_NEAR(cost(), 6 * ((30e-3 + 0.8e-3) / 100 + 1e-3 + 0.8e-3 + kObjectivePenalty), 1e-9);
  world.tpot_objective = 25 * kNsPerMs;
  EXPECT_NEAR(cost(), 6 * ((30e-3 + 0.8e-3) / 100 + 1e-3 + 0.8e-3), 1e-9);
  world.average_answer = 40;  // "average response length: avg_resp_len", one number whatever the request
  EXPECT_NEAR(cost(), 6 * ((30e-3 + 0.8e-3) / 40 + 1e-3 + 0.8e-3), 1e-9);
  world.average_answer = 0;
  auto padded = RankModel();
  padded->shape = LoraCostShape::kBgmv;
  world.model = padded;
  world.tpot_objective = 0;
  // Queue: 200 tokens of `big` are padded to 64, and so are 300 more. Decoding: 4 sequences of `big`, one more.
  EXPECT_NEAR(cost(), 6 * ((30e-3 + 300 * 64 * 0.01e-3) / 100 + 1e-3 + 64 * 0.01e-3), 1e-9);
  server.snapshot.running = server.snapshot.waiting = 0;
  server.snapshot.adapters.clear();
  EXPECT_EQ(cost(), 0);  // an idle server costs nothing
}

// The document's example, for a decoding SLO of 36 ms: BGMV pays the largest rank of the batch for each request, so a
// request of rank 64 goes to instance 2, whose few requests have that rank already; MBGMV pays the sum of ranks, so it
// goes to instance 1, whose requests have low ranks. Costs per rank such that the other instance misses the 36 ms.
TEST(Algorithm1, TheExampleOf36Milliseconds) {
  World world;
  auto model = std::make_shared<PerformanceModel>();
  model->step = 20e-3;
  world.tpot_objective = 36 * kNsPerMs;
  Server& first = world.Add("instance 1", 24);
  Server& second = world.Add("instance 2", 16);
  for (int a = 0; a < 24; ++a) World::List(first, "l" + std::to_string(a), AdapterPlace::kDevice, 8, 1);
  for (int a = 0; a < 16; ++a) World::List(second, "h" + std::to_string(a), AdapterPlace::kDevice, 64, 1);
  const RouteRequest request = RequestFor("x", 64);
  const auto within = [&](std::size_t server) {
    return world.With(request, 1, [&](const RouteContext& context) {
      return RankAwareCost(context, context.servers[server]);
    }) < kObjectivePenalty;
  };
  model->per_padded_rank = 0.014e-3;  // 25 x 64: 42.4 ms, and 17 x 64: 35.2 ms
  model->shape = LoraCostShape::kBgmv;
  world.model = model;
  EXPECT_FALSE(within(0));
  EXPECT_TRUE(within(1));
  EXPECT_EQ(world.Choose("algorithm1", request), "instance 2");
  model->per_padded_rank = 0;
  model->per_rank = 0.015e-3;  // 24 x 8 + 64: 23.8 ms, and 17 x 64: 36.3 ms
  model->shape = LoraCostShape::kMbgmv;
  EXPECT_TRUE(within(0));
  EXPECT_FALSE(within(1));
  EXPECT_EQ(world.Choose("algorithm1", request), "instance 1");
}

TEST(Algorithm1, ShapesDiffer) {
  World world;
  auto model = RankModel();
  world.model = model;
  Server& low = world.Add("low ranks", 10);
  Server& high = world.Add("high ranks", 11);
  for (int a = 0; a < 10; ++a) {
    World::List(low, "l" + std::to_string(a), AdapterPlace::kDevice, 8, 1);
    World::List(high, "h" + std::to_string(a), AdapterPlace::kDevice, 64, 1);
  }
  // Padded, rank 64 widens ten sequences of the first from 8 to 64. At true ranks both grow by 64: the least count
  // wins.
  const RouteRequest request = RequestFor("x", 64);
  EXPECT_EQ(world.Choose("algorithm1-bgmv", request), "high ranks");
  EXPECT_EQ(world.Choose("algorithm1-mbgmv", request), "low ranks");
  EXPECT_EQ(world.Choose("algorithm1", request), "low ranks");
  model->shape = LoraCostShape::kBgmv;
  EXPECT_EQ(world.Choose("algorithm1", request), "high ranks");
  EXPECT_EQ(world.Choose("algorithm1-mbgmv", request), "low ranks");
  // A fit has the coefficients of its own shape only.
  model->per_rank = 0;
  model->per_padded_adapter = 0.1e-3;
  EXPECT_EQ(world.Choose("algorithm1-mbgmv", request), "low ranks");
}

// The parts of the cost at the first server.
RequestCost CostAtFirst(World& world, const RouteRequest& request) {
  return world.With(request, 1, [](const RouteContext& context) { return CostOf(context, context.servers[0]); });
}

TEST(RequestCost, PartsGrowWithWhatTheyName) {
  World world;
  Server& server = world.Add("s", 10);
  World::List(server, "x", AdapterPlace::kDevice);
  const RouteRequest request = RequestFor("x");
  const RequestCost base = CostAtFirst(world, request);
  EXPECT_EQ(base.start, 0);
  EXPECT_EQ(base.evicted, 0);
  const PerformanceModel& model = *world.model;
  const auto step = [&](std::int64_t sequences, std::int64_t context, std::int64_t prompt, bool with) {
    StepLoad load{.prefill_tokens = prompt,
                  .decode_sequences = sequences,
                  .prefill_attention = prompt * (prompt + 1) / 2,
                  .decode_context = context,
                  .prefill_sequences = prompt > 0,
                  .prefill_context = prompt};
    if (with) load.adapter_tokens = load.distinct_adapters = 1, load.rank_sum = load.max_rank = load.token_ranks = 16;
    return model.SecondsOf(load);
  };
  // Ten others with 300 tokens each, of which 250 are taken for the prompt; one of them after the other ends, and its
  // successor's prompt stalls the answer.
  const double stalls = 10 * (step(10, 3000, 250, false) - step(10, 3000, 0, false));
  EXPECT_NEAR(base.decode, 100 * step(11, 3350, 0, true) + stalls, 1e-9);
  EXPECT_NEAR(
      base.others,
      10 * (base.prefill - step(10, 3000, 0, false)) + 1000 * (step(11, 3350, 0, true) - step(10, 3000, 0, false)),
      1e-9);
  EXPECT_EQ(base.missed, 0);

  world.tpot_objective = 1000 * kNsPerMs;
  const double far = CostAtFirst(world, request).missed;
  world.tpot_objective = 10 * kNsPerMs;  // a step takes 11.6 ms
  EXPECT_GT(CostAtFirst(world, request).missed, 100 * 10e-3);
  EXPECT_LT(far, 0.02 * 100 * 1.0);
  world.tpot_objective = 0;

  server.snapshot.waiting = 5;
  server.snapshot.waiting_prompt_tokens = 5000;
  EXPECT_GT(CostAtFirst(world, request).start, 5000 * model.per_prefill_token);
  server.snapshot.waiting = server.snapshot.waiting_prompt_tokens = 0;

  server.snapshot.adapters[0].place = AdapterPlace::kHost;
  const double from_host = CostAtFirst(world, request).start;
  EXPECT_NEAR(from_host,
              model.host_to_device.latency + 16.0 * kAssumedBytesPerRank / model.host_to_device.bytes_per_second, 1e-9);
  server.snapshot.adapters.clear();
  EXPECT_GT(CostAtFirst(world, request).start, 5 * from_host);  // from disk, and then from the host
  server.sent.push_back({.at = world.now - 5 * kNsPerMs, .request = request});
  server.sent.back().answered = true;
  const double later = CostAtFirst(world, request).start;
  EXPECT_GT(later, 0);
}

TEST(RequestCost, EvictionAndMemory) {
  World world;
  Server& server = world.Add("s", 10);
  World::List(server, "x", AdapterPlace::kDevice);
  const RouteRequest request = RequestFor("x");
  server.snapshot.free_pages = 10;  // 25 are needed
  server.snapshot.history_pages = 15;
  const RequestCost evicts = CostAtFirst(world, request);
  EXPECT_GT(evicts.evicted, 0);
  EXPECT_EQ(evicts.start, 0);
  server.snapshot.history_pages = 0;
  const RequestCost waits = CostAtFirst(world, request);
  EXPECT_EQ(waits.evicted, 0);
  EXPECT_GT(waits.start, 0);
}

TEST(RequestCost, AssistanceReplacesTheLoad) {
  World world;
  Server& server = world.Add("s");
  World::List(server, "x", AdapterPlace::kHost, 64);
  const RouteRequest request = RequestFor("x", 64);
  auto model = std::make_shared<PerformanceModel>(*DefaultPerformanceModel());
  model->host_to_device.bytes_per_second = 100e6;  // a second for the adapter
  world.model = model;
  const double loaded = CostAtFirst(world, request).start;
  EXPECT_GT(loaded, 1);
  model->assist.layers = 32;
  model->assist.cores = 16;
  model->assist.groups[0] = {.hand_off = 1e-3, .per_token_rank = 1e-6, .base_share = 0.3};
  EXPECT_LT(CostAtFirst(world, request).start, loaded / 2);
}

TEST(RequestCost, CachedPrefixesShortenThePrefill) {
  World world;
  Server& server = world.Add("s");
  RouteRequest request = RequestFor("");
  request.prompt_tokens = 2048;
  request.prefix = PrefixBlocks("", std::string(8192, 'p'));
  const double all = CostAtFirst(world, request).prefill;
  server.snapshot.prefixes.assign(request.prefix.begin(), request.prefix.begin() + 16);  // the first half of 32 blocks
  std::ranges::sort(server.snapshot.prefixes);
  EXPECT_NEAR(CostAtFirst(world, request).prefill, all / 2, all / 8);
}

TEST(Loramux, WeighsTheQueueAgainstTheLoad) {
  World world;
  Server& resident = world.Add("resident", 20);
  World::List(resident, "x", AdapterPlace::kDevice, 64);
  world.Add("other", 20);
  EXPECT_EQ(world.Choose("loramux", RequestFor("x", 64)), "resident");
  resident.snapshot.waiting = 20;
  resident.snapshot.waiting_prompt_tokens = 20000;  // two seconds; the load takes 50 ms
  EXPECT_EQ(world.Choose("loramux", RequestFor("x", 64)), "other");
}

TEST(Loramux, AColdAdapterStaysAmongFewServers) {
  World world;
  for (int s = 0; s < 60; ++s) world.Add("s" + std::to_string(s), 10);
  const RouteRequest request = RequestFor("cold");
  const auto candidates = [&](std::uint64_t random) {
    return world.With(request, random, [](const RouteContext& context) {
      std::vector<Candidate> all(context.servers.size());
      for (std::size_t i = 0; i < all.size(); ++i) all[i].index = i;
      KeepLikelyHomes(context, all);
      std::set<std::size_t> indices;
      for (const Candidate& candidate : all) indices.insert(candidate.index);
      return indices;
    });
  };
  const auto common = [&](std::size_t expected, int rounds) {
    std::set<std::size_t> always = candidates(0);
    for (int i = 1; i < rounds; ++i) {
      const std::set<std::size_t> now = candidates(static_cast<std::uint64_t>(i) * 77);
      EXPECT_EQ(now.size(), expected + kStrangers);
      std::erase_if(always, [&](std::size_t index) { return !now.contains(index); });
    }
    return always.size();
  };
  EXPECT_EQ(common(kLeastHomes, 20), kLeastHomes);
  world.replicas = 9;
  EXPECT_EQ(common(9, 20), 9u);
  world.replicas = 1;
  for (std::size_t s = 10; s < 20; ++s) World::List(world.servers[s], "cold", AdapterPlace::kDevice);
  EXPECT_GE(common(kLeastHomes + kMostResidents, 20), kLeastHomes + kMostResidents);
}

TEST(Loramux, AServerInSlowStartGetsLittle) {
  World world;
  world.Add("old", 3);
  world.Add("new").share = 0.1;
  EXPECT_EQ(world.Choose("loramux", RequestFor("")), "old");
  world.servers[1].share = 1;
  EXPECT_EQ(world.Choose("loramux", RequestFor("")), "new");
}

}  // namespace
}  // namespace loramux::route_policy_test
