#include "experiments/experiment.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "experiments/workloads.h"

namespace loramux {
namespace {

constexpr double kLikeness = 1.0 / 3;  // an effect that differs by a larger share does not agree
constexpr double kNoEffect = 0.05;
constexpr std::int64_t kFewestRequests = 50;

// "ch-11, ch-13" names both.
bool Covers(const Experiment& experiment, const std::string& id) {
  const std::string list = ", " + std::string(experiment.covers) + ", ";
  return experiment.id == id || list.find(", " + id + ", ") != std::string::npos;
}

}  // namespace

const char* VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kAgrees:
      return "agrees";
    case Verdict::kWeaker:
      return "weaker";
    case Verdict::kStronger:
      return "stronger";
    case Verdict::kOpposite:
      return "opposite";
    case Verdict::kInformation:
      break;
  }
  return "information";
}

Verdict CompareEffects(double reported, double ours) {
  if (reported == 0) return std::abs(ours) <= kNoEffect ? Verdict::kAgrees : Verdict::kStronger;
  const double ratio = ours / reported;
  if (ratio < 0) return Verdict::kOpposite;
  if (ratio < 1 - kLikeness) return Verdict::kWeaker;
  return ratio > 1 + kLikeness ? Verdict::kStronger : Verdict::kAgrees;
}

ComparisonRow ChangeRow(std::string_view id, std::string what, double reported, double ours) {
  return {.id = std::string(id),
          .what = std::move(what),
          .reported = ShowChange(reported),
          .ours = ShowChange(ours),
          .verdict = CompareEffects(reported, ours)};
}

ComparisonRow FactorRow(std::string_view id, std::string what, double reported, double ours) {
  return {.id = std::string(id),
          .what = std::move(what),
          .reported = ShowFactor(reported),
          .ours = ShowFactor(ours),
          .verdict = CompareEffects(reported - 1, ours - 1)};
}

ComparisonRow ClaimRow(std::string_view id, std::string what, std::string reported, std::string ours, bool holds) {
  return {.id = std::string(id),
          .what = std::move(what),
          .reported = std::move(reported),
          .ours = std::move(ours),
          .verdict = VerdictOfClaim(holds)};
}

std::int64_t ExperimentContext::Requests(std::int64_t number) const {
  return std::max(kFewestRequests, static_cast<std::int64_t>(std::llround(static_cast<double>(number) * scale)));
}

Status ParallelFor(ExperimentContext& context, std::size_t count, const std::function<Status(std::size_t)>& job) {
  std::vector<std::optional<Status>> outcomes(count);
  std::atomic<std::size_t> next = 0;
  std::mutex progress_mutex;
  std::size_t done = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      outcomes[i].emplace(job(i));
      const std::lock_guard lock(progress_mutex);
      ++done;
      if (context.progress != nullptr)
        context.progress->Update(static_cast<std::int64_t>(done), static_cast<std::int64_t>(count));
    }
  };
  const std::size_t cores =
      context.threads > 0 ? static_cast<std::size_t>(context.threads) : std::thread::hardware_concurrency();
  std::vector<std::jthread> helpers;
  for (std::size_t i = 1; i < std::min(std::max<std::size_t>(1, cores), count); ++i) helpers.emplace_back(work);
  work();
  helpers.clear();  // joins them
  for (const auto& outcome : outcomes) RETURN_IF_ERROR(*outcome);
  return Ok{};
}

Result<std::vector<SimulationOutcome>> SimulateAll(ExperimentContext& context, std::span<const SimulationJob> jobs) {
  std::vector<SimulationOutcome> outcomes(jobs.size());
  RETURN_IF_ERROR(ParallelFor(context, jobs.size(), [&](std::size_t i) -> Status {
    ASSIGN_OR_RETURN(const Workload workload, MakeWorkload(jobs[i].load));
    ASSIGN_OR_RETURN(outcomes[i].result, Simulate(jobs[i].options, workload));
    outcomes[i].summary = Summarise(outcomes[i].result, jobs[i].options.slo);
    return Ok{};
  }));
  return outcomes;
}

Result<std::vector<SustainedLoad>> FindLoads(ExperimentContext& context, std::span<const SimulationJob> jobs) {
  std::vector<SustainedLoad> loads(jobs.size());
  RETURN_IF_ERROR(ParallelFor(context, jobs.size(), [&](std::size_t i) -> Status {
    ASSIGN_OR_RETURN(loads[i], FindSustainedLoad(jobs[i].options, jobs[i].load, jobs[i].options.slo));
    return Ok{};
  }));
  return loads;
}

std::vector<Experiment> AllExperiments() {
  std::vector<Experiment> all;
  for (const auto& document :
       {ChameleonExperiments(), VllmLoraExperiments(), FastLibraExperiments(), CaraServeExperiments(),
        CaraServeClusterExperiments(), OurExperiments(), FleetExperiments()})
    all.insert(all.end(), document.begin(), document.end());
  return all;
}

std::string ShowChange(double change) { return fmt::format("{:+.1f} %", 100 * change); }
std::string ShowFactor(double factor) { return fmt::format("{:.2f}x", factor); }
double Change(double ours, double base) { return base == 0 ? 0 : ours / base - 1; }

Result<std::vector<Experiment>> FindExperiments(const std::vector<std::string>& ids) {
  const std::vector<Experiment> all = AllExperiments();
  std::vector<Experiment> chosen;
  for (const std::string& id : ids) {
    bool found = false;
    for (const Experiment& experiment : all) {
      if (id != "all" && !Covers(experiment, id)) continue;
      found = true;
      const bool known =
          std::any_of(chosen.begin(), chosen.end(), [&](const Experiment& other) { return other.id == experiment.id; });
      if (!known) chosen.push_back(experiment);
    }
    if (found) continue;
    std::string valid = "all";
    for (const Experiment& experiment : all) valid += ", " + std::string(experiment.id);
    return InvalidArgument("experiment: expected some of " + valid + ", found '" + id + "'", "ID");
  }
  return chosen;
}

}  // namespace loramux
