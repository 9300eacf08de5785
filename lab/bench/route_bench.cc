// The cost of a router's decision, by policy: 60 servers that list 400 of 2,000 adapters each and 4,000 cached blocks
// of prompts; requests by Zipf's law whose prompts have 32 blocks, 200 per second, snapshots once a second. Timed are
// Send, Answered and End together, and apart from them the arrival of a snapshot. The target is 50 us for a decision.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <string>
#include <vector>

#include "base/must.h"
#include "base/prng.h"
#include "cluster/default_model.h"
#include "cluster/dispatcher.h"

namespace loramux {
namespace {

constexpr int kServers = 60, kAdapters = 2000, kListed = 400, kRequests = 4000, kPerSecond = 200;
constexpr std::size_t kCachedBlocks = 4000, kBlocks = 32, kInFlight = 1200;

double Microseconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

std::string NameOf(std::uint64_t adapter) {
  return "tenants/team-" + std::to_string(adapter % 97) + "/adapter-" + std::to_string(adapter);
}

// The blocks of one of 1,000 prompts.
std::vector<std::uint32_t> BlocksOf(std::uint64_t prompt) {
  std::vector<std::uint32_t> blocks;
  for (std::size_t b = 0; b < kBlocks; ++b) blocks.push_back(static_cast<std::uint32_t>(SplitMix64(prompt * 1000 + b)));
  return blocks;
}

ServerSnapshot SnapshotOf(Prng& prng, std::uint64_t version) {
  ServerSnapshot snapshot{.instance = "i",
                          .version = version,
                          .running = 20,
                          .waiting = static_cast<std::int64_t>(prng.NextBelow(5)),
                          .waiting_prompt_tokens = 1000,
                          .running_context = 10000,
                          .max_running = 256,
                          .max_batch_tokens = 2048,
                          .page_tokens = 16,
                          .page_bytes = 2 << 20,
                          .device_pages = 20000,
                          .free_pages = 100,
                          .history_pages = 10000,
                          .idle_adapter_pages = 1000};
  for (int a = 0; a < kListed; ++a) {
    const std::int32_t rank = 8 << prng.NextBelow(5);
    snapshot.adapters.push_back({.name = NameOf(prng.NextBelow(kAdapters)),
                                 .digest = "0123456789abcdef",
                                 .place = prng.NextBelow(3) == 0 ? AdapterPlace::kDevice : AdapterPlace::kHost,
                                 .rank = rank,
                                 .bytes = rank * kAssumedBytesPerRank,
                                 .running = a < 20 ? 1 : 0});
  }
  std::ranges::sort(snapshot.adapters, {}, &SnapshotAdapter::name);
  const auto same = std::ranges::unique(snapshot.adapters, {}, &SnapshotAdapter::name);
  snapshot.adapters.erase(same.begin(), same.end());
  while (snapshot.prefixes.size() < kCachedBlocks) {
    const std::vector<std::uint32_t> blocks = BlocksOf(prng.NextBelow(1000));
    snapshot.prefixes.insert(snapshot.prefixes.end(), blocks.begin(), blocks.end());
  }
  std::ranges::sort(snapshot.prefixes);
  return snapshot;
}

void Run(std::string_view policy) {
  const auto dispatcher = Must(Dispatcher::Create({.policy = std::string(policy), .model = DefaultPerformanceModel()}));
  std::vector<std::string> names;
  for (int s = 0; s < kServers; ++s) names.push_back("server-" + std::to_string(s) + ".fleet.svc:8000");
  dispatcher->SetServers(names, 0);
  Prng prng(1);
  std::deque<Dispatcher::Attempt> attempts;
  std::vector<double> decisions, snapshots;
  for (int r = 0; r < kRequests; ++r) {
    const TimeNs now = r * (kNsPerSecond / kPerSecond);
    if (r % kPerSecond == 0) {
      for (const std::string& name : names) {
        ServerSnapshot snapshot = SnapshotOf(prng, 1 + static_cast<std::uint64_t>(r));
        const auto begin = std::chrono::steady_clock::now();
        dispatcher->Observe(name, std::move(snapshot), now);
        snapshots.push_back(Microseconds(std::chrono::steady_clock::now() - begin));
      }
    }
    const auto popular = static_cast<std::uint64_t>(std::pow(kAdapters, prng.NextDouble())) - 1;  // Zipf's law, s = 1
    const RouteRequest request{.adapter = NameOf(popular),
                               .prompt_tokens = 2100,
                               .output_tokens = 200,
                               .prefix = BlocksOf(prng.NextBelow(1000))};
    const auto begin = std::chrono::steady_clock::now();
    attempts.push_back(Must(dispatcher->Send(request, now)).attempt);
    if (attempts.size() > kInFlight / 2) dispatcher->Answered(attempts[attempts.size() - kInFlight / 2], now);
    if (attempts.size() > kInFlight) {
      dispatcher->End(attempts.front(), AttemptEnd::kAnswered, now);
      attempts.pop_front();
    }
    decisions.push_back(Microseconds(std::chrono::steady_clock::now() - begin));
  }
  std::ranges::sort(decisions);
  std::ranges::sort(snapshots);
  std::printf("%-18s %8.1f %8.1f %12.1f\n", std::string(policy).c_str(), decisions[decisions.size() / 2],
              decisions[decisions.size() * 99 / 100], snapshots[snapshots.size() / 2]);
}

}  // namespace
}  // namespace loramux

int main() {
  std::printf("%-18s %8s %8s %12s\n", "us: policy", "P50", "P99", "snapshot P50");
  for (const loramux::RoutePolicyName& policy : loramux::RoutePolicies()) loramux::Run(policy.name);
  return 0;
}
