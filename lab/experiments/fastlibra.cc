// FastLibra: unified caching of adapters, keys and values, on the NPU that the paper describes. This file compares the
// systems and lists all FastLibra experiments.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string>

#include <fmt/format.h>

#include "lab/charts/line_chart.h"
#include "lab/experiments/fastlibra_cells.h"
#include "lab/experiments/workloads.h"

namespace loramux::fastlibra {
namespace {

double TtftChange(const Figures& first, const Figures& other) { return Change(first.ttft, other.ttft); }
double TpotChange(const Figures& first, const Figures& other) { return Change(first.tpot, other.tpot); }

void CompareSystem(const std::vector<Figures>& figures, std::size_t preset, const char* id, const char* name,
                   std::array<double, 3> reported, ExperimentResult& result) {
  const std::size_t n = kSystems.size();
  const double ttft = MeanOver(figures, n, preset, TtftChange), tpot = MeanOver(figures, n, preset, TpotChange);
  const double peak = PeakFactor(figures, n, preset);
  result.comparison.push_back(ChangeRow(id, fmt::format("mean TTFT against {}", name), reported[0], ttft));
  result.comparison.push_back(ChangeRow(id, fmt::format("mean TPOT against {}", name), reported[1], tpot));
  ComparisonRow row = FactorRow(id, fmt::format("peak throughput against {}", name), reported[2], peak);
  if (peak == 0) row = WithEvents(std::move(row), 0, "cells with a peak");
  result.comparison.push_back(std::move(row));
}

void CompareBreakdown(const std::vector<Figures>& figures, ExperimentResult& result) {
  const std::size_t n = kSystems.size();
  const auto mean = [&](std::size_t preset, double Figures::*field) {
    return MeanOver(figures, n, preset, [&](const Figures&, const Figures& f) { return f.*field; });
  };
  const auto lowest = [&](const char* what, double Figures::*field, bool all = true) {
    const double libra = mean(0, field), vllm = mean(1, field), s_lora = mean(2, field);
    // Where no baseline waits there is nothing to compare.
    std::int64_t waits = 0;
    for (std::size_t i = 0; i < figures.size(); ++i)
      waits += i % n > 0 && (all || i % n == 1) && figures[i].*field > 0.05;
    result.comparison.push_back(
        WithEvents(ClaimRow("fl-12", fmt::format("{}, mean per request", what), "FastLibra lowest",
                            fmt::format("{:.1f} ms; vLLM {:.1f}, S-LoRA {:.1f}", libra, vllm, s_lora),
                            libra < (all ? std::min(vllm, s_lora) : vllm)),
                   waits, "cells in which a baseline waits so"));
  };
  lowest("queueing", &Figures::queue);
  lowest("adapter's cold start", &Figures::adapter_wait);
  lowest("history's cold start (of the systems that keep history)", &Figures::kv_wait, /*all=*/false);
  const auto factor = [&](const char* what, double Figures::*field, std::size_t preset, const char* name,
                          double reported) {
    const double other = mean(preset, field), ours = other == 0 ? 0 : mean(0, field) / other;
    result.comparison.push_back(FactorRow("fl-13", fmt::format("{} against {}", what, name), reported, ours));
  };
  double most = 0;
  for (std::size_t i = 1; i < figures.size(); i += n) most = std::max(most, figures[i].invalid);
  result.comparison.push_back(
      ValueRow("fl-11", "vLLM: invalid history, at most (section 1)", 46.5, 100 * most, {" %", 1}));
  result.comparison.push_back(ValueRow("fl-11", "vLLM: invalid history, in the mean (2.3.1)", 48.1,
                                       100 * mean(1, &Figures::invalid), {" %", 1}));
  factor("memory in use", &Figures::used, 1, "vLLM", 1.2);
  factor("memory in use", &Figures::used, 2, "S-LoRA", 2.6);
  const auto hits = [&](std::size_t preset) {
    return (mean(preset, &Figures::adapter_hits) + mean(preset, &Figures::prefix_on_device)) / 2;
  };
  for (const auto& [preset, name, reported] :
       {std::tuple(std::size_t{1}, "vLLM", 1.3), std::tuple(std::size_t{2}, "S-LoRA", 3.2)}) {
    const double ours = hits(preset) == 0 ? 0 : hits(0) / hits(preset);
    result.comparison.push_back(
        FactorRow("fl-13", fmt::format("cache hits (mean of adapters and of history on the device) against {}", name),
                  reported, ours));
  }
}

// 7B with 100 adapters in each scenario at two loads: separates the effect of the cache from the effect of the loop.
struct LoopRuns {
  ExperimentTable table;
  std::vector<Figures> figures;  // by scenario, load and system
};
constexpr std::array kLoopLoads = {0.7, 1.0};  // shares of FastLibra's peak
Result<LoopRuns> RunLoops(ExperimentContext& context, const std::vector<Cell>& cells,
                          const std::vector<Figures>& figures) {
  const std::size_t n = kWithOtherLoops.size(), loads = kLoopLoads.size();
  LoopRuns runs{
      .table = {.title = "7B with 100 adapters: the same caches with other loops",
                .header = {"scenario", "share of the peak", "system", "TTFT ms", "P99 ms", "TPOT ms", "adapter hits"},
                .rows = {}},
      .figures = std::vector<Figures>(FastLibraScenarios().size() * loads * n)};
  std::vector<double> tails(runs.figures.size());
  RETURN_IF_ERROR(ParallelFor(context, runs.figures.size(), [&](std::size_t i) -> Status {
    const Cell cell{.scenario = i / n / loads, .model = 0, .adapters = 100};
    const auto same = [&cell](const Cell& c) {
      return c.scenario == cell.scenario && c.model == cell.model && c.adapters == cell.adapters;
    };
    const auto at = static_cast<std::size_t>(std::find_if(cells.begin(), cells.end(), same) - cells.begin());
    const double rate = kLoopLoads[i / n % loads] * figures[at * kSystems.size()].peak;
    ASSIGN_OR_RETURN(const CellRun run, RunCell(context, cell, kWithOtherLoops[i % n], rate));
    AddTo(runs.figures[i], run.outcome, 1);
    tails[i] = run.outcome.summary.ttft.p99;
    return Ok{};
  }));
  for (std::size_t i = 0; i < runs.figures.size(); ++i) {
    const Figures& f = runs.figures[i];
    runs.table.rows.push_back({FastLibraScenarios()[i / n / loads].name, fmt::format("{:g}", kLoopLoads[i / n % loads]),
                               std::string(kWithOtherLoops[i % n]), fmt::format("{:.0f}", f.ttft),
                               fmt::format("{:.0f}", tails[i]), fmt::format("{:.1f}", f.tpot),
                               fmt::format("{:.1f} %", 100 * f.adapter_hits)});
  }
  return runs;
}

// What the preset `loramux` does on the paper's workload at FastLibra's peak.
void CompareOurs(const LoopRuns& loops, ExperimentResult& result) {
  const std::size_t n = kWithOtherLoops.size(), loads = kLoopLoads.size();
  for (std::size_t s = 0; s < FastLibraScenarios().size(); ++s) {
    const Figures* const at_peak = &loops.figures[(s * loads + loads - 1) * n];
    result.comparison.push_back(
        {.id = "fl-11",
         .what =
             fmt::format("loramux, {} at FastLibra's peak: mean TTFT against FastLibra", FastLibraScenarios()[s].name),
         .reported = "-",
         .ours = fmt::format("{:.0f} ms against {:.0f} ms ({})", at_peak[n - 1].ttft, at_peak[0].ttft,
                             ShowChange(Change(at_peak[n - 1].ttft, at_peak[0].ttft)))});
  }
}

Result<ExperimentResult> RunSystems(ExperimentContext& context) {
  const std::vector<Cell> cells = AllCells();
  ASSIGN_OR_RETURN(const std::vector<Figures> figures, Measure(context, cells, kSystems));
  ExperimentResult result{.setting = SettingText() + kBaselinesText};
  CompareSystem(figures, 1, "fl-11", "vLLM", {-0.603, -0.339, 1.7}, result);
  CompareSystem(figures, 2, "fl-11s", "S-LoRA", {-0.501, -0.286, 1.6}, result);
  CompareBreakdown(figures, result);
  ASSIGN_OR_RETURN(const LoopRuns loops, RunLoops(context, cells, figures));
  CompareOurs(loops, result);
  result.tables = {BreakdownTable(cells, figures, kSystems), loops.table};
  for (ExperimentTable& table : CellTables(cells, figures, kSystems)) result.tables.push_back(std::move(table));
  result.plots = {TtftPlot(cells, figures, kSystems, "Time to first token")};
  const std::size_t per_scenario = cells.size() / FastLibraScenarios().size(), n = kSystems.size();
  const auto change = [&](std::size_t system, std::size_t first, std::size_t last) {
    return MeanOver(figures, n, system, TtftChange, first * per_scenario, (last + 1) * per_scenario);
  };
  const auto row = [&](const char* id, const char* what, double reported, double ours) {
    result.comparison.push_back(ChangeRow(id, what, reported, ours));
  };
  row("fl-11", "TTFT against vLLM, translation", -0.689, change(1, 1, 1));
  row("fl-11", "TTFT against vLLM, chatbot and agent", -0.525, (change(1, 0, 0) + change(1, 2, 2)) / 2);
  row("fl-11s", "TTFT against S-LoRA, agent", -0.811, change(2, 2, 2));
  row("fl-11s", "TTFT against S-LoRA, chatbot and translation", -0.346, change(2, 0, 1));
  const auto by_scenario = [&](std::size_t system) {
    return fmt::format("chatbot {}, translation {}, agent {}", ShowChange(change(system, 0, 0)),
                       ShowChange(change(system, 1, 1)), ShowChange(change(system, 2, 2)));
  };
  const auto by_model = [&](std::size_t system) {
    std::string text;
    for (std::size_t m = 0; m < FastLibraModels().size(); ++m) {
      double sum = 0;
      std::size_t count = 0;
      for (std::size_t c = 0; c < cells.size(); ++c) {
        if (cells[c].model != m) continue;
        sum += TtftChange(figures[c * n], figures[c * n + system]);
        ++count;
      }
      text += fmt::format("{}{} {}", m == 0 ? "" : ", ", FastLibraModels()[m].name,
                          ShowChange(sum / static_cast<double>(count)));
    }
    return text;
  };
  result.remarks = {
      "An adapter's cold start lasts from a request's arrival until its adapter is on the device, a history's from the "
      "decision to fetch it until it has arrived. Queueing is the rest of the time until a request is first computed. "
      "S-LoRA keeps no history, so it has no cold start of history: it computes it again.",
      fmt::format("TTFT against vLLM by scenario: {}; by model: {}.", by_scenario(1), by_model(1)),
      fmt::format("TTFT against S-LoRA by scenario: {}; by model: {}.", by_scenario(2), by_model(2)),
      "The loop (second table): `vllm` loads adapters during steps, into pages of their own size; `s-lora` admits "
      "requests after every tenth decode step, keeps room for their whole output, and its program needs 1.3 ms for "
      "each layer of a step beside the device (`presets.cc`, from its published runs). `loramux` is this project's own "
      "preset.",
      "34B has CodeLlama's shape, which is also that of Llama-2-34B: with grouped queries its keys and values have an "
      "eighth of the size."};
  return result;
}

constexpr std::array kExperiments = std::to_array<Experiment>({
    {"fl-11", "fl-11, fl-11s, fl-12, fl-13", "FastLibra against vLLM and S-LoRA",
     "FastLibra 6.3 and 6.4, figures 11 to 13", RunSystems},
    {"fl-2", "fl-2, fl-4, fl-5, fl-9", "What FastLibra sets out from",
     "FastLibra 2.2, 2.3 and 5.1, figures 2, 4, 5 and 9", RunMotivation},
    {"fl-14", "fl-14", "Memory over time", "FastLibra 6.5, figure 14", RunMemory},
    {"fl-15", "fl-15m, fl-15s, fl-15l", "FastLibra without each of its parts", "FastLibra 6.6 to 6.8, figure 15",
     RunVariants},
    {"fl-16", "fl-16", "Thousands of adapters", "FastLibra 6.9, figure 16", RunMany},
    {"fl-one", "fl-one", "One assumption at a time", "FastLibra 6.3: what would have to be true", RunAssumptions,
     "assumptions, not seeds, are compared"},
    {"fl-ov", "fl-ov", "Overhead", "FastLibra 6.10", RunOverhead, "its rows are measured"},
});

}  // namespace

}  // namespace loramux::fastlibra

namespace loramux {

std::span<const Experiment> FastLibraExperiments() { return fastlibra::kExperiments; }

}  // namespace loramux
