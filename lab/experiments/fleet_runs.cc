#include "lab/experiments/fleet_runs.h"

#include <algorithm>

#include <fmt/format.h>

namespace loramux {

Spread SpreadOf(const std::vector<FleetSummary>& seeds, const std::function<double(const FleetSummary&)>& figure) {
  Spread spread;
  for (std::size_t i = 0; i < seeds.size(); ++i) {
    const double value = figure(seeds[i]);
    spread.mean += value / static_cast<double>(seeds.size());
    spread.low = i == 0 ? value : std::min(spread.low, value);
    spread.high = i == 0 ? value : std::max(spread.high, value);
  }
  return spread;
}

std::string ShowSpread(const Spread& spread, double factor, int digits) {
  const auto show = [&](double value) { return fmt::format("{:.{}f}", factor * value, digits); };
  if (show(spread.low) == show(spread.high)) return show(spread.mean);
  return fmt::format("{} ({}-{})", show(spread.mean), show(spread.low), show(spread.high));
}

std::int64_t SeedsOf(const ExperimentContext& context, std::int64_t all) { return context.scale < 0.5 ? 1 : all; }

Result<std::vector<std::vector<FleetSummary>>> SimulateFleets(ExperimentContext& context,
                                                              const std::vector<FleetJob>& jobs, std::int64_t seeds) {
  const auto per_job = static_cast<std::size_t>(seeds);
  std::vector<std::vector<FleetSummary>> summaries(jobs.size(), std::vector<FleetSummary>(per_job));
  RETURN_IF_ERROR(ParallelFor(context, jobs.size() * per_job, [&](std::size_t i) -> Status {
    FleetJob job = jobs[i / per_job];
    const std::uint64_t seed = context.seed + i % per_job;
    job.load.seed = job.options.seed = job.options.server.seed = job.options.dispatcher.seed = seed;
    ASSIGN_OR_RETURN(const Workload workload, MakeWorkload(job.load));
    ASSIGN_OR_RETURN(const FleetResult result, SimulateFleet(job.options, workload));
    summaries[i / per_job][i % per_job] = Summarise(result, workload, job.objective);
    return Ok{};
  }));
  return summaries;
}

}  // namespace loramux
