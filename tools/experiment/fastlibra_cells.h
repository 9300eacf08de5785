// What FastLibra's experiments share: runs of its cells (a scenario, a model, a number of adapters; fastlibra_load.h),
// peaks, figures over the rates, and tables of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/experiment/experiment.h"
#include "tools/experiment/fastlibra_load.h"

namespace loramux::fastlibra {

inline constexpr std::array kRateShares = {0.2, 0.4, 0.6, 0.8, 1.0};  // of FastLibra's peak; the document has ten

using Cell = FastLibraCell;
using ChangeOfJob = std::function<void(SimulationJob&)>;  // before its workload is made; null: none

struct CellRun {
  SimulationJob job;
  SimulationOutcome outcome;
};
// Errors: as MakeFastLibraCellJob's, MakeWorkload's and Simulate's.
Result<CellRun> RunCell(const ExperimentContext& context, const Cell& cell, std::string_view system, double rate,
                        const ChangeOfJob& change = nullptr);
// The highest rate whose mean TTFT is below 500 ms (6.1), to 7 %.
Result<double> FindPeak(const ExperimentContext& context, const Cell& cell, std::string_view system,
                        const ChangeOfJob& change = nullptr);

// Of a cell under a preset, the mean over the rates.
struct Figures {
  double ttft = 0, tpot = 0, peak = 0, queue = 0, adapter_wait = 0, kv_wait = 0;          // ms; requests a second
  double used = 0, adapter_hits = 0, prefix_hits = 0, prefix_on_device = 0, invalid = 0;  // shares
};
void AddTo(Figures& figures, const SimulationOutcome& outcome, double share);
// figures[cell * systems + system]; the first system's peak decides the rates of all.
Result<std::vector<Figures>> Measure(ExperimentContext& context, const std::vector<Cell>& cells,
                                     std::span<const std::string_view> systems);
// Mean over the cells of f(first preset's figures, that preset's figures).
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

// Mean over the cells whose peaks the search has found: the first one's over that preset's. 0: there is none.
double PeakFactor(const std::vector<Figures>& figures, std::size_t presets, std::size_t preset,
                  std::size_t end = SIZE_MAX);

// The testbed, the load and the rates in words.
std::string SettingText();
// The baselines of 6.1, and what is ours about them.
inline constexpr const char* kBaselinesText =
    " Systems: `fastlibra`. `vllm-waits`: vLLM's cache (a fifth of the memory for adapters, LRU on each side, the host "
    "tier for both), "
    "each "
    "step waits for the adapters of those who join it, as vLLM's loop does (waiting while others go on is FastLibra's "
    "own, 4.3), and "
    "an adapter's slot is as large as one of rank 64: figure 4's 41 adapters are 58.9 % of the fifth, so 70 fill it, "
    "and 72 such slots "
    "do here. "
    "`s-lora-same-loop`: S-LoRA's memory (nothing stays) on the same engine, as the document built it on NPUs, which "
    "S-LoRA's kernels do "
    "not "
    "run on. Beside them `vllm` and `s-lora`: the presets of that name, vLLM's cache on our loop, and S-LoRA's own "
    "loop.";

std::vector<Cell> AllCells();
// Those that the rows compare; and with those that show what is the loop's.
inline constexpr std::array<std::string_view, 3> kSystems = {"fastlibra", "vllm-waits", "s-lora-same-loop"};
inline constexpr std::array<std::string_view, 5> kWithOtherLoops = {"fastlibra", "vllm-waits", "vllm",
                                                                    "s-lora-same-loop", "s-lora"};

// A table each for TTFT, TPOT and peak.
std::vector<ExperimentTable> CellTables(const std::vector<Cell>& cells, const std::vector<Figures>& figures,
                                        std::span<const std::string_view> systems);
ExperimentTable BreakdownTable(const std::vector<Cell>& cells, const std::vector<Figures>& figures,
                               std::span<const std::string_view> presets);
ExperimentPlot TtftPlot(const std::vector<Cell>& cells, const std::vector<Figures>& figures,
                        std::span<const std::string_view> systems, const char* title);

// Experiments of the other files.
Result<ExperimentResult> RunMemory(ExperimentContext& context);
Result<ExperimentResult> RunVariants(ExperimentContext& context);
Result<ExperimentResult> RunMany(ExperimentContext& context);
Result<ExperimentResult> RunOverhead(ExperimentContext& context);

}  // namespace loramux::fastlibra
