#include "lab/experiments/experiment.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "base/check.h"
#include "lab/experiments/workloads.h"

namespace loramux {
namespace {

constexpr std::int64_t kFewestRequests = 50;

// "ch-11, ch-13" names both.
bool Covers(const Experiment& experiment, const std::string& id) {
  const std::string list = ", " + std::string(experiment.covers) + ", ";
  return experiment.id == id || list.find(", " + id + ", ") != std::string::npos;
}

}  // namespace

std::string_view DocumentOf(const Experiment& experiment) {
  constexpr std::pair<std::string_view, std::string_view> kDocuments[] = {{"ch-", "Chameleon"},
                                                                          {"vl-", "vLLM v1 Multi-LoRA"},
                                                                          {"fl-", "FastLibra"},
                                                                          {"ca-", "CaraServe"},
                                                                          {"sl-", "S-LoRA's published runs"}};
  for (const auto& [prefix, document] : kDocuments) {
    if (experiment.id.starts_with(prefix)) return document;
  }
  return {};
}

int SeedsOf(const Experiment& experiment, const ExperimentContext& context) {
  return experiment.once.empty() ? context.seeds : 1;
}

ExperimentResult CombineResults(std::vector<ExperimentResult> results, std::uint64_t first_seed) {
  CHECK_GT(results.size(), 0u);
  std::vector<std::vector<ComparisonRow>> rows;
  for (ExperimentResult& result : results) rows.push_back(std::move(result.comparison));
  ExperimentResult combined = std::move(results.front());
  combined.seeds = results.size();
  combined.comparison = CombineSeeds(rows);
  if (rows.size() == 1) return combined;
  ExperimentTable table{"What each seed gives", {"id", "what"}, {}};
  for (std::size_t seed = 0; seed < rows.size(); ++seed)
    table.header.push_back(fmt::format("seed {}", first_seed + seed));
  for (const ComparisonRow& row : rows.front()) {
    std::vector<std::string>& cells = table.rows.emplace_back(std::vector<std::string>{row.id, row.what});
    for (const auto& seed : rows) {
      const ComparisonRow* const same = FindRow(seed, row);
      cells.push_back(same == nullptr ? "-" : same->ours);
    }
  }
  combined.tables.push_back(std::move(table));
  return combined;
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
    outcomes[i].summary = Summarise(outcomes[i].result, jobs[i].options.preset.spec.objective);
    return Ok{};
  }));
  return outcomes;
}

Result<std::vector<SustainedLoad>> FindLoads(ExperimentContext& context, std::span<const SimulationJob> jobs) {
  std::vector<SustainedLoad> loads(jobs.size());
  RETURN_IF_ERROR(ParallelFor(context, jobs.size(), [&](std::size_t i) -> Status {
    ASSIGN_OR_RETURN(loads[i], FindSustainedLoad(jobs[i].options, jobs[i].load, jobs[i].options.preset.spec.objective));
    return Ok{};
  }));
  return loads;
}

std::vector<Experiment> AllExperiments() {
  std::vector<Experiment> all;
  for (const auto& document :
       {ChameleonExperiments(), VllmLoraExperiments(), FastLibraExperiments(), CaraServeExperiments(),
        CaraServeClusterExperiments(), SLoraExperiments(), OurExperiments(), FleetExperiments()})
    all.insert(all.end(), document.begin(), document.end());
  return all;
}

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
