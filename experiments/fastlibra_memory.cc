// FastLibra 6.5: the content of the memory over time.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string>

#include <fmt/format.h>

#include "experiments/fastlibra_cells.h"
#include "report/stacked_areas.h"

namespace loramux::fastlibra {
namespace {

// Section 6.5: Llama-13B, 100 adapters, chatbot, 1.6 requests per second, and its four parts of the half hour.
constexpr double kDocumentRate = 1.6;
constexpr std::array kLengths = {1.0, 2.0, 3.0, 3.5, kFastLibraLengths, 4.5};
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

// Runs all cells of a table: runs[cell * systems + system].
Result<std::vector<CellRun>> RunCells(ExperimentContext& context, std::span<const Cell> cells,
                                      std::span<const std::string_view> systems, double rate) {
  std::vector<CellRun> runs(cells.size() * systems.size());
  RETURN_IF_ERROR(ParallelFor(context, runs.size(), [&](std::size_t i) -> Status {
    ASSIGN_OR_RETURN(runs[i], RunCell(context, cells[i / systems.size()], systems[i % systems.size()], rate));
    return Ok{};
  }));
  return runs;
}

StackedAreas MemoryAreas(std::span<const CellRun> runs, std::span<const std::string_view> systems) {
  StackedAreas areas{.title = "Content of the device's memory",
                     .subtitle = fmt::format("{}, {:g} requests/s, simulated", kMemoryCell.Name(), kDocumentRate),
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

ExperimentTable PartTable(std::span<const CellRun> runs, std::span<const std::string_view> systems) {
  ExperimentTable table{.title = "By part of the half hour: shares of the memory",
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

}  // namespace

Result<ExperimentResult> RunMemory(ExperimentContext& context) {
  std::vector<Cell> cells;
  for (const double lengths : kLengths) {
    cells.push_back(kMemoryCell);
    cells.back().lengths = lengths;
  }
  ASSIGN_OR_RETURN(const std::vector<CellRun> runs, RunCells(context, cells, kSystems, kDocumentRate));
  const auto at =
      static_cast<std::size_t>(std::find(kLengths.begin(), kLengths.end(), kFastLibraLengths) - kLengths.begin());
  const auto usual = std::span(runs).subspan(at * kSystems.size(), kSystems.size());
  ExperimentResult result{.setting = SettingText() + kBaselinesText};
  const auto percent = [](double share) { return fmt::format("{:.1f} %", 100 * share); };
  const auto claim = [&](const std::string& what, const char* reported, std::string ours, bool holds) {
    result.comparison.push_back(ClaimRow("fl-14", what, reported, std::move(ours), holds));
  };
  const std::array<PartMeans, 3> idle = {MeansOf(usual[0], kParts[0]), MeansOf(usual[1], kParts[0]),
                                         MeansOf(usual[2], kParts[0])};
  claim("0-400 s: FastLibra keeps more adapters on the device than S-LoRA", "all of them while memory is idle",
        fmt::format("{} of the memory against "
                    "{}",
                    percent(idle[0].adapters), percent(idle[2].adapters)),
        idle[0].adapters > idle[2].adapters);
  const PartMeans rising = MeansOf(usual[0], kParts[1]), rising_vllm = MeansOf(usual[1], kParts[1]);
  claim("400-900 s: FastLibra keeps more history than vLLM", "yes, vLLM's part for history is fixed",
        fmt::format("{} of the memory against {}", percent(rising.history), percent(rising_vllm.history)),
        rising.history > rising_vllm.history);
  const PartMeans full = MeansOf(usual[0], kFullPart), full_vllm = MeansOf(usual[1], kFullPart);
  claim("900-1,800 s: FastLibra evicts history for running requests", "all of it by 1,300 s",
        fmt::format("from {} to {}", percent(rising.history), percent(full.history)), full.history < rising.history);
  claim("900-1,800 s: vLLM's requests queue, because they can use only 80 % of the memory", "rapid growth of TTFT",
        fmt::format("{:.0f} ms against {:.0f} ms", full_vllm.ttft, full.ttft), full_vllm.ttft > full.ttft);
  claim("S-LoRA keeps no history", "discarded", percent(MeansOf(usual[2], kFullPart).history),
        MeansOf(usual[2], kFullPart).history == 0);
  result.tables = {PartTable(usual, kSystems), LengthsTable(runs, kSystems)};
  result.remarks = {
      fmt::format(
          "Lengths (second table). With the means of the data set, 1.6 requests per second never hold more than a few "
          "percent of the memory; in the paper running requests fill it at that rate. With {:g} times these lengths "
          "they do here: TTFT is {:.0f} ms for FastLibra and {:.0f} ms for vLLM. For vLLM the paper reports 1,032 ms "
          "as the mean of its chatbot (2.2), and an answer takes tens of seconds, as in the paper (6.10). All rows and "
          "scenarios use this factor; the device's constants are those of table 1.",
          kFastLibraLengths, usual[0].outcome.summary.ttft.mean, usual[1].outcome.summary.ttft.mean),
      "In the paper FastLibra fetches all adapters while memory is idle. Here it fetches the adapters that were "
      "requested at least once, because no other adapter is in the host tier before its first use (all 100 adapters "
      "are about 14 % of the memory)."};
  const StackedAreas areas = MemoryAreas(usual, kSystems);
  result.plots.push_back({.name = "memory", .title = areas.title, .svg = RenderSvg(areas)});
  return result;
}

}  // namespace loramux::fastlibra
