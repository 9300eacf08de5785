// This project's preset compared with the others, on the workloads of all papers.
#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lab/experiments/chameleon_testbed.h"
#include "lab/experiments/experiment.h"
#include "lab/experiments/workloads.h"

namespace loramux {
namespace {

struct System {
  std::string_view name, preset;
  // Fairness with each adapter as a tenant. The papers' systems have none, and their workloads are of one tenant.
  bool fair = false;
  // Fills its steps as its paper describes. Otherwise: this project's engine with another cache.
  bool own_loop = false;
};
// This project's presets come first. The others: each paper's system, and its strongest variant if that is another one.
constexpr std::array kSystems = std::to_array<System>({
    {"loramux", "loramux"},
    {"loramux, each adapter a tenant", "loramux", true},
    {"loramux-mlq", "loramux-mlq"},
    {"chameleon", "chameleon", false, true},
    {"chameleon-nosched", "chameleon-nosched", false, true},
    {"s-lora", "s-lora", false, true},
    {"vllm", "vllm"},
    {"vllm-lora-batch32", "vllm-lora-batch32", false, true},
    {"fastlibra", "fastlibra"},
    {"fifo", "fifo"},
});
constexpr std::size_t kOurSystems = 3;
constexpr double kObjectiveFactor = 5;  // as in Chameleon 5.1; used for all
// FastLibra 6.1 keeps the TTFT below this. For short requests five times their own time would exceed a run of this
// size.
constexpr double kShortObjective = 0.5;  // s
// share of the load that the best other system sustains, at which times are compared
constexpr double kShareOfLoad = 0.8;
constexpr std::size_t kLoadSeeds = 5, kTimeSeeds = 21;  // consecutive seeds, starting with the run's
constexpr double kNoLoad = 1e9;                         // ratio to a system that sustains no load
constexpr double kLeastLoad = 0.97;                     // relative to the best other; a search is as coarse as 2 %
constexpr double kTargetGain = 1.10, kTargetTime = 1.03;

// Objectives that an operator would set, in seconds, and the systems that are compared under them: this project's
// preset, and of the others those that are the best one anywhere. The searches begin with fewer requests.
constexpr std::array kTightObjectives = {1.0, 2.0, 5.0};
constexpr double kLeastObjectives = 10;  // objectives that a run lasts for at least; see LastsTooShort
constexpr std::array<std::size_t, 5> kTightSystems = {0, 3, 6, 8, 9};  // indices in kSystems
constexpr std::int64_t kTightRequests = 1500, kMostTightRequests = 60'000;
constexpr int kTightRounds = 4;    // searches of one row, each with more requests, until its runs last long enough
constexpr double kMostGrowth = 8;  // most requests in a search, relative to the one before
constexpr double kRoomForGrowth = 1.25;  // requests beyond those that the load found so far needs

struct NamedWorkload {
  const char* name;
  Result<SimulationJob> (*make)(const ExperimentContext& context, std::string_view preset);
  double objective = 0;  // seconds; 0: kObjectiveFactor times the mean time of a request at low load
};
constexpr std::array kWorkloads = std::to_array<NamedWorkload>({
    {"Chameleon: Azure's conversations, 7B, A40",
     [](const ExperimentContext& context, std::string_view preset) {
       return MakeChameleonJob(context, {.preset = preset});
     }},
    {"Chameleon: 500 adapters, A100 80 GB",
     [](const ExperimentContext& context, std::string_view preset) {
       return MakeChameleonJob(context, {.preset = preset, .rate = 30, .device = "a100-80", .adapters = 500});
     }},
    {"Chameleon: 30B, 10 adapters, A100 80 GB",
     [](const ExperimentContext& context, std::string_view preset) {
       return MakeChameleonJob(
           context, {.preset = preset, .rate = 4, .device = "a100-80", .model = "llama-30b", .adapters = 10});
     }},
    {"vLLM-LoRA: 70B, 1,000 adapters",
     [](const ExperimentContext& context, std::string_view preset) { return MakeVllmLoraJob(context, preset); },
     kShortObjective},
    {"FastLibra: chatbot",
     [](const ExperimentContext& context, std::string_view preset) {
       return MakeFastLibraJob(context, FastLibraLoad::kChatbot, preset);
     },
     kShortObjective},
    {"FastLibra: translation",
     [](const ExperimentContext& context, std::string_view preset) {
       return MakeFastLibraJob(context, FastLibraLoad::kTranslation, preset);
     },
     kShortObjective},
    {"FastLibra: agent",
     [](const ExperimentContext& context,
        std::string_view preset) { return MakeFastLibraJob(context, FastLibraLoad::kAgent, preset); },
     kShortObjective},
    {"CaraServe: 7B, A10, rank 64",
     [](const ExperimentContext& context,
        std::string_view preset) { return MakeCaraServeJob(context, preset, /*recorded=*/false); }},
    {"CaraServe: recorded clients",
     [](const ExperimentContext& context,
        std::string_view preset) { return MakeCaraServeJob(context, preset, /*recorded=*/true); }},
});
constexpr std::size_t kCount = kSystems.size();

// Returns jobs ordered by workload, then by system. All systems of a workload have the same objective.
Result<std::vector<SimulationJob>> MakeJobs(const ExperimentContext& context) {
  std::vector<SimulationJob> jobs;
  for (const NamedWorkload& workload : kWorkloads) {
    for (const System& system : kSystems) {
      ASSIGN_OR_RETURN(SimulationJob job, workload.make(context, system.preset));
      job.options.preset.spec.fairness.policy = system.fair ? FairnessPolicy::kVtc : FairnessPolicy::kNone;
      job.options.samples = 0;
      job.load.requests = context.Requests(3000);
      if (jobs.size() % kCount == 0) {
        ASSIGN_OR_RETURN(const TimeNs low, LowLoadTime(job.options, job.load));
        SetObjective(job, static_cast<TimeNs>(workload.objective > 0 ? workload.objective * kNsPerSecond
                                                                     : kObjectiveFactor * static_cast<double>(low)));
      } else {
        SetObjective(job, jobs[jobs.size() / kCount * kCount].options.preset.spec.objective);
      }
      jobs.push_back(std::move(job));
    }
  }
  return jobs;
}

ExperimentTable TableOf(std::string title, const std::vector<double>& values, const char* format) {
  ExperimentTable table{.title = std::move(title), .header = {"workload"}, .rows = {}};
  for (const System& system : kSystems) table.header.emplace_back(system.name);
  for (std::size_t i = 0; i < kWorkloads.size(); ++i) {
    std::vector<std::string>& row = table.rows.emplace_back();
    row.emplace_back(kWorkloads[i].name);
    for (std::size_t k = 0; k < kCount; ++k) row.push_back(fmt::format(fmt::runtime(format), values[i * kCount + k]));
  }
  return table;
}

// The values of one system on one workload, by seed; every system has the same number of seeds.
using SeedValues = std::vector<double>;

double Median(SeedValues values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The first system compared with the best other system of a workload.
struct Comparison {
  std::size_t best = 0;        // index of the best other system
  double factor = 0;           // ratio of the first system to it: median over the seeds
  double least = 0, most = 0;  // over the seeds
  std::size_t seeds = 0;       // with which either system has a value
};
enum class Better : std::uint8_t { kLarger, kSmaller };

// Compares the first system with those from `others` on that `counts` admits. Compares seed by seed, because both
// systems got the same requests: requests differ much more between seeds than systems do.
template <typename Counts>
Comparison CompareAmong(std::span<const SeedValues> of, std::size_t others, Better better, Counts counts) {
  const bool larger = better == Better::kLarger;
  Comparison comparison;
  for (std::size_t k = others; k < of.size(); ++k) {
    if (!counts(k)) continue;
    SeedValues ratios;
    for (std::size_t seed = 0; seed < of[k].size(); ++seed) {
      if (of[k][seed] <= 0 && of[0][seed] <= 0) continue;
      ratios.push_back(of[k][seed] > 0 ? of[0][seed] / of[k][seed] : larger ? kNoLoad : 0);
    }
    if (ratios.empty()) continue;
    const double factor = Median(ratios);
    if (comparison.best != 0 && (larger ? factor >= comparison.factor : factor <= comparison.factor)) continue;
    const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
    comparison = {.best = k, .factor = factor, .least = *least, .most = *most, .seeds = ratios.size()};
  }
  return comparison;
}

Comparison CompareWithBest(std::span<const SeedValues> of, Better better, bool own_loops_alone) {
  return CompareAmong(of, kOurSystems, better,
                      [own_loops_alone](std::size_t k) { return !own_loops_alone || kSystems[k].own_loop; });
}

std::span<const SeedValues> OfWorkload(const std::vector<SeedValues>& values, std::size_t workload) {
  return std::span(values).subspan(workload * kCount, kCount);
}

// A row on loads, and its share in the mean; 0: no system, or only this project's, attains the objective.
struct LoadRow {
  ComparisonRow row;
  double factor = 0;
};
LoadRow RowOfLoads(std::string what, std::string_view best, const Comparison& comparison) {
  ComparisonRow row{.id = "lm-1", .what = std::move(what), .reported = "at least 0.97x", .ours = {}};
  if (comparison.seeds == 0) {
    row.ours = "no system attains the objective";
    return {std::move(row)};
  }
  if (comparison.factor >= kNoLoad) {
    row.ours = "only loramux attains the objective";
    row.verdict = Verdict::kAgrees;
    return {std::move(row)};
  }
  row.what += fmt::format(", relative to the best other system ({})", best);
  row.ours = fmt::format("{}, seeds {} to {}", ShowFactor(comparison.factor), ShowFactor(comparison.least),
                         comparison.most >= kNoLoad ? "all" : ShowFactor(comparison.most));
  row.verdict = VerdictOfClaim(comparison.factor >= kLeastLoad);
  return {std::move(row), comparison.factor};
}

// The largest of the systems' median loads.
double BestLoad(std::span<const SeedValues> of) {
  double best = 0;
  for (const SeedValues& values : of) best = std::max(best, Median(values));
  return best;
}

// If the requests of a run come within a few objectives, the queue that they leave need never be worked off: such a
// load is not sustained, whatever the search says.
bool LastsTooShort(double requests, double load, double objective) {
  return load > 0 && requests / load < kLeastObjectives * objective;
}
LoadRow TooShortRow(std::string what, double requests, double load) {
  return {{.id = "lm-1",
           .what = std::move(what),
           .reported = "at least 0.97x",
           .ours = fmt::format("at {:.3g} requests/s a run of {:g} lasts for less than {:g} objectives", load, requests,
                               kLeastObjectives),
           .verdict = Verdict::kNotExercised}};
}

// The searches under kTightObjectives.
struct TightLoads {
  std::vector<SeedValues> loads;       // by workload, objective and system, then by seed
  std::vector<std::int64_t> requests;  // requests of a run, by workload and objective

  std::span<const SeedValues> Row(std::size_t row) const {
    return std::span(loads).subspan(row * kTightSystems.size(), kTightSystems.size());
  }
};
double ObjectiveOfRow(std::size_t row) { return kTightObjectives[row % kTightObjectives.size()]; }

void CompareLoads(const std::vector<SeedValues>& loads, const TightLoads& tight, ExperimentResult& result) {
  double sum = 0, own_loops = 0, counted = 0;
  const auto add = [&](LoadRow row) {
    sum += row.factor;
    counted += row.factor > 0;
    result.comparison.push_back(std::move(row.row));
  };
  for (std::size_t i = 0; i < kWorkloads.size(); ++i) {
    const Comparison all = CompareWithBest(OfWorkload(loads, i), Better::kLarger, /*own_loops_alone=*/false);
    own_loops += CompareWithBest(OfWorkload(loads, i), Better::kLarger, /*own_loops_alone=*/true).factor;
    add(RowOfLoads(fmt::format("{}: sustained load", kWorkloads[i].name), kSystems[all.best].name, all));
    for (std::size_t k = 0; k < kTightObjectives.size(); ++k) {
      const std::size_t of = i * kTightObjectives.size() + k;
      const std::span<const SeedValues> values = tight.Row(of);
      const auto requests = static_cast<double>(tight.requests[of]);
      const std::string what = fmt::format("{}: sustained load with {:g} s", kWorkloads[i].name, kTightObjectives[k]);
      if (const double load = BestLoad(values); LastsTooShort(requests, load, kTightObjectives[k])) {
        add(TooShortRow(what, requests, load));
        continue;
      }
      const Comparison best = CompareAmong(values, 1, Better::kLarger, [](std::size_t) { return true; });
      add(RowOfLoads(what, kSystems[kTightSystems[best.best]].name, best));
    }
  }
  result.comparison.push_back({"lm-1", "mean relative to the best system that fills steps as its paper does", "-",
                               ShowFactor(own_loops / static_cast<double>(kWorkloads.size())), Verdict::kInformation});
  const double mean = counted > 0 ? sum / counted : 0;
  result.comparison.push_back(
      {"lm-1", "mean of these rows", "at least 1.10x", ShowFactor(mean), VerdictOfClaim(mean >= kTargetGain)});
}

void CompareTimes(const std::vector<SeedValues>& times, ExperimentResult& result) {
  for (std::size_t i = 0; i < kWorkloads.size(); ++i) {
    const Comparison all = CompareWithBest(OfWorkload(times, i), Better::kSmaller, /*own_loops_alone=*/false);
    result.comparison.push_back({.id = "lm-2",
                                 .what = fmt::format("{}: P99 TTFT, relative to the best other system ({})",
                                                     kWorkloads[i].name, kSystems[all.best].name),
                                 .reported = "at most 1.03x",
                                 .ours = fmt::format("{}, worst seed {}", ShowFactor(all.factor), ShowFactor(all.most)),
                                 .verdict = VerdictOfClaim(all.factor <= kTargetTime)});
  }
}

void SetSeed(SimulationJob& job, std::uint64_t seed) { job.options.seed = job.load.seed = seed; }

// Returns the sustained loads by job, then by seed.
Result<std::vector<SeedValues>> FindLoadsOfSeeds(ExperimentContext& context, const std::vector<SimulationJob>& jobs) {
  std::vector<SimulationJob> all;
  for (std::size_t seed = 0; seed < kLoadSeeds; ++seed) {
    for (const SimulationJob& job : jobs) SetSeed(all.emplace_back(job), context.seed + seed);
  }
  ASSIGN_OR_RETURN(const std::vector<SustainedLoad> sustained, FindLoads(context, all));
  std::vector<SeedValues> loads(jobs.size());
  for (std::size_t i = 0; i < sustained.size(); ++i) loads[i % jobs.size()].push_back(sustained[i].rate);
  return loads;
}

// Returns the jobs under kTightObjectives: by workload, objective and system. `loads`: sustained under the papers'
// objectives, where the searches begin.
std::vector<SimulationJob> TightJobs(ExperimentContext& context, const std::vector<SimulationJob>& jobs,
                                     const std::vector<double>& loads) {
  std::vector<SimulationJob> tight;
  for (std::size_t i = 0; i < kWorkloads.size(); ++i) {
    for (const double seconds : kTightObjectives) {
      for (const std::size_t system : kTightSystems) {
        SimulationJob& job = tight.emplace_back(jobs[i * kCount + system]);
        job.load.requests = context.Requests(kTightRequests);
        if (loads[i * kCount + system] > 0) job.load.rate = loads[i * kCount + system];
        SetObjective(job, static_cast<TimeNs>(seconds * kNsPerSecond));
      }
    }
  }
  return tight;
}

// The requests with which a row is searched for again; as many as before if its runs last long enough.
std::int64_t RequestsOfNextRound(const ExperimentContext& context, const TightLoads& found, std::size_t row) {
  const auto before = static_cast<double>(found.requests[row]);
  const double load = BestLoad(found.Row(row)), objective = ObjectiveOfRow(row);
  if (!LastsTooShort(before, load, objective)) return found.requests[row];
  const double wanted = std::min(kRoomForGrowth * kLeastObjectives * objective * load, kMostGrowth * before);
  return std::clamp(static_cast<std::int64_t>(wanted), found.requests[row], context.Requests(kMostTightRequests));
}

// Searches again, with more requests, for the rows whose runs last too short a time.
Result<TightLoads> FindTightLoads(ExperimentContext& context, std::vector<SimulationJob> jobs) {
  constexpr std::size_t kSystemsOfRow = kTightSystems.size();
  TightLoads found{.loads = std::vector<SeedValues>(jobs.size()), .requests = {}};
  for (std::size_t i = 0; i < jobs.size(); i += kSystemsOfRow) found.requests.push_back(jobs[i].load.requests);
  std::vector<std::size_t> rows(found.requests.size());
  std::iota(rows.begin(), rows.end(), std::size_t{0});
  for (int round = 0; round < kTightRounds && !rows.empty(); ++round) {
    std::vector<SimulationJob> again;
    for (const std::size_t row : rows) {
      const auto of_row = std::span(jobs).subspan(row * kSystemsOfRow, kSystemsOfRow);
      for (SimulationJob& job : of_row) job.load.requests = found.requests[row];
      again.insert(again.end(), of_row.begin(), of_row.end());
    }
    ASSIGN_OR_RETURN(std::vector<SeedValues> loads, FindLoadsOfSeeds(context, again));
    for (std::size_t i = 0; i < loads.size(); ++i) {
      const std::size_t job = rows[i / kSystemsOfRow] * kSystemsOfRow + i % kSystemsOfRow;
      if (const double load = Median(loads[i]); load > 0) jobs[job].load.rate = load;
      found.loads[job] = std::move(loads[i]);
    }
    if (round + 1 == kTightRounds) break;
    std::erase_if(rows, [&](std::size_t row) {
      const std::int64_t next = RequestsOfNextRound(context, found, row);
      return std::exchange(found.requests[row], next) == next;
    });
  }
  return found;
}

ExperimentTable TightTable(const TightLoads& found) {
  ExperimentTable table{.title = "Sustained load by objective, requests per second",
                        .header = {"workload", "objective, s", "requests"},
                        .rows = {}};
  for (const std::size_t system : kTightSystems) table.header.emplace_back(kSystems[system].name);
  for (std::size_t i = 0; i < found.requests.size(); ++i) {
    std::vector<std::string>& row = table.rows.emplace_back();
    row = {kWorkloads[i / kTightObjectives.size()].name, fmt::format("{:g}", ObjectiveOfRow(i)),
           fmt::format("{}", found.requests[i])};
    for (const SeedValues& loads : found.Row(i)) row.push_back(fmt::format("{:.3g}", Median(loads)));
  }
  return table;
}

struct Times {
  std::vector<SeedValues> p99_ttft, mean_tpot;  // milliseconds; by job, then by seed
};
Result<Times> MeasureTimes(ExperimentContext& context, std::vector<SimulationJob> jobs) {
  Times times{std::vector<SeedValues>(jobs.size()), std::vector<SeedValues>(jobs.size())};
  for (std::size_t seed = 0; seed < kTimeSeeds; ++seed) {
    for (SimulationJob& job : jobs) SetSeed(job, context.seed + seed);
    ASSIGN_OR_RETURN(const auto outcomes, SimulateAll(context, jobs));
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      times.p99_ttft[i].push_back(outcomes[i].summary.ttft.p99);
      times.mean_tpot[i].push_back(outcomes[i].summary.tpot.mean);
    }
  }
  return times;
}

std::vector<double> Medians(const std::vector<SeedValues>& of_seeds) {
  std::vector<double> medians;
  for (const SeedValues& values : of_seeds) medians.push_back(Median(values));
  return medians;
}

Result<ExperimentResult> RunOurs(ExperimentContext& context) {
  ASSIGN_OR_RETURN(std::vector<SimulationJob> jobs, MakeJobs(context));
  ASSIGN_OR_RETURN(const std::vector<SeedValues> loads, FindLoadsOfSeeds(context, jobs));
  const std::vector<double> median_loads = Medians(loads);
  ASSIGN_OR_RETURN(const TightLoads tight, FindTightLoads(context, TightJobs(context, jobs, median_loads)));
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const auto others = std::span(median_loads).subspan(i / kCount * kCount + kOurSystems, kCount - kOurSystems);
    jobs[i].load.rate = kShareOfLoad * *std::max_element(others.begin(), others.end());
  }
  ASSIGN_OR_RETURN(const Times times, MeasureTimes(context, std::move(jobs)));
  ExperimentResult result;
  result.setting = fmt::format(
      "Each workload on the device of its paper; {} requests per run. Objective: P99 TTFT within {:g} times the mean "
      "time of a request at low load; for the workloads of vLLM-LoRA and FastLibra within {:g} s. All systems of a "
      "workload have the same objective and are told it, as an operator would (`--ttft-objective`). Loads are of {} "
      "seeds; times, of {} seeds, are compared at {:g} of the load that the best other system sustains. Values are "
      "medians over the seeds; ratios are medians of the ratios with each seed. (The P99 of one seed depends on 30 "
      "requests, and some seeds draw more work than their rate says.) Fairness among tenants exists in this project "
      "only, and each workload is that of one tenant, so fairness is off. One column has it on, with each adapter as a "
      "tenant, which is what `serve` does if no key says otherwise. Rows with an objective of 1, 2 or 5 s are what an "
      "operator would set; they have at least {} requests per run, more until a run lasts for {:g} objectives, and {} "
      "seeds as well. An objective that no system attains does not count, nor does one whose runs would need more than "
      "{} requests.",
      context.Requests(3000), kObjectiveFactor, kShortObjective, kLoadSeeds, kTimeSeeds, kShareOfLoad,
      context.Requests(kTightRequests), kLeastObjectives, kLoadSeeds, context.Requests(kMostTightRequests));
  result.remarks.push_back(
      "`vllm`, `fastlibra` and `fifo` are the papers' caches on this project's engine: prompts in chunks together with "
      "decodes, loads during steps, first come, first served. The effect of the engine shows in comparison with the "
      "systems that fill steps as their papers do: `s-lora`, `chameleon*`, `vllm-lora-batch32`. How the preset "
      "`loramux` differs further stands in [scheduling](../design/scheduling.md).");
  CompareLoads(loads, tight, result);
  CompareTimes(times.p99_ttft, result);
  result.tables.push_back(TableOf("Sustained load, requests per second", median_loads, "{:.3g}"));
  result.tables.push_back(TightTable(tight));
  result.tables.push_back(TableOf("P99 TTFT, ms", Medians(times.p99_ttft), "{:.0f}"));
  result.tables.push_back(TableOf("Mean TPOT, ms", Medians(times.mean_tpot), "{:.1f}"));
  return result;
}

constexpr std::array kOurs = std::to_array<Experiment>({
    {"lm-1", "lm-1, lm-2", "The preset loramux on the workloads of all papers", "this project", RunOurs,
     "it has seeds of its own"},
});

}  // namespace

std::span<const Experiment> OurExperiments() { return kOurs; }

}  // namespace loramux
