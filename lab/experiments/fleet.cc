// Sixty servers and two thousand adapters: every policy at several ages of what routers know.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "cluster/route_policy.h"
#include "lab/charts/dot_chart.h"
#include "lab/experiments/experiment.h"
#include "lab/experiments/fleet_runs.h"

namespace loramux {
namespace {

constexpr std::int64_t kFleetServers = 60, kFleetAdapters = 2000, kFleetRequests = 7500, kFleetSeeds = 5;
constexpr double kFleetRate = 150;
constexpr std::array kStaleness = {0.0, 0.1, 1.0, 5.0};  // seconds
constexpr TimeNs kTtftObjective = kNsPerSecond;
constexpr double kWarmupShare = 0.2;  // share of the time of the arrivals
constexpr std::string_view kOurPolicy = "loramux";
constexpr std::string_view kOwnVariant = "seconds";  // the same cost over all servers: no policy of others

std::vector<std::string> FleetPolicies() {
  std::vector<std::string> names;
  for (const RoutePolicyName& policy : RoutePolicies()) names.emplace_back(policy.name);
  return names;
}

Result<FleetJob> MakeFleetJob(const ExperimentContext& context, double staleness, const std::string& policy) {
  ASSIGN_OR_RETURN(const DeviceShape device, FindDevice("a10"));
  ASSIGN_OR_RETURN(const ModelShape model, FindModel("llama-7b"));
  FleetJob job;
  SimulationOptions& server = job.options.server;
  ASSIGN_OR_RETURN(server.device, DescribeDevice(device, model));
  ASSIGN_OR_RETURN(server.preset, FindPreset("loramux"));
  server.host_bytes = 64e9;
  server.adapters_in_host_memory = false;
  server.preset.spec.objective = kTtftObjective;
  job.options.servers = kFleetServers;
  job.options.dispatcher.policy = policy;
  job.options.dispatcher.snapshot_lifetime = 20 * kNsPerSecond;
  job.options.snapshot_interval = static_cast<TimeNs>(staleness * kNsPerSecond);
  job.options.snapshot_delay = staleness > 0 ? 5 * kNsPerMs : 0;
  const double seconds = static_cast<double>(context.Requests(kFleetRequests)) / kFleetRate;
  job.objective = {.ttft = kTtftObjective, .warmup = static_cast<TimeNs>(kWarmupShare * seconds * kNsPerSecond)};
  job.load = {.requests = context.Requests(kFleetRequests),
              .rate = kFleetRate,
              .input_mean = 512,
              .output_mean = 128,
              .max_input = 4096,
              .max_output = 1024,
              .adapters = kFleetAdapters,
              .ranks = {8, 16, 32, 64, 128}};
  return job;
}

std::string FleetText() {
  return fmt::format(
      "{} servers of Llama-2-7B on an A10 behind one router; {} adapters (q, k, v, o) of ranks 8 to 128, Zipf 1.0 "
      "within "
      "each rank; they are on disk at the start (3 GB/s), and 64 GB of each host keep them. Poisson arrivals, {:.0f} "
      "requests/s, prompts of 512 and answers of 128 tokens on average (log-normal). Preset `loramux`. Staleness: how "
      "often the router hears of each server (0: at each decision it knows the present state); it counts what it sent "
      "since, with every policy. The objective is a first token within {} s. Requests of the first fifth, in which all "
      "servers are cold, are not counted. Figures are means over the seeds, with the lowest and the highest.\n\nA line "
      "again: `loramux simulate --servers 60 --policy all --snapshot-interval 1 --device a10 --adapters 2000 --ranks "
      "8,16,32,64,128 --rate 150 --requests {} --max-input 4096 --max-output 1024 --host-memory 64 "
      "--adapters-on-disk --slo 1 --warmup 10`",
      kFleetServers, kFleetAdapters, kFleetRate, kTtftObjective / kNsPerSecond, kFleetRequests);
}

// By staleness, policy, seed.
using ByStaleness = std::vector<std::vector<std::vector<FleetSummary>>>;

ExperimentTable StalenessTable(double staleness, const std::vector<std::string>& policies,
                               const std::vector<std::vector<FleetSummary>>& all) {
  ExperimentTable table{.title = fmt::format("Staleness {} s", staleness),
                        .header = {"policy", "SLO attainment %", "TTFT P50 ms", "TTFT P99 ms", "time per token ms",
                                   "cold %", "loads", "busiest server %", "worst tenth of adapters %"},
                        .rows = {}};
  for (std::size_t p = 0; p < policies.size(); ++p) {
    const auto show = [&](double (*figure)(const FleetSummary&), double factor, int digits) {
      return ShowSpread(SpreadOf(all[p], figure), factor, digits);
    };
    table.rows.push_back({policies[p], show([](const FleetSummary& s) { return s.attained; }, 100, 1),
                          show([](const FleetSummary& s) { return s.ttft.p50; }, 1, 0),
                          show([](const FleetSummary& s) { return s.ttft.p99; }, 1, 0),
                          show([](const FleetSummary& s) { return s.token.mean; }, 1, 1),
                          show([](const FleetSummary& s) { return s.cold; }, 100, 1),
                          show([](const FleetSummary& s) { return static_cast<double>(s.device_loads); }, 1, 0),
                          show([](const FleetSummary& s) { return s.busy.max; }, 100, 0),
                          show(
                              [](const FleetSummary& s) {
                                double within = 0, requests = 0;  // in the worst served tenth of the adapters
                                for (std::size_t i = 0; i < (s.adapters.size() + 9) / 10; ++i) {
                                  const auto own = static_cast<double>(s.adapters[i].requests);
                                  requests += own;
                                  within += own * s.adapters[i].attained;
                                }
                                return requests > 0 ? within / requests : 0;
                              },
                              100, 1)});
  }
  return table;
}

ExperimentPlot StalenessPlot(const std::vector<std::string>& policies, const ByStaleness& all) {
  DotChart chart{.title = "SLO attainment by policy",
                 .subtitle = "colours: how often the router hears of servers; mean and range over the seeds, simulated",
                 .x_label = "% of requests",
                 .series = {},
                 .rows = {}};
  for (const double staleness : kStaleness) chart.series.push_back(fmt::format("{} s", staleness));
  for (std::size_t p = 0; p < policies.size(); ++p) {
    DotChart::Row row{.name = policies[p], .dots = {}};
    for (const auto& by_policy : all) {
      const Spread spread = SpreadOf(by_policy[p], [](const FleetSummary& s) { return 100 * s.attained; });
      row.dots.push_back({.value = spread.mean, .low = spread.low, .high = spread.high});
    }
    chart.rows.push_back(std::move(row));
  }
  return {.name = "slo", .title = chart.title, .svg = RenderSvg(chart)};
}

// Ours against the best of the others.
void CompareFleet(const std::vector<std::string>& policies, const ByStaleness& all, ExperimentResult& result) {
  for (std::size_t s = 0; s < kStaleness.size(); ++s) {
    Spread own, best{.mean = -1};
    std::string best_name;
    for (std::size_t p = 0; p < policies.size(); ++p) {
      const Spread spread = SpreadOf(all[s][p], [](const FleetSummary& summary) { return summary.attained; });
      if (policies[p] == kOurPolicy) {
        own = spread;
      } else if (policies[p] != kOwnVariant && spread.mean > best.mean) {
        best = spread;
        best_name = policies[p];
      }
    }
    result.comparison.push_back(
        {.id = "fleet",
         .what = fmt::format("SLO attainment, %, staleness {} s: loramux against the best other policy", kStaleness[s]),
         .reported = "at least as good",
         .ours = fmt::format("{} against {} ({})", ShowSpread(own, 100), ShowSpread(best, 100), best_name),
         .verdict = VerdictOfClaim(own.mean >= best.mean)});
  }
}

Result<ExperimentResult> RunFleet(ExperimentContext& context) {
  const std::vector<std::string> policies = FleetPolicies();
  std::vector<FleetJob> jobs;
  for (const double staleness : kStaleness) {
    for (const std::string& policy : policies) {
      ASSIGN_OR_RETURN(jobs.emplace_back(), MakeFleetJob(context, staleness, policy));
    }
  }
  ASSIGN_OR_RETURN(auto summaries, SimulateFleets(context, jobs, SeedsOf(context, kFleetSeeds)));
  ExperimentResult result{.setting = FleetText()};
  ByStaleness all(kStaleness.size());
  for (std::size_t i = 0; i < jobs.size(); ++i) all[i / policies.size()].push_back(std::move(summaries[i]));
  CompareFleet(policies, all, result);
  for (std::size_t s = 0; s < kStaleness.size(); ++s)
    result.tables.push_back(StalenessTable(kStaleness[s], policies, all[s]));
  result.plots = {StalenessPlot(policies, all)};
  return result;
}

constexpr std::array kFleetExperiments = std::to_array<Experiment>({
    {"fleet", "fleet", "Routing over sixty servers", "this project: docs/design/simulator.md", RunFleet,
     "it has seeds of its own"},
});

}  // namespace

std::span<const Experiment> FleetExperiments() { return kFleetExperiments; }

}  // namespace loramux
