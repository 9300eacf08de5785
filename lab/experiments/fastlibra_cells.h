// Shared parts of FastLibra's experiments: runs of its cells (a scenario, a model and a number of adapters;
// fastlibra_load.h), peak rates, mean figures over the rates, and tables of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lab/experiments/experiment.h"
#include "lab/experiments/fastlibra_load.h"

namespace loramux::fastlibra {

// Shares of FastLibra's peak: the ten rates of 6.3.
inline constexpr std::array kRateShares = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0};

using Cell = FastLibraCell;
using ChangeOfJob = std::function<void(SimulationJob&)>;  // applied before the workload is made; null: none

// One simulated cell.
struct CellRun {
  SimulationJob job;
  SimulationOutcome outcome;
  std::int64_t adapter_pages = 0;  // those of all adapters
  TimeNs half_hour = 1;            // when the last conversation begins: the half hour of the paper
  // The second of the half hour at this time of the run.
  double SecondOf(TimeNs at) const {
    return static_cast<double>(at) / static_cast<double>(half_hour) * kFastLibraSeconds;
  }
};
// Simulates a cell under a system at a rate (requests per second). Errors: those of MakeFastLibraCellJob, MakeWorkload
// and Simulate.
Result<CellRun> RunCell(const ExperimentContext& context, const Cell& cell, std::string_view system, double rate,
                        const ChangeOfJob& change = nullptr);
inline constexpr double kPeakStep = 1.07;
inline constexpr double kFinePeakStep = 1.01;  // for peaks that differ by less than the usual step
// Finds the highest rate with a mean TTFT below 500 ms (6.1), to within the factor `step`.
Result<double> FindPeak(const ExperimentContext& context, const Cell& cell, std::string_view system,
                        const ChangeOfJob& change = nullptr, double step = kPeakStep);
// Finds the largest factor of the cell's lengths at which a rate has a mean TTFT below 500 ms, to within kPeakStep.
// Error: there is none from 1/64 on.
Result<double> FindLengths(const ExperimentContext& context, Cell cell, std::string_view system, double rate,
                           const ChangeOfJob& change = nullptr);

// The means over the rates, for one cell under one system.
struct Figures {
  // milliseconds; peak: requests per second
  bool peak_found = false;  // false: the peak is a bound of the search
  double ttft = 0, tpot = 0, peak = 0, queue = 0, adapter_wait = 0, kv_wait = 0;
  double used = 0, adapter_hits = 0, prefix_hits = 0, prefix_on_device = 0, invalid = 0;  // shares
  // Adapters and pages of history that came back to the device because a request needed them.
  double came_back = 0;
  double adapters = 0;  // that requests used
};
// The number of adapters that the run's requests used.
std::int64_t AdaptersUsed(const SimulationOutcome& outcome);
// Adds `share` of an outcome's figures to `figures`.
void AddTo(Figures& figures, const SimulationOutcome& outcome, double share);
// Returns figures[cell * systems + system]. The first system's peak determines the rates for all systems. `step`: as in
// FindPeak.
Result<std::vector<Figures>> Measure(ExperimentContext& context, const std::vector<Cell>& cells,
                                     std::span<const std::string_view> systems, double step = kPeakStep);
// Returns the mean of f(figures of the first preset, figures of `preset`) over the cells [begin, end).
template <typename F>
double MeanOver(const std::vector<Figures>& figures, std::size_t presets, std::size_t preset, F f,
                std::size_t begin = 0, std::size_t end = SIZE_MAX) {
  double sum = 0;
  std::size_t count = 0;
  for (std::size_t at = begin * presets; at < std::min(end, figures.size() / presets) * presets;
       at += presets, ++count) {
    sum += f(figures[at], figures[at + preset]);
  }
  return sum / static_cast<double>(count);
}

// Returns the mean ratio of the first preset's peak to that of `preset`, over the cells with both peaks found. 0: none.
double PeakFactor(const std::vector<Figures>& figures, std::size_t presets, std::size_t preset,
                  std::size_t end = SIZE_MAX);

// Describes the testbed, the load and the rates.
std::string SettingText();
// Describes the baselines of section 6.1, and which parts are this project's own.
inline constexpr const char* kBaselinesText =
    " Systems: `fastlibra`. `vllm-waits`: vLLM's cache (a fifth of the memory for adapters, LRU on each side, the host "
    "tier for both). Each step waits for the adapters of the requests that join it, as in vLLM's loop (waiting while "
    "other requests go on is FastLibra's own technique, 4.3). An adapter's slot has the size of rank 64: in figure 4, "
    "41 adapters are 58.9 % of the fifth, so 70 fill it, and here 72 such slots fill it. `s-lora-same-loop`: S-LoRA's "
    "memory management (nothing is kept) on the same engine, as in the paper, which built it on NPUs, where S-LoRA's "
    "kernels do not run. For comparison `vllm` and `s-lora`: the presets with these names, which are vLLM's cache on "
    "this project's loop, and S-LoRA's own loop.";

// All cells of the paper.
std::vector<Cell> AllCells();
// kSystems: the systems that rows compare. kWithOtherLoops adds the systems that show the effect of the loop, and this
// project's own.
inline constexpr std::array<std::string_view, 3> kSystems = {"fastlibra", "vllm-waits", "s-lora-same-loop"};
inline constexpr std::array<std::string_view, 6> kWithOtherLoops = {"fastlibra",        "vllm-waits", "vllm",
                                                                    "s-lora-same-loop", "s-lora",     "loramux"};

// FastLibra without one of its parts (6.6 to 6.8), with what the paper reports: TTFT and TPOT as factors, throughput as
// a change.
struct FastLibraVariant {
  std::string_view preset;
  const char *id, *what;
  double ttft, tpot, throughput;
  // The text of a row about it.
  std::string Row(const char* metric) const;
};
std::span<const FastLibraVariant> VariantsOfFastLibra();

// Return one table each for TTFT, TPOT and peak; the shares of waiting; and the plot of TTFT.
std::vector<ExperimentTable> CellTables(const std::vector<Cell>& cells, const std::vector<Figures>& figures,
                                        std::span<const std::string_view> systems);
ExperimentTable BreakdownTable(const std::vector<Cell>& cells, const std::vector<Figures>& figures,
                               std::span<const std::string_view> presets);
ExperimentPlot TtftPlot(const std::vector<Cell>& cells, const std::vector<Figures>& figures,
                        std::span<const std::string_view> systems, const char* title);

// Experiments in other files.
Result<ExperimentResult> RunMotivation(ExperimentContext& context);
Result<ExperimentResult> RunMemory(ExperimentContext& context);
Result<ExperimentResult> RunVariants(ExperimentContext& context);
Result<ExperimentResult> RunMany(ExperimentContext& context);
Result<ExperimentResult> RunOverhead(ExperimentContext& context);
Result<ExperimentResult> RunAssumptions(ExperimentContext& context);

}  // namespace loramux::fastlibra
