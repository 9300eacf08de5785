#include "tools/simulate_fleet.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "cluster/route_policy.h"
#include "report/number_format.h"
#include "report/progress_bar.h"
#include "simulate/fleet.h"
#include "simulate/fleet_report.h"
#include "simulate/machine_search.h"

namespace loramux {
namespace {

void AddRouterFlags(CommandLine& line, SimulateFlags& flags, const std::string& group) {
  std::string policies;
  for (const RoutePolicyName& policy : RoutePolicies())
    policies += (policies.empty() ? "" : ", ") + std::string(policy.name);
  line.Add({.names = "--policy",
            .target = &flags.policies,
            .unit = "NAME",
            .group = group,
            .help = "Routing policies to compare, separated by commas, or 'all': " + policies,
            .comma_list = true});
  line.Add({.names = "--routers",
            .target = &flags.fleet.routers,
            .unit = "N",
            .group = group,
            .help = "Routers in front of the servers; none knows what the others do",
            .range = {{1, 1000}}});
  line.Add({.names = "--average-answer",
            .target = &flags.fleet.dispatcher.average_answer,
            .unit = "TOKENS",
            .group = group,
            .help = "avg_resp_len of CaraServe's Algorithm 1 (policies algorithm1*): tokens of the average answer",
            .default_text = "the mean of the load",
            .range = {{0.0, 1e6}}});
  line.Add({.names = "--snapshot-interval",
            .target = &flags.fleet.snapshot_interval,
            .form = FlagForm::kSeconds,
            .unit = "SECONDS",
            .group = group,
            .help = "How often routers hear of each server's state; 0: they always know it",
            .range = {{0.0, 3600.0}}});
  line.Add({.names = "--snapshot-delay",
            .target = &flags.fleet.snapshot_delay,
            .form = FlagForm::kSeconds,
            .unit = "SECONDS",
            .group = group,
            .help = "How old that state is when a router hears of it",
            .range = {{0.0, 3600.0}}});
  line.Add({.names = "--snapshot-loss",
            .target = &flags.fleet.snapshot_loss,
            .unit = "SHARE",
            .group = group,
            .help = "Share of them that routers never hear",
            .range = {{0.0, 1.0}}});
}

void AddChangeFlags(CommandLine& line, SimulateFlags& flags, const std::string& group) {
  line.Add({.names = "--fail",
            .target = &flags.fail,
            .unit = "EVENT",
            .group = group,
            .help = "What happens to servers, separated by commas: crash@60+30:3 (server 3 dies after 60 s and is back "
                    "after 30 more, with nothing in memory; without +30 never, without :3 any server), freeze@60+5, "
                    "drain@60+20, add@60:4 (four new servers), crashes@600+30 (each server, every 600 s on average)",
            .comma_list = true});
  line.Add({.names = "--drift",
            .target = &flags.drift,
            .form = FlagForm::kSeconds,
            .unit = "SECONDS",
            .group = group,
            .help = "After each such time, some adapters exchange their popularity with others of their rank",
            .default_text = "0: popularity stays",
            .range = {{0.0, 1e6}}});
  line.Add({.names = "--drift-share",
            .target = &flags.drift_share,
            .unit = "SHARE",
            .group = group,
            .help = "How many of the adapters do",
            .range = {{0.0, 1.0}},
            .needs = "--drift"});
}

// The text of the report.
std::string DescribeFleet(const SimulateFlags& flags) {
  const FleetOptions& fleet = flags.fleet;
  const auto ms = [](TimeNs time) { return FormatMs(static_cast<double>(time) / kNsPerMs); };
  std::string text = flags.find_servers ? "as many servers as needed" : fmt::format("{} servers", fleet.servers);
  text += fleet.routers == 1 ? ", one router" : fmt::format(", {} routers", fleet.routers);
  text += fleet.snapshot_interval == 0
              ? ", which knows the servers' state"
              : fmt::format(", snapshots every {}, {} old", ms(fleet.snapshot_interval), ms(fleet.snapshot_delay));
  if (fleet.snapshot_loss > 0) text += ", " + FormatShare(fleet.snapshot_loss) + " of them lost";
  if (flags.adapters_on_disk) text += ", adapters on disk";
  if (flags.drift > 0)
    text += fmt::format(", {} of the adapters change places every {} s", FormatShare(flags.drift_share),
                        FormatNumber(static_cast<double>(flags.drift) / kNsPerSecond));
  for (std::size_t i = 0; i < flags.fail.size(); ++i) text += (i == 0 ? "; " : ", ") + flags.fail[i];
  return text;
}

Result<std::vector<std::string>> PoliciesOf(const SimulateFlags& flags) {
  std::vector<std::string> policies;
  for (const std::string& name : flags.policies) {
    if (name == "all") {
      for (const RoutePolicyName& policy : RoutePolicies()) policies.emplace_back(policy.name);
      continue;
    }
    RETURN_IF_ERROR(MakeRoutePolicy(name));
    policies.push_back(name);
  }
  return policies;
}

TimeNs LastArrival(const Workload& workload) {
  TimeNs last = 0;
  for (const WorkloadRequest& request : workload.requests) {
    if (!request.follows) last = std::max(last, request.arrival);
  }
  return last;
}

FleetOptions FleetOptionsOf(const SimulateFlags& flags, const PreparedSimulation& prepared) {
  FleetOptions options = flags.fleet;
  options.server = prepared.options;
  options.seed = flags.workload.seed;
  options.server.preset = prepared.presets.front();
  options.server.device = options.server.device.WithPageTokens(options.server.preset.spec.page_tokens);
  options.dispatcher.seed = flags.workload.seed;
  options.dispatcher.tpot_objective = prepared.objective.token > 0 ? prepared.objective.token : prepared.objective.tpot;
  // A router that hears seldom must believe what it heard for longer.
  options.dispatcher.snapshot_lifetime =
      std::max(options.dispatcher.snapshot_lifetime, 3 * (options.snapshot_interval + options.snapshot_delay));
  return options;
}

Result<FleetRun> RunPolicy(const SimulateFlags& flags, FleetOptions options, const PreparedSimulation& prepared,
                           const FleetObjective& objective, const std::string& policy) {
  FleetRun run{.policy = policy};
  options.dispatcher.policy = policy;
  ProgressBar progress(policy, "%", 1);
  options.progress = [&](double share) { progress.Update(static_cast<std::int64_t>(100 * share), 100); };
  const auto events = [&](std::int64_t servers) {
    return ParseFleetEvents(flags.fail, servers, LastArrival(prepared.workload), flags.workload.seed);
  };
  if (flags.find_servers) {
    ASSIGN_OR_RETURN(run.size, FindFleetSize(options, prepared.workload, objective, flags.share, flags.most_servers,
                                             events, [&](const std::string& note) { progress.Note(note); }));
    options.servers = run.size.servers > 0 ? run.size.servers : flags.most_servers;
  }
  if (run.size.result) {
    run.result = std::move(*run.size.result);
    run.size.result.reset();
  } else {
    ASSIGN_OR_RETURN(options.events, events(options.servers));
    ASSIGN_OR_RETURN(run.result, SimulateFleet(options, prepared.workload));
  }
  progress.Finish();
  run.summary = Summarise(run.result, prepared.workload, objective);
  return run;
}

// Runs of the ways to serve whose need is known, and the answer.
Status CompareMachines(const SimulateFlags& flags, const PreparedSimulation& prepared, const std::string& policy,
                       FleetReport& report) {
  FleetOptions options = FleetOptionsOf(flags, prepared);
  options.dispatcher.policy = policy;
  std::vector<MachineChoice> choices;
  for (const Preset& preset : prepared.presets) {
    for (std::size_t i = 0; i < prepared.devices.size(); ++i)
      choices.push_back({.preset = preset,
                         .gpus = flags.gpus[i],
                         .device = prepared.devices[i].WithPageTokens(preset.spec.page_tokens)});
  }
  TimedProgress progress("machines");
  MachineSearch search{.objective = report.objective,
                       .share = flags.share,
                       .most = flags.most_servers,
                       .faults =
                           [&](std::int64_t servers) {
                             return ParseFleetEvents(flags.fail, servers, LastArrival(prepared.workload),
                                                     flags.workload.seed);
                           },
                       .progress =
                           [&](const std::string& what, double share) {
                             progress.Note(what);
                             progress.Update(share);
                           }};
  ASSIGN_OR_RETURN(report.machines, FindMachines(choices, options, prepared.workload, search));
  progress.Finish();
  report.first_column = "preset";
  report.answer = MachineAnswer(report.machines, flags.workload.trace.empty() ? "This load" : "This trace",
                                prepared.device, flags.most_servers);
  for (MachineCount& count : report.machines) {
    if (!count.result) continue;
    FleetRun run{.policy = NameOf(count.choice)};
    run.summary = std::move(count.summary);
    run.result = std::move(*count.result);
    count.result.reset();
    report.runs.push_back(std::move(run));
  }
  return Ok{};
}

Result<FleetReport> MakeFleetReport(SimulateFlags& flags) {
  ASSIGN_OR_RETURN(const std::vector<std::string> policies, PoliciesOf(flags));
  // One policy: presets and numbers of GPUs are compared. Several: those.
  const bool machines = flags.find_servers && policies.size() == 1;
  if (!machines && flags.presets.empty()) flags.presets = {"loramux"};
  flags.fleet.servers = std::max<std::int64_t>(1, flags.fleet.servers);
  ASSIGN_OR_RETURN(PreparedSimulation prepared, PrepareSimulation(flags));
  if (!machines && (prepared.presets.size() != 1 || flags.gpus.size() != 1)) {
    const char* with = flags.find_servers ? "several policies" : "--servers";
    return InvalidArgument(fmt::format("preset and GPUs: expected one with {}, found {} and {}", with,
                                       prepared.presets.size(), flags.gpus.size()),
                           "--preset");
  }
  if (flags.drift > 0) DriftPopularity(prepared.workload, flags.drift, flags.drift_share, flags.workload.seed);
  FleetReport report{.device = prepared.options.device.name,
                     .workload = prepared.workload.what,
                     .fleet = DescribeFleet(flags),
                     .command = flags.command_line,
                     .objective = prepared.objective,
                     .objective_source = prepared.objective_source,
                     .low_load_ms = prepared.low_load_ms,
                     .wanted_share = flags.share,
                     .servers = flags.fleet.servers};
  if (machines) {
    RETURN_IF_ERROR(CompareMachines(flags, prepared, policies.front(), report));
    return report;
  }
  const FleetOptions options = FleetOptionsOf(flags, prepared);
  for (const std::string& policy : policies) {
    ASSIGN_OR_RETURN(report.runs.emplace_back(), RunPolicy(flags, options, prepared, report.objective, policy));
  }
  return report;
}

}  // namespace

Status CheckFleetFlags(const SimulateFlags& flags) {
  if (flags.simulates_fleet()) return Ok{};
  const SimulateFlags none;
  const FleetOptions &fleet = flags.fleet, &alone = none.fleet;
  for (const auto& [flag, given] :
       {std::pair("--policy", flags.policies != none.policies), std::pair("--routers", fleet.routers != alone.routers),
        std::pair("--snapshot-interval", fleet.snapshot_interval != alone.snapshot_interval),
        std::pair("--snapshot-delay", fleet.snapshot_delay != alone.snapshot_delay),
        std::pair("--snapshot-loss", fleet.snapshot_loss != alone.snapshot_loss),
        std::pair("--average-answer", fleet.dispatcher.average_answer != 0), std::pair("--fail", !flags.fail.empty()),
        std::pair("--drift", flags.drift != 0), std::pair("--warmup", flags.objective.warmup != 0)}) {
    if (given)
      return InvalidArgument(fmt::format("{}: expected with --servers or --find-servers, which simulate a fleet", flag),
                             flag);
  }
  return Ok{};
}

void AddFleetFlags(CommandLine& line, SimulateFlags& flags) {
  const std::string group = "Fleet";
  line.Add({.names = "--servers",
            .target = &flags.fleet.servers,
            .unit = "N",
            .group = group,
            .help = "Simulate so many servers behind routers",
            .default_text = "one server without a router",
            .range = {{1, 10000}}});
  AddRouterFlags(line, flags, group);
  AddChangeFlags(line, flags, group);
  line.Add({.names = "--warmup",
            .target = &flags.objective.warmup,
            .form = FlagForm::kSeconds,
            .unit = "SECONDS",
            .group = group,
            .help = "Do not count requests that come before",
            .range = {{0.0, 1e6}}});
  line.Add({.names = "--find-servers",
            .target = &flags.find_servers,
            .group = group,
            .help =
                "Say how many devices the load needs, and with which of the presets and numbers of --gpus; of several "
                "policies each one's number, searched from --servers on"});
  line.Add({.names = "--share",
            .target = &flags.share,
            .unit = "SHARE",
            .group = group,
            .help = "Share of the requests that must be within the objective",
            .range = {{0.0, 1.0}},
            .needs = "--find-servers"});
  line.Add({.names = "--most-servers",
            .target = &flags.most_servers,
            .unit = "N",
            .group = group,
            .help = "Where the search ends",
            .range = {{1, 10000}},
            .needs = "--find-servers"});
}

Status ReportFleet(SimulateFlags flags) {
  ASSIGN_OR_RETURN(const FleetReport report, MakeFleetReport(flags));
  fmt::print("{}", ReportAsTable(report));
  RETURN_IF_ERROR(WriteReportFile(flags.json, ReportAsJson(report), "--json"));
  return WriteReportFile(flags.html, flags.html.empty() ? "" : ReportAsHtml(report), "--html");
}

}  // namespace loramux
