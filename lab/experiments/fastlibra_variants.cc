// FastLibra 6.6 to 6.8: FastLibra without each of its parts.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string>

#include <fmt/format.h>

#include "base/prng.h"
#include "lab/charts/line_chart.h"
#include "lab/experiments/fastlibra_cells.h"

namespace loramux::fastlibra {
namespace {

constexpr double kPressure = 1;  // share of FastLibra's peak at which evictions are compared
constexpr std::array kVariants = std::to_array<FastLibraVariant>({
    {"fastlibra-wom", "fl-15m", "without dependency maintenance", 1.27, 1.18, -0.198},
    {"fastlibra-wos", "fl-15s", "LRU instead of the cost model", 1.24, 1.15, -0.172},
    {"fastlibra-wol", "fl-15l", "without the reward for enough adapters", 1.13, 1.11, -0.131},
});
constexpr std::array<std::string_view, 4> kVariantPresets = {"fastlibra", "fastlibra-wom", "fastlibra-wos",
                                                             "fastlibra-wol"};
constexpr std::array kUnits = {1.0, 10.0, 60.0, 600.0, 3600.0};  // in seconds: units of the t in equation 5
constexpr double kAmple = 8;                              // factor of the memory with which nearly nothing is evicted
constexpr std::array kLinks = {1.0, 1.0 / 16, 1.0 / 64};  // shares of table 1's PCIe rate, in both directions
constexpr std::array kLinkRates = {0.4, 1.0};             // shares of FastLibra's peak on that link
constexpr double kCoarse = 600;  // in seconds: a unit of t with which cost and frequency decide

// Runs of 7B with 100 adapters at FastLibra's peak, where memory is under pressure: one for each eviction policy, and
// one with ample memory.
struct PressureRun {
  std::string name;
  Cell cell;
  std::string_view system;
  double unit = 0;  // in seconds, that of t; 0: the preset's
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

// Equation 3 for the running requests, and the adapters on the device: means over the samples with running requests.
struct Expected {
  double adapters = 0, on_device = 0;
  double rewarded = 0;  // share of the samples in which the batch expects more than are on the device
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
  for (const std::int64_t each : run.job.load.ranks)
    rank += static_cast<double>(each) / static_cast<double>(run.job.load.ranks.size());
  const double pages = rank * static_cast<double>(run.job.options.device.adapter_bytes_per_rank) /
                       static_cast<double>(run.job.options.device.page_bytes);
  Expected expected;
  double samples = 0;
  for (const WorldSample& sample : run.outcome.result.samples) {
    if (sample.running == 0) continue;
    const auto batch = static_cast<double>(sample.running);
    double low = 0;
    for (const double count : wanted) low += 1 - std::pow(1 - count / std::max(1.0, total), batch);
    const double held = static_cast<double>(sample.adapter_pages) / pages;
    expected.adapters += low;
    expected.on_device += held;
    expected.rewarded += low > held ? 1 : 0;
    ++samples;
  }
  expected.adapters /= std::max(1.0, samples);
  expected.on_device /= std::max(1.0, samples);
  expected.rewarded /= std::max(1.0, samples);
  return expected;
}

// Sets the unit of t in seconds; 0: the preset's.
void SetUnit(SimulationJob& job, double unit) {
  if (unit > 0) job.options.preset.spec.score_weights.time_unit = static_cast<TimeNs>(unit * kNsPerSecond);
}

struct Pressure {
  ExperimentTable table;
  std::vector<Figures> figures;    // by scenario, then by run
  std::vector<Expected> expected;  // by scenario, for FastLibra
  std::size_t runs = 0;            // per scenario
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
    ASSIGN_OR_RETURN(outcomes[i], RunCell(context, run.cell, run.system, kPressure * peaks[i / runs],
                                          [&](SimulationJob& job) { SetUnit(job, run.unit); }));
    return Ok{};
  }));
  Pressure pressure{
      .table = {.title = fmt::format("7B with 100 adapters at {:g} of FastLibra's peak, by eviction policy", kPressure),
                .header = {"scenario", "", "TTFT ms", "TPOT ms", "adapter's cold start ms", "history's cold start ms",
                           "adapter hits", "history found", "history on the device", "invalid history"},
                .rows = {}},
      .figures = std::vector<Figures>(outcomes.size()),
      .expected = {},
      .runs = runs};
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    Figures& f = pressure.figures[i];
    AddTo(f, outcomes[i].outcome, 1);
    if (i % runs == 1) pressure.expected.push_back(ExpectedAdapters(outcomes[i]));
    const auto percent = [](double share) { return fmt::format("{:.1f} %", 100 * share); };
    pressure.table.rows.push_back(
        {FastLibraScenarios()[i / runs].name, PressureRuns(i / runs)[i % runs].name, fmt::format("{:.0f}", f.ttft),
         fmt::format("{:.1f}", f.tpot), fmt::format("{:.1f}", f.adapter_wait), fmt::format("{:.1f}", f.kv_wait),
         percent(f.adapter_hits), percent(f.prefix_hits), percent(f.prefix_on_device), percent(f.invalid)});
  }
  return pressure;
}

ExperimentTable ExpectedTable(const Pressure& pressure) {
  ExperimentTable table{.title =
                            "Equation 3: adapters that a batch is expected to need, and adapters on the device, in "
                            "FastLibra's runs above",
                        .header = {"scenario", "expected", "on the device", "samples in which fewer are on the device"},
                        .rows = {}};
  for (std::size_t s = 0; s < pressure.expected.size(); ++s) {
    table.rows.push_back({FastLibraScenarios()[s].name, fmt::format("{:.1f}", pressure.expected[s].adapters),
                          fmt::format("{:.1f}", pressure.expected[s].on_device),
                          fmt::format("{:.1f} %", 100 * pressure.expected[s].rewarded)});
  }
  return table;
}

// The same cells on slower links: the value of eviction policies where a cold start takes long. FastLibra, WOM and WOS;
// then FastLibra and WOM with a coarse t.
struct LinkRun {
  std::string_view system;
  double unit = 0;  // as in PressureRun
};
constexpr std::array kLinkRuns = std::to_array<LinkRun>({{kVariantPresets[0]},
                                                         {kVariantPresets[1]},
                                                         {kVariantPresets[2]},
                                                         {kVariantPresets[0], kCoarse},
                                                         {kVariantPresets[1], kCoarse}});
struct LinkCell {
  std::size_t scenario = 0;
  double link = 1, rate = 1;
  double peak = 0;
  std::array<Figures, kLinkRuns.size()> figures;
};
Result<std::vector<LinkCell>> RunOnSlowerLinks(ExperimentContext& context) {
  std::vector<LinkCell> cells;
  for (std::size_t scenario = 0; scenario < FastLibraScenarios().size(); ++scenario) {
    for (const double link : kLinks) {
      for (const double rate : kLinkRates)
        cells.push_back({.scenario = scenario, .link = link, .rate = rate, .figures = {}});
    }
  }
  RETURN_IF_ERROR(ParallelFor(context, cells.size(), [&](std::size_t i) -> Status {
    LinkCell& at = cells[i];
    const Cell cell = PressureRuns(at.scenario)[1].cell;
    const auto slow = [&](SimulationJob& job) {
      for (PerformanceModel::Link* link :
           {&job.options.device.model.host_to_device, &job.options.device.model.device_to_host}) {
        link->bytes_per_second *= at.link;
      }
    };
    ASSIGN_OR_RETURN(at.peak, FindPeak(context, cell, kVariantPresets[0], slow));
    for (std::size_t r = 0; r < kLinkRuns.size(); ++r) {
      ASSIGN_OR_RETURN(const CellRun run,
                       RunCell(context, cell, kLinkRuns[r].system, at.rate * at.peak, [&](SimulationJob& job) {
                         slow(job);
                         SetUnit(job, kLinkRuns[r].unit);
                       }));
      AddTo(at.figures[r], run.outcome, 1);
    }
    return Ok{};
  }));
  return cells;
}

ExperimentTable LinkTable(const std::vector<LinkCell>& cells) {
  ExperimentTable table{
      .title = "7B with 100 adapters on slower links: mean TTFT, ms",
      .header = {"scenario", "share of table 1's link", "requests per second", "share of the peak on this link",
                 "adapter's cold start in TTFT", "fastlibra", "without dependencies", "LRU",
                 fmt::format("fastlibra, t in units of {:g} s", kCoarse), "fastlibra with this t, without dependencies",
                 "invalid history of the latter"},
      .rows = {}};
  for (const LinkCell& cell : cells) {
    std::vector<std::string> row = {FastLibraScenarios()[cell.scenario].name, fmt::format("1/{:.0f}", 1 / cell.link),
                                    fmt::format("{:.2f}", cell.rate * cell.peak), fmt::format("{:g}", cell.rate),
                                    fmt::format("{:.0f}", cell.figures[0].adapter_wait)};
    for (const Figures& figures : cell.figures) row.push_back(fmt::format("{:.0f}", figures.ttft));
    row.push_back(fmt::format("{:.1f} %", 100 * cell.figures.back().invalid));
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string LinkRemark(const std::vector<LinkCell>& cells) {
  double wom = 0, wos = 0, coarse = 0, count = 0;
  for (const LinkCell& cell : cells) {
    if (cell.link != kLinks.back()) continue;
    const auto factor = [&](std::size_t run, std::size_t base) {
      return cell.figures[run].ttft / cell.figures[base].ttft;
    };
    wom += factor(1, 0);
    wos += factor(2, 0);
    coarse += factor(4, 3);
    ++count;
  }
  return fmt::format(
      "The link (third table). At 1/{:.0f} of table 1's link, about 0.4 GB/s, loading an adapter takes a quarter of a "
      "second. The means over the scenarios and rates are then: without dependency maintenance {}, LRU instead of the "
      "cost model {}. With t in units of {:g} s it is {} without dependency maintenance against with it (paper: "
      "1.27x).",
      1 / kLinks.back(), ShowFactor(wom / count), ShowFactor(wos / count), kCoarse, ShowFactor(coarse / count));
}

std::vector<std::string> VariantRemarks(const Pressure& pressure) {
  const std::size_t first_unit = kVariantPresets.size() + 1;  // from here on FastLibra and WOM alternate
  std::string worth, units, invalid, cost, reward;
  for (std::size_t s = 0; s < FastLibraScenarios().size(); ++s) {
    const Figures* const of = &pressure.figures[s * pressure.runs];  // by run
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
    worth += fmt::format(
        "{}{} {:.0f} ms, of which {:.0f} ms are waits for adapters and {:.0f} ms waits for history, and {:.0f} ms with "
        "{:g} times the memory",
        separator, name, of[1].ttft, of[1].adapter_wait, of[1].kv_wait, of[0].ttft, kAmple);
    units += fmt::format("{}{} {:.0f} ms against LRU's {:.0f}", separator, name, best, of[3].ttft);
    invalid += fmt::format("{}{} {:.1f} %", separator, name, 100 * most);
    cost += fmt::format("{}{} {:.0f} ms against {:.0f}", separator, name, with_most, beside);
    reward += fmt::format("{}{} {:.1f} %", separator, name, 100 * pressure.expected[s].rewarded);
  }
  return {
      "Equation 5's 1 - sigmoid(t) is e^-t for all but the first unit of t, and the paper gives no unit: in seconds a "
      "few "
      "seconds of idle time outweigh any cost and any frequency. The second table has coarser units.",
      "Equation 4 is max(1, Low / Now): adapters are rewarded while fewer are on the device than a batch is expected "
      "to "
      "need. The fourth table has both figures. " +
          fmt::format("Fewer are on the device than expected in this share of the samples: {}. Elsewhere the reward is "
                      "1, and WOL decides as FastLibra does.",
                      reward),
      fmt::format(
          "The possible gain of an eviction policy (second table), in mean TTFT at {:g} of FastLibra's peak: {}.",
          kPressure, worth),
      fmt::format("WOS: the best mean TTFT of all units of t: {}.", units),
      fmt::format("WOM: the largest share of invalid history of all units of t: {} (paper: 48.6 %). Mean TTFT is then, "
                  "without dependency maintenance against with it: {}.",
                  invalid, cost)};
}

// The cells in which something that was evicted came back, and a variant's figures differ from FastLibra's. Elsewhere
// its part decided nothing.
std::int64_t RunsThatDiffer(const std::vector<Figures>& figures, std::size_t presets, std::size_t preset) {
  std::int64_t differing = 0;
  for (std::size_t at = 0; at < figures.size(); at += presets) {
    const Figures &libra = figures[at], &other = figures[at + preset];
    const bool needed = libra.came_back > 0 || other.came_back > 0;
    differing += needed && (libra.ttft != other.ttft || libra.tpot != other.tpot);
  }
  return differing;
}

}  // namespace

std::span<const FastLibraVariant> VariantsOfFastLibra() { return kVariants; }
std::string FastLibraVariant::Row(const char* metric) const { return fmt::format("{}: {}", what, metric); }

Result<ExperimentResult> RunVariants(ExperimentContext& context) {
  std::vector<Cell> cells;
  for (std::size_t scenario = 0; scenario < FastLibraScenarios().size(); ++scenario) {
    for (const std::size_t model : {std::size_t{0}, std::size_t{1}}) cells.push_back({scenario, model, 100});
  }
  ASSIGN_OR_RETURN(const std::vector<Figures> figures, Measure(context, cells, kVariantPresets, kFinePeakStep));
  ExperimentResult result{.setting = SettingText() + " Here: the cells with 100 adapters of 7B and 13B."};
  const std::size_t n = kVariantPresets.size();
  for (std::size_t v = 0; v < kVariants.size(); ++v) {
    const FastLibraVariant& variant = kVariants[v];
    const auto mean = [&](auto f) { return MeanOver(figures, n, v + 1, f); };
    const double ttft = mean([](const Figures& libra, const Figures& f) { return f.ttft / libra.ttft; });
    const double tpot = mean([](const Figures& libra, const Figures& f) { return f.tpot / libra.tpot; });
    const double factor = PeakFactor(figures, n, v + 1), peak = factor == 0 ? 0 : 1 / factor - 1;
    const std::int64_t differing = RunsThatDiffer(figures, n, v + 1);
    const auto add = [&](ComparisonRow row) {
      result.comparison.push_back(WithEvents(
          std::move(row), differing, "cells in which what was evicted came back, with other figures than FastLibra's"));
    };
    const auto what = [&variant](const char* metric) { return variant.Row(metric); };
    add(FactorRow(variant.id, what("TTFT"), variant.ttft, ttft));
    add(FactorRow(variant.id, what("TPOT"), variant.tpot, tpot));
    add(ChangeRow(variant.id, what("peak throughput"), variant.throughput, peak));
    if (v > 0) continue;
    const double invalid = mean([](const Figures&, const Figures& f) { return f.invalid; });
    result.comparison.push_back(ValueRow(variant.id, what("invalid history"), 48.6, 100 * invalid, {" %", 1}));
  }
  ASSIGN_OR_RETURN(const Pressure pressure, RunUnderPressure(context));
  ASSIGN_OR_RETURN(const std::vector<LinkCell> links, RunOnSlowerLinks(context));
  result.tables = {BreakdownTable(cells, figures, kVariantPresets), pressure.table, LinkTable(links),
                   ExpectedTable(pressure)};
  for (ExperimentTable& table : CellTables(cells, figures, kVariantPresets)) result.tables.push_back(std::move(table));
  result.plots = {TtftPlot(cells, figures, kVariantPresets, "Time to first token, without each part")};
  result.remarks = VariantRemarks(pressure);
  result.remarks.push_back(LinkRemark(links));
  return result;
}

}  // namespace loramux::fastlibra
