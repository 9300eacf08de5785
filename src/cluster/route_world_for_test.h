// Servers written down by hand, for tests of policies.
#pragma once

#include <algorithm>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/must.h"
#include "cluster/default_model.h"
#include "cluster/route_policy.h"
#include "cluster/server_load.h"

namespace loramux {

// One server of the world.
struct HandMadeServer {
  std::string name;
  ServerSnapshot snapshot;
  bool heard = true;
  double share = 1;
  std::vector<OwnDispatch> sent;
  ServerLoad load;
};

// A list of servers, and what a policy chooses among them.
struct HandMadeWorld {
  std::deque<HandMadeServer> servers;
  std::shared_ptr<const PerformanceModel> model = DefaultPerformanceModel();
  TimeNs now = 100 * kNsPerSecond, tpot_objective = 0;
  std::int64_t replicas = 1, average_answer = 0;

  // Adds a server that runs `running` requests of the base model, and has room for many more.
  HandMadeServer& Add(std::string name, std::int64_t running = 0, std::int64_t waiting = 0) {
    HandMadeServer server{.name = std::move(name)};
    server.snapshot = {.instance = "i",
                       .version = 1,
                       .running = running,
                       .waiting = waiting,
                       .waiting_prompt_tokens = 200 * waiting,
                       .running_context = 300 * running,
                       .max_running = 256,
                       .max_batch_tokens = 2048,
                       .page_tokens = 16,
                       .page_bytes = 2 << 20,
                       .device_pages = 20000,
                       .free_pages = 10000};
    return servers.emplace_back(std::move(server));
  }
  // Lists an adapter at the server. Its requests are some of the server's.
  static void List(HandMadeServer& server, std::string_view name, AdapterPlace place, std::int32_t rank = 16,
                   std::int64_t running = 0, std::int64_t waiting = 0) {
    auto& adapters = server.snapshot.adapters;
    adapters.push_back({.name = std::string(name),
                        .digest = "d",
                        .place = place,
                        .rank = rank,
                        .bytes = rank * kAssumedBytesPerRank,
                        .running = running,
                        .waiting = waiting});
    std::ranges::sort(adapters, {}, &SnapshotAdapter::name);
  }

  std::vector<ServerView> Views() {
    std::vector<ServerView> views;
    for (HandMadeServer& server : servers) {
      const ServerSnapshot* snapshot = server.heard ? &server.snapshot : nullptr;
      server.load = snapshot != nullptr ? ServerLoad::Of(*snapshot) : ServerLoad();
      for (const OwnDispatch& dispatch : server.sent) server.load.AddSent(dispatch, snapshot);
      views.push_back({.name = server.name,
                       .snapshot = snapshot,
                       .snapshot_at = now - kNsPerSecond / 10,
                       .sent = server.sent,
                       .load = &server.load,
                       .in_flight = static_cast<std::int64_t>(server.sent.size()),
                       .share = server.share});
    }
    return views;
  }
  // Calls `use(context)`.
  template <typename Use>
  auto With(const RouteRequest& request, std::uint64_t random, const Use& use) {
    const std::vector<ServerView> views = Views();
    const RouteContext context{.request = request,
                               .servers = views,
                               .now = now,
                               .random = random,
                               .model = model.get(),
                               .replicas = replicas,
                               .tpot_objective = tpot_objective,
                               .average_answer = average_answer};
    return use(context);
  }
  // The name of the server that the policy chooses.
  std::string Choose(std::string_view policy, const RouteRequest& request, std::uint64_t random = 1) {
    const auto made = Must(MakeRoutePolicy(policy));
    return servers[With(request, random, [&](const RouteContext& context) { return made->Choose(context); })].name;
  }
  // How often each server is chosen with 1,000 random numbers.
  std::vector<int> Frequencies(std::string_view policy, const RouteRequest& request) {
    std::vector<int> counts(servers.size());
    const auto made = Must(MakeRoutePolicy(policy));
    for (std::uint64_t i = 0; i < 1000; ++i) {
      const std::uint64_t random = SplitMix64(i);
      ++counts[With(request, random, [&](const RouteContext& context) { return made->Choose(context); })];
    }
    return counts;
  }
};

// A request of usual size.
inline RouteRequest RequestFor(std::string_view adapter, std::int32_t rank = 16) {
  return {.adapter = std::string(adapter),
          .rank = rank,
          .adapter_bytes = rank * kAssumedBytesPerRank,
          .prompt_tokens = 300,
          .output_tokens = 100};
}

}  // namespace loramux
