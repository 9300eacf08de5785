// What would have to be true for FastLibra's headlines (6.3: TTFT 60.3 % below vLLM's, and 1.7 times its peak): 7B with
// 100 adapters in each scenario, with one assumption changed at a time.
#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

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

constexpr std::array<std::string_view, 2> kPair = {"fastlibra", "vllm-waits"};
constexpr std::array kShares = {0.25, 0.5, 0.75, 1.0};  // FastLibra's peak is 1

// One scenario under one assumption, by kPair.
struct Headlines {
  std::array<double, 2> peak = {}, ttft = {};
  double Factor() const { return peak[0] / std::max(1e-9, peak[1]); }
};

Result<std::vector<Headlines>> MeasurePairs(ExperimentContext& context, const std::vector<Assumption>& assumptions) {
  const std::size_t scenarios = FastLibraScenarios().size();
  std::vector<Headlines> all(assumptions.size() * scenarios);
  RETURN_IF_ERROR(ParallelFor(context, all.size(), [&](std::size_t i) -> Status {
    const Assumption& assumption = assumptions[i / scenarios];
    const Cell cell{.scenario = i % scenarios,
                    .model = 0,
                    .adapters = 100,
                    .memory = assumption.memory,
                    .lengths = assumption.lengths};
    for (std::size_t system = 0; system < kPair.size(); ++system) {
      ASSIGN_OR_RETURN(all[i].peak[system], FindPeak(context, cell, kPair[system], assumption.change));
      for (const double share : kShares) {
        ASSIGN_OR_RETURN(const CellRun run,
                         RunCell(context, cell, kPair[system], share * all[i].peak[0], assumption.change));
        all[i].ttft[system] += run.outcome.summary.ttft.mean / static_cast<double>(kShares.size());
      }
    }
    return Ok{};
  }));
  return all;
}

}  // namespace

Result<ExperimentResult> RunAssumptions(ExperimentContext& context) {
  const std::vector<Assumption> assumptions = Assumptions();
  ASSIGN_OR_RETURN(const auto headlines, MeasurePairs(context, assumptions));
  ExperimentResult result{.setting = SettingText() +
                                     fmt::format(" Here: 7B with 100 adapters; TTFT is the mean over {} shares of the "
                                                 "peak; `fastlibra` against `vllm-waits`.",
                                                 kShares.size())};
  ExperimentTable table{"By assumption and scenario",
                        {"assumption", "scenario", "FastLibra's peak", "vLLM's peak", "factor", "FastLibra's TTFT ms",
                         "vLLM's TTFT ms", "change"},
                        {}};
  const std::size_t scenarios = FastLibraScenarios().size();
  for (std::size_t a = 0; a < assumptions.size(); ++a) {
    double change = 0, factor = 0;
    for (std::size_t s = 0; s < scenarios; ++s) {
      const Headlines& h = headlines[a * scenarios + s];
      const double ttft = Change(h.ttft[0], h.ttft[1]);
      change += ttft / static_cast<double>(scenarios);
      factor += h.Factor() / static_cast<double>(scenarios);
      table.rows.push_back({assumptions[a].what, FastLibraScenarios()[s].name, fmt::format("{:.2f}", h.peak[0]),
                            fmt::format("{:.2f}", h.peak[1]), ShowFactor(h.Factor()), fmt::format("{:.0f}", h.ttft[0]),
                            fmt::format("{:.0f}", h.ttft[1]), ShowChange(ttft)});
    }
    result.comparison.push_back(
        {.id = "fl-one",
         .what = "mean TTFT and peak against vLLM, 7B with 100 adapters: " + assumptions[a].what,
         .reported = "-60.3 %, 1.70x",
         .ours = fmt::format("{}, {}", ShowChange(change), ShowFactor(factor))});
  }
  result.tables = {std::move(table)};
  return result;
}

}  // namespace loramux::fastlibra
