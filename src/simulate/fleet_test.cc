#include "simulate/fleet.h"

#include <algorithm>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/prefix_blocks.h"
#include "simulate/event_queue.h"
#include "simulate/fleet_report.h"
#include "simulate/fleet_summary.h"
#include "simulate/fleet_world_for_test.h"
#include "simulate/machine_search.h"
#include "simulate/simulated_server.h"
#include "simulate/summary.h"

namespace loramux::fleet_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr FleetObjective kObjective{.ttft = kNsPerSecond};

std::vector<FleetEvent> Events(const std::vector<std::string>& texts, std::int64_t servers = 4) {
  return ParseFleetEvents(texts, servers, 100 * kNsPerSecond, 1).value();
}

std::int64_t CountEnd(const FleetResult& result, FleetEnd end) {
  return std::count_if(result.requests.begin(), result.requests.end(),
                       [&](const FleetRequest& request) { return request.end == end; });
}

// A fleet of one server is the simulation of one server.
TEST(Fleet, OfOneServerIsTheServer) {
  const Workload workload = SmallLoad(300, 12, 3, /*turns=*/2);
  for (const bool on_disk : {false, true}) {
    FleetOptions options = SmallFleet(1, "random");
    options.server.adapters_in_host_memory = !on_disk;
    const FleetResult fleet = SimulateFleet(options, workload).value();
    const SimulationResult alone = Simulate(options.server, workload).value();
    EXPECT_EQ(TtftsOf(fleet.run), TtftsOf(alone));
    EXPECT_EQ(fleet.run.end, alone.end);
    EXPECT_EQ(fleet.servers[0].device_loads, alone.stats.adapters.device_loads);
    EXPECT_EQ(fleet.servers[0].cold, alone.stats.adapters.cold_starts());
    EXPECT_EQ(fleet.servers[0].busy, alone.busy);
  }
}

TEST(Fleet, IsDeterministic) {
  const Workload workload = SmallLoad(200, 40);
  FleetOptions options = SmallFleet(4, "p2c");
  options.routers = 3;
  options.snapshot_jitter = 1;
  options.snapshot_loss = 0.2;
  options.events = Events({"crash@1+1", "freeze@2+1:2"});
  const FleetResult first = SimulateFleet(options, workload).value(), second = SimulateFleet(options, workload).value();
  EXPECT_EQ(TtftsOf(first.run), TtftsOf(second.run));
  ASSERT_EQ(first.log.size(), second.log.size());
  for (std::size_t i = 0; i < first.log.size(); ++i) {
    EXPECT_EQ(first.log[i].at, second.log[i].at);
    EXPECT_EQ(first.log[i].server, second.log[i].server);
  }
}

TEST(Fleet, ServesMoreWithMoreServersAndBlindlyWorse) {
  const Workload workload = SmallLoad(600, 60);
  const auto attained = [&](std::int64_t servers, const std::string& policy) {
    const FleetOptions options = SmallFleet(servers, policy);
    return Summarise(SimulateFleet(options, workload).value(), workload, kObjective).attained;
  };
  const double two = attained(2, "most-idle"), five = attained(5, "most-idle");
  EXPECT_LT(two, five);
  EXPECT_GT(five, 0.9);
  EXPECT_LT(attained(2, "random"), two);
}

TEST(Fleet, OldSnapshotsHerdRequests) {
  const Workload workload = SmallLoad(600, 60);
  const auto longest_queue = [&](TimeNs interval, bool correct) {
    FleetOptions options = SmallFleet(5, "most-idle");
    options.snapshot_interval = interval;
    options.dispatcher.correct_by_own = correct;
    std::int64_t most = 0;
    const FleetResult result = SimulateFleet(options, workload).value();
    for (const FleetSample& sample : result.samples) most = std::max(most, sample.most_waiting);
    return most;
  };
  const std::int64_t fresh = longest_queue(0, false), old = longest_queue(2 * kNsPerSecond, false),
                     corrected = longest_queue(2 * kNsPerSecond, true);
  EXPECT_LT(2 * fresh, old);
  EXPECT_LT(2 * corrected, old);
}

TEST(Fleet, ACrashBreaksWhatRanAndColdServersComeBack) {
  const Workload workload = SmallLoad(400, 40);
  FleetOptions options = SmallFleet(4, "most-idle");
  options.events = Events({"crash@3+2:1"});
  const FleetResult result = SimulateFleet(options, workload).value();
  EXPECT_GT(result.servers[1].broken, 0);
  EXPECT_EQ(CountEnd(result, FleetEnd::kBroken), result.servers[1].broken);
  EXPECT_EQ(CountEnd(result, FleetEnd::kFinished) + result.servers[1].broken, 400);
  EXPECT_EQ(result.servers[1].starts, 2);
  std::set<std::int64_t> lives;  // in which it began requests
  for (const FleetLogEntry& entry : result.log) {
    if (entry.what == FleetLogEntry::What::kAccepted && entry.server == 1) lives.insert(entry.life);
  }
  EXPECT_EQ(lives, (std::set<std::int64_t>{1, 2}));
  // The connection is refused while it is down, and the request goes elsewhere.
  EXPECT_EQ(CountEnd(result, FleetEnd::kNotServed), 0);
}

TEST(Fleet, ADrainLosesNothing) {
  const Workload workload = SmallLoad(400, 40);
  for (const char* drain : {"drain@3:1", "drain@3+2:1"}) {
    FleetOptions options = SmallFleet(4, "most-idle");
    options.drain_notice = 200 * kNsPerMs;
    options.events = Events({drain});
    const FleetResult result = SimulateFleet(options, workload).value();
    EXPECT_EQ(CountEnd(result, FleetEnd::kFinished), 400);
    TimeNs last = 0;
    for (const FleetLogEntry& entry : result.log) {
      if (entry.what == FleetLogEntry::What::kAccepted && entry.server == 1 && entry.life == 1) last = entry.at;
    }
    EXPECT_LE(last, 3 * kNsPerSecond + options.drain_notice);
    EXPECT_EQ(result.servers[1].starts, std::string(drain) == "drain@3:1" ? 1 : 2);
    EXPECT_EQ(result.samples.back().servers, std::string(drain) == "drain@3:1" ? 3 : 4);
  }
}

TEST(Fleet, AFrozenServerIsLeftAloneAndFinishesLater) {
  const Workload workload = SmallLoad(400, 40);
  FleetOptions options = SmallFleet(4, "most-idle");
  options.events = Events({"freeze@2+6:0"});
  const FleetResult result = SimulateFleet(options, workload).value();
  EXPECT_EQ(CountEnd(result, FleetEnd::kFinished), 400);
  std::int64_t sent_late = 0;  // once probes have failed
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    const TimeNs at = result.run.requests[i].arrival;
    sent_late += result.requests[i].server == 0 && at > 6 * kNsPerSecond && at < 8 * kNsPerSecond;
  }
  EXPECT_EQ(sent_late, 0);
}

TEST(Fleet, NewServersGetRequests) {
  const Workload workload = SmallLoad(600, 60);
  FleetOptions options = SmallFleet(2, "most-idle");
  options.events = Events({"add@2:3"}, 2);
  const FleetResult result = SimulateFleet(options, workload).value();
  ASSERT_EQ(result.servers.size(), 5u);
  for (const FleetServerTotals& server : result.servers) EXPECT_GT(server.finished, 50);
  EXPECT_EQ(result.samples.back().servers, 5);
}

TEST(Fleet, SaysWhatIsWrong) {
  const Workload workload = SmallLoad(10, 10);
  EXPECT_THAT(SimulateFleet(SmallFleet(2, "nonsense"), workload).error().message, HasSubstr("'nonsense'"));
  EXPECT_THAT(SimulateFleet(SmallFleet(0, "random"), workload).error().message, HasSubstr("servers"));
  FleetOptions options = SmallFleet(2, "random");
  options.events = {{.server = 2}};
  EXPECT_THAT(SimulateFleet(options, workload).error().message, HasSubstr("below 2"));
}

TEST(Snapshots, SayWhatTheServerHas) {
  const Workload workload = SmallLoad(100, 10);
  FleetOptions options = SmallFleet(1, "random");
  VirtualClock clock;
  EventQueue events;
  auto adapters = SimulatedAdapters::Create(options.server.device, workload).value();
  const auto server =
      SimulatedServer::Create(options.server, {.clock = &clock, .events = &events, .instance = "x"}, adapters).value();
  EXPECT_EQ(server->Snapshot(false).adapters.size(), 0u);
  std::vector<TokenId> prompt(200, 7);
  for (const std::int32_t adapter : {12, 3}) {
    GenerationRequest request{.prompt = prompt, .adapter = adapters->GenerationOf(adapter), .max_tokens = 5};
    EXPECT_FALSE(server->HasOnDevice(request.adapter));
    ASSERT_TRUE(server->engine().Submit(std::move(request)).ok());
  }
  server->Run();
  ServerSnapshot snapshot = server->Snapshot(true);
  EXPECT_TRUE(snapshot.draining);
  EXPECT_EQ(snapshot.waiting, 2);
  EXPECT_EQ(snapshot.waiting_prompt_tokens, 400);
  ASSERT_EQ(snapshot.adapters.size(), 2u);
  EXPECT_EQ(snapshot.adapters[0].name, "adapter-12");  // ascending by name
  EXPECT_EQ(snapshot.adapters[0].place, AdapterPlace::kArriving);
  EXPECT_EQ(snapshot.adapters[0].waiting, 1);
  const auto run_until = [&](auto done) {
    while (!done() && !events.empty()) {
      clock.AdvanceTo(std::max(clock.Now(), events.Pop().at));
      server->Run();
    }
  };
  run_until([&] { return server->engine().Stats().running == 2; });
  snapshot = server->Snapshot(false);
  EXPECT_EQ(snapshot.running, 2);
  EXPECT_EQ(snapshot.Find("adapter-3")->place, AdapterPlace::kDevice);
  EXPECT_EQ(snapshot.Find("adapter-3")->running, 1);
  EXPECT_EQ(snapshot.Find("adapter-3")->rank, workload.adapter_ranks[3]);
  run_until([&] { return server->engine().Idle(); });
  snapshot = server->Snapshot(false);
  EXPECT_EQ(snapshot.running, 0);
  EXPECT_GT(snapshot.version, 3u);
  EXPECT_GT(snapshot.idle_adapter_pages, 0);
  EXPECT_TRUE(server->HasOnDevice(adapters->GenerationOf(3)));
  const auto blocks = PrefixBlocksOfTokens("adapter-3", prompt);
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_TRUE(snapshot.HasPrefix(blocks.front()));
}

TEST(Events, AreReadFromFlags) {
  const auto events = Events({"freeze@5+2:1", "crash@1.5", "drain@3+4:3", "add@2:7"});
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].kind, FleetEventKind::kCrash);
  EXPECT_EQ(events[0].at, 1'500 * kNsPerMs);
  EXPECT_EQ(events[0].duration, 0);
  EXPECT_TRUE(events[0].server >= 0 && events[0].server < 4);
  EXPECT_EQ(events[1].kind, FleetEventKind::kAdd);
  EXPECT_EQ(events[1].count, 7);
  EXPECT_EQ(events[2].kind, FleetEventKind::kDrain);
  EXPECT_EQ(events[3].server, 1);
  EXPECT_EQ(events[3].duration, 2 * kNsPerSecond);
  const auto crashes = Events({"crashes@20+2"});
  EXPECT_NEAR(static_cast<double>(crashes.size()), 4 * 100 / 22.0, 12);
  for (const char* bad : {"crash", "crash@x", "melt@3", "freeze@3", "crash@1:4", "crash@-1", "add@1:0", "crash@1+0",
                          "crash@1:-1", "crashes@0"}) {
    const auto refused = ParseFleetEvents({bad}, 4, kNsPerSecond, 1);
    ASSERT_FALSE(refused.ok()) << bad;
    EXPECT_THAT(refused.error().message, HasSubstr("--fail"));
  }
}

TEST(Drift, MovesPopularityWithinRanksAndKeepsSessions) {
  const Workload before = SmallLoad(4000, 40, 1, /*turns=*/2);
  Workload after = before;
  DriftPopularity(after, 20 * kNsPerSecond, 0.5, 1);
  std::size_t moved_early = 0, moved_late = 0, late = 0;
  for (std::size_t i = 0; i < after.requests.size(); ++i) {
    const WorkloadRequest &old = before.requests[i], &moved = after.requests[i];
    EXPECT_EQ(before.adapter_ranks[static_cast<std::size_t>(old.adapter)],
              after.adapter_ranks[static_cast<std::size_t>(moved.adapter)]);
    if (moved.next >= 0) EXPECT_EQ(moved.adapter, after.requests[static_cast<std::size_t>(moved.next)].adapter);
    if (old.follows) continue;
    if (old.arrival < 20 * kNsPerSecond) moved_early += old.adapter != moved.adapter;
    if (old.arrival < 60 * kNsPerSecond) continue;
    ++late;
    moved_late += old.adapter != moved.adapter;
  }
  EXPECT_EQ(moved_early, 0u);
  EXPECT_GT(moved_late, late / 3);
}

TEST(Size, IsTheSmallestThatSuffices) {
  const Workload workload = SmallLoad(300, 60);
  const auto none = [](std::int64_t) -> Result<std::vector<FleetEvent>> { return std::vector<FleetEvent>{}; };
  FleetOptions options = SmallFleet(1, "most-idle");
  options.keep_log = false;
  const FleetSize size = FindFleetSize(options, workload, kObjective, 0.95, 50, none, {}).value();
  ASSERT_GT(size.servers, 1);
  for (const FleetSize::Probe& probe : size.probes)
    EXPECT_EQ(probe.attained >= 0.95, probe.servers >= size.servers) << probe.servers;
  const auto tried = [&](std::int64_t servers) {
    return std::any_of(size.probes.begin(), size.probes.end(),
                       [&](const FleetSize::Probe& probe) { return probe.servers == servers; });
  };
  EXPECT_TRUE(tried(size.servers) && tried(size.servers - 1));
  EXPECT_EQ(FindFleetSize(options, workload, kObjective, 0.95, size.servers - 1, none, {}).value().servers, 0);
  options.servers = 30;
  EXPECT_EQ(FindFleetSize(options, workload, kObjective, 0.95, 50, none, {}).value().servers, size.servers);
}

TEST(Machines, AreAsManyAsTheCheapestWayNeeds) {
  const Workload workload = SmallLoad(400, 60);
  FleetOptions options = SmallFleet(1, "most-idle");
  options.keep_log = false;
  const auto device = [](std::int64_t gpus) {
    return DescribeDevice(FindDevice("a10").value(), FindModel("llama-7b").value(), gpus).value();
  };
  const auto preset = [&](std::string_view name) {
    Preset found = FindPreset(name).value();
    TakeOperatorsSettings(options.server.preset.spec, found.spec);
    return found;
  };
  const std::vector<MachineChoice> choices = {
      {preset("s-lora"), 1, device(1)}, {preset("loramux"), 2, device(2)}, {preset("loramux"), 1, device(1)}};
  MachineSearch search{.objective = kObjective, .share = 0.95, .most = 50};
  double last = 0;
  search.progress = [&](const std::string& what, double share) {
    EXPECT_FALSE(what.empty());
    EXPECT_LE(share, 1);
    last = share;
  };
  const auto counts = FindMachines(choices, options, workload, search).value();
  ASSERT_EQ(counts.size(), 3u);
  EXPECT_GT(last, 0);
  ASSERT_EQ(counts.front().known, MachineKnowledge::kExact);
  // Each number that is said to be exact is, by the search of one way alone.
  for (const MachineCount& count : counts) {
    EXPECT_GE(count.Gpus(), counts.front().Gpus());
    FleetOptions alone = options;
    alone.server.preset = count.choice.preset;
    alone.server.device = count.choice.device;
    const auto none = [](std::int64_t) -> Result<std::vector<FleetEvent>> { return std::vector<FleetEvent>{}; };
    const std::int64_t needed = FindFleetSize(alone, workload, kObjective, 0.95, 50, none, {}).value().servers;
    if (count.known == MachineKnowledge::kExact) EXPECT_EQ(count.servers, needed) << NameOf(count.choice);
    if (count.known == MachineKnowledge::kMoreThan) EXPECT_LT(count.servers, needed) << NameOf(count.choice);
  }
  const std::string answer = MachineAnswer(counts, "This trace", "A10 24 GB", 50);
  EXPECT_THAT(answer, AllOf(HasSubstr("This trace needs "), HasSubstr(" of A10 24 GB"), HasSubstr("with preset ")));
  search.most = 1;
  const auto too_many = FindMachines({choices.front()}, options, workload, search).value();
  EXPECT_EQ(too_many.front().known, MachineKnowledge::kTooMany);
  EXPECT_THAT(MachineAnswer(too_many, "This trace", "A10", 1), HasSubstr("more than 1"));
}

TEST(Machines, EachNthSessionIsWholeAndSharesTheTime) {
  const Workload workload = MakeWorkload({.requests = 300, .rate = 5, .turns = 3, .seed = 4}).value();
  const auto sessions = [](const Workload& all) {
    return std::count_if(all.requests.begin(), all.requests.end(), [](const auto& r) { return !r.follows; });
  };
  const Workload part = EveryNthSession(workload, 4);
  EXPECT_EQ(sessions(part), (sessions(workload) + 3) / 4);
  std::size_t turns = 0;
  for (std::size_t i = 0; i < part.requests.size(); ++i) {
    if (part.requests[i].follows) continue;
    for (std::int64_t at = static_cast<std::int64_t>(i); at >= 0; at = part.requests[static_cast<std::size_t>(at)].next)
      ++turns;
  }
  EXPECT_EQ(turns, part.requests.size());
  EXPECT_EQ(EveryNthSession(workload, 1).requests.size(), 300u);
}

TEST(Summary, CountsEachRequestAndSortsAdapters) {
  const Workload workload = SmallLoad(400, 50);
  FleetOptions options = SmallFleet(3, "most-idle");
  options.events = Events({"crash@4:2"}, 3);
  const FleetResult result = SimulateFleet(options, workload).value();
  const FleetSummary all = Summarise(result, workload, kObjective),
                     strict = Summarise(result, workload, {.ttft = kNsPerSecond, .token = 40 * kNsPerMs}),
                     warm = Summarise(result, workload, {.ttft = kNsPerSecond, .warmup = 4 * kNsPerSecond});
  EXPECT_EQ(all.requests, 400);
  EXPECT_EQ(all.finished + all.broken + all.not_served, 400);
  EXPECT_GT(all.broken, 0);
  EXPECT_LT(strict.attained, all.attained);
  EXPECT_LT(warm.requests, 300);
  std::int64_t requests = 0;
  double within = 0;
  for (const AdapterSummary& adapter : all.adapters) {
    requests += adapter.requests;
    within += adapter.attained * static_cast<double>(adapter.requests);
  }
  EXPECT_EQ(requests, 400);
  EXPECT_NEAR(within / 400, all.attained, 1e-9);
  EXPECT_TRUE(std::is_sorted(all.adapters.begin(), all.adapters.end(),
                             [](const AdapterSummary& a, const AdapterSummary& b) { return a.attained < b.attained; }));
}

TEST(Report, HasPoliciesAndWorstAdapters) {
  const Workload workload = SmallLoad(200, 40);
  FleetReport report{.device = "<device>", .workload = workload.what, .fleet = "3 servers", .objective = kObjective};
  report.wanted_share = 0.9;
  for (const char* policy : {"random", "most-idle"}) {
    FleetRun run{.policy = policy};
    const FleetOptions options = SmallFleet(3, policy);
    run.result = SimulateFleet(options, workload).value();
    run.summary = Summarise(run.result, workload, kObjective);
    run.size = {.servers = run.policy == "random" ? 4 : 3, .probes = {{2, 0.5, 100}, {4, 1, 50}}};
    report.runs.push_back(std::move(run));
  }
  EXPECT_EQ(BestOf(report).policy, "most-idle");
  EXPECT_THAT(ReportAsTable(report), AllOf(HasSubstr("most-idle  "), HasSubstr("servers"), HasSubstr("serves worst")));
  EXPECT_THAT(ReportAsJson(report), AllOf(HasSubstr("\"policy\": \"random\""), HasSubstr("\"adapters\""),
                                          HasSubstr("\"wanted_share\": 0.9")));
  EXPECT_THAT(ReportAsHtml(report), AllOf(HasSubstr("&lt;device&gt;"), HasSubstr("<svg"), HasSubstr("servers needed")));
}

}  // namespace
}  // namespace loramux::fleet_test
