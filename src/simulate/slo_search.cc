#include "simulate/slo_search.h"

#include <algorithm>

#include "simulate/summary.h"

namespace loramux {
namespace {

constexpr double kPrecision = 1.02, kLowest = 1.0 / 1024, kHighest = kMaxRate;
constexpr double kLowLoadRate = 0.05;
constexpr std::int64_t kLowLoadRequests = 200;

Result<LoadProbe> ProbeLoad(const SimulationOptions& options, WorkloadOptions workload, double rate, TimeNs slo) {
  workload.rate = rate;
  ASSIGN_OR_RETURN(const Workload asked, MakeWorkload(workload));
  ASSIGN_OR_RETURN(const SimulationResult result, Simulate(options, asked));
  const SimulationSummary summary = Summarise(result, slo);
  LoadProbe probe{.rate = rate,
                  .p99_ttft_ms = summary.ttft.p99,
                  .p50_ttft_ms = summary.ttft.p50,
                  .refused = static_cast<double>(summary.refused)};
  probe.within = summary.finished > 0 && summary.ttft.p99 * kNsPerMs <= static_cast<double>(slo);
  return probe;
}

}  // namespace

Result<TimeNs> LowLoadTime(const SimulationOptions& options, const WorkloadOptions& workload, std::string_view preset) {
  SimulationOptions quiet = options;
  WorkloadOptions asked = workload;
  ASSIGN_OR_RETURN(quiet.preset, FindPreset(preset));
  quiet.samples = 0;
  quiet.pace = {};
  asked.clients.clear();
  asked.poisson = true;
  asked.rate = kLowLoadRate;
  asked.requests = workload.requests > 0 ? std::min(workload.requests, kLowLoadRequests) : kLowLoadRequests;
  ASSIGN_OR_RETURN(const Workload made, MakeWorkload(asked));
  ASSIGN_OR_RETURN(const SimulationResult result, Simulate(quiet, made));
  const SimulationSummary summary = Summarise(result, 0);
  if (summary.finished == 0) {
    return ResourceExhausted(
        "cannot derive the TTFT objective from the time of a request at low load: no request fits the device's "
        "memory. Choose another --device, raise --gpus or --memory-share, shorten the requests, or give --slo",
        "--slo");
  }
  return static_cast<TimeNs>(summary.end_to_end.mean * kNsPerMs);
}

Result<SustainedLoad> FindSustainedLoad(const SimulationOptions& options, WorkloadOptions workload, TimeNs slo) {
  SimulationOptions bare = options;
  bare.samples = 0;
  SustainedLoad found;
  double low = 0, high = 0;  // low: within the objective; high: not
  double rate = workload.rate > 0 ? std::clamp(workload.rate, kLowest, kHighest) : 1;
  while (rate >= kLowest && rate <= kHighest && (low == 0 || high == 0 || high / low > kPrecision)) {
    ASSIGN_OR_RETURN(const LoadProbe probe, ProbeLoad(bare, workload, rate, slo));
    found.probes.push_back(probe);
    (probe.within ? low : high) = rate;
    if (low == 0)
      rate = high / 2;
    else if (high == 0)
      rate = low * 2;
    else
      rate = (low + high) / 2;
  }
  found.rate = low;
  found.at_least = high == 0;
  std::sort(found.probes.begin(), found.probes.end(),
            [](const LoadProbe& a, const LoadProbe& b) { return a.rate < b.rate; });
  return found;
}

}  // namespace loramux
