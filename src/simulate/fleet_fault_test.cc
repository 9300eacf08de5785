// A thousand seeded schedules of faults in virtual time, and a checker over the logs of servers and clients.
#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/prng.h"
#include "simulate/fleet.h"
#include "simulate/fleet_world_for_test.h"

namespace loramux::fleet_fault_test {
namespace {

// What the logs say of one request.
struct Story {
  std::int64_t asked = 0, accepted = 0, ended = 0, stopped = 0, told = 0;
  std::string wanted, had;  // digests
  std::int32_t server = -1;
  std::int64_t life = 0;
  FleetEnd end = FleetEnd::kNeverAsked;
};

// What is wrong with the story; empty: nothing.
std::string Fault(const Story& story) {
  if (story.asked != 1) return fmt::format("was asked {} times", story.asked);
  if (story.told != 1) return fmt::format("its client was told {} ends", story.told);
  if (story.accepted > 1) return fmt::format("{} servers began it", story.accepted);
  if (story.ended > 1) return fmt::format("was executed {} times", story.ended);
  if (story.ended + story.stopped != story.accepted) return "a server began it and has no end of it";
  if ((story.end == FleetEnd::kFinished) != (story.ended == 1)) return "client and server disagree about its end";
  if (story.accepted > 0 && !story.wanted.empty() && story.wanted != story.had)
    return fmt::format("wanted content {}, was executed with {}", story.wanted, story.had);
  if (story.end == FleetEnd::kNeverAsked) return "has no answer and no error";
  return {};
}

std::vector<std::string> Check(const std::vector<FleetLogEntry>& log) {
  std::map<std::size_t, Story> stories;
  std::vector<std::string> faults;
  for (const FleetLogEntry& entry : log) {
    Story& story = stories[entry.request];
    const bool same_life = entry.server == story.server && entry.life == story.life;
    switch (entry.what) {
      case FleetLogEntry::What::kAsked:
        ++story.asked;
        story.wanted = entry.digest;
        break;
      case FleetLogEntry::What::kAccepted:
        ++story.accepted;
        story.had = entry.digest;
        story.server = entry.server;
        story.life = entry.life;
        break;
      case FleetLogEntry::What::kEnded:
        ++story.ended;
        if (!same_life) faults.push_back(fmt::format("request {}: ended where it did not begin", entry.request));
        break;
      case FleetLogEntry::What::kStopped:
        ++story.stopped;
        if (!same_life) faults.push_back(fmt::format("request {}: stopped where it did not begin", entry.request));
        break;
      case FleetLogEntry::What::kTold:
        ++story.told;
        story.end = entry.end;
        break;
    }
  }
  for (const auto& [request, story] : stories) {
    if (const std::string fault = Fault(story); !fault.empty())
      faults.push_back(fmt::format("request {}: {}", request, fault));
  }
  return faults;
}

using What = FleetLogEntry::What;

TEST(Checker, FindsWhatIsWrong) {
  const FleetLogEntry asked{.what = What::kAsked, .digest = "a"}, accepted{.what = What::kAccepted, .digest = "a"},
      ended{.what = What::kEnded}, told{.what = What::kTold, .end = FleetEnd::kFinished};
  FleetLogEntry on_two = accepted, elsewhere = ended, other = accepted;
  FleetLogEntry good_server = accepted;
  good_server.server = on_two.server = ended.server;
  elsewhere.life = 7;
  other.digest = "b";
  EXPECT_TRUE(Check({asked, accepted, ended, told}).empty());
  EXPECT_EQ(Check({asked, accepted, on_two, ended, ended, told}).size(), 1u);  // twice
  EXPECT_EQ(Check({asked, accepted, elsewhere, told}).size(), 1u);
  EXPECT_EQ(Check({asked, other, ended, told}).size(), 1u);
  EXPECT_EQ(Check({asked, accepted, ended}).size(), 1u);  // lost
  EXPECT_EQ(Check({asked, accepted, told}).size(), 1u);   // an answer out of nothing
  EXPECT_EQ(Check({asked}).size(), 1u);
}

TimeNs Between(Prng& prng, double from, double to) {
  return static_cast<TimeNs>((from + (to - from) * prng.NextDouble()) * static_cast<double>(kNsPerSecond));
}

// Up to seven faults of each kind's share, and new contents that reach the servers one by one.
std::vector<FleetEvent> DrawEvents(Prng& prng, std::int64_t servers, double seconds) {
  constexpr std::array kKinds = {FleetEventKind::kCrash, FleetEventKind::kFreeze, FleetEventKind::kDrain,
                                 FleetEventKind::kCrash, FleetEventKind::kFreeze, FleetEventKind::kAdd};
  std::vector<FleetEvent> events;
  for (std::uint64_t i = prng.NextBelow(8); i > 0; --i) {
    FleetEvent event{.at = Between(prng, 0, seconds), .kind = kKinds[prng.NextBelow(kKinds.size())]};
    if (event.kind != FleetEventKind::kAdd)
      event.server = static_cast<std::int32_t>(prng.NextBelow(static_cast<std::uint64_t>(servers)));
    const bool for_ever = event.kind != FleetEventKind::kFreeze && prng.NextBelow(3) == 0;
    if (!for_ever) event.duration = Between(prng, 0.01, 2);
    events.push_back(event);
  }
  for (std::uint64_t i = prng.NextBelow(3); i > 0; --i) {
    FleetEvent event{.at = Between(prng, 0, seconds), .kind = FleetEventKind::kReplace};
    event.adapter = static_cast<std::int32_t>(prng.NextBelow(4));
    events.push_back(event);
    for (std::int32_t server = 0; server < servers; ++server) {
      FleetEvent reaches = event;
      reaches.server = server;
      reaches.at += Between(prng, 0, 0.5);
      events.push_back(reaches);
    }
  }
  std::stable_sort(events.begin(), events.end(), [](const FleetEvent& a, const FleetEvent& b) { return a.at < b.at; });
  return events;
}

// What happened over all schedules, so that the test shows that it tests something.
struct Seen {
  std::int64_t requests = 0, finished = 0, broken = 0, not_served = 0, cancelled = 0, retries = 0, starts = 0;
};

void RunSeed(std::uint64_t seed, const std::vector<std::string>& policies, Seen& seen) {
  Prng prng(seed);
  const double rate = 10 + 30 * prng.NextDouble();
  constexpr std::int64_t kRequests = 40;
  Workload workload = SmallLoad(kRequests, rate, seed, /*turns=*/1.3);
  for (WorkloadRequest& request : workload.requests) {
    if (prng.NextBelow(8) == 0) request.cancel_after = Between(prng, 0.001, 1);
  }
  const auto servers = static_cast<std::int64_t>(2 + prng.NextBelow(4));
  FleetOptions options = SmallFleet(servers, policies[seed % policies.size()]);
  options.seed = options.dispatcher.seed = options.server.seed = seed;
  options.routers = static_cast<std::int64_t>(1 + prng.NextBelow(3));
  options.snapshot_interval = prng.NextBelow(4) == 0 ? 0 : Between(prng, 0.02, 1);
  options.snapshot_delay = Between(prng, 0, 0.3);
  options.snapshot_jitter = 3 * prng.NextDouble();
  options.snapshot_loss = prng.NextBelow(2) == 0 ? 0 : prng.NextDouble();
  options.drain_notice = Between(prng, 0, 0.5);
  options.events = DrawEvents(prng, servers, 1.2 * kRequests / rate);
  const FleetResult result = SimulateFleet(options, workload).value();
  const std::vector<std::string> faults = Check(result.log);
  ASSERT_TRUE(faults.empty()) << "seed " << seed << ", " << options.dispatcher.policy << ": " << faults.front();
  for (const auto& router : result.routers) {
    for (const Dispatcher::ServerState& server : router)
      ASSERT_EQ(server.in_flight, 0) << "seed " << seed << ": " << server.name;
  }
  for (std::size_t i = 0; i < result.requests.size(); ++i) {
    const FleetEnd end = result.requests[i].end;
    seen.requests += end != FleetEnd::kNeverAsked;
    seen.finished += end == FleetEnd::kFinished;
    seen.broken += end == FleetEnd::kBroken;
    seen.not_served += end == FleetEnd::kNotServed;
    seen.cancelled += end == FleetEnd::kCancelled;
  }
  seen.retries += result.retries;
  for (const FleetServerTotals& server : result.servers) seen.starts += server.starts - 1;
}

TEST(FleetFaults, AThousandSchedulesLoseNothingAndRepeatNothing) {
  const std::vector<std::string> policies = AllRoutePolicies();
  Seen seen;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    RunSeed(seed, policies, seen);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(seen.finished, seen.requests * 7 / 10);
  EXPECT_GT(seen.broken, 1000);
  EXPECT_GT(seen.not_served, 50);
  EXPECT_GT(seen.cancelled, 1000);
  EXPECT_GT(seen.retries, 300);
  EXPECT_GT(seen.starts, 500);
  RecordProperty("story",
                 fmt::format("{} requests: {} finished, {} broken, {} not served, {} cancelled; {} retries, {} "
                             "restarts",
                             seen.requests, seen.finished, seen.broken, seen.not_served, seen.cancelled, seen.retries,
                             seen.starts));
}

}  // namespace
}  // namespace loramux::fleet_fault_test
