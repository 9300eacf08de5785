// FastLibra: unified caching of adapters and of keys and values, on the NPU that it describes.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/prng.h"
#include "bench/dot_chart.h"
#include "bench/line_chart.h"
#include "bench/stacked_areas.h"
#include "cache/dependency_tree.h"
#include "cache/kv_eviction_plan.h"
#include "tools/experiment/experiment.h"
#include "tools/experiment/fastlibra_load.h"
#include "tools/experiment/workloads.h"

namespace loramux {
namespace {

constexpr double kPeakTtftMs = 500;      // 6.1: peak throughput is what keeps the TTFT below
constexpr std::array kRateShares = {0.2, 0.4, 0.6, 0.8, 1.0};   // of FastLibra's peak; the document has ten
constexpr double kHighestRate = 256;     // that the search for a peak asks for
constexpr double kFirstGuess = 2;        // of a peak
constexpr std::array<std::int64_t, 2> kAdapterCounts = {20, 100};   // the document has 50, too

constexpr double kPressure = 1;          // of FastLibra's peak: where evictions are compared

using Cell = FastLibraCell;
using ChangeOfJob = std::function<void(SimulationJob&)>;   // before its workload is made; null: none

struct CellRun {
  SimulationJob job;
  SimulationOutcome outcome;
};
Result<CellRun> RunCell(const ExperimentContext& context, const Cell& cell, std::string_view system, double rate,
                        const ChangeOfJob& change = nullptr) {
  CellRun run;
  ASSIGN_OR_RETURN(run.job, MakeFastLibraCellJob(context, cell, system, rate));
  if (change) change(run.job);
  ASSIGN_OR_RETURN(Workload workload, MakeWorkload(run.job.load));
  ShapeFastLibraLoad(run.job, cell, system, workload);
  ASSIGN_OR_RETURN(run.outcome.result, Simulate(run.job.options, workload));
  run.outcome.summary = Summarise(run.outcome.result, run.job.options.slo);
  return run;
}

// The highest rate whose mean TTFT is below kPeakTtftMs, to 7 %.
Result<double> FindPeak(const ExperimentContext& context, const Cell& cell, std::string_view system, const ChangeOfJob& change = nullptr) {
  const auto holds = [&](double rate) -> Result<bool> {
    ASSIGN_OR_RETURN(const CellRun run, RunCell(context, cell, system, rate, change));
    return run.outcome.summary.ttft.mean <= kPeakTtftMs;
  };
  double low = 0, high = 0, rate = kFirstGuess;
  while (low == 0 || high == 0) {
    ASSIGN_OR_RETURN(const bool within, holds(rate));
    (within ? low : high) = rate;
    rate *= within ? 2 : 0.5;
    if (rate > kHighestRate) return kHighestRate;
    if (rate < 1.0 / 64) return low;
  }
  while (high / low > 1.07) {
    const double middle = std::sqrt(low * high);
    ASSIGN_OR_RETURN(const bool within, holds(middle));
    (within ? low : high) = middle;
  }
  return low;
}

// Peaks by cell and system: peaks[cell * systems + system].
Result<std::vector<double>> FindPeaks(ExperimentContext& context, const std::vector<Cell>& cells,
                                      std::span<const std::string_view> systems) {
  std::vector<double> peaks(cells.size() * systems.size());
  RETURN_IF_ERROR(ParallelFor(context, peaks.size(), [&](std::size_t i) -> Status {
    ASSIGN_OR_RETURN(peaks[i], FindPeak(context, cells[i / systems.size()], systems[i % systems.size()]));
    return Ok{};
  }));
  return peaks;
}

// Of a cell under a preset, the mean over the rates.
struct Figures {
  double ttft = 0, tpot = 0, peak = 0, queue = 0, adapter_wait = 0, kv_wait = 0;   // ms; requests a second
  double used = 0, adapter_hits = 0, prefix_hits = 0, prefix_on_device = 0, invalid = 0;   // shares
};

double MeanUse(const SimulationOutcome& outcome) {
  double used = 0;
  for (const WorldSample& sample : outcome.result.samples) {
    const double busy = static_cast<double>(sample.running_kv_pages + sample.history_pages + sample.adapter_pages);
    used += busy / (busy + static_cast<double>(sample.free_pages)) / static_cast<double>(outcome.result.samples.size());
  }
  return used;
}

void AddTo(Figures& figures, const SimulationOutcome& outcome, double share) {
  const SimulationSummary& s = outcome.summary;
  const EngineStats& stats = outcome.result.stats;
  const double requests = static_cast<double>(std::max<std::int64_t>(1, s.finished));
  const double adapter = static_cast<double>(stats.adapter_wait_total) / kNsPerMs / requests;
  const double kv = static_cast<double>(stats.kv_tiers.fetch_time_total) / kNsPerMs / requests;
  figures.ttft += share * s.ttft.mean;
  figures.tpot += share * s.tpot.mean;
  figures.adapter_wait += share * adapter;
  figures.kv_wait += share * kv;
  figures.queue += share * std::max(0.0, s.queue.mean - adapter - kv);
  figures.used += share * MeanUse(outcome);
  figures.adapter_hits += share * s.adapter_hit_share;
  figures.prefix_hits += share * s.prefix_hit_share;
  const PrefixStats& prefix = stats.prefix;
  if (prefix.looked_up_tokens > 0) {
    figures.prefix_on_device +=
        share * static_cast<double>(prefix.found_tokens - prefix.from_host_tokens) / static_cast<double>(prefix.looked_up_tokens);
  }
  figures.invalid += share * s.invalid_history_share;
}

// figures[cell * systems + system]; the first system's peak decides the rates of all.
Result<std::vector<Figures>> Measure(ExperimentContext& context, const std::vector<Cell>& cells,
                                     std::span<const std::string_view> systems) {
  ASSIGN_OR_RETURN(const std::vector<double> peaks, FindPeaks(context, cells, systems));
  std::vector<Figures> figures(peaks.size());
  RETURN_IF_ERROR(ParallelFor(context, figures.size(), [&](std::size_t i) -> Status {
    figures[i].peak = peaks[i];
    const double first = peaks[i / systems.size() * systems.size()];
    for (const double share : kRateShares) {
      ASSIGN_OR_RETURN(const CellRun run, RunCell(context, cells[i / systems.size()], systems[i % systems.size()], share * first));
      AddTo(figures[i], run.outcome, 1.0 / static_cast<double>(kRateShares.size()));
    }
    return Ok{};
  }));
  return figures;
}

// Mean over the cells of f(first preset's figures, that preset's figures).
template <typename F>
double MeanOver(const std::vector<Figures>& figures, std::size_t presets, std::size_t preset, F f, std::size_t begin = 0,
    std::size_t end = SIZE_MAX) {
  double sum = 0;
  std::size_t count = 0;
  for (std::size_t at = begin * presets; at < std::min(end, figures.size() / presets) * presets; at += presets, ++count) sum +=
      f(figures[at], figures[at + preset]);
  return sum / static_cast<double>(count);
}

std::string SettingText() {
  std::string text =
      "FastLibra's NPU by its table 1 (64 GB, 256 TFLOPS, PCIe 4.0 x16; the memory's bandwidth is not given: 1.6 TB/s is our assumption), "
      "1, 2 and 4 of them for Llama-7B, -13B and -34B, adapters of ranks 32 and 64 on Q, K, V, O, 256 GB of host memory, all as in its "
      "6.1. ";
  text += fmt::format(
      "A run is half an hour of requests (figures 2, 4 and 14), 300 to 3,000, at a rate as 6.5 describes it: low until 400 s, rising until "
      "900 s, highest until 1,300 s, then lower (0.5, 1.8 and 0.7 of one another: our assumption). Adapters as 2.3.2 says: 41 % of them "
      "are "
      "in use until 1,100 s, then 75 %, which are others in part; for translation and agents, whose arrivals are Azure Functions' in the "
      "document, and not for the chatbot. Lengths: {:g} times the means of its data sets, for then 1.6 requests a second of 13B with 100 "
      "adapters fill the memory, as figure 14 has it (fl-14 shows others). What it does not give, and we chose, before that: ",
      kFastLibraLengths);
  for (const FastLibraScenario& s : FastLibraScenarios()) {
    text += fmt::format("{}: {:g} new tokens a turn, {:g} an answer, {:g} turns, {:g} s to think, adapters in use by Zipf {:g}; ", s.name,
                        s.input, s.output, s.turns, s.think_seconds, s.exponent);
  }
  text += fmt::format(
      "2,048 tokens a step, 1,024 seats (memory is what bounds the document's). Rates are shares of FastLibra's own peak ({:.0f} to "
      "{:.0f} %; "
      "the document has ten), figures the mean over the rates, then over the cells. Peak: the highest rate with a mean TTFT below 500 ms.",
      100 * kRateShares.front(), 100 * kRateShares.back());
  return text;
}

// The baselines of 6.1, and what is ours about them.
constexpr const char* kBaselinesText =
    " Systems: `fastlibra`. `vllm-waits`: vLLM's cache (a fifth of the memory for adapters, LRU on each side, the host tier for both), "
    "each "
    "step waits for the adapters of those who join it, as vLLM's loop does (waiting while others go on is FastLibra's own, 4.3), and "
    "an adapter's slot is as large as one of rank 64: figure 4's 41 adapters are 58.9 % of the fifth, so 70 fill it, and 72 such slots "
    "do here. "
    "`s-lora-same-loop`: S-LoRA's memory (nothing stays) on the same engine, as the document built it on NPUs, which S-LoRA's kernels do "
    "not "
    "run on. Beside them `vllm` and `s-lora`: the presets of that name, vLLM's cache on our loop, and S-LoRA's own loop.";

std::vector<Cell> AllCells() {
  std::vector<Cell> cells;
  for (std::size_t scenario = 0; scenario < FastLibraScenarios().size(); ++scenario) {
    for (std::size_t model = 0; model < FastLibraModels().size(); ++model) {
      for (const std::int64_t adapters : kAdapterCounts) cells.push_back({scenario, model, adapters});
    }
  }
  return cells;
}

// Those that the rows compare; and with those that show what is the loop's.
constexpr std::array<std::string_view, 3> kSystems = {"fastlibra", "vllm-waits", "s-lora-same-loop"};
constexpr std::array<std::string_view, 5> kWithOtherLoops = {"fastlibra", "vllm-waits", "vllm", "s-lora-same-loop", "s-lora"};

// A table each for TTFT, TPOT and peak.
std::vector<ExperimentTable> CellTables(const std::vector<Cell>& cells, const std::vector<Figures>& figures,
                                        std::span<const std::string_view> systems) {
  std::vector<ExperimentTable> tables;
  const auto add = [&](const char* what, double Figures::*field, int digits) {
    ExperimentTable table{.title = what, .header = {"cell"}, .rows = {}};
    for (const std::string_view system : systems) table.header.emplace_back(system);
    for (std::size_t c = 0; c < cells.size(); ++c) {
      std::vector<std::string> row = {cells[c].Name()};
      for (std::size_t p = 0; p < systems.size(); ++p) {
        row.push_back(fmt::format("{:.{}f}", figures[c * systems.size() + p].*field, digits));
      }
      table.rows.push_back(std::move(row));
    }
    tables.push_back(std::move(table));
  };
  add("By cell: TTFT, ms", &Figures::ttft, 0);
  add("By cell: TPOT, ms", &Figures::tpot, 1);
  add("By cell: peak, requests per second", &Figures::peak, 2);
  return tables;
}

ExperimentTable BreakdownTable(const std::vector<Cell>& cells, const std::vector<Figures>& figures,
    std::span<const std::string_view> presets) {
  ExperimentTable table{.title = "By scenario: mean over models and numbers of adapters",
                        .header = {"scenario", "system", "queueing ms", "adapter's cold start ms", "history's cold start ms", "memory in "
                            "use",
                                   "adapter hits", "history found", "of it on the device", "invalid history"}, .rows = {}};
  const std::size_t per_scenario = cells.size() / FastLibraScenarios().size(), n = presets.size();
  for (std::size_t s = 0; s < FastLibraScenarios().size(); ++s) {
    for (std::size_t p = 0; p < n; ++p) {
      const auto mean = [&](double Figures::*field) {
        return MeanOver(figures, n, p, [&](const Figures&, const Figures& f) { return f.*field; }, s * per_scenario, (s +
            1) * per_scenario);
      };
      const auto percent = [&](double Figures::*field) { return fmt::format("{:.1f} %", 100 * mean(field)); };
      table.rows.push_back({FastLibraScenarios()[s].name, std::string(presets[p]), fmt::format("{:.1f}", mean(&Figures::queue)),
                            fmt::format("{:.1f}", mean(&Figures::adapter_wait)), fmt::format("{:.1f}", mean(&Figures::kv_wait)),
                            percent(&Figures::used), percent(&Figures::adapter_hits), percent(&Figures::prefix_hits),
                            percent(&Figures::prefix_on_device), percent(&Figures::invalid)});
    }
  }
  return table;
}

double TtftChange(const Figures& first, const Figures& other) { return Change(first.ttft, other.ttft); }
double TpotChange(const Figures& first, const Figures& other) { return Change(first.tpot, other.tpot); }

// Mean over the cells whose peaks the search has found: the first one's over that preset's. 0: there is none.
double PeakFactor(const std::vector<Figures>& figures, std::size_t presets, std::size_t preset, std::size_t end = SIZE_MAX) {
  double sum = 0;
  int count = 0;
  for (std::size_t at = 0; at < std::min(end * presets, figures.size()); at += presets) {
    const double first = figures[at].peak, other = figures[at + preset].peak;
    if (first >= kHighestRate || other >= kHighestRate || other == 0) continue;
    sum += first / other;
    ++count;
  }
  return count == 0 ? 0 : sum / count;
}

ExperimentPlot TtftPlot(const std::vector<Cell>& cells, const std::vector<Figures>& figures, std::span<const std::string_view> systems,
                        const char* title) {
  DotChart chart{.title = title, .subtitle = "mean over five rates up to FastLibra's peak, simulated", .x_label = "ms",
                 .series = {systems.begin(), systems.end()}, .rows = {}};
  for (std::size_t c = 0; c < cells.size(); ++c) {
    DotChart::Row row{.name = cells[c].Name(), .dots = {}};
    for (std::size_t p = 0; p < systems.size(); ++p) {
      const double value = figures[c * systems.size() + p].ttft;
      row.dots.push_back({.value = value, .low = value, .high = value});
    }
    chart.rows.push_back(std::move(row));
  }
  return {.name = "ttft", .title = chart.title, .svg = RenderSvg(chart)};
}

void CompareSystem(const std::vector<Figures>& figures, std::size_t preset, const char* id, const char* name,
                   std::array<double, 3> reported, ExperimentResult& result) {
  const std::size_t n = kSystems.size();
  const double ttft = MeanOver(figures, n, preset, TtftChange), tpot = MeanOver(figures, n, preset, TpotChange);
  const double peak = PeakFactor(figures, n, preset);
  result.comparison.push_back({.id = id, .what = fmt::format("mean TTFT against {}", name), .reported = ShowChange(reported[0]), .ours =
      ShowChange(ttft),
                               .verdict = CompareEffects(reported[0], ttft)});
  result.comparison.push_back({.id = id, .what = fmt::format("mean TPOT against {}", name), .reported = ShowChange(reported[1]), .ours =
      ShowChange(tpot),
                               .verdict = CompareEffects(reported[1], tpot)});
  result.comparison.push_back({.id = id, .what = fmt::format("peak throughput against {}", name), .reported = ShowFactor(reported[2]),
      .ours = ShowFactor(peak),
                               .verdict = CompareEffects(reported[2] - 1, peak - 1)});
}

void CompareBreakdown(const std::vector<Figures>& figures, ExperimentResult& result) {
  const std::size_t n = kSystems.size();
  const auto mean = [&](std::size_t preset, double Figures::*field) {
    return MeanOver(figures, n, preset, [&](const Figures&, const Figures& f) { return f.*field; });
  };
  const auto lowest = [&](const char* what, double Figures::*field, bool all = true) {
    const double libra = mean(0, field), vllm = mean(1, field), s_lora = mean(2, field);
    result.comparison.push_back(ClaimRow("fl-12", fmt::format("{}, mean of a request", what), "FastLibra lowest",
                                         fmt::format("{:.1f} ms; vLLM {:.1f}, S-LoRA {:.1f}", libra, vllm, s_lora),
                                         libra <= (all ? std::min(vllm, s_lora) : vllm) + 0.05));
  };
  lowest("queueing", &Figures::queue);
  lowest("adapter's cold start", &Figures::adapter_wait);
  lowest("history's cold start (of those that keep any)", &Figures::kv_wait, /*all=*/false);
  const auto factor = [&](const char* what, double Figures::*field, std::size_t preset, const char* name, double reported) {
    const double other = mean(preset, field), ours = other == 0 ? 0 : mean(0, field) / other;
    result.comparison.push_back({.id = "fl-13", .what = fmt::format("{} against {}", what, name), .reported = ShowFactor(reported),
        .ours = ShowFactor(ours),
                                 .verdict = CompareEffects(reported - 1, ours - 1)});
  };
  factor("memory in use", &Figures::used, 1, "vLLM", 1.2);
  factor("memory in use", &Figures::used, 2, "S-LoRA", 2.6);
  const auto hits = [&](std::size_t preset) { return (mean(preset, &Figures::adapter_hits) + mean(preset,
      &Figures::prefix_on_device)) / 2; };
  for (const auto& [preset, name, reported] : {std::tuple(std::size_t{1}, "vLLM", 1.3), std::tuple(std::size_t{2}, "S-LoRA", 3.2)}) {
    const double ours = hits(preset) == 0 ? 0 : hits(0) / hits(preset);
    result.comparison.push_back({.id = "fl-13", .what = fmt::format("cache hits (mean of adapters and history on the device) against "
        "{}", name),
                                 .reported = ShowFactor(reported), .ours = ShowFactor(ours), .verdict = CompareEffects(reported - 1,
                                     ours - 1)});
  }
}

// 7B with 100 adapters of each scenario at two loads: what is the cache's, and what the loop's.
struct LoopRuns {
  ExperimentTable table;
  std::vector<Figures> figures;          // by scenario, load and system
};
constexpr std::array kLoopLoads = {0.7, 1.0};   // of FastLibra's peak
Result<LoopRuns> RunLoops(ExperimentContext& context, const std::vector<Cell>& cells, const std::vector<Figures>& figures) {
  const std::size_t n = kWithOtherLoops.size(), loads = kLoopLoads.size();
  LoopRuns runs{.table = {.title = "7B with 100 adapters, the same caches on other loops",
                          .header = {"scenario", "of the peak", "system", "TTFT ms", "P99 ms", "TPOT ms", "adapter hits"}, .rows = {}},
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
                               std::string(kWithOtherLoops[i % n]), fmt::format("{:.0f}", f.ttft), fmt::format("{:.0f}", tails[i]),
                               fmt::format("{:.1f}", f.tpot), fmt::format("{:.1f} %", 100 * f.adapter_hits)});
  }
  return runs;
}

Result<ExperimentResult> RunSystems(ExperimentContext& context) {
  const std::vector<Cell> cells = AllCells();
  ASSIGN_OR_RETURN(const std::vector<Figures> figures, Measure(context, cells, kSystems));
  ExperimentResult result{.setting = SettingText() + kBaselinesText};
  CompareSystem(figures, 1, "fl-11", "vLLM", {-0.603, -0.339, 1.7}, result);
  CompareSystem(figures, 2, "fl-11s", "S-LoRA", {-0.501, -0.286, 1.6}, result);
  CompareBreakdown(figures, result);
  ASSIGN_OR_RETURN(const LoopRuns loops, RunLoops(context, cells, figures));
  result.tables = {BreakdownTable(cells, figures, kSystems), loops.table};
  for (ExperimentTable& table : CellTables(cells, figures, kSystems)) result.tables.push_back(std::move(table));
  result.plots = {TtftPlot(cells, figures, kSystems, "Time to the first token")};
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
    return fmt::format("chatbot {}, translation {}, agent {}", ShowChange(change(system, 0, 0)), ShowChange(change(system, 1, 1)),
                       ShowChange(change(system, 2, 2)));
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
      text += fmt::format("{}{} {}", m == 0 ? "" : ", ", FastLibraModels()[m].name, ShowChange(sum / static_cast<double>(count)));
    }
    return text;
  };
  result.remarks = {
      "Adapter's cold start: from a request's arrival until its adapter is on the device; history's: from the decision to fetch it until "
      "it is "
      "there. Queueing is the rest of the time until a request is first computed. S-LoRA keeps no history, so it has no cold start of "
      "it: it "
      "computes it again.",
      fmt::format("TTFT against vLLM by scenario: {}; by model: {}. The effect comes from loads at which running requests need more than "
                  "vLLM's "
                  "part of the memory, 80 %, and not all of it (second table): below, both have room, and what vLLM gives up of the "
                  "history was "
                  "mostly nobody's. For translation the document has more, as its vLLM waits for adapters and history then (2.3.2); by "
                  "table 1's PCIe those "
                  "are milliseconds (first table).", by_scenario(1), by_model(1)),
      fmt::format("Peaks: where memory ends, TTFT goes from some 100 ms to seconds within a tenth of the load, so peaks differ by no more "
                  "than what each may use of it, 80 % or all. S-LoRA's factor is the agents' alone: it computes their conversations again, "
                  "which takes half a second at any load; without them it is {}. In the document TTFT must rise slowly with load for a "
                  "peak to be 1.7 times another one.", ShowFactor(PeakFactor(figures, n, 2, 2 * per_scenario))),
      "TPOT: prompts are computed beside decodes here, and nobody who decodes waits for a load, so it differs by what is computed again "
      "(S-LoRA) and by "
      "preemptions. Where a cold start holds the whole batch up, as the document's -33.9 % against vLLM needs, it must last much longer "
      "than "
      "the milliseconds that an adapter takes by table 1.",
      "Cache hits (first table): FastLibra lets adapters go for history, so it finds fewer adapters and more history on the device than "
      "vLLM, whose fifth of the memory holds nearly all adapters; the mean of both is level. So its requests wait longer for adapters.",
      "The loop (second table): `vllm` loads adapters beside steps, into pages of their own size; `s-lora` lets requests in after every "
      "tenth "
      "step of decodes.",
      "34B is CodeLlama's shape, as Llama-2-34B's: its keys and values are an eighth as large as without grouped queries, so four NPUs "
      "hold far more "
      "history than any run has: history is never given up, and the effect is smaller."};
  return result;
}

// ---------------------------------------------------------------- Memory over time

// 6.5: Llama-13B, 100 adapters, chatbot, 1.6 requests a second, and its four parts of the half hour.
constexpr double kDocumentRate = 1.6;
constexpr std::array kLengths = {1.0, 2.0, 3.0, 3.5, kFastLibraLengths, 4.5};
struct Part {
  const char* name;
  double begin, end;                     // seconds
};
constexpr std::array kParts = std::to_array<Part>({{"0-400 s", 0, 400}, {"400-900 s", 400, 900}, {"900-1,300 s", 900, 1300},
                                                   {"1,300-1,800 s", 1300, 1800}});
constexpr Part kFullPart{"900-1,800 s", 900, 1800};
const Cell kMemoryCell{.scenario = 0, .model = 1, .adapters = 100};

// What the memory holds in a part of the run, in shares, and the mean TTFT of who comes then, in ms.
struct PartMeans {
  double running = 0, history = 0, adapters = 0, ttft = 0;
};
PartMeans MeansOf(const CellRun& run, const Part& part) {
  const auto within = [&part](TimeNs at) {
    const double seconds = static_cast<double>(at) / kNsPerSecond;
    return seconds >= part.begin && seconds < part.end;
  };
  const auto pages = static_cast<double>(run.job.options.device.device_pages);
  PartMeans means;
  double samples = 0, requests = 0;
  for (const WorldSample& sample : run.outcome.result.samples) {
    if (!within(sample.at)) continue;
    means.running += static_cast<double>(sample.running_kv_pages) / pages;
    means.history += static_cast<double>(sample.history_pages) / pages;
    means.adapters += static_cast<double>(sample.adapter_pages) / pages;
    ++samples;
  }
  for (const RequestRecord& record : run.outcome.result.requests) {
    if (record.refused || !within(record.arrival)) continue;
    means.ttft += static_cast<double>(record.Ttft()) / kNsPerMs;
    ++requests;
  }
  for (double* share : {&means.running, &means.history, &means.adapters}) *share /= std::max(1.0, samples);
  means.ttft /= std::max(1.0, requests);
  return means;
}

// All of a table's runs, side by side: runs[cell * systems + system].
Result<std::vector<CellRun>> RunCells(ExperimentContext& context, std::span<const Cell> cells, std::span<const std::string_view> systems,
                                      double rate) {
  std::vector<CellRun> runs(cells.size() * systems.size());
  RETURN_IF_ERROR(ParallelFor(context, runs.size(), [&](std::size_t i) -> Status {
    ASSIGN_OR_RETURN(runs[i], RunCell(context, cells[i / systems.size()], systems[i % systems.size()], rate));
    return Ok{};
  }));
  return runs;
}

StackedAreas MemoryAreas(std::span<const CellRun> runs, std::span<const std::string_view> systems) {
  StackedAreas areas{.title = "What the device's memory holds",
                     .subtitle = fmt::format("{}, {:g} requests/s, simulated", kMemoryCell.Name(), kDocumentRate),
                     .x_label = "s", .y_label = "%", .layers = {"running", "history", "adapters", "free"}, .blank = 3, .panels = {}};
  for (std::size_t i = 0; i < systems.size(); ++i) {
    StackedAreas::Panel panel{.name = std::string(systems[i]), .x = {}, .layers = std::vector<std::vector<double>>(4)};
    for (const WorldSample& sample : runs[i].outcome.result.samples) {
      panel.x.push_back(static_cast<double>(sample.at) / kNsPerSecond);
      const std::array pages = {sample.running_kv_pages, sample.history_pages, sample.adapter_pages, sample.free_pages};
      for (std::size_t k = 0; k < pages.size(); ++k) {
        panel.layers[k].push_back(100.0 * static_cast<double>(pages[k]) / static_cast<double>(runs[i].job.options.device.device_pages));
      }
    }
    areas.panels.push_back(std::move(panel));
  }
  return areas;
}

ExperimentTable PartTable(std::span<const CellRun> runs, std::span<const std::string_view> systems) {
  ExperimentTable table{.title = "By part of the half hour: shares of the memory",
                        .header = {"part", "system", "running", "history", "adapters", "TTFT ms"}, .rows = {}};
  for (const Part& part : kParts) {
    for (std::size_t i = 0; i < systems.size(); ++i) {
      const PartMeans means = MeansOf(runs[i], part);
      std::vector<std::string> row = {part.name, std::string(systems[i])};
      for (const double share : {means.running, means.history, means.adapters}) row.push_back(fmt::format("{:.1f} %", 100 * share));
      row.push_back(fmt::format("{:.0f}", means.ttft));
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

ExperimentTable LengthsTable(std::span<const CellRun> runs, std::span<const std::string_view> systems) {
  ExperimentTable table{.title = fmt::format("{} at {:g} requests a second, by how many times as long as its data set's requests are",
                                             kMemoryCell.Name(), kDocumentRate),
                        .header = {"x", "system", "TTFT ms", "TPOT ms", "memory in use", "by running requests at most", "adapter hits",
                                   "history found", "invalid history"}, .rows = {}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Figures f;
    AddTo(f, runs[i].outcome, 1);
    double most = 0;
    for (const WorldSample& sample : runs[i].outcome.result.samples) {
      most = std::max(most, static_cast<double>(sample.running_kv_pages) / static_cast<double>(runs[i].job.options.device.device_pages));
    }
    table.rows.push_back({fmt::format("{:g}", kLengths[i / systems.size()]), std::string(systems[i % systems.size()]),
                          fmt::format("{:.0f}", f.ttft), fmt::format("{:.1f}", f.tpot), fmt::format("{:.1f} %", 100 * f.used),
                          fmt::format("{:.1f} %", 100 * most), fmt::format("{:.1f} %", 100 * f.adapter_hits),
                          fmt::format("{:.1f} %", 100 * f.prefix_hits), fmt::format("{:.1f} %", 100 * f.invalid)});
  }
  return table;
}

Result<ExperimentResult> RunMemory(ExperimentContext& context) {
  std::vector<Cell> cells;
  for (const double lengths : kLengths) {
    cells.push_back(kMemoryCell);
    cells.back().lengths = lengths;
  }
  ASSIGN_OR_RETURN(const std::vector<CellRun> runs, RunCells(context, cells, kSystems, kDocumentRate));
  const auto at = static_cast<std::size_t>(std::find(kLengths.begin(), kLengths.end(), kFastLibraLengths) - kLengths.begin());
  const auto usual = std::span(runs).subspan(at * kSystems.size(), kSystems.size());
  ExperimentResult result{.setting = SettingText() + kBaselinesText};
  const auto percent = [](double share) { return fmt::format("{:.1f} %", 100 * share); };
  const auto claim = [&](const std::string& what, const char* reported, std::string ours, bool holds) {
    result.comparison.push_back(ClaimRow("fl-14", what, reported, std::move(ours), holds));
  };
  const std::array<PartMeans, 3> idle = {MeansOf(usual[0], kParts[0]), MeansOf(usual[1], kParts[0]), MeansOf(usual[2], kParts[0])};
  claim("0-400 s: FastLibra keeps more adapters on the device than S-LoRA", "all of them while memory is idle",
        fmt::format("{} of the memory against "
                    "{}", percent(idle[0].adapters), percent(idle[2].adapters)), idle[0].adapters > idle[2].adapters);
  const PartMeans rising = MeansOf(usual[0], kParts[1]), rising_vllm = MeansOf(usual[1], kParts[1]);
  claim("400-900 s: FastLibra keeps more history than vLLM", "yes, vLLM's part for it is fixed",
        fmt::format("{} of the memory against {}", percent(rising.history), percent(rising_vllm.history)),
        rising.history > rising_vllm.history);
  const PartMeans full = MeansOf(usual[0], kFullPart), full_vllm = MeansOf(usual[1], kFullPart);
  claim("900-1,800 s: FastLibra's history gives way to running requests", "all of it by 1,300 s",
        fmt::format("from {} to {}", percent(rising.history), percent(full.history)), full.history < rising.history);
  claim("the same: vLLM's requests queue, as 80 % of the memory are all that they can have", "rapid growth of TTFT",
        fmt::format("{:.0f} ms against {:.0f} ms", full_vllm.ttft, full.ttft), full_vllm.ttft > full.ttft);
  claim("S-LoRA keeps no history", "discarded", percent(MeansOf(usual[2], kFullPart).history), MeansOf(usual[2], kFullPart).history == 0);
  result.tables = {PartTable(usual, kSystems), LengthsTable(runs, kSystems)};
  result.remarks = {
      fmt::format("Lengths (second table). With its data set's means, 1.6 requests a second never hold more than a few percent of the "
                  "memory that the "
                  "document has full of running requests at that rate. With {:g} times those they hold it: TTFT is {:.0f} ms for "
                  "FastLibra, and "
                  "{:.0f} ms for vLLM, for which the document reports 1,032 ms as the mean of its chatbot (2.2), and an answer takes "
                  "tens of "
                  "seconds, as there (6.10). This factor serves all rows and all scenarios; the device's constants are those of table 1.",
                  kFastLibraLengths, usual[0].outcome.summary.ttft.mean, usual[1].outcome.summary.ttft.mean),
      "FastLibra fetches all adapters while memory is idle in the document; here those that were asked for once, as no other is in the "
      "host tier "
      "before (its 100 are some 14 % of the memory)."};
  const StackedAreas areas = MemoryAreas(usual, kSystems);
  result.plots.push_back({.name = "memory", .title = areas.title, .svg = RenderSvg(areas)});
  return result;
}

// ---------------------------------------------------------------- Variants

struct Variant {
  std::string_view preset;
  const char *id, *what;
  double ttft, tpot, throughput;         // as reported: factors, and a change
};
constexpr std::array kVariants = std::to_array<Variant>({
    {"fastlibra-wom", "fl-15m", "without dependency maintenance", 1.27, 1.18, -0.198},
    {"fastlibra-wos", "fl-15s", "LRU in place of the cost model", 1.24, 1.15, -0.172},
    {"fastlibra-wol", "fl-15l", "without the reward for enough adapters", 1.13, 1.11, -0.131},
});
constexpr std::array<std::string_view, 4> kVariantPresets = {"fastlibra", "fastlibra-wom", "fastlibra-wos", "fastlibra-wol"};
constexpr std::array kUnits = {1.0, 10.0, 60.0, 600.0, 3600.0};   // seconds, of equation 5's t
constexpr double kAmple = 8;             // times the memory: next to nothing has to go

// 7B with 100 adapters at FastLibra's peak, where its memory is under pressure: what each way of evicting waits for, and what none would.
struct PressureRun {
  std::string name;
  Cell cell;
  std::string_view system;
  double unit = 0;                       // seconds of t, in place of the preset's policy; 0: as it is
};
std::vector<PressureRun> PressureRuns(std::size_t scenario) {
  const Cell cell{.scenario = scenario, .model = 0, .adapters = 100};
  Cell ample = cell;
  ample.memory = kAmple;
  std::vector<PressureRun> runs = {{fmt::format("{:g} times the memory", kAmple), ample, "fastlibra"}};
  for (const std::string_view preset : kVariantPresets) runs.push_back({std::string(preset), cell, preset});
  for (const double unit : kUnits) {
    for (const std::string_view preset : {kVariantPresets[0], kVariantPresets[1]}) {
      if (unit != 1) runs.push_back({fmt::format("{}, t in units of {:g} s", preset, unit), cell, preset, unit});
    }
  }
  return runs;
}

// Equation 3 of who runs, and what is on the device: means over the samples with anybody running.
struct Expected {
  double adapters = 0, on_device = 0;
};
Expected ExpectedAdapters(const CellRun& run) {
  std::vector<double> wanted(static_cast<std::size_t>(run.job.load.adapters), 0);
  double total = 0;
  for (const RequestRecord& record : run.outcome.result.requests) {
    if (record.adapter < 0) continue;
    ++wanted[static_cast<std::size_t>(record.adapter)];
    ++total;
  }
  double rank = 0;
  for (const std::int64_t each : run.job.load.ranks) rank += static_cast<double>(each) / static_cast<double>(run.job.load.ranks.size());
  const double pages = rank * static_cast<double>(run.job.options.device.adapter_bytes_per_rank) /
                       static_cast<double>(run.job.options.device.page_bytes);
  Expected expected;
  double samples = 0;
  for (const WorldSample& sample : run.outcome.result.samples) {
    if (sample.running == 0) continue;
    const auto batch = static_cast<double>(sample.running);
    for (const double count : wanted) expected.adapters += 1 - std::pow(1 - count / std::max(1.0, total), batch);
    expected.on_device += static_cast<double>(sample.adapter_pages) / pages;
    ++samples;
  }
  expected.adapters /= std::max(1.0, samples);
  expected.on_device /= std::max(1.0, samples);
  return expected;
}

struct Pressure {
  ExperimentTable table;
  std::vector<Figures> figures;          // by scenario, then by run
  std::vector<Expected> expected;        // by scenario: FastLibra's
  std::size_t runs = 0;                  // of a scenario
};
Result<Pressure> RunUnderPressure(ExperimentContext& context) {
  const std::size_t scenarios = FastLibraScenarios().size(), runs = PressureRuns(0).size();
  std::vector<double> peaks(scenarios);
  RETURN_IF_ERROR(ParallelFor(context, scenarios, [&](std::size_t i) -> Status {
    ASSIGN_OR_RETURN(peaks[i], FindPeak(context, PressureRuns(i)[1].cell, "fastlibra"));
    return Ok{};
  }));
  std::vector<CellRun> outcomes(scenarios * runs);
  RETURN_IF_ERROR(ParallelFor(context, outcomes.size(), [&](std::size_t i) -> Status {
    const PressureRun run = PressureRuns(i / runs)[i % runs];
    const auto policy = run.unit > 0 ? MakeFastLibraPolicy(run.unit) : nullptr;
    ASSIGN_OR_RETURN(outcomes[i], RunCell(context, run.cell, run.system, kPressure * peaks[i / runs],
                                          [&](SimulationJob& job) { job.options.eviction = policy.get(); }));
    outcomes[i].job.options.eviction = nullptr;   // it ends here
    return Ok{};
  }));
  Pressure pressure{.table = {.title = fmt::format("7B with 100 adapters at {:g} of FastLibra's peak, by what is evicted first", kPressure),
                              .header = {"scenario", "", "TTFT ms", "TPOT ms", "adapter's cold start ms", "history's cold start ms",
                                         "adapter hits", "history found", "of it on the device", "invalid history"}, .rows = {}},
                    .figures = std::vector<Figures>(outcomes.size()), .expected = {}, .runs = runs};
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    Figures& f = pressure.figures[i];
    AddTo(f, outcomes[i].outcome, 1);
    if (i % runs == 1) pressure.expected.push_back(ExpectedAdapters(outcomes[i]));
    const auto percent = [](double share) { return fmt::format("{:.1f} %", 100 * share); };
    pressure.table.rows.push_back({FastLibraScenarios()[i / runs].name, PressureRuns(i / runs)[i % runs].name,
                                   fmt::format("{:.0f}", f.ttft),
                                   fmt::format("{:.1f}", f.tpot), fmt::format("{:.1f}", f.adapter_wait), fmt::format("{:.1f}", f.kv_wait),
                                   percent(f.adapter_hits), percent(f.prefix_hits), percent(f.prefix_on_device), percent(f.invalid)});
  }
  return pressure;
}

ExperimentTable ExpectedTable(const Pressure& pressure) {
  ExperimentTable table{.title = "Equation 3: adapters that a batch is expected to need, and those on the device, in FastLibra's runs "
                                 "above",
                        .header = {"scenario", "expected", "on the device"}, .rows = {}};
  for (std::size_t s = 0; s < pressure.expected.size(); ++s) {
    table.rows.push_back({FastLibraScenarios()[s].name, fmt::format("{:.1f}", pressure.expected[s].adapters),
                          fmt::format("{:.1f}", pressure.expected[s].on_device)});
  }
  return table;
}

std::vector<std::string> VariantRemarks(const Pressure& pressure) {
  const std::size_t first_unit = kVariantPresets.size() + 1;   // then FastLibra and WOM in turn
  std::string worth, units, invalid, cost;
  for (std::size_t s = 0; s < FastLibraScenarios().size(); ++s) {
    const Figures* const of = &pressure.figures[s * pressure.runs];   // by run
    const char* const name = FastLibraScenarios()[s].name;
    const char* const separator = s == 0 ? "" : ", ";
    double best = of[1].ttft, most = of[2].invalid, with_most = of[2].ttft, beside = of[1].ttft;
    for (std::size_t run = first_unit; run + 1 < pressure.runs; run += 2) {
      best = std::min(best, of[run].ttft);
      if (of[run + 1].invalid <= most) continue;
      most = of[run + 1].invalid;
      with_most = of[run + 1].ttft;
      beside = of[run].ttft;
    }
    worth += fmt::format("{}{} {:.0f} ms, of which {:.0f} are for adapters and {:.0f} for history, and {:.0f} with {:g} times the "
                         "memory", separator, name,
                         of[1].ttft, of[1].adapter_wait, of[1].kv_wait, of[0].ttft, kAmple);
    units += fmt::format("{}{} {:.0f} ms against LRU's {:.0f}", separator, name, best, of[3].ttft);
    invalid += fmt::format("{}{} {:.1f} %", separator, name, 100 * most);
    cost += fmt::format("{}{} {:.0f} ms against {:.0f}", separator, name, with_most, beside);
  }
  return {
      fmt::format("What evicting can be worth (second table), in mean TTFT at {:g} of FastLibra's peak: {}. The rest of the difference is "
                  "waiting until running requests end, which no order of evictions changes. What the orders differ in is how often "
                  "somebody waits for an adapter or for history, and by table 1's PCIe an adapter takes 3 to 6 ms and a conversation's "
                  "history some 10, beside the computation: a quarter more of such waits, which would be a lot, is a few percent of TTFT.",
                  kPressure, worth),
      fmt::format("WOS. Equation 5 gives t no unit. In seconds, 1 - sigmoid(t) is divided by e each second, so a few seconds outweigh any "
                  "cost and any frequency, and the cost model orders as LRU does. In coarser units cost and frequency do count (second "
                  "table): the best of all units: {}. So no reading of t makes LRU the 24 % worse that are reported: what comes back is "
                  "the next turn of a conversation, soon or never, which is what recency says; how often its history was used, and how "
                  "large it is, says little of that.", units),
      fmt::format("WOM. With t in seconds next to no history is invalid: an adapter is used with each of its histories, so it was used at "
                  "least as late and as often, and by equations 5 and 6 only a history that is larger outlives it. With coarser units of t "
                  "it is, at most, {} (document 48.6 %), and even so mean TTFT is no longer than with dependency maintenance: {}. Invalid "
                  "history is worth what it was as soon as its adapter is back, a few milliseconds later, while the history that goes "
                  "first to keep the order must come back, or be computed.", invalid, cost),
      "WOL. Equation 4 rewards adapters while fewer are on the device than a batch is expected to need (third table): there are always "
      "more, as "
      "those of the batch cannot leave, and idle ones stay besides. So the reward is 1, and taking it away changes nothing."};
}

Result<ExperimentResult> RunVariants(ExperimentContext& context) {
  std::vector<Cell> cells;
  for (std::size_t scenario = 0; scenario < FastLibraScenarios().size(); ++scenario) {
    for (const std::size_t model : {std::size_t{0}, std::size_t{1}}) cells.push_back({scenario, model, 100});
  }
  ASSIGN_OR_RETURN(const std::vector<Figures> figures, Measure(context, cells, kVariantPresets));
  ExperimentResult result{.setting = SettingText() + " Here the cells with 100 adapters of 7B and 13B."};
  const std::size_t n = kVariantPresets.size();
  for (std::size_t v = 0; v < kVariants.size(); ++v) {
    const Variant& variant = kVariants[v];
    const auto mean = [&](auto f) { return MeanOver(figures, n, v + 1, f); };
    const double ttft = mean([](const Figures& libra, const Figures& f) { return f.ttft / libra.ttft; });
    const double tpot = mean([](const Figures& libra, const Figures& f) { return f.tpot / libra.tpot; });
    const double factor = PeakFactor(figures, n, v + 1), peak = factor == 0 ? 0 : 1 / factor - 1;
    const auto add = [&](const char* what, std::string reported, std::string ours, Verdict verdict) {
      result.comparison.push_back({.id = variant.id, .what = fmt::format("{}: {}", variant.what, what), .reported = std::move(reported),
                                   .ours = std::move(ours), .verdict = verdict});
    };
    add("TTFT", ShowFactor(variant.ttft), ShowFactor(ttft), CompareEffects(variant.ttft - 1, ttft - 1));
    add("TPOT", ShowFactor(variant.tpot), ShowFactor(tpot), CompareEffects(variant.tpot - 1, tpot - 1));
    add("peak throughput", ShowChange(variant.throughput), ShowChange(peak), CompareEffects(variant.throughput, peak));
    if (v > 0) continue;
    const double invalid = mean([](const Figures&, const Figures& f) { return f.invalid; });
    add("invalid history", "48.6 %", fmt::format("{:.1f} %", 100 * invalid), CompareEffects(0.486, invalid));
  }
  ASSIGN_OR_RETURN(const Pressure pressure, RunUnderPressure(context));
  result.tables = {BreakdownTable(cells, figures, kVariantPresets), pressure.table, ExpectedTable(pressure)};
  for (ExperimentTable& table : CellTables(cells, figures, kVariantPresets)) result.tables.push_back(std::move(table));
  result.plots = {TtftPlot(cells, figures, kVariantPresets, "Time to the first token, without each part")};
  result.remarks = VariantRemarks(pressure);
  return result;
}

// ---------------------------------------------------------------- Many adapters

Result<ExperimentResult> RunMany(ExperimentContext& context) {
  struct Case {
    std::string name;
    Popularity popularity;
    double deviation = 1;
  };
  const std::vector<Case> cases = {{"uniform", Popularity::kUniform}, {"distinct", Popularity::kDistinct},
                                   {"skewed-50", Popularity::kGaussian, 50}, {"skewed-100", Popularity::kGaussian, 100}};
  constexpr std::array<std::int64_t, 2> kCounts = {1000, 2000};
  const auto cell_of = [](std::int64_t adapters) { return Cell{.scenario = 0, .model = 0, .adapters = adapters}; };
  ASSIGN_OR_RETURN(const double peak, FindPeak(context, cell_of(kCounts[0]), "fastlibra"));
  std::vector<std::string> names;
  for (const std::int64_t adapters : kCounts) {
    for (const Case& c : cases) names.push_back(fmt::format("{} {}", adapters, c.name));
  }
  const std::size_t n = kSystems.size();
  std::vector<Figures> figures(names.size() * n);
  RETURN_IF_ERROR(ParallelFor(context, figures.size(), [&](std::size_t i) -> Status {
    const Case& c = cases[i / n % cases.size()];
    for (const double share : kRateShares) {
      ASSIGN_OR_RETURN(const CellRun run, RunCell(context, cell_of(kCounts[i / n / cases.size()]), kSystems[i % n], share * peak,
                                                  [&c](SimulationJob& job) {
                                                    job.load.popularity = c.popularity;
                                                    job.load.deviation = c.deviation;
                                                  }));
      AddTo(figures[i], run.outcome, 1.0 / static_cast<double>(kRateShares.size()));
      if (share == kRateShares.back()) figures[i].peak = run.outcome.summary.ttft.mean;
    }
    return Ok{};
  }));
  ExperimentResult result{.setting = SettingText() + kBaselinesText + fmt::format(
      " Here 7B as a chatbot with 1,000 and 2,000 adapters; FastLibra's peak is that with 1,000 (Zipf 1), {:.2f} requests a "
      "second.", peak)};
  double ttft = 0, tpot = 0;
  bool lowest = true;
  DotChart chart{.title = "Thousands of adapters: time to the first token", .subtitle = "7B, chatbot, mean over five rates, "
                                                                                        "simulated", .x_label = "ms",
                 .series = {kSystems.begin(), kSystems.end()}, .rows = {}};
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto of = [&](std::size_t p) -> const Figures& { return figures[i * n + p]; };
    DotChart::Row dots{.name = names[i], .dots = {}};
    for (std::size_t p = 0; p < n; ++p) dots.dots.push_back({.value = of(p).ttft, .low = of(p).ttft, .high = of(p).ttft});
    chart.rows.push_back(std::move(dots));
    for (std::size_t p = 1; p < n; ++p) {
      const double share = 1.0 / static_cast<double>((n - 1) * names.size());
      ttft += share * Change(of(0).ttft, of(p).ttft);
      tpot += share * Change(of(0).tpot, of(p).tpot);
      lowest &= of(0).ttft <= 1.01 * of(p).ttft;
    }
  }
  result.comparison = {ChangeRow("fl-16", "mean TTFT against both baselines", -0.554, ttft),
                       ChangeRow("fl-16", "mean TPOT against both baselines", -0.162, tpot),
                       ClaimRow("fl-16", "lowest TTFT in every case", "yes", lowest ? "yes" : "no", lowest)};
  const auto add_table = [&](const char* what, const char* format, auto value) {
    ExperimentTable table{.title = what, .header = {"adapters"}, .rows = {}};
    for (const std::string_view system : kSystems) table.header.emplace_back(system);
    for (std::size_t i = 0; i < names.size(); ++i) {
      std::vector<std::string> row = {names[i]};
      for (std::size_t p = 0; p < n; ++p) row.push_back(fmt::format(fmt::runtime(format), value(figures[i * n + p])));
      table.rows.push_back(std::move(row));
    }
    result.tables.push_back(std::move(table));
  };
  add_table("TTFT, ms, mean over the rates", "{:.0f}", [](const Figures& f) { return f.ttft; });
  add_table("TTFT, ms, at the peak", "{:.0f}", [](const Figures& f) { return f.peak; });
  add_table("TPOT, ms, mean over the rates", "{:.1f}", [](const Figures& f) { return f.tpot; });
  add_table("Adapter hits", "{:.1f} %", [](const Figures& f) { return 100 * f.adapter_hits; });
  result.plots.push_back({.name = "ttft", .title = chart.title, .svg = RenderSvg(chart)});
  double at_peak = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    at_peak += Change(figures[i * n].peak, figures[i * n + 1].peak) / static_cast<double>(names.size());
  }
  result.remarks = {
      "Skewed: a Gaussian around one adapter with that standard deviation, so the number of adapters beyond the bell changes nothing.",
      fmt::format("Below the peak vLLM's TTFT is the lower by some milliseconds in each case: it keeps a fifth of the memory for "
                  "adapters where "
                  "FastLibra has them give way to history, most of which nobody asks for again. At the peak (second table) FastLibra's "
                  "is {} against "
                  "vLLM's on the mean, whose running requests have 80 % of the memory.", ShowChange(at_peak))};
  return result;
}

// ---------------------------------------------------------------- Overhead

// A tree as large as the memory of the NPU with Llama-7B, full: what a request's match and insertion take, and the decision
// which pages go next. On the real clock: other figures on another machine.
Result<ExperimentResult> RunOverhead(ExperimentContext& context) {
  ASSIGN_OR_RETURN(const SimulationJob job, MakeFastLibraCellJob(context, {.scenario = 0, .model = 0, .adapters = 100}, "fastlibra", 8));
  constexpr std::int64_t kPageTokens = 16, kPathPages = 32;
  const std::int64_t pages = std::max<std::int64_t>(2 * kPathPages, context.Requests(job.options.device.device_pages));
  ASSIGN_OR_RETURN(const auto pool, PagePool::Create("device", pages * 4096, 4096));
  DependencyTree tree(kPageTokens, pool.get());
  ASSIGN_OR_RETURN(const auto policy, MakeEvictionPolicy("fastlibra"));
  KvEvictionPlan plan(&tree, policy.get());
  const BranchId branch = tree.Hold("");
  const OsClock clock;
  const auto tokens_of = [](std::uint64_t conversation) {
    std::vector<TokenId> tokens;
    for (std::int64_t i = 0; i < kPathPages * kPageTokens; ++i) tokens.push_back(static_cast<TokenId>(SplitMix64(conversation * 1000 +
        static_cast<std::uint64_t>(i)) & 0xffff));
    return tokens;
  };
  TimeNs matching = 0, deciding = 0, now = 0;
  std::vector<double> decisions_ms;
  std::int64_t requests = 0, decisions = 0;
  for (std::uint64_t conversation = 0; requests < 4 * (pages / kPathPages); ++conversation, ++requests) {
    now += 50 * kNsPerMs;
    const std::vector<TokenId> tokens = tokens_of(conversation);
    const TimeNs decide = clock.Now();
    plan.Refresh(now);
    plan.Reset(now);
    std::vector<NodeId> victims;
    for (std::int64_t free = pool->free_pages(); free < kPathPages; ++free) {
      const auto victim = plan.Next(now);
      plan.Evict(*victim, now);
      victims.push_back(victim->node);
    }
    const TimeNs took = clock.Now() - decide;
    for (const NodeId victim : victims) tree.Evict(victim);
    deciding += took;
    decisions_ms.push_back(static_cast<double>(took) / kNsPerMs);
    ++decisions;
    const TimeNs begin = clock.Now();
    NodeId tail = tree.Match(tree.Top(branch), tokens, kPathPages);
    tree.Lock(tail, now);
    for (std::int64_t at = tree.Depth(tail); at < kPathPages; ++at) {
      PageHandle page;
      if (!pool->Allocate(PageCategory::kKv, std::span(&page, 1))) return ResourceExhausted("no page", "");
      tail = tree.Insert(tail, std::span(tokens).subspan(static_cast<std::size_t>(at * kPageTokens), kPageTokens), page, now).node;
    }
    tree.Unlock(tail, now);
    matching += clock.Now() - begin;
  }
  const double match_us = static_cast<double>(matching) / 1e3 / static_cast<double>(requests);
  const double decide_us = static_cast<double>(deciding) / 1e3 / static_cast<double>(decisions);
  ExperimentResult result;
  result.setting = fmt::format("Measured on the machine that ran this, so other figures elsewhere: the project's dependency tree with {} "
      "pages (the NPU's memory with Llama-7B), "
                               "full; {} conversations of {} tokens, each new, so that {} pages must go for each, chosen by the policy "
                                   "`fastlibra`.",
                               pages, requests, kPathPages * kPageTokens, kPathPages);
  result.comparison = {{.id = "fl-ov", .what = "matching and updating the tree, a request", .reported = "under 0.5 ms", .ours =
      fmt::format("{:.3f} ms", match_us / 1e3),
                        .verdict = VerdictOfClaim(match_us < 500), .origin = "measured"},
                       {.id = "fl-ov", .what = "a swap decision", .reported = "under 5 ms", .ours = fmt::format("{:.3f} ms, P99 "
                           "{:.2f} ms", decide_us / 1e3, SummariseLatencies(decisions_ms).p99),
                        .verdict = VerdictOfClaim(decide_us < 5000), .origin = "measured"}};
  return result;
}

constexpr std::array kExperiments = std::to_array<Experiment>({
    {"fl-11", "fl-11, fl-11s, fl-12, fl-13", "FastLibra against vLLM and S-LoRA", "FastLibra 6.3 and 6.4, figures 11 to 13", RunSystems},
    {"fl-14", "fl-14", "Memory over time", "FastLibra 6.5, figure 14", RunMemory},
    {"fl-15", "fl-15m, fl-15s, fl-15l", "FastLibra without each of its parts", "FastLibra 6.6 to 6.8, figure 15", RunVariants},
    {"fl-16", "fl-16", "Thousands of adapters", "FastLibra 6.9, figure 16", RunMany},
    {"fl-ov", "fl-ov", "Overhead", "FastLibra 6.10", RunOverhead},
});

}  // namespace

std::span<const Experiment> FastLibraExperiments() { return kExperiments; }

}  // namespace loramux
