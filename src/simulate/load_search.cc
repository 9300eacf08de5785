#include "simulate/load_search.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "simulate/summary.h"

namespace loramux {
namespace {

constexpr double kPrecision = 1.02, kLowest = 1.0 / 1024, kHighest = kMaxRate;
constexpr double kLowLoadRate = 0.05;
constexpr std::int64_t kLowLoadRequests = 200;

// The first look: with so many of the requests, if that is at most a quarter of them. Short runs end before queues have
// grown, so they sustain more; the limit is expected between these factors of theirs.
constexpr std::int64_t kFirstLook = 500, kFirstLookPart = 8;
constexpr double kSurelyWithin = 0.7, kSurelyBeyond = 1.15;

struct Bracket {
  double low = 0, high = 0;  // low: within the objective, 0: none; high: not, 0: none
};

// Visits rates until the limit is bracketed. `within` decides one, and may fail.
template <typename Within>
Result<Bracket> WalkRates(double rate, const Within& within) {
  Bracket found;
  while (rate >= kLowest && rate <= kHighest &&
         (found.low == 0 || found.high == 0 || found.high / found.low > kPrecision)) {
    ASSIGN_OR_RETURN(const bool keeps, within(rate));
    (keeps ? found.low : found.high) = rate;
    if (found.low == 0)
      rate = found.high / 2;
    else if (found.high == 0)
      rate = found.low * 2;
    else
      rate = (found.low + found.high) / 2;
  }
  return found;
}

class LoadFinder {
 public:
  LoadFinder(const SimulationOptions& options, const WorkloadOptions& workload, const LoadSearch& search)
      : options_(options), load_(workload), search_(search) {
    options_.samples = 0;
    options_.give_up.objective = search.objective;
    start_ = workload.rate > 0 ? std::clamp(workload.rate, kLowest, kHighest) : 1;
  }

  Result<SustainedLoad> Find() {
    load_.rate = start_;
    RETURN_IF_ERROR(ReadRecordings(load_));
    ASSIGN_OR_RETURN(const Workload all, MakeWorkload(load_));
    const auto requests = static_cast<std::int64_t>(all.requests.size());
    const std::int64_t part = std::max(kFirstLook, requests / kFirstLookPart);
    load_.requests = requests;
    if (search_.hasten && requests >= 4 * part) RETURN_IF_ERROR(LookFirst(part));
    ASSIGN_OR_RETURN(Bracket found, Walk());
    ASSIGN_OR_RETURN(const bool true_so_far, Confirm(found));
    if (!true_so_far) {
      guess_ = {};
      ASSIGN_OR_RETURN(found, Walk());
    }
    SustainedLoad result{.rate = found.low, .at_least = found.high == 0};
    for (const auto& [rate, probe] : probes_) result.probes.push_back(probe);
    return result;
  }

 private:
  Status LookFirst(std::int64_t part) {
    const std::int64_t requests = std::exchange(load_.requests, part);
    const auto within = [&](double rate) -> Result<bool> {
      ASSIGN_OR_RETURN(const LoadProbe probe, Try(rate));
      return probe.within;
    };
    ASSIGN_OR_RETURN(const Bracket found, WalkRates(start_, within));
    if (found.low > 0 && found.high > 0) guess_ = {kSurelyWithin * found.low, kSurelyBeyond * found.high};
    load_.requests = requests;
    return Ok{};
  }

  // The answer that needs no run.
  std::optional<bool> Foreseen(double rate) const {
    const auto known = probes_.find(rate);
    if (known != probes_.end()) return known->second.within;
    if (guess_.low > 0 && rate < guess_.low) return true;
    if (guess_.high > 0 && rate > guess_.high) return false;
    return std::nullopt;
  }

  Result<bool> Run(double rate) {
    ASSIGN_OR_RETURN(const LoadProbe probe, Try(rate));
    probes_[rate] = probe;
    return probe.within;
  }

  Result<Bracket> Walk() {
    return WalkRates(start_, [&](double rate) -> Result<bool> {
      if (const auto foreseen = Foreseen(rate)) return *foreseen;
      return Run(rate);
    });
  }

  // Whether the ends of the bracket are what they were taken for. What lies further out is then, too.
  Result<bool> Confirm(const Bracket& found) {
    for (const double rate : {found.low, found.high}) {
      if (rate == 0 || probes_.contains(rate)) continue;
      ASSIGN_OR_RETURN(const bool within, Run(rate));
      if (within != (rate == found.low)) return false;
    }
    return true;
  }

  // How many more runs with all requests the walk will take, if the limit is in the middle of what is expected.
  double RunsLeft() const {
    double runs = 0;
    const double middle = guess_.low > 0 ? (guess_.low + guess_.high) / 2 : start_;
    (void)WalkRates(start_, [&](double rate) -> Result<bool> {
      if (const auto foreseen = Foreseen(rate)) return *foreseen;
      ++runs;
      return rate < middle;
    });
    return runs;
  }

  Result<LoadProbe> Try(double rate) {
    WorkloadOptions load = load_;
    load.rate = rate;
    ASSIGN_OR_RETURN(const Workload asked, MakeWorkload(load));
    const auto requests = static_cast<std::int64_t>(asked.requests.size());
    const ServiceObjective& objective = search_.objective;
    const bool ttft_alone = objective.token == 0 && objective.tpot == 0;
    if (search_.hasten)
      options_.give_up.most_missed = ttft_alone ? MostMissedOfP99(requests) : MostMissed(requests, kSustainedShare);
    if (search_.progress) {
      const double left = static_cast<double>(requests) * RunsLeft();
      options_.progress = [this, requests, left](double share) {
        const double done = done_ + share * static_cast<double>(requests);
        search_.progress(done / (done_ + std::max(left, static_cast<double>(requests))));
      };
    }
    ASSIGN_OR_RETURN(const SimulationResult result, Simulate(options_, asked));
    done_ += static_cast<double>(requests);
    const SimulationSummary summary = Summarise(result, objective);
    if (result.given_up) {
      constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
      return LoadProbe{.rate = rate, .p99_ttft_ms = kUnknown, .p50_ttft_ms = kUnknown};
    }
    LoadProbe probe{.rate = rate,
                    .p99_ttft_ms = summary.ttft.p99,
                    .p50_ttft_ms = summary.ttft.p50,
                    .refused = static_cast<double>(summary.refused)};
    const bool keeps = ttft_alone ? summary.ttft.p99 * kNsPerMs <= static_cast<double>(objective.ttft)
                                  : summary.attained >= kSustainedShare;
    probe.within = summary.finished > 0 && keeps;
    return probe;
  }

  SimulationOptions options_;
  WorkloadOptions load_;
  const LoadSearch& search_;
  double start_ = 1, done_ = 0;         // done_: requests that were simulated
  Bracket guess_;                       // rates outside are not tried; 0: no limit
  std::map<double, LoadProbe> probes_;  // with all requests
};

}  // namespace

Result<TimeNs> LowLoadTime(const SimulationOptions& options, const WorkloadOptions& workload, std::string_view preset) {
  ASSIGN_OR_RETURN(Preset found, FindPreset(preset));
  return LowLoadTime(options, workload, std::move(found));
}

Result<TimeNs> LowLoadTime(const SimulationOptions& options, const WorkloadOptions& workload, Preset preset) {
  SimulationOptions quiet = options;
  WorkloadOptions asked = workload;
  quiet.preset = std::move(preset);
  TakeOperatorsSettings(options.preset.spec, quiet.preset.spec);
  quiet.samples = 0;
  quiet.pace = {};
  asked.clients.clear();
  asked.poisson = true;
  asked.rate = kLowLoadRate;
  asked.requests = workload.requests > 0 ? std::min(workload.requests, kLowLoadRequests) : kLowLoadRequests;
  ASSIGN_OR_RETURN(const Workload made, MakeWorkload(asked));
  ASSIGN_OR_RETURN(const SimulationResult result, Simulate(quiet, made));
  const SimulationSummary summary = Summarise(result, TimeNs{0});
  if (summary.finished == 0) {
    return ResourceExhausted(
        "cannot derive the TTFT objective from the time of a request at low load: no request fits the device's "
        "memory. Choose another --device, raise --gpus or --memory-share, shorten the requests, or give "
        "--ttft-objective",
        "--ttft-objective");
  }
  return static_cast<TimeNs>(summary.end_to_end.mean * kNsPerMs);
}

Result<SustainedLoad> FindSustainedLoad(const SimulationOptions& options, const WorkloadOptions& workload,
                                        const LoadSearch& search) {
  return LoadFinder(options, workload, search).Find();
}

Result<SustainedLoad> FindSustainedLoad(const SimulationOptions& options, const WorkloadOptions& workload,
                                        TimeNs ttft) {
  const LoadSearch search{.objective = {.ttft = ttft}};
  return FindSustainedLoad(options, workload, search);
}

}  // namespace loramux
