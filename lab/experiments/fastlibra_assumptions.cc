// What would have to be true for FastLibra's headlines (6.3: TTFT 60.3 % below vLLM's, and 1.7 times its peak): 7B with
// 100 adapters in each scenario, with one assumption changed at a time.
#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "lab/experiments/assumption_rows.h"
#include "lab/experiments/fastlibra_cells.h"

namespace loramux::fastlibra {
namespace {

struct Assumption {
  std::string what;
  ChangeOfJob change = nullptr;
  double memory = 1, lengths = 1;  // factors on the cell's
};

void CopySlower(SimulationJob& job, double factor) {
  for (PerformanceModel::Link* const link :
       {&job.options.device.model.host_to_device, &job.options.device.model.device_to_host}) {
    link->bytes_per_second /= factor;
    link->per_piece *= factor;
  }
}

std::vector<Assumption> Assumptions() {
  return {
      {"as the document is read"},
      {"half of the memory for keys, values and adapters", nullptr, 1.0 / 2},
      {"a third of the memory", nullptr, 1.0 / 3},
      {"a quarter of the memory", nullptr, 1.0 / 4},
      {"lengths four times as long", nullptr, 1, 4},
      {"copies between the tiers take 8 times as long", [](SimulationJob& job) { CopySlower(job, 8); }},
      {"copies take 32 times as long", [](SimulationJob& job) { CopySlower(job, 32); }},
      {"a conversation pauses ten times as long", [](SimulationJob& job) { job.load.think_seconds *= 10; }},
      {"all adapters are equally popular", [](SimulationJob& job) { job.load.exponent = 0; }},
  };
}

constexpr std::array<std::string_view, 5> kCompared = {"fastlibra", "vllm-waits", "fastlibra-wom", "fastlibra-wos",
                                                       "fastlibra-wol"};
constexpr std::size_t kLibra = 0, kVllm = 1;
constexpr std::array kShares = {0.25, 0.5, 0.75, 1.0};  // FastLibra's peak is 1
constexpr std::int64_t kManyAdapters = 1000;            // figure 16
constexpr double kManyShare = 0.75;

// One scenario under one assumption, by kCompared.
using Scenario = std::array<Figures, kCompared.size()>;
// One assumption: its scenarios, and the chatbot with many adapters, by kSystems.
struct Measured {
  std::vector<Scenario> scenarios;
  std::array<Figures, kSystems.size()> many;
};

Cell CellOf(const Assumption& assumption, std::size_t scenario, std::int64_t adapters) {
  return {.scenario = scenario,
          .model = 0,
          .adapters = adapters,
          .memory = assumption.memory,
          .lengths = assumption.lengths};
}

Result<Scenario> MeasureScenario(const ExperimentContext& context, const Assumption& assumption, std::size_t scenario) {
  const Cell cell = CellOf(assumption, scenario, 100);
  Scenario all;
  for (std::size_t system = 0; system < kCompared.size(); ++system) {
    Figures& figures = all[system];
    ASSIGN_OR_RETURN(figures.peak, FindPeak(context, cell, kCompared[system], assumption.change, kFinePeakStep));
    for (const double share : kShares) {
      ASSIGN_OR_RETURN(const CellRun run,
                       RunCell(context, cell, kCompared[system], share * all[kLibra].peak, assumption.change));
      AddTo(figures, run.outcome, 1.0 / static_cast<double>(kShares.size()));
    }
  }
  return all;
}

Result<std::vector<Measured>> MeasureAll(ExperimentContext& context, const std::vector<Assumption>& assumptions) {
  const std::size_t scenarios = FastLibraScenarios().size();
  std::vector<Measured> all(assumptions.size());
  for (Measured& measured : all) measured.scenarios.resize(scenarios);
  RETURN_IF_ERROR(ParallelFor(context, all.size() * scenarios, [&](std::size_t i) -> Status {
    const Assumption& assumption = assumptions[i / scenarios];
    Measured& measured = all[i / scenarios];
    ASSIGN_OR_RETURN(measured.scenarios[i % scenarios], MeasureScenario(context, assumption, i % scenarios));
    if (i % scenarios != 0) return Ok{};
    const Cell cell = CellOf(assumption, 0, kManyAdapters);
    ASSIGN_OR_RETURN(const double peak, FindPeak(context, cell, kSystems[0], assumption.change));
    for (std::size_t system = 0; system < kSystems.size(); ++system) {
      ASSIGN_OR_RETURN(const CellRun run,
                       RunCell(context, cell, kSystems[system], kManyShare * peak, assumption.change));
      AddTo(measured.many[system], run.outcome, 1);
    }
    return Ok{};
  }));
  return all;
}

// The mean of f(FastLibra's figures, those of a system) over the scenarios.
template <typename F>
double MeanOf(const Measured& measured, std::size_t system, F f) {
  double sum = 0;
  for (const Scenario& scenario : measured.scenarios)
    sum += f(scenario[kLibra], scenario[system]) / static_cast<double>(measured.scenarios.size());
  return sum;
}

double PeakRatio(const Figures& first, const Figures& other) { return first.peak / std::max(1e-9, other.peak); }
double HitsOf(const Figures& f) { return (f.adapter_hits + f.prefix_on_device) / 2; }

// The rows of the other experiments, from these cells alone.
std::vector<ComparisonRow> RowsOf(const Measured& m) {
  const auto change = [&](double Figures::*field) {
    return MeanOf(m, kVllm, [field](const Figures& libra, const Figures& f) { return Change(libra.*field, f.*field); });
  };
  double hits = 0, vllm_hits = 0;
  for (const Scenario& scenario : m.scenarios) {
    hits += HitsOf(scenario[kLibra]);
    vllm_hits += HitsOf(scenario[kVllm]);
  }
  double many = 0;
  for (std::size_t system = 1; system < kSystems.size(); ++system)
    many += Change(m.many[0].tpot, m.many[system].tpot) / static_cast<double>(kSystems.size() - 1);
  std::vector<ComparisonRow> rows = {
      ChangeRow("fl-11", "mean TTFT against vLLM", -0.603, change(&Figures::ttft)),
      ChangeRow("fl-11", "mean TPOT against vLLM", -0.339, change(&Figures::tpot)),
      FactorRow("fl-11", "peak throughput against vLLM", 1.7, MeanOf(m, kVllm, PeakRatio)),
      FactorRow("fl-13", "cache hits (mean of adapters and of history on the device) against vLLM", 1.3,
                hits / std::max(1e-9, vllm_hits)),
      ChangeRow("fl-16", "mean TPOT against both baselines", -0.162, many)};
  for (std::size_t v = 0; v < VariantsOfFastLibra().size(); ++v) {
    const FastLibraVariant& variant = VariantsOfFastLibra()[v];
    const std::size_t system = kVllm + 1 + v;
    const auto factor = [&](double Figures::*field) {
      return MeanOf(m, system, [field](const Figures& libra, const Figures& f) {
        return f.*field / std::max(1e-9, libra.*field);
      });
    };
    rows.push_back(FactorRow(variant.id, variant.Row("TTFT"), variant.ttft, factor(&Figures::ttft)));
    rows.push_back(FactorRow(variant.id, variant.Row("TPOT"), variant.tpot, factor(&Figures::tpot)));
    const double peak = MeanOf(m, system, [](const Figures& libra, const Figures& f) { return PeakRatio(f, libra); });
    rows.push_back(ChangeRow(variant.id, variant.Row("peak throughput"), variant.throughput, peak - 1));
  }
  return rows;
}

}  // namespace

Result<ExperimentResult> RunAssumptions(ExperimentContext& context) {
  const std::vector<Assumption> assumptions = Assumptions();
  ASSIGN_OR_RETURN(const std::vector<Measured> all, MeasureAll(context, assumptions));
  ExperimentResult result{
      .setting = SettingText() +
                 fmt::format(" Here: 7B with 100 adapters; figures are means over {} shares of FastLibra's peak; "
                             "`fastlibra` against `vllm-waits` and the variants. The row of figure 16 is the chatbot "
                             "with {} adapters at {:g} of the peak.",
                             kShares.size(), kManyAdapters, kManyShare)};
  ExperimentTable table{"By assumption and scenario",
                        {"assumption", "scenario", "FastLibra's peak", "vLLM's peak", "factor", "FastLibra's TTFT ms",
                         "vLLM's TTFT ms", "change"},
                        {}};
  std::vector<RowsUnder> under;
  for (std::size_t a = 0; a < assumptions.size(); ++a) {
    under.push_back({assumptions[a].what, RowsOf(all[a])});
    for (std::size_t s = 0; s < all[a].scenarios.size(); ++s) {
      const Figures &libra = all[a].scenarios[s][kLibra], &vllm = all[a].scenarios[s][kVllm];
      table.rows.push_back({assumptions[a].what, FastLibraScenarios()[s].name, fmt::format("{:.2f}", libra.peak),
                            fmt::format("{:.2f}", vllm.peak), ShowFactor(PeakRatio(libra, vllm)),
                            fmt::format("{:.0f}", libra.ttft), fmt::format("{:.0f}", vllm.ttft),
                            ShowChange(Change(libra.ttft, vllm.ttft))});
    }
    result.comparison.push_back(
        {.id = "fl-one",
         .what = "mean TTFT and peak against vLLM, 7B with 100 adapters: " + assumptions[a].what,
         .reported = "-60.3 %, 1.70x",
         .ours = fmt::format("{}, {}", under.back().rows[0].ours, under.back().rows[2].ours)});
  }
  result.tables = {std::move(table), TableOfAssumptions(under, "from the cells of 7B with 100 adapters")};
  return result;
}

}  // namespace loramux::fastlibra
