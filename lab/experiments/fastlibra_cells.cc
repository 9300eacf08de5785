#include "lab/experiments/fastlibra_cells.h"

#include <cmath>
#include <numbers>
#include <set>

#include <fmt/format.h>

#include "lab/charts/dot_chart.h"

namespace loramux::fastlibra {

namespace {

constexpr double kPeakTtftMs = 500;    // 6.1: the peak throughput is the highest with a TTFT below this
constexpr double kHighestRate = 4096;  // upper bound of the search for a peak; none comes near it
// Starts of the search, by scenario, for one device.
constexpr std::array<double, 3> kFirstGuesses = {16, 64, 11};
constexpr std::array<std::int64_t, 3> kAdapterCounts = {20, 50, 100};

}  // namespace

Result<CellRun> RunCell(const ExperimentContext& context, const Cell& cell, std::string_view system, double rate,
                        const ChangeOfJob& change) {
  CellRun run;
  ASSIGN_OR_RETURN(run.job, MakeFastLibraCellJob(context, cell, system, rate));
  if (change) change(run.job);
  ASSIGN_OR_RETURN(Workload workload, MakeWorkload(run.job.load));
  ShapeFastLibraLoad(run.job, cell, system, workload);
  for (const std::int64_t rank : workload.adapter_ranks) run.adapter_pages += run.job.options.device.AdapterPages(rank);
  for (const WorkloadRequest& request : workload.requests) {
    if (!request.follows) run.half_hour = std::max(run.half_hour, request.arrival);
  }
  ASSIGN_OR_RETURN(run.outcome.result, Simulate(run.job.options, workload));
  run.outcome.summary = Summarise(run.outcome.result, run.job.options.preset.spec.objective);
  return run;
}

namespace {

// Whether the mean TTFT stays below that of the peak.
Result<bool> KeepsUp(const ExperimentContext& context, const Cell& cell, std::string_view system, double rate,
                     const ChangeOfJob& change) {
  const auto bounded = [&change](SimulationJob& job) {
    if (change) change(job);
    job.options.samples = 0;
    job.options.give_up.most_ttft_sum = kPeakTtftMs * kNsPerMs * static_cast<double>(job.load.requests);
  };
  ASSIGN_OR_RETURN(const CellRun run, RunCell(context, cell, system, rate, bounded));
  return !run.outcome.result.given_up && run.outcome.summary.ttft.mean <= kPeakTtftMs;
}

}  // namespace

Result<double> FindPeak(const ExperimentContext& context, const Cell& cell, std::string_view system,
                        const ChangeOfJob& change, double step) {
  double low = 0, high = 0, stride = std::numbers::sqrt2;
  double rate = kFirstGuesses[cell.scenario] * static_cast<double>(FastLibraModels()[cell.model].gpus);
  while (low == 0 || high == 0) {
    ASSIGN_OR_RETURN(const bool within, KeepsUp(context, cell, system, rate, change));
    if (within && rate >= kHighestRate) return kHighestRate;
    (within ? low : high) = rate;
    rate = within ? stride * rate : rate / stride;
    stride = std::min(stride * stride, 4.0);  // the further the first guess was off, the longer the strides
    if (rate < 1.0 / 64) return low;
  }
  while (high / low > step) {
    const double middle = std::sqrt(low * high);
    ASSIGN_OR_RETURN(const bool within, KeepsUp(context, cell, system, middle, change));
    (within ? low : high) = middle;
  }
  return low;
}

Result<double> FindLengths(const ExperimentContext& context, Cell cell, std::string_view system, double rate,
                           const ChangeOfJob& change) {
  constexpr double kMost = 64;
  double low = 0, high = 0;
  for (double factor = 1; low == 0 || high == 0; factor = high == 0 ? 2 * low : high / 2) {
    cell.lengths = factor;
    ASSIGN_OR_RETURN(const bool within, KeepsUp(context, cell, system, rate, change));
    (within ? low : high) = factor;
    if (factor > kMost) return low;
    if (factor < 1 / kMost) return ResourceExhausted("no lengths are so short that the rate is within the peak");
  }
  while (high / low > kPeakStep) {
    cell.lengths = std::sqrt(low * high);
    ASSIGN_OR_RETURN(const bool within, KeepsUp(context, cell, system, rate, change));
    (within ? low : high) = cell.lengths;
  }
  return low;
}

namespace {

// Returns the peaks of all cells and systems: peaks[cell * systems + system].
Result<std::vector<double>> FindPeaks(ExperimentContext& context, const std::vector<Cell>& cells,
                                      std::span<const std::string_view> systems, double step) {
  std::vector<double> peaks(cells.size() * systems.size());
  RETURN_IF_ERROR(ParallelFor(context, peaks.size(), [&](std::size_t i) -> Status {
    ASSIGN_OR_RETURN(peaks[i],
                     FindPeak(context, cells[i / systems.size()], systems[i % systems.size()], nullptr, step));
    return Ok{};
  }));
  return peaks;
}

double MeanUse(const SimulationOutcome& outcome) {
  double used = 0;
  for (const WorldSample& sample : outcome.result.samples) {
    const double busy = static_cast<double>(sample.running_kv_pages + sample.history_pages + sample.adapter_pages);
    used += busy / (busy + static_cast<double>(sample.free_pages)) / static_cast<double>(outcome.result.samples.size());
  }
  return used;
}

}  // namespace

std::int64_t AdaptersUsed(const SimulationOutcome& outcome) {
  std::set<std::int32_t> used;
  for (const RequestRecord& record : outcome.result.requests) {
    if (record.adapter >= 0 && !record.refused) used.insert(record.adapter);
  }
  return static_cast<std::int64_t>(used.size());
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
    figures.prefix_on_device += share * static_cast<double>(prefix.found_tokens - prefix.from_host_tokens) /
                                static_cast<double>(prefix.looked_up_tokens);
  }
  figures.invalid += share * s.invalid_history_share;
  const std::int64_t first_loads = std::min(stats.adapters.device_loads, AdaptersUsed(outcome));
  figures.came_back += static_cast<double>(stats.kv_tiers.pages_fetched + stats.adapters.device_loads - first_loads);
}

Result<std::vector<Figures>> Measure(ExperimentContext& context, const std::vector<Cell>& cells,
                                     std::span<const std::string_view> systems, double step) {
  ASSIGN_OR_RETURN(const std::vector<double> peaks, FindPeaks(context, cells, systems, step));
  std::vector<Figures> figures(peaks.size());
  RETURN_IF_ERROR(ParallelFor(context, figures.size(), [&](std::size_t i) -> Status {
    figures[i].peak = peaks[i];
    figures[i].peak_found = peaks[i] > 0 && peaks[i] < kHighestRate;
    const double first = peaks[i / systems.size() * systems.size()];
    for (const double share : kRateShares) {
      ASSIGN_OR_RETURN(const CellRun run,
                       RunCell(context, cells[i / systems.size()], systems[i % systems.size()], share * first));
      AddTo(figures[i], run.outcome, 1.0 / static_cast<double>(kRateShares.size()));
    }
    return Ok{};
  }));
  return figures;
}

std::string SettingText() {
  std::string text =
      "FastLibra's NPU by the paper's table 1 (64 GB, 256 TFLOPS, PCIe 4.0 x16; the paper does not give the memory "
      "bandwidth, 1.6 TB/s is this project's assumption). 1, 2 and 4 NPUs for Llama-7B, -13B and -34B; adapters of "
      "ranks 32 and 64, at random, on Q, K, V, O; blocks of 32 tokens; 256 GB of host memory; all as in section 6.1. ";
  text += fmt::format(
      "A run is half an hour of requests (figures 2, 4 and 14), at least 2,000, with the rate of section 6.5: low "
      "until "
      "400 s, rising until 900 s, highest until 1,300 s, then lower (relative rates 0.5, 1.8 and 0.7: this project's "
      "assumption). Adapters follow section 2.3.2: 41 % of them are in use until 1,100 s, then 75 %, partly other "
      "ones. This applies to translation and agents, which have the arrivals of Azure Functions in the paper, and not "
      "to the chatbot. Where 10,000 requests (so that 100 are beyond the 99th percentile) come in less than half an "
      "hour, the run is shorter and keeps this shape. Rates count conversations. All adapters are in the host tier at "
      "the start. A copy between the tiers costs {:g} us for each block of {} tokens of keys or values in a layer, or "
      "as much of an adapter, beside its bytes (cudaMemcpyAsync, DualPath, arXiv 2602.21548). Lengths are the data "
      "sets' own: LMSYS-33k by arXiv 2309.11998, the agent's turns by Taskmaster-1 (arXiv 1909.05358) and its tokens "
      "by "
      "the dialogues of Taskmaster-4. Translation's lengths, pauses and exponents are this project's assumptions: ",
      1e6 * kFastLibraCopySeconds, kFastLibraBlockTokens);
  for (const FastLibraScenario& s : FastLibraScenarios()) {
    text += fmt::format(
        "{}: {:g} new tokens per turn, {:g} per answer, {:g} turns, {:g} s between turns, Zipf {:g} over the adapters "
        "in use; ",
        s.name, s.input, s.output, s.turns, s.think_seconds, s.exponent);
  }
  text += fmt::format(
      "2,048 tokens per step, 1,024 seats (in the paper memory is the limit). Rates are shares of FastLibra's own peak "
      "({:.0f} to {:.0f} % in ten steps), figures are means over the rates and then over the cells. Peak: the "
      "highest rate with a mean TTFT below 500 ms, found without a bound by the length of a run: requests arrive for "
      "at least twice as long as a conversation takes.",
      100 * kRateShares.front(), 100 * kRateShares.back());
  return text;
}

std::vector<Cell> AllCells() {
  std::vector<Cell> cells;
  for (std::size_t scenario = 0; scenario < FastLibraScenarios().size(); ++scenario) {
    for (std::size_t model = 0; model < FastLibraModels().size(); ++model) {
      for (const std::int64_t adapters : kAdapterCounts) cells.push_back({scenario, model, adapters});
    }
  }
  return cells;
}

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
  ExperimentTable table{
      .title = "By scenario: means over models and numbers of adapters",
      .header = {"scenario", "system", "queueing ms", "adapter's cold start ms", "history's cold start ms",
                 "memory in "
                 "use",
                 "adapter hits", "history found", "history on the device", "invalid history"},
      .rows = {}};
  const std::size_t per_scenario = cells.size() / FastLibraScenarios().size(), n = presets.size();
  for (std::size_t s = 0; s < FastLibraScenarios().size(); ++s) {
    for (std::size_t p = 0; p < n; ++p) {
      const auto mean = [&](double Figures::*field) {
        return MeanOver(
            figures, n, p, [&](const Figures&, const Figures& f) { return f.*field; }, s * per_scenario,
            (s + 1) * per_scenario);
      };
      const auto percent = [&](double Figures::*field) { return fmt::format("{:.1f} %", 100 * mean(field)); };
      table.rows.push_back(
          {FastLibraScenarios()[s].name, std::string(presets[p]), fmt::format("{:.1f}", mean(&Figures::queue)),
           fmt::format("{:.1f}", mean(&Figures::adapter_wait)), fmt::format("{:.1f}", mean(&Figures::kv_wait)),
           percent(&Figures::used), percent(&Figures::adapter_hits), percent(&Figures::prefix_hits),
           percent(&Figures::prefix_on_device), percent(&Figures::invalid)});
    }
  }
  return table;
}

double PeakFactor(const std::vector<Figures>& figures, std::size_t presets, std::size_t preset, std::size_t end) {
  double sum = 0;
  int count = 0;
  for (std::size_t at = 0; at < std::min(end * presets, figures.size()); at += presets) {
    if (!figures[at].peak_found || !figures[at + preset].peak_found) continue;
    sum += figures[at].peak / figures[at + preset].peak;
    ++count;
  }
  return count == 0 ? 0 : sum / count;
}

ExperimentPlot TtftPlot(const std::vector<Cell>& cells, const std::vector<Figures>& figures,
                        std::span<const std::string_view> systems, const char* title) {
  DotChart chart{.title = title,
                 .subtitle = "mean over ten rates up to FastLibra's peak, simulated",
                 .x_label = "ms",
                 .series = {systems.begin(), systems.end()},
                 .rows = {}};
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

}  // namespace loramux::fastlibra
