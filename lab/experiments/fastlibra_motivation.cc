// FastLibra 2.2, 2.3 and 5.1: what vLLM's fixed partition of the memory costs, and what recency says of frequency and
// of the cost of a swap.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>

#include <fmt/format.h>

#include "lab/charts/line_chart.h"
#include "lab/experiments/assumption_rows.h"
#include "lab/experiments/fastlibra_cells.h"

namespace loramux::fastlibra {
namespace {

constexpr std::string_view kVllm = "vllm-waits";
constexpr std::size_t kTranslation = 1;                         // the scenario of figure 4
constexpr double kVllmShare = 0.2;                              // share of the memory for adapters (2.2)
constexpr double kExhausted = 0.95;                             // a use of a part that counts as exhausted
constexpr double kWindow = 100;                                 // seconds of the half hour
constexpr double kWeakCorrelation = 0.4;                        // below it, two orders have no clear correlation
constexpr double kNodesAt = 1100;                               // seconds: when the nodes of figure 5 are looked at
constexpr std::array kReportedMeans = {1032.4, 1905.1, 730.8};  // 2.2: ms, by scenario
constexpr double kRatioRate = 2;                                // figure 9: queries per second
constexpr std::array<std::int64_t, 2> kRatioAdapters = {50, 100};
constexpr std::array kRatios = {0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.175, 0.2, 0.25, 0.3, 0.35, 0.4};
constexpr double kNearLeast = 1.05;  // figure 9: a TTFT within this factor of the least has reached the target

Cell MotivationCell(std::size_t scenario, std::int64_t adapters = 100) {
  return {.scenario = scenario, .model = 0, .adapters = adapters};
}

// One run, with times in seconds of the half hour.
struct TimedRun {
  CellRun run;
  double At(TimeNs time) const { return run.SecondOf(time); }
};

Result<std::vector<TimedRun>> RunScenarios(ExperimentContext& context) {
  std::vector<TimedRun> runs(FastLibraScenarios().size());
  RETURN_IF_ERROR(ParallelFor(context, runs.size(), [&](std::size_t i) -> Status {
    ASSIGN_OR_RETURN(const double peak, FindPeak(context, MotivationCell(i), "fastlibra"));
    ASSIGN_OR_RETURN(runs[i].run, RunCell(context, MotivationCell(i), kVllm, peak));
    return Ok{};
  }));
  return runs;
}

// ---- Figure 2: TTFT over time

// Mean TTFT of the requests that arrive in [begin, end), in ms; 0: none do.
double TtftWithin(const TimedRun& timed, double begin, double end) {
  double sum = 0, count = 0;
  for (const RequestRecord& record : timed.run.outcome.result.requests) {
    if (record.refused || timed.At(record.arrival) < begin || timed.At(record.arrival) >= end) continue;
    sum += static_cast<double>(record.Ttft()) / kNsPerMs;
    ++count;
  }
  return sum / std::max(1.0, count);
}

void CompareTtfts(const std::vector<TimedRun>& runs, ExperimentResult& result) {
  Chart chart{.title = "Time to first token of vLLM",
              .subtitle = "7B, 100 adapters, FastLibra's peak rate, simulated",
              .x_label = "s of the half hour",
              .y_label = "ms",
              .lines = {}};
  ExperimentTable table{.title = "Figure 2: mean TTFT of vLLM by time of arrival, ms", .header = {"s"}, .rows = {}};
  std::vector<double> means;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::string name = FastLibraScenarios()[i].name;
    chart.lines.push_back({.name = name, .points = {}});
    table.header.push_back(name);
    std::vector<double> windows;
    for (double begin = 0; begin < kFastLibraSeconds; begin += kWindow) {
      windows.push_back(TtftWithin(runs[i], begin, begin + kWindow));
      chart.lines.back().points.emplace_back(begin + kWindow / 2, windows.back());
    }
    means.push_back(runs[i].run.outcome.summary.ttft.mean);
    const double highest = *std::max_element(windows.begin(), windows.end());
    std::sort(windows.begin(), windows.end());
    const double median = windows[windows.size() / 2];
    result.comparison.push_back(
        {.id = "fl-2",
         .what = name + ": mean TTFT of vLLM (the paper gives no rate)",
         .reported = fmt::format("{:.1f} ms", kReportedMeans[i]),
         .ours = fmt::format("{:.1f} ms at {:.2f} requests/s", means[i], runs[i].run.job.load.rate)});
    result.comparison.push_back(ClaimRow(
        "fl-2", name + ": TTFT is significantly higher at certain periods", "yes",
        fmt::format("highest {:.0f} s: {:.0f} ms, median {:.0f} ms", kWindow, highest, median), highest > 2 * median));
  }
  result.comparison.push_back(
      ClaimRow("fl-2", "translation waits longest, the agent least", "1,905, 1,032 and 731 ms",
               fmt::format("translation {:.0f}, chatbot {:.0f}, agent {:.0f} ms", means[1], means[0], means[2]),
               means[1] > means[0] && means[0] > means[2]));
  for (std::size_t w = 0; w < chart.lines[0].points.size(); ++w) {
    std::vector<std::string> row = {fmt::format("{:.0f}", chart.lines[0].points[w].first)};
    for (const ChartLine& line : chart.lines) row.push_back(fmt::format("{:.0f}", line.points[w].second));
    table.rows.push_back(std::move(row));
  }
  result.tables.push_back(std::move(table));
  result.plots.push_back({.name = "ttft", .title = chart.title, .svg = RenderSvg(chart)});
}

// ---- Figure 4: use of vLLM's two parts

struct PartsInUse {
  double adapters = 0, kv = 0;
};
PartsInUse UseWithin(const TimedRun& timed, double begin, double end) {
  PartsInUse use;
  double count = 0;
  const auto pages = static_cast<double>(timed.run.job.options.device.device_pages);
  for (const WorldSample& sample : timed.run.outcome.result.samples) {
    if (timed.At(sample.at) < begin || timed.At(sample.at) >= end) continue;
    use.adapters += static_cast<double>(sample.adapter_pages) / (kVllmShare * pages);
    use.kv += static_cast<double>(sample.running_kv_pages + sample.history_pages) / ((1 - kVllmShare) * pages);
    ++count;
  }
  use.adapters /= std::max(1.0, count);
  use.kv /= std::max(1.0, count);
  return use;
}

// The rows about a run of the translation.
std::vector<ComparisonRow> PartRows(const TimedRun& translation) {
  const PartsInUse middle = UseWithin(translation, 700, 1100), late = UseWithin(translation, 1100, 1800);
  const auto percent = [](double share) { return fmt::format("{:.1f} %", 100 * share); };
  return {ClaimRow("fl-4", "700-1,100 s: the part of keys and values is exhausted", "yes", percent(middle.kv),
                   middle.kv >= kExhausted),
          ValueRow("fl-4", "700-1,100 s: use of the adapters' part", 58.9, 100 * middle.adapters, {" %", 1}),
          ClaimRow("fl-4", "1,100-1,800 s: the adapters' part is exhausted", "yes", percent(late.adapters),
                   late.adapters >= kExhausted)};
}

Status CompareParts(ExperimentContext& context, const TimedRun& translation, ExperimentResult& result) {
  ExperimentTable table{.title = "Figure 4: use of vLLM's two parts of the memory, translation",
                        .header = {"s", "adapters' part", "part of keys and values"},
                        .rows = {}};
  for (double begin = 0; begin < kFastLibraSeconds; begin += kWindow) {
    const PartsInUse use = UseWithin(translation, begin, begin + kWindow);
    table.rows.push_back({fmt::format("{:.0f}", begin + kWindow / 2), fmt::format("{:.1f} %", 100 * use.adapters),
                          fmt::format("{:.1f} %", 100 * use.kv)});
  }
  result.tables.push_back(std::move(table));
  const std::vector<ComparisonRow> rows = PartRows(translation);
  result.comparison.insert(result.comparison.end(), rows.begin(), rows.end());
  struct Assumption {
    const char* what;
    double rate = 1, memory = 1;  // factors
  };
  constexpr std::array kAssumptions = std::to_array<Assumption>(
      {{"1.1 times the rate", 1.1}, {"1.25 times the rate", 1.25}, {"half of the memory", 1, 0.5}});
  std::vector<RowsUnder> all = {{"as the document is read", rows}};
  std::vector<TimedRun> runs(kAssumptions.size());
  RETURN_IF_ERROR(ParallelFor(context, runs.size(), [&](std::size_t i) -> Status {
    Cell cell = MotivationCell(kTranslation);
    cell.memory = kAssumptions[i].memory;
    ASSIGN_OR_RETURN(runs[i].run, RunCell(context, cell, kVllm, kAssumptions[i].rate * translation.run.job.load.rate));
    return Ok{};
  }));
  for (std::size_t i = 0; i < runs.size(); ++i) all.push_back({kAssumptions[i].what, PartRows(runs[i])});
  result.tables.push_back(TableOfAssumptions(all, "figure 4"));
  return Ok{};
}

// ---- Figure 5: ranks of nodes

// A node of the tree as of kNodesAt: an adapter, or the keys and values of one turn. A turn uses those of all earlier
// turns of its conversation.
struct NodeUse {
  double uses = 0, last = 0, pages = 0;
};

std::vector<NodeUse> NodesOf(const TimedRun& timed, const Workload& workload) {
  const SimulatedDevice& device = timed.run.job.options.device;
  std::vector<NodeUse> adapters(workload.adapter_ranks.size()), nodes(workload.requests.size());
  std::vector<std::size_t> before(workload.requests.size(), SIZE_MAX);  // the turn before, by turn
  const auto& records = timed.run.outcome.result.requests;
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    const WorkloadRequest& request = workload.requests[i];
    if (request.next >= 0) before[static_cast<std::size_t>(request.next)] = i;
    const double at = timed.At(records[i].arrival);
    if (records[i].refused || records[i].arrival < 0 || at > kNodesAt) continue;
    const auto use = [at](NodeUse& node) {
      ++node.uses;
      node.last = std::max(node.last, at);
    };
    nodes[i].pages =
        static_cast<double>(request.input_tokens + request.output_tokens) / static_cast<double>(device.page_tokens);
    for (std::size_t turn = i; turn != SIZE_MAX; turn = before[turn]) use(nodes[turn]);
    if (records[i].adapter < 0) continue;
    const auto adapter = static_cast<std::size_t>(records[i].adapter);
    use(adapters[adapter]);
    adapters[adapter].pages = static_cast<double>(device.AdapterPages(workload.adapter_ranks[adapter]));
  }
  nodes.insert(nodes.end(), adapters.begin(), adapters.end());
  std::erase_if(nodes, [](const NodeUse& node) { return node.uses == 0; });
  return nodes;
}

// Ranks, equal values sharing the mean of theirs.
std::vector<double> RanksOf(const std::vector<NodeUse>& nodes, double NodeUse::*field) {
  std::vector<std::size_t> order(nodes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return nodes[a].*field < nodes[b].*field; });
  std::vector<double> ranks(nodes.size());
  for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    while (end < order.size() && nodes[order[end]].*field == nodes[order[begin]].*field) ++end;
    for (std::size_t i = begin; i < end; ++i) ranks[order[i]] = static_cast<double>(begin + end - 1) / 2;
  }
  return ranks;
}

double Spearman(const std::vector<NodeUse>& nodes, double NodeUse::*a, double NodeUse::*b) {
  const std::vector<double> first = RanksOf(nodes, a), second = RanksOf(nodes, b);
  const double mean = (static_cast<double>(nodes.size()) - 1) / 2;
  double both = 0, of_first = 0, of_second = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    both += (first[i] - mean) * (second[i] - mean);
    of_first += (first[i] - mean) * (first[i] - mean);
    of_second += (second[i] - mean) * (second[i] - mean);
  }
  return of_first * of_second > 0 ? both / std::sqrt(of_first * of_second) : 0;
}

Status CompareNodes(const std::vector<TimedRun>& runs, ExperimentResult& result) {
  ExperimentTable table{
      .title = "Figure 5: rank correlation over the adapters and histories at 1,100 s",
      .header = {"scenario", "nodes", "last use, frequency", "last use, cost of a swap", "frequency, cost of a swap"},
      .rows = {}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    ASSIGN_OR_RETURN(Workload workload, MakeWorkload(runs[i].run.job.load));
    ShapeFastLibraLoad(runs[i].run.job, MotivationCell(i), kVllm, workload);
    const std::vector<NodeUse> nodes = NodesOf(runs[i], workload);
    const std::array rho = {Spearman(nodes, &NodeUse::last, &NodeUse::uses),
                            Spearman(nodes, &NodeUse::last, &NodeUse::pages),
                            Spearman(nodes, &NodeUse::uses, &NodeUse::pages)};
    const std::string name = FastLibraScenarios()[i].name;
    table.rows.push_back({name, fmt::format("{}", nodes.size()), fmt::format("{:+.2f}", rho[0]),
                          fmt::format("{:+.2f}", rho[1]), fmt::format("{:+.2f}", rho[2])});
    const double most = std::max({std::abs(rho[0]), std::abs(rho[1]), std::abs(rho[2])});
    ComparisonRow row =
        ClaimRow("fl-5", name + ": last use, frequency and cost of a swap do not order nodes alike",
                 "no clear correlation", fmt::format("rank correlation at most {:.2f}", most), most < kWeakCorrelation);
    row.origin = "counted";
    result.comparison.push_back(std::move(row));
  }
  result.tables.push_back(std::move(table));
  return Ok{};
}

// ---- Figure 9: vLLM's partition

Status CompareRatios(ExperimentContext& context, ExperimentResult& result) {
  const std::size_t n = kRatios.size();
  std::vector<double> ttfts(kRatioAdapters.size() * n);
  RETURN_IF_ERROR(ParallelFor(context, ttfts.size(), [&](std::size_t i) -> Status {
    ASSIGN_OR_RETURN(const CellRun run,
                     RunCell(context, MotivationCell(0, kRatioAdapters[i / n]), kVllm, kRatioRate,
                             [&](SimulationJob& job) { job.options.preset.spec.adapter_share = kRatios[i % n]; }));
    ttfts[i] = run.outcome.summary.ttft.mean;
    return Ok{};
  }));
  ExperimentTable table{
      .title = "Figure 9: mean TTFT of vLLM by the adapters' part of the memory, chatbot, 2 requests/s, ms",
      .header = {"part", "50 adapters", "100 adapters"},
      .rows = {}};
  for (std::size_t r = 0; r < n; ++r) {
    table.rows.push_back(
        {fmt::format("{:g}", kRatios[r]), fmt::format("{:.1f}", ttfts[r]), fmt::format("{:.1f}", ttfts[n + r])});
  }
  result.tables.push_back(std::move(table));
  Chart chart{.title = "Time to first token of vLLM by the adapters' part of the memory",
              .subtitle = "7B, chatbot, 2 requests per second, simulated",
              .x_label = "adapters' part",
              .y_label = "ms",
              .lines = {}};
  for (std::size_t a = 0; a < kRatioAdapters.size(); ++a) {
    chart.lines.push_back({.name = fmt::format("{} adapters", kRatioAdapters[a]), .points = {}});
    for (std::size_t r = 0; r < n; ++r) chart.lines.back().points.emplace_back(kRatios[r], ttfts[a * n + r]);
  }
  result.plots.push_back({.name = "ratio", .title = chart.title, .svg = RenderSvg(chart)});
  std::array<double, 2> targets = {};
  for (std::size_t a = 0; a < targets.size(); ++a) {
    const auto begin = ttfts.begin() + static_cast<std::ptrdiff_t>(a * n);
    const double least = *std::min_element(begin, begin + static_cast<std::ptrdiff_t>(n));
    const auto reached = static_cast<std::size_t>(
        std::find_if(begin, begin + static_cast<std::ptrdiff_t>(n), [&](double t) { return t <= kNearLeast * least; }) -
        begin);
    targets[a] = kRatios[reached];
    result.comparison.push_back(ClaimRow(
        "fl-9", fmt::format("{} adapters: TTFT falls until the adapters' part reaches a target", kRatioAdapters[a]),
        "significantly",
        fmt::format("{:.0f} ms with {:g} of the memory, {:.0f} ms with {:g}", ttfts[a * n], kRatios[0],
                    ttfts[a * n + reached], targets[a]),
        ttfts[a * n] > 1.5 * ttfts[a * n + reached]));
  }
  result.comparison.push_back(ClaimRow("fl-9", "the target is larger for 100 adapters than for 50", "yes",
                                       fmt::format("{:g} against {:g}", targets[1], targets[0]),
                                       targets[1] > targets[0]));
  return Ok{};
}

}  // namespace

Result<ExperimentResult> RunMotivation(ExperimentContext& context) {
  ExperimentResult result{.setting =
                              SettingText() + kBaselinesText +
                              " Here: `vllm-waits`, 7B with 100 adapters, at the peak of FastLibra's rates; figure "
                              "9 at 2 requests per second, as in the paper."};
  ASSIGN_OR_RETURN(const std::vector<TimedRun> runs, RunScenarios(context));
  CompareTtfts(runs, result);
  RETURN_IF_ERROR(CompareParts(context, runs[kTranslation], result));
  RETURN_IF_ERROR(CompareNodes(runs, result));
  RETURN_IF_ERROR(CompareRatios(context, result));
  result.remarks = {"Figure 2. The paper gives no rate; these runs are at the highest of FastLibra's rates.",
                    "Figure 4. A request is admitted only if what the running ones will still need is free, so a part "
                    "is not filled to "
                    "its last page.",
                    "Figure 5. A turn's keys and values are a node, and each later turn of the conversation uses it."};
  return result;
}

}  // namespace loramux::fastlibra
