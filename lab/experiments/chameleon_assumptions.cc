// What would have to be true for Chameleon's headlines (5.2: 1.5 times S-LoRA's load; P99 TTFT a fifth of S-LoRA's at
// 9 requests per second): the testbed with one assumption changed at a time (ch-one), and the rows of the other
// experiments under those that decide (ch-rows).
#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "base/check.h"
#include "lab/experiments/assumption_rows.h"
#include "lab/experiments/chameleon_testbed.h"

namespace loramux {
namespace {

struct Assumption {
  std::string what;
  std::function<void(SimulationJob&)> change;
  // The experiments whose rows are repeated under it (ch-rows): "all", or some: "ch-2, ch-11".
  std::string_view rows_of = {};

  bool Repeats(std::string_view id) const {
    if (rows_of == "all") return true;
    return fmt::format(", {}, ", rows_of).find(fmt::format(", {}, ", id)) != std::string::npos;
  }
};

void TakeObjectiveTimes(SimulationJob& job, double factor) {
  SetObjective(job, static_cast<TimeNs>(factor * static_cast<double>(job.options.preset.spec.objective)));
}

void LoadSlower(SimulationJob& job, double factor) {
  job.options.device.model.host_to_device.bytes_per_second /= factor;
}

void ComputeFaster(SimulationJob& job, double factor) {
  PerformanceModel& model = job.options.device.model;
  for (double* const seconds :
       {&model.per_prefill_token, &model.per_prefill_sequence, &model.per_decode_sequence, &model.per_prefill_attention,
        &model.per_prefill_context, &model.per_adapter_token, &model.per_adapter_token_rank})
    *seconds /= factor;
}

// The rule of 5.1 for the objective, applied to the changed job.
void FitObjective(SimulationJob& job) { CHECK(SetChameleonObjective(job, job.options.preset.program).ok()); }

void PromptsTogether(SimulationJob& job, std::int64_t tokens) { job.options.preset.spec.whole_prompt_tokens = tokens; }

// The document's 5 s (5.4.3) of the 14.5 s that its rule gives here; other machines and traces alike.
constexpr double kFiveSeconds = 5.0 / 14.5;
// The least that S-LoRA's api_server.py takes (LimitPromptsTogether).
constexpr std::int64_t kLeastPromptsTogether = 3072;

// How the programs order, admit and compute.
void AddPrograms(std::vector<Assumption>& all) {
  const auto add = [&](std::string what, std::function<void(SimulationJob&)> change) {
    all.push_back({std::move(what), std::move(change)});
  };
  add("an objective of 1.75 s, and S-LoRA admits after every step too", [](SimulationJob& job) {
    TakeObjectiveTimes(job, 1.75 / 14.5);
    job.options.preset.spec.decode_turns = 1;
  });
  add("S-LoRA admits after every step too", [](SimulationJob& job) { job.options.preset.spec.decode_turns = 1; });
  add("S-LoRA admits after every twentieth step", [](SimulationJob& job) {
    if (job.options.preset.spec.decode_turns > 1) job.options.preset.spec.decode_turns = 20;
  });
  add("lanes admit after every tenth step too", [](SimulationJob& job) { job.options.preset.spec.decode_turns = 10; });
  add("FIFO instead of lanes", [](SimulationJob& job) {
    if (job.options.preset.spec.queue == "mlq") job.options.preset.spec.queue = "fifo";
  });
  add("requests that waited for half of the objective go first, outside lanes and quotas",
      [](SimulationJob& job) { job.options.preset.spec.overdue_first = true; });
  add("the host's work takes no time, and the objective follows", [](SimulationJob& job) {
    job.options.preset.program.layer_seconds = job.options.preset.program.request_seconds = 0;
    FitObjective(job);
  });
  all.back().rows_of = "ch-2, ch-11, ch-19";
}

void AddMachinesAndLoads(std::vector<Assumption>& all) {
  const auto add = [&](std::string what, std::function<void(SimulationJob&)> change) {
    all.push_back({std::move(what), std::move(change)});
  };
  add("arithmetic is twice as fast, and the objective follows", [](SimulationJob& job) {
    ComputeFaster(job, 2);
    FitObjective(job);
  });
  add("the arithmetic of adapters takes no time, and the objective follows", [](SimulationJob& job) {
    job.options.device.model.per_adapter_token_rank = 0;
    FitObjective(job);
  });
  add("a quarter of the memory for keys, values and adapters", [](SimulationJob& job) {
    job.options.device.device_pages /= 4;
    LimitPromptsTogether(job);
  });
  all.back().rows_of = "ch-2, ch-11, ch-18, ch-22";
  for (const double lengths : {0.165, 0.1, 0.05}) {
    add(fmt::format("{:g} of the trace's lengths, and the objective follows", lengths), [=](SimulationJob& job) {
      for (double* const scale : {&job.load.input_scale, &job.load.output_scale}) *scale *= lengths / kLengthScale;
      FitObjective(job);
    });
    if (lengths == 0.05) all.back().rows_of = "all";
  }
  add("500 adapters", [](SimulationJob& job) { job.load.adapters = 500; });
  add("4,000 requests",
      [](SimulationJob& job) { job.load.requests = std::min<std::int64_t>(job.load.requests, 4000); });
}

// The first is none.
std::vector<Assumption> Assumptions() {
  std::vector<Assumption> all = {{"as the document is read", nullptr, "all"}};
  const auto add = [&](std::string what, std::function<void(SimulationJob&)> change, std::string_view rows_of = {}) {
    all.push_back({std::move(what), std::move(change), rows_of});
  };
  for (const double seconds : {5.0, 3.0, 2.0, 1.75, 1.5}) {
    add(
        fmt::format("an objective of {:g} s", seconds),
        [=](SimulationJob& job) { TakeObjectiveTimes(job, seconds / 14.5); }, seconds == 1.75 ? "all" : "");
  }
  for (const double factor : {4.0, 16.0, 64.0}) {
    add(
        fmt::format("loads take {:g} times as long", factor), [=](SimulationJob& job) { LoadSlower(job, factor); },
        factor == 64 ? "ch-2, ch-18, ch-21, ch-22" : "");
  }
  add(
      "an objective of 5 s, and loads take 32 times as long",
      [](SimulationJob& job) {
        TakeObjectiveTimes(job, kFiveSeconds);
        LoadSlower(job, 32);
      },
      "all");
  for (const std::int64_t tokens : {kLeastPromptsTogether, std::int64_t{2048}}) {
    add(
        fmt::format("at most {} tokens of prompts in a step", tokens),
        [=](SimulationJob& job) { PromptsTogether(job, tokens); }, tokens == kLeastPromptsTogether ? "all" : "");
  }
  add(fmt::format("an objective of 5 s, and at most {} tokens of prompts in a step", kLeastPromptsTogether),
      [](SimulationJob& job) {
        TakeObjectiveTimes(job, kFiveSeconds);
        PromptsTogether(job, kLeastPromptsTogether);
      });
  AddPrograms(all);
  AddMachinesAndLoads(all);
  return all;
}

constexpr std::array<std::string_view, 4> kSystems = {"s-lora", "chameleon-nocache", "chameleon-nosched", "chameleon"};
constexpr std::array<double, 3> kShares = {kLowLoad, kMediumLoad, kHighLoad};

// The headlines under one assumption.
struct Headlines {
  std::array<double, 4> rates = {};    // sustained, by kSystems
  std::array<double, 3> changes = {};  // P99 TTFT against S-LoRA, at kShares of its load
  double Factor() const { return rates[3] / std::max(1e-9, rates[0]); }
};

// Within a quarter of the reported effect, in logarithms.
bool IsNear(double reported, double ours) {
  return ours > 0 && std::abs(std::log(ours) - std::log(reported)) <= std::abs(std::log(reported)) / 4;
}
bool ReachesLoad(const Headlines& headlines) { return IsNear(1.5, headlines.Factor()); }
bool ReachesTail(const Headlines& headlines) { return IsNear(1 - 0.807, 1 + headlines.changes[2]); }

Result<std::vector<Headlines>> Measure(ExperimentContext& context, const std::vector<Assumption>& assumptions) {
  std::vector<ChameleonSetting> settings;
  for (const Assumption& assumption : assumptions) {
    for (const std::string_view system : kSystems)
      settings.push_back({.preset = system, .rate = 7, .change = assumption.change});
  }
  ASSIGN_OR_RETURN(const auto searches, MakeChameleonJobs(context, settings));
  ASSIGN_OR_RETURN(const auto loads, FindLoads(context, searches));
  std::vector<Headlines> all(assumptions.size());
  for (std::size_t i = 0; i < loads.size(); ++i) all[i / kSystems.size()].rates[i % kSystems.size()] = loads[i].rate;
  settings.clear();
  for (std::size_t i = 0; i < assumptions.size(); ++i) {
    for (const double share : kShares) {
      for (const std::string_view system : {kSystems.front(), kSystems.back()}) {
        settings.push_back(
            {.preset = system, .rate = share * std::max(0.1, all[i].rates.front()), .change = assumptions[i].change});
      }
    }
  }
  ASSIGN_OR_RETURN(const auto jobs, MakeChameleonJobs(context, settings));
  ASSIGN_OR_RETURN(const auto outcomes, SimulateAll(context, jobs));
  for (std::size_t i = 0; i < outcomes.size(); i += 2) {
    all[i / 2 / kShares.size()].changes[i / 2 % kShares.size()] =
        Change(outcomes[i + 1].summary.ttft.p99, outcomes[i].summary.ttft.p99);
  }
  return all;
}

ExperimentTable HeadlineTable(const std::vector<Assumption>& assumptions, const std::vector<Headlines>& headlines) {
  ExperimentTable table{
      "Sustained loads (requests per second), and P99 TTFT against S-LoRA at 70, 93 and 105 % of the "
      "load that S-LoRA sustains",
      {"assumption", "S-LoRA", "scheduler", "cache", "both", "both / S-LoRA", "70 %", "93 %", "105 %",
       "within a quarter of"},
      {}};
  for (std::size_t i = 0; i < assumptions.size(); ++i) {
    std::vector<std::string>& row = table.rows.emplace_back();
    row.push_back(assumptions[i].what);
    for (const double rate : headlines[i].rates) row.push_back(fmt::format("{:.2f}", rate));
    row.push_back(ShowFactor(headlines[i].Factor()));
    for (const double change : headlines[i].changes) row.push_back(ShowChange(change));
    const bool load = ReachesLoad(headlines[i]), tail = ReachesTail(headlines[i]);
    row.emplace_back(load && tail ? "1.5x, -80.7 %" : load ? "1.5x" : tail ? "-80.7 %" : "");
  }
  return table;
}

// The experiments whose rows are repeated under the assumptions that decide. Those with several machines take hours, so
// they are repeated with a share of the requests.
struct Repeated {
  std::string_view id;
  double requests = 1;
};
constexpr double kFewerRequests = 0.25, kFewestRequests = 0.1;
constexpr std::array kRepeated = std::to_array<Repeated>({{"ch-11"},
                                                          {"ch-2"},
                                                          {"ch-14"},
                                                          {"ch-15"},
                                                          {"ch-17"},
                                                          {"ch-18"},
                                                          {"ch-19"},
                                                          {"ch-20"},
                                                          {"ch-21", kFewerRequests},
                                                          {"ch-22"},
                                                          {"ch-23", kFewerRequests},
                                                          {"ch-24", kFewestRequests},
                                                          {"ch-25", kFewerRequests}});

Result<RowsUnder> RepeatRows(const ExperimentContext& context, const Assumption& assumption) {
  ExperimentContext under = context;
  under.assume = assumption.change;
  under.rows_only = true;
  RowsUnder rows{.assumption = assumption.what, .rows = {}};
  for (const Experiment& experiment : ChameleonExperiments()) {
    const auto* const repeated = std::find_if(kRepeated.begin(), kRepeated.end(),
                                              [&](const Repeated& other) { return other.id == experiment.id; });
    if (repeated == kRepeated.end() || !assumption.Repeats(experiment.id)) continue;
    under.scale = repeated->requests * context.scale;
    ASSIGN_OR_RETURN(ExperimentResult result, experiment.run(under));
    std::move(result.comparison.begin(), result.comparison.end(), std::back_inserter(rows.rows));
  }
  return rows;
}

void CompareHeadlines(const std::vector<Assumption>& assumptions, const std::vector<Headlines>& headlines,
                      ExperimentResult& result) {
  for (std::size_t i = 0; i < assumptions.size(); ++i) {
    result.comparison.push_back(
        {.id = "ch-one",
         .what = fmt::format("sustained load, and P99 TTFT at 105 % of S-LoRA's load: {}", assumptions[i].what),
         .reported = "1.50x, -80.7 %",
         .ours = fmt::format("{}, {}", ShowFactor(headlines[i].Factor()), ShowChange(headlines[i].changes[2]))});
  }
}

}  // namespace

Result<ExperimentResult> RunChameleonAssumptions(ExperimentContext& context) {
  const std::vector<Assumption> assumptions = Assumptions();
  ASSIGN_OR_RETURN(const auto headlines, Measure(context, assumptions));
  ASSIGN_OR_RETURN(const SimulationJob job, MakeChameleonJob(context, {}));
  ExperimentResult result{.setting = DescribeChameleonTestbed(job)};
  CompareHeadlines(assumptions, headlines, result);
  result.tables.push_back(HeadlineTable(assumptions, headlines));
  return result;
}

Result<ExperimentResult> RunChameleonRows(ExperimentContext& context) {
  std::vector<RowsUnder> all;
  for (const Assumption& assumption : Assumptions()) {
    if (assumption.rows_of.empty()) continue;
    ASSIGN_OR_RETURN(all.emplace_back(), RepeatRows(context, assumption));
  }
  ASSIGN_OR_RETURN(const SimulationJob job, MakeChameleonJob(context, {}));
  ExperimentResult result{.setting =
                              DescribeChameleonTestbed(job) +
                              fmt::format(" In every column of the table, ch-21, ch-23 and ch-25 have {:g} of the "
                                          "requests, and ch-24 {:g}.",
                                          kFewerRequests * context.scale, kFewestRequests * context.scale)};
  std::size_t missed = 0;
  std::vector<std::size_t> turned(all.size()), measured(all.size());
  std::size_t by_none = 0;
  for (const ComparisonRow& row : all.front().rows) {
    if (!IsMissed(row)) continue;
    ++missed;
    bool any = false;
    for (std::size_t i = 1; i < all.size(); ++i) {
      const ComparisonRow* const same = FindRow(all[i].rows, row);
      const bool turns = same != nullptr && HasDirection(*same);
      measured[i] += static_cast<std::size_t>(same != nullptr && Decides(*same));
      turned[i] += static_cast<std::size_t>(turns);
      any |= turns;
    }
    by_none += static_cast<std::size_t>(!any);
  }
  for (std::size_t i = 1; i < all.size(); ++i) {
    result.comparison.push_back(
        {.id = "ch-rows",
         .what = fmt::format(
             "rows of other experiments that are opposite or without effect, and have the direction under: {}",
             all[i].assumption),
         .reported = "-",
         .ours = fmt::format("{} of {}", turned[i], measured[i])});
  }
  result.comparison.push_back({.id = "ch-rows",
                               .what = "the same, under none of these assumptions",
                               .reported = "-",
                               .ours = fmt::format("{} of {}", by_none, missed)});
  result.tables.push_back(TableOfAssumptions(
      all, fmt::format("share of the requests {:g}, of ch-21, ch-23 and ch-25 {:g}, of ch-24 {:g}", context.scale,
                       kFewerRequests * context.scale, kFewestRequests * context.scale)));
  return result;
}

}  // namespace loramux
