// FastLibra 6.5: the content of the memory over time.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string>

#include <fmt/format.h>

#include "lab/charts/stacked_areas.h"
#include "lab/experiments/assumption_rows.h"
#include "lab/experiments/fastlibra_cells.h"

namespace loramux::fastlibra {
namespace {

// Section 6.5: Llama-13B, 100 adapters, chatbot, 1.6 requests per second, and its four parts of the half hour.
constexpr double kDocumentRate = 1.6;
constexpr std::array kLengths = {1.0, 2.0, 4.0, 8.0};  // factors for the lengths, at that rate
constexpr double kAll = 0.95;                          // a share that counts as all
struct Part {
  const char* name;
  double begin, end;  // seconds
};
constexpr std::array kParts = std::to_array<Part>(
    {{"0-400 s", 0, 400}, {"400-900 s", 400, 900}, {"900-1,300 s", 900, 1300}, {"1,300-1,800 s", 1300, 1800}});
constexpr Part kFullPart{"900-1,800 s", 900, 1800};
const Cell kMemoryCell{.scenario = 0, .model = 1, .adapters = 100};

// The content of the memory in a part of the run, as shares, and the mean TTFT of the requests that arrive then, in ms.
struct PartMeans {
  double running = 0, history = 0, adapters = 0, ttft = 0;
  double most_adapters = 0;  // at a time
};
PartMeans MeansOf(const CellRun& run, const Part& part) {
  const auto within = [&part, &run](TimeNs at) {
    const double seconds = run.SecondOf(at);
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
    means.most_adapters = std::max(means.most_adapters, static_cast<double>(sample.adapter_pages) / pages);
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

// The whole half hour at any scale, because its seconds are those of the figure.
void TakeHalfHour(SimulationJob& job) {
  job.load.requests = std::max(job.load.requests, static_cast<std::int64_t>(kDocumentRate * kFastLibraSeconds));
}

// Runs all cells of a table: runs[cell * systems + system].
Result<std::vector<CellRun>> RunCells(ExperimentContext& context, std::span<const Cell> cells,
                                      std::span<const std::string_view> systems, double rate) {
  std::vector<CellRun> runs(cells.size() * systems.size());
  RETURN_IF_ERROR(ParallelFor(context, runs.size(), [&](std::size_t i) -> Status {
    ASSIGN_OR_RETURN(runs[i],
                     RunCell(context, cells[i / systems.size()], systems[i % systems.size()], rate, TakeHalfHour));
    return Ok{};
  }));
  return runs;
}

StackedAreas MemoryAreas(std::span<const CellRun> runs, std::span<const std::string_view> systems, double rate) {
  StackedAreas areas{
      .title = "Content of the device's memory",
      .subtitle = fmt::format("{}, {:.2g} requests/s, longer texts, simulated", kMemoryCell.Name(), rate),
      .x_label = "s",
      .y_label = "%",
      .layers = {"running", "history", "adapters", "free"},
      .blank = 3,
      .panels = {}};
  for (std::size_t i = 0; i < systems.size(); ++i) {
    StackedAreas::Panel panel{.name = std::string(systems[i]), .x = {}, .layers = std::vector<std::vector<double>>(4)};
    for (const WorldSample& sample : runs[i].outcome.result.samples) {
      panel.x.push_back(static_cast<double>(sample.at) / kNsPerSecond);
      const std::array pages = {sample.running_kv_pages, sample.history_pages, sample.adapter_pages, sample.free_pages};
      for (std::size_t k = 0; k < pages.size(); ++k) {
        panel.layers[k].push_back(100.0 * static_cast<double>(pages[k]) /
                                  static_cast<double>(runs[i].job.options.device.device_pages));
      }
    }
    areas.panels.push_back(std::move(panel));
  }
  return areas;
}

ExperimentTable PartTable(std::span<const CellRun> runs, std::span<const std::string_view> systems, double rate) {
  ExperimentTable table{
      .title = fmt::format("{:.3g} requests per second: shares of the memory by part of the run", rate),
      .header = {"part", "system", "running", "history", "adapters", "TTFT ms"},
      .rows = {}};
  for (const Part& part : kParts) {
    for (std::size_t i = 0; i < systems.size(); ++i) {
      const PartMeans means = MeansOf(runs[i], part);
      std::vector<std::string> row = {part.name, std::string(systems[i])};
      for (const double share : {means.running, means.history, means.adapters})
        row.push_back(fmt::format("{:.1f} %", 100 * share));
      row.push_back(fmt::format("{:.0f}", means.ttft));
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

ExperimentTable LengthsTable(std::span<const CellRun> runs, std::span<const std::string_view> systems) {
  ExperimentTable table{.title = fmt::format("{} at {:g} requests per second, by factor on the lengths of its data set",
                                             kMemoryCell.Name(), kDocumentRate),
                        .header = {"x", "system", "TTFT ms", "TPOT ms", "memory in use", "by running requests, at most",
                                   "adapter hits", "history found", "invalid history"},
                        .rows = {}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Figures f;
    AddTo(f, runs[i].outcome, 1);
    double most = 0;
    for (const WorldSample& sample : runs[i].outcome.result.samples) {
      most = std::max(most, static_cast<double>(sample.running_kv_pages) /
                                static_cast<double>(runs[i].job.options.device.device_pages));
    }
    table.rows.push_back({fmt::format("{:g}", kLengths[i / systems.size()]), std::string(systems[i % systems.size()]),
                          fmt::format("{:.0f}", f.ttft), fmt::format("{:.1f}", f.tpot),
                          fmt::format("{:.1f} %", 100 * f.used), fmt::format("{:.1f} %", 100 * most),
                          fmt::format("{:.1f} %", 100 * f.adapter_hits), fmt::format("{:.1f} %", 100 * f.prefix_hits),
                          fmt::format("{:.1f} %", 100 * f.invalid)});
  }
  return table;
}

// All adapters, as a share of the memory.
double AllAdapters(const CellRun& run) {
  return static_cast<double>(run.adapter_pages) / static_cast<double>(run.job.options.device.device_pages);
}

std::int64_t SamplesUnderPressure(const CellRun& run) {
  return std::count_if(
      run.outcome.result.samples.begin(), run.outcome.result.samples.end(),
      [&run](const WorldSample& sample) { return 2 * sample.running_kv_pages > run.job.options.device.device_pages; });
}

// The rows of one load. `runs`: by system.
std::vector<ComparisonRow> MemoryRows(std::span<const CellRun> runs, const char* at) {
  std::vector<ComparisonRow> rows;
  const auto percent = [](double share) { return fmt::format("{:.1f} %", 100 * share); };
  // Seeds have peaks of their own, so rows of a rate have the same text.
  const auto claim = [&](const std::string& what, const char* reported, std::string ours, bool holds) {
    return ClaimRow("fl-14", fmt::format("{}, {}", at, what), reported, std::move(ours), holds);
  };
  const auto add = [&](ComparisonRow row) { rows.push_back(std::move(row)); };
  const auto means = [&](const Part& part) {
    return std::array{MeansOf(runs[0], part), MeansOf(runs[1], part), MeansOf(runs[2], part)};
  };
  const auto idle = means(kParts[0]), rising = means(kParts[1]), peak = means(kParts[2]), late = means(kParts[3]),
             full = means(kFullPart);
  const double all = AllAdapters(runs[0]);
  add(claim("0-400 s: FastLibra fetches all adapters", "all of them while memory is idle",
            fmt::format("{} of the memory, {} in the mean; all are {}", percent(idle[0].most_adapters),
                        percent(idle[0].adapters), percent(all)),
            idle[0].most_adapters >= kAll * all));
  add(claim("0-400 s: vLLM and S-LoRA load on demand and have a higher TTFT", "yes",
            fmt::format("{:.0f} ms; vLLM {:.0f}, S-LoRA {:.0f}", idle[0].ttft, idle[1].ttft, idle[2].ttft),
            idle[0].ttft < std::min(idle[1].ttft, idle[2].ttft)));
  add(claim("400-900 s: FastLibra keeps more history than vLLM", "yes, vLLM's part for history is fixed",
            fmt::format("{} of the memory against {}", percent(rising[0].history), percent(rising[1].history)),
            rising[0].history > rising[1].history));
  // Without pressure nothing has to give way.
  const std::int64_t pressed = SamplesUnderPressure(runs[0]);
  const std::string events = "samples with running requests in more than half of the memory";
  add(WithEvents(claim("900-1,800 s: FastLibra evicts history for running requests", "all of it by 1,300 s",
                       fmt::format("from {} to {}; running {}", percent(rising[0].history), percent(peak[0].history),
                                   percent(peak[0].running)),
                       peak[0].history < rising[0].history),
                 pressed, events));
  add(WithEvents(
      claim("900-1,800 s: vLLM's requests queue, because they can use only 80 % of the memory", "rapid growth of TTFT",
            fmt::format("{:.0f} ms against {:.0f} ms", full[1].ttft, full[0].ttft), full[1].ttft > full[0].ttft),
      pressed, events));
  add(WithEvents(claim("1,300-1,800 s: FastLibra keeps more history than vLLM", "yes",
                       fmt::format("{} of the memory against {}", percent(late[0].history), percent(late[1].history)),
                       late[0].history > late[1].history),
                 pressed, events));
  add(WithEvents(claim("1,300-1,800 s: vLLM's running requests hold most, because they queued", "yes",
                       fmt::format("{} of the memory; FastLibra's {}, S-LoRA's {}", percent(late[1].running),
                                   percent(late[0].running), percent(late[2].running)),
                       late[1].running > std::max(late[0].running, late[2].running)),
                 pressed, events));
  add(claim("S-LoRA keeps no history", "discarded", percent(full[2].history), full[2].history == 0));
  return rows;
}

// A load at which figure 14 is compared. The paper gives the rate, and no lengths.
struct MemoryLoad {
  const char* name;
  Cell cell;
  double rate = 0;
};

// The rows of a load, with one assumption changed at a time.
Result<ExperimentTable> RowsUnderAssumptions(ExperimentContext& context, const MemoryLoad& load,
                                             std::vector<ComparisonRow> as_read) {
  struct Assumption {
    const char* what;
    double memory = 1, rate = 1;  // factors
  };
  constexpr std::array kAssumptions =
      std::to_array<Assumption>({{"one and a quarter times the load", 1, 1.25},
                                 {"one and a half times the load", 1, 1.5},
                                 {"twice the load", 1, 2},
                                 {"half of the memory", 0.5, 1},
                                 {"half of the memory, and half of the load", 0.5, 0.5}});
  std::vector<RowsUnder> all = {{"as the document is read", std::move(as_read)}};
  for (const Assumption& assumption : kAssumptions) {
    Cell cell = load.cell;
    cell.memory = assumption.memory;
    ASSIGN_OR_RETURN(const auto runs, RunCells(context, std::span(&cell, 1), kSystems, assumption.rate * load.rate));
    all.push_back({assumption.what, MemoryRows(runs, load.name)});
  }
  return TableOfAssumptions(all, load.name);
}

}  // namespace

Result<ExperimentResult> RunMemory(ExperimentContext& context) {
  std::vector<Cell> cells;
  for (const double lengths : kLengths) {
    cells.push_back(kMemoryCell);
    cells.back().lengths = lengths;
  }
  ASSIGN_OR_RETURN(const double fitting, FindLengths(context, kMemoryCell, kSystems[0], kDocumentRate, TakeHalfHour));
  ASSIGN_OR_RETURN(const double peak, FindPeak(context, kMemoryCell, kSystems[0]));
  std::array loads =
      std::to_array<MemoryLoad>({{"1.6 requests/s, FastLibra's peak with longer texts", kMemoryCell, kDocumentRate},
                                 {"FastLibra's peak", kMemoryCell, peak}});
  loads[0].cell.lengths = fitting;
  ExperimentResult result{.setting = SettingText() + kBaselinesText};
  ASSIGN_OR_RETURN(const std::vector<CellRun> runs, RunCells(context, cells, kSystems, kDocumentRate));
  std::vector<ExperimentTable> changed;
  std::array<std::vector<CellRun>, loads.size()> loaded;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    ASSIGN_OR_RETURN(loaded[i], RunCells(context, std::span(&loads[i].cell, 1), kSystems, loads[i].rate));
    std::vector<ComparisonRow> rows = MemoryRows(loaded[i], loads[i].name);
    result.comparison.insert(result.comparison.end(), rows.begin(), rows.end());
    ASSIGN_OR_RETURN(changed.emplace_back(), RowsUnderAssumptions(context, loads[i], std::move(rows)));
  }
  const auto usual = std::span(runs).first(kSystems.size());
  result.tables = {PartTable(loaded[0], kSystems, kDocumentRate), PartTable(loaded[1], kSystems, peak),
                   PartTable(usual, kSystems, kDocumentRate), LengthsTable(runs, kSystems)};
  result.tables[0].title += fmt::format(", lengths {:.1f} times as long", fitting);
  std::move(changed.begin(), changed.end(), std::back_inserter(result.tables));
  const auto running = [](std::span<const CellRun> of) { return 100 * MeansOf(of[0], kParts[2]).running; };
  result.remarks = {fmt::format(
      "The load. In the paper's figure 14 running requests fill the memory at 1.6 requests per second. The paper gives "
      "no lengths. With those of the data set they have {:.1f} % of the memory in FastLibra's busiest part, and {} "
      "samples of that run have running requests in more than half of it (third table): nothing has to give way, so "
      "no row is about that run. Rows are about 1.6 requests per second with the largest factor of the lengths at "
      "which "
      "that is within FastLibra's peak, {:.1f} ({:.1f} % of the memory), and about FastLibra's peak with the lengths "
      "of "
      "the data set, {:.3g} requests per second ({:.1f} %).",
      running(usual), SamplesUnderPressure(usual[0]), fitting, running(loaded[0]), peak, running(loaded[1]))};
  const StackedAreas areas = MemoryAreas(loaded[0], kSystems, loads[0].rate);
  result.plots.push_back({.name = "memory", .title = areas.title, .svg = RenderSvg(areas)});
  return result;
}

}  // namespace loramux::fastlibra
