#include "simulate/machine_search.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "report/number_format.h"
#include "simulate/summary.h"

namespace loramux {
namespace {

// A way is compared with the cheapest in full if it is estimated to need at most so many times its accelerators.
constexpr double kWorthTrying = 1.25;
// What a run costs in the account of progress: one of a fleet, and the estimate of a way.
constexpr double kFleetUnits = 4, kEstimateUnits = 1.5;

class MachineFinder {
 public:
  MachineFinder(const FleetOptions& fleet, const Workload& workload, const MachineSearch& search)
      : fleet_(fleet), workload_(workload), search_(search) {}

  Result<std::vector<MachineCount>> Find(const std::vector<MachineChoice>& choices) {
    const auto ways = static_cast<double>(choices.size());
    // The cheapest takes two fleets, others one.
    units_left_ = kEstimateUnits * ways + kFleetUnits * (ways + 1);
    std::vector<MachineCount> counts;
    for (const MachineChoice& choice : choices) {
      counts.push_back({.choice = choice});
      RETURN_IF_ERROR(Estimate(counts.back()));
      const auto estimated = static_cast<double>(counts.size());
      units_left_ = kEstimateUnits * (ways - estimated) + kFleetUnits * (ways + 1);
    }
    SortByGpus(counts);
    std::int64_t cheapest = 0;  // accelerators; 0: not known yet
    for (std::size_t i = 0; i < counts.size(); ++i) {
      MachineCount& count = counts[i];
      const bool worth =
          cheapest == 0 || (static_cast<double>(count.Gpus()) <= kWorthTrying * static_cast<double>(cheapest) &&
                            cheapest >= count.choice.gpus);
      if (worth && count.known != MachineKnowledge::kTooMany)
        RETURN_IF_ERROR(cheapest == 0 ? Count(count) : Compare(count, cheapest / count.choice.gpus));
      if (count.known == MachineKnowledge::kExact && (cheapest == 0 || count.Gpus() < cheapest))
        cheapest = count.Gpus();
      units_left_ = kFleetUnits * (ways - static_cast<double>(i + 1));
    }
    SortByGpus(counts);
    return counts;
  }

 private:
  static void SortByGpus(std::vector<MachineCount>& counts) {
    const auto key = [](const MachineCount& count) {
      const bool more = count.known == MachineKnowledge::kMoreThan;
      const bool exact = count.known == MachineKnowledge::kExact;
      return std::tuple(count.known == MachineKnowledge::kTooMany, count.Gpus() + (more ? count.choice.gpus : 0),
                        exact ? 0 : 1, -count.summary.attained);
    };
    std::stable_sort(counts.begin(), counts.end(),
                     [&](const MachineCount& a, const MachineCount& b) { return key(a) < key(b); });
  }

  // The options of a run, which may be given up, with its part of the progress.
  template <typename Options>
  void Prepare(SimulationOptions& server, Options& runs, const MachineChoice& choice, std::size_t requests,
               const std::string& what, double units) {
    server.preset = choice.preset;
    server.device = choice.device;
    server.samples = 0;
    server.give_up = {search_.objective, MostMissed(static_cast<std::int64_t>(requests), search_.share)};
    if (!search_.progress) return;
    runs.progress = [this, what, units](double share) {
      const double done = units_done_ + share * units;
      search_.progress(what, done / std::max(1e-9, units_done_ + std::max(units, units_left_)));
    };
  }

  void Spent(double units) {
    units_done_ += units;
    units_left_ = std::max(0.0, units_left_ - units);
  }

  // The smallest number of servers of which one keeps the objective with its part of the requests.
  Status Estimate(MachineCount& count) {
    std::int64_t low = 0, high = 0;
    std::int64_t servers = 1;
    const double units = kEstimateUnits / 6;
    while (high == 0 || high - low > 1) {
      const Workload part = EveryNthSession(workload_, servers);
      SimulationOptions options = fleet_.server;
      Prepare(options, options, count.choice, part.requests.size(),
              fmt::format("estimating {} with {} servers", NameOf(count.choice), servers), units);
      ASSIGN_OR_RETURN(const SimulationResult result, Simulate(options, part));
      Spent(units);
      const bool keeps = !result.given_up && Summarise(result, search_.objective).attained >= search_.share;
      (keeps ? high : low) = servers;
      if (high == 0 && servers >= search_.most) {
        count.known = MachineKnowledge::kTooMany;
        count.servers = search_.most;
        return Ok{};
      }
      servers = high == 0 ? std::min(search_.most, 2 * low) : (low + high) / 2;
    }
    count.servers = high;
    return Ok{};
  }

  // Whether a fleet of so many servers keeps the objective; if so, its result is kept.
  Result<bool> Try(MachineCount& count, std::int64_t servers) {
    FleetOptions options = fleet_;
    options.servers = servers;
    Prepare(options.server, options, count.choice, workload_.requests.size(),
            fmt::format("{} servers of {}", servers, NameOf(count.choice)), kFleetUnits);
    if (search_.faults) {
      ASSIGN_OR_RETURN(options.events, search_.faults(servers));
    }
    ASSIGN_OR_RETURN(FleetResult result, SimulateFleet(options, workload_));
    Spent(kFleetUnits);
    FleetSummary summary = Summarise(result, workload_, search_.objective);
    const bool keeps = !result.run.given_up && summary.attained >= search_.share;
    if (result.run.given_up) summary.attained = std::min(summary.attained, search_.share);
    count.probes.push_back({servers, summary.attained, summary.ttft.p99});
    std::sort(count.probes.begin(), count.probes.end(),
              [](const FleetSize::Probe& a, const FleetSize::Probe& b) { return a.servers < b.servers; });
    if (!keeps) return false;
    count.servers = servers;
    count.known = MachineKnowledge::kExact;
    count.result = std::move(result);
    count.summary = std::move(summary);
    return true;
  }

  // From the estimate on, up or down. The steps up grow, because no number may do: faults may break too many requests.
  Status Count(MachineCount& count) {
    std::int64_t low = count.servers;
    ASSIGN_OR_RETURN(const bool enough, Try(count, low));
    if (enough) return CountDown(count);
    for (std::int64_t step = 1; low < search_.most; step *= 2) {
      const std::int64_t servers = std::min(search_.most, low + step);
      ASSIGN_OR_RETURN(const bool now, Try(count, servers));
      if (now) return Narrow(count, low);
      low = servers;
    }
    count.known = MachineKnowledge::kTooMany;
    count.servers = search_.most;
    return Ok{};
  }

  // As few as suffice. REQUIRES: count.servers do, and `low` do not.
  Status Narrow(MachineCount& count, std::int64_t low) {
    while (count.servers - low > 1) {
      const std::int64_t middle = low + (count.servers - low) / 2;
      ASSIGN_OR_RETURN(const bool suffice, Try(count, middle));
      if (!suffice) low = middle;
    }
    return Ok{};
  }

  // As few as suffice. REQUIRES: count.servers do.
  Status CountDown(MachineCount& count) {
    while (count.servers > 1) {
      ASSIGN_OR_RETURN(const bool still, Try(count, count.servers - 1));
      if (!still) break;
    }
    return Ok{};
  }

  // Against a way that needs as many accelerators as `servers` of this one have.
  Status Compare(MachineCount& count, std::int64_t servers) {
    if (servers > 1) {
      // Most often it does not suffice, which is soon clear.
      ASSIGN_OR_RETURN(const bool fewer, Try(count, servers - 1));
      if (fewer) return CountDown(count);
    }
    ASSIGN_OR_RETURN(const bool as_many, Try(count, servers));
    if (as_many) return Ok{};
    count.known = MachineKnowledge::kMoreThan;
    count.servers = servers;
    return Ok{};
  }

  const FleetOptions& fleet_;
  const Workload& workload_;
  const MachineSearch& search_;
  double units_done_ = 0, units_left_ = 0;
};

}  // namespace

std::string NameOf(const MachineChoice& choice) {
  return std::string(choice.preset.name) + (choice.gpus > 1 ? fmt::format(" x{}", choice.gpus) : "");
}

Workload EveryNthSession(const Workload& workload, std::int64_t n) {
  CHECK_GE(n, 1);
  Workload part = workload;
  if (n == 1) return part;
  part.requests.clear();
  part.prompts.clear();
  std::vector<std::int32_t> place(workload.requests.size(), -1);  // in the part; -1: not there
  std::int64_t sessions = 0;
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    const WorkloadRequest& request = workload.requests[i];
    const bool first = !request.follows;
    if (first ? sessions++ % n != 0 : place[i] < 0) continue;
    place[i] = static_cast<std::int32_t>(part.requests.size());
    if (request.next >= 0) place[static_cast<std::size_t>(request.next)] = 0;  // it follows, so it comes later
    part.requests.push_back(request);
    if (!workload.prompts.empty()) part.prompts.push_back(workload.prompts[i]);
  }
  for (WorkloadRequest& request : part.requests) {
    if (request.next >= 0) request.next = place[static_cast<std::size_t>(request.next)];
  }
  return part;
}

Result<std::vector<MachineCount>> FindMachines(const std::vector<MachineChoice>& choices, const FleetOptions& fleet,
                                               const Workload& workload, const MachineSearch& search) {
  CHECK(!choices.empty());
  return MachineFinder(fleet, workload, search).Find(choices);
}

std::string MachineAnswer(const std::vector<MachineCount>& counts, const std::string& load, const std::string& device,
                          std::int64_t most) {
  CHECK(!counts.empty());
  const MachineCount& best = counts.front();
  const auto number = [](std::int64_t count) { return FormatNumber(static_cast<double>(count)); };
  if (best.known != MachineKnowledge::kExact) {
    return fmt::format("{} needs more than {} servers of {} with each preset that was tried.", load, number(most),
                       device);
  }
  std::string joined;
  if (best.choice.gpus > 1)
    joined = fmt::format(", joined by {} into {} server{},", best.choice.gpus, number(best.servers),
                         best.servers == 1 ? "" : "s");
  return fmt::format("{} needs {} of {}{} with preset {}.", load, number(best.Gpus()), device, joined,
                     best.choice.preset.name);
}

}  // namespace loramux
