// Chameleon 3: what adapters cost S-LoRA, and what queue orders do to slowdowns. Figures 2 to 8.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "lab/charts/line_chart.h"
#include "lab/experiments/chameleon_testbed.h"

namespace loramux {
namespace {

constexpr std::array<std::int64_t, 5> kRanks = {8, 16, 32, 64, 128};
// "Medium input": about the mean prompt of the Azure trace at its scaled length.
constexpr std::int64_t kMediumInput = 512;

double MsOf(TimeNs time) { return static_cast<double>(time) / kNsPerMs; }

// ---------------------------------------------------------------- One request alone: figures 2, 3 and 5

// TTFT of one request on an idle S-LoRA, in ms: alone, with an adapter on the device, and with one that must be loaded.
struct Alone {
  double base = 0, warm = 0, cold = 0;
  double LoadShare() const { return (cold - warm) / cold; }
  double AdapterShare() const { return (cold - base) / cold; }
};

Result<Alone> MeasureAlone(const SimulationJob& job, std::int64_t input, std::int64_t rank) {
  const auto ttft = [&](std::int32_t adapter) -> Result<double> {
    Workload workload;
    workload.adapter_ranks = {rank};
    const auto tokens = static_cast<std::int32_t>(input);
    workload.requests = {{.arrival = 0, .adapter = adapter, .input_tokens = tokens, .output_tokens = 2}};
    ASSIGN_OR_RETURN(const SimulationResult result, Simulate(job.options, workload));
    return MsOf(result.requests.front().Ttft());
  };
  Alone alone;
  ASSIGN_OR_RETURN(alone.base, ttft(-1));
  ASSIGN_OR_RETURN(alone.cold, ttft(0));
  const SimulatedDevice& device = job.options.device;
  const ProgramCosts& program = job.options.preset.program;
  const double bytes = static_cast<double>(rank * device.adapter_bytes_per_rank * program.link_passes);
  const PerformanceModel::Link& link = device.model.host_to_device;
  alone.warm = alone.cold - 1e3 * (link.latency + bytes / link.bytes_per_second + program.load_seconds);
  return alone;
}

Status AddRanks(ExperimentContext& context, ExperimentResult& result) {
  ASSIGN_OR_RETURN(const SimulationJob job, MakeChameleonJob(context, {.preset = "s-lora"}));
  result.setting = DescribeChameleonTestbed(job);
  ExperimentTable table{fmt::format("Figure 2: TTFT of one request of {} tokens on an idle server", kMediumInput),
                        {"rank", "TTFT ms", "base", "adapter", "load"},
                        {}};
  Alone last;
  for (const std::int64_t rank : kRanks) {
    ASSIGN_OR_RETURN(last, MeasureAlone(job, kMediumInput, rank));
    table.rows.push_back({std::to_string(rank), fmt::format("{:.0f}", last.cold),
                          fmt::format("{:.1f} %", 100 * last.base / last.cold),
                          fmt::format("{:.1f} %", 100 * (last.warm - last.base) / last.cold),
                          fmt::format("{:.1f} %", 100 * last.LoadShare())});
  }
  result.comparison.push_back(
      ValueRow("ch-2", "rank 128: loading, of the time to the first token", 17.5, 100 * last.LoadShare(), {" %", 1}));
  result.comparison.push_back(ValueRow("ch-2", "rank 128: loading and computing the adapter, of the same", 60,
                                       100 * last.AdapterShare(), {" %", 1}));
  result.tables.push_back(std::move(table));

  constexpr std::array<std::int64_t, 4> kInputs = {128, 256, 512, 1024};
  ExperimentTable inputs{"Figure 3: TTFT in ms with the adapter on the device, by input tokens and rank",
                         {"input", "8", "16", "32", "64", "128", "128 over 8"},
                         {}};
  std::vector<double> spread;
  for (const std::int64_t input : kInputs) {
    std::vector<std::string> row = {std::to_string(input)};
    std::array<double, kRanks.size()> ms = {};
    for (std::size_t i = 0; i < kRanks.size(); ++i) {
      ASSIGN_OR_RETURN(const Alone alone, MeasureAlone(job, input, kRanks[i]));
      row.push_back(fmt::format("{:.0f}", ms[i] = alone.warm));
    }
    spread.push_back(ms.back() - ms.front());
    row.push_back(ShowFactor(ms.back() / ms.front()));
    inputs.rows.push_back(std::move(row));
  }
  result.comparison.push_back(ClaimRow("ch-3", "the rank's effect on TTFT grows with the input", "yes",
                                       fmt::format("{:.0f} to {:.0f} ms", spread.front(), spread.back()),
                                       std::is_sorted(spread.begin(), spread.end()) && spread.front() > 0));
  result.tables.push_back(std::move(inputs));
  return Ok{};
}

Status AddParallelLoads(ExperimentContext& context, ExperimentResult& result) {
  constexpr std::array<std::int64_t, 3> kDegrees = {2, 4, 8};
  ExperimentTable table{
      "Figure 5: loading, of TTFT; Llama-70B on A100s with tensor parallelism", {"rank", "TP2", "TP4", "TP8"}, {}};
  double reported = 0;
  bool grows = true;
  std::array<double, kDegrees.size()> lower_rank = {};
  for (const std::int64_t rank : kRanks) {
    std::vector<std::string> row = {std::to_string(rank)};
    double last = 0;
    for (std::size_t i = 0; i < kDegrees.size(); ++i) {
      const ChameleonSetting setting{
          .preset = "s-lora", .device = "a100-80", .model = "llama-70b", .gpus = kDegrees[i], .requests = 200};
      ASSIGN_OR_RETURN(const SimulationJob job, MakeChameleonJob(context, setting));
      ASSIGN_OR_RETURN(const Alone alone, MeasureAlone(job, kMediumInput, rank));
      const double share = alone.LoadShare();
      row.push_back(fmt::format("{:.1f} %", 100 * share));
      if (rank == 32 && kDegrees[i] == 4) reported = share;
      grows = grows && share >= last && share >= lower_rank[i];
      last = lower_rank[i] = share;
    }
    table.rows.push_back(std::move(row));
  }
  result.comparison.push_back(
      ValueRow("ch-5", "loading, of TTFT: Llama-70B, rank 32, TP4", 68, 100 * reported, {" %", 1}));
  result.comparison.push_back(
      ClaimRow("ch-5", "that share grows with the rank and with the degree", "yes", grows ? "yes" : "no", grows));
  result.tables.push_back(std::move(table));
  return Ok{};
}

// ---------------------------------------------------------------- The link: figure 4

Status AddLink(ExperimentContext& context, ExperimentResult& result) {
  constexpr std::array<std::int64_t, 3> kAdapters = {1, 50, 500};
  constexpr std::array<double, 4> kRates = {5, 6, 7, 8};
  std::vector<ChameleonSetting> settings;
  for (const std::int64_t adapters : kAdapters) {
    for (const double rate : kRates) {
      settings.push_back(
          {.preset = "s-lora", .rate = rate, .adapters = adapters, .requests = 4000, .change = [](SimulationJob& job) {
             job.load.ranks = {32};
             job.load.popularity = Popularity::kUniform;
           }});
    }
  }
  ASSIGN_OR_RETURN(const auto jobs, MakeChameleonJobs(context, settings));
  ASSIGN_OR_RETURN(const auto outcomes, SimulateAll(context, jobs));
  ExperimentTable table{"Figure 4: bytes over the link, rank 32, and P99 TTFT",
                        {"adapters", "RPS", "MB/s", "link busy", "TTFT P50 ms", "P99 ms"},
                        {}};
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const SimulationSummary& summary = outcomes[i].summary;
    table.rows.push_back({std::to_string(jobs[i].load.adapters), fmt::format("{:g}", jobs[i].load.rate),
                          fmt::format("{:.0f}", 1e3 * summary.gigabytes_to_device / std::max(1e-9, summary.seconds)),
                          fmt::format("{:.1f} %", 100 * summary.link_busy_share),
                          fmt::format("{:.0f}", summary.ttft.p50), fmt::format("{:.0f}", summary.ttft.p99)});
  }
  const auto last = [&](std::size_t group) -> const SimulationSummary& {
    return outcomes[(group + 1) * kRates.size() - 1].summary;
  };
  const double one = std::max(1e-9, last(0).ttft.p99);
  result.comparison.push_back(
      FactorRow("ch-4", "P99 TTFT at 8 RPS, 50 adapters against one", 1.69, last(1).ttft.p99 / one));
  result.comparison.push_back(
      FactorRow("ch-4", "P99 TTFT at 8 RPS, 500 adapters against one", 2.60, last(2).ttft.p99 / one));
  result.comparison.push_back(AtLeastRow("ch-4", "the link with 500 adapters at 8 RPS (\"saturated\"): busy", 90,
                                         100 * last(2).link_busy_share, {" %"}));
  result.tables.push_back(std::move(table));
  return Ok{};
}

// ---------------------------------------------------------------- Memory: figure 6

Status AddMemory(ExperimentContext& context, ExperimentResult& result) {
  constexpr std::array<double, 5> kScales = {0.2, 0.25, kLengthScale, 0.3, 0.35};
  std::vector<ChameleonSetting> settings;
  for (const double scale : kScales) {
    settings.push_back({.preset = "s-lora", .rate = 0, .trace_arrivals = true, .change = [scale](SimulationJob& job) {
                          job.load.input_scale = job.load.output_scale = scale;
                          job.options.samples = 4000;
                        }});
  }
  ASSIGN_OR_RETURN(const auto jobs, MakeChameleonJobs(context, settings));
  ASSIGN_OR_RETURN(const auto outcomes, SimulateAll(context, jobs));
  ExperimentTable table{"Figure 6: memory in use by the factor of the lengths; the trace's own times, S-LoRA",
                        {"factor", "peak, of what is free beside the weights", "mean", "P90", "waiting at the peak"},
                        {}};
  Chart chart{.title = "Memory in use over time",
              .subtitle = "of what the weights leave free, simulated",
              .x_label = "s",
              .y_label = "%",
              .lines = {{.name = "keys and values", .points = {}}, {.name = "with adapters", .points = {}}}};
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const auto pages = static_cast<double>(jobs[i].options.device.device_pages);
    std::vector<double> shares;
    std::int64_t waiting = 0;
    const bool drawn = kScales[i] == kLengthScale;
    const auto& samples = outcomes[i].result.samples;
    for (std::size_t at = 0; at < samples.size(); ++at) {
      shares.push_back(1 - static_cast<double>(samples[at].free_pages) / pages);
      waiting = std::max(waiting, samples[at].waiting);
      if (!drawn || at % 20 != 0) continue;
      const double seconds = static_cast<double>(samples[at].at) / kNsPerSecond;
      chart.lines[0].points.emplace_back(seconds, 100 * static_cast<double>(samples[at].running_kv_pages) / pages);
      chart.lines[1].points.emplace_back(seconds, 100 * shares.back());
    }
    const Summary summary = Summarise(shares);
    std::sort(shares.begin(), shares.end());
    const double peak = *std::max_element(shares.begin(), shares.end());
    table.rows.push_back({fmt::format("{:g}", kScales[i]), fmt::format("{:.0f} %", 100 * peak),
                          fmt::format("{:.0f} %", 100 * summary.mean),
                          fmt::format("{:.0f} %", 100 * Quantile(shares, 0.9)), std::to_string(waiting)});
    if (!drawn) continue;
    result.comparison.push_back(
        ValueRow("ch-6", "peak memory in use, of the capacity (the rule for lengths)", 100, 100 * peak, {" %"}));
    result.comparison.push_back(AtMostRow("ch-6", "median memory in use (\"abundant idle memory most of the time\")",
                                          75, 100 * Quantile(shares, 0.5), {" %"}));
  }
  result.tables.push_back(std::move(table));
  result.plots.push_back({"memory", chart.title, RenderSvg(chart)});
  return Ok{};
}

// ---------------------------------------------------------------- Alone and together: figures 7 and 8

std::vector<double> SortedMs(const SimulationOutcome& outcome, bool end_to_end) {
  std::vector<double> ms;
  for (const RequestRecord& record : outcome.result.requests) {
    if (!record.refused) ms.push_back(MsOf(end_to_end ? record.EndToEnd() : record.Ttft()));
  }
  std::sort(ms.begin(), ms.end());
  return ms;
}

constexpr std::int64_t kCdfRequests = 4000;

// One request at a time: so rarely that none meets another.
ChameleonSetting OneByOne(std::function<void(SimulationJob&)> change = nullptr) {
  return {.preset = "s-lora", .rate = 0.005, .requests = kCdfRequests, .change = std::move(change)};
}

Status AddAlone(ExperimentContext& context, ExperimentResult& result) {
  const std::vector<ChameleonSetting> settings = {OneByOne([](SimulationJob& job) { job.load.base_share = 1; }),
                                                  OneByOne()};
  ASSIGN_OR_RETURN(const auto jobs, MakeChameleonJobs(context, settings));
  ASSIGN_OR_RETURN(const auto outcomes, SimulateAll(context, jobs));
  ExperimentTable table{"Figure 7: requests of the trace one at a time",
                        {"", "TTFT P50 ms", "P90", "P99", "E2E P50 ms", "P90", "P99"},
                        {}};
  std::array<std::array<double, 2>, 2> tail = {}, median = {};
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    std::vector<std::string> row = {i == 0 ? "base model" : "with adapters"};
    for (const bool whole : {false, true}) {
      const std::vector<double> ms = SortedMs(outcomes[i], whole);
      for (const double share : {0.5, 0.9, 0.99}) row.push_back(fmt::format("{:.0f}", Quantile(ms, share)));
      median[i][whole ? 1 : 0] = Quantile(ms, 0.5);
      tail[i][whole ? 1 : 0] = Quantile(ms, 0.99);
    }
    table.rows.push_back(std::move(row));
  }
  const double heavy = std::min(tail[1][0] / median[1][0], tail[1][1] / median[1][1]);
  result.comparison.push_back(ClaimRow(
      "ch-7", "execution times have a heavy tail: P99 over P50, of TTFT and of E2E", "yes",
      fmt::format("{}, {}", ShowFactor(tail[1][0] / median[1][0]), ShowFactor(tail[1][1] / median[1][1])), heavy > 2));
  result.comparison.push_back(ClaimRow("ch-7", "adapters lengthen the tail (P99) of TTFT significantly", "yes",
                                       ShowChange(Change(tail[1][0], tail[0][0])), tail[1][0] > 1.1 * tail[0][0]));
  result.tables.push_back(std::move(table));
  return Ok{};
}

struct OrderOf {
  const char* name;
  std::string_view preset;
  bool chunked;
};
constexpr std::array kOrders = std::to_array<OrderOf>({{"FIFO", "s-lora", false},
                                                       {"Chunk-Prefill", "s-lora", true},
                                                       {"SJF", "s-lora-sjf", false},
                                                       {"Optimized", "chameleon", false}});

Status AddSlowdowns(ExperimentContext& context, ExperimentResult& result) {
  ASSIGN_OR_RETURN(const double base, SLoraLoad(context, {}));
  std::vector<ChameleonSetting> settings = {OneByOne()};
  for (const double load : {kMediumLoad, kHighLoad}) {
    for (const OrderOf& order : kOrders) {
      settings.push_back({.preset = order.preset,
                          .rate = load * base,
                          .requests = kCdfRequests,
                          .change = [chunked = order.chunked](SimulationJob& job) {
                            // All on every iteration, as the paper's FIFO does ("continuous batching").
                            job.options.preset.spec.decode_turns = 1;
                            job.options.preset.spec.chunked_prefill = chunked;
                            job.options.preset.spec.separate_phases = !chunked;
                          }});
    }
  }
  ASSIGN_OR_RETURN(const auto jobs, MakeChameleonJobs(context, settings));
  ASSIGN_OR_RETURN(const auto outcomes, SimulateAll(context, jobs));
  const auto& alone = outcomes.front().result.requests;
  ExperimentTable table{
      "Figure 8: how many times as long a request takes as alone", {"load", "order", "P50", "P90", "P99", "max"}, {}};
  Chart chart{.title = "Slowdown of requests at high load",
              .subtitle = "share of requests whose time is at most so many times that alone, simulated",
              .x_label = "slowdown",
              .y_label = "% of requests",
              .lines = {}};
  std::vector<double> tails;
  for (std::size_t i = 1; i < outcomes.size(); ++i) {
    std::vector<double> slowdowns;
    const auto& requests = outcomes[i].result.requests;
    for (std::size_t at = 0; at < requests.size(); ++at) {
      if (requests[at].refused || alone[at].refused) continue;
      slowdowns.push_back(MsOf(requests[at].EndToEnd()) / std::max(1e-9, MsOf(alone[at].EndToEnd())));
    }
    std::sort(slowdowns.begin(), slowdowns.end());
    const OrderOf& order = kOrders[(i - 1) % kOrders.size()];
    const bool high = i > kOrders.size();
    std::vector<std::string> row = {high ? "high" : "medium", order.name};
    for (const double share : {0.5, 0.9, 0.99, 1.0}) row.push_back(fmt::format("{:.1f}", Quantile(slowdowns, share)));
    table.rows.push_back(std::move(row));
    tails.push_back(Quantile(slowdowns, 0.99));
    if (!high) continue;
    ChartLine& line = chart.lines.emplace_back(ChartLine{.name = order.name, .points = {}});
    for (int percent = 0; percent <= 99; ++percent)
      line.points.emplace_back(Quantile(slowdowns, percent / 100.0), percent);
  }
  const double *high = &tails[kOrders.size()], optimized = high[3];
  const auto show = fmt::format("{:.1f}, {:.1f}, {:.1f}, {:.1f}", high[0], high[1], high[2], optimized);
  result.comparison.push_back(ClaimRow("ch-8", "P99 slowdown at high load: chunked prefill does not reduce FIFO's",
                                       "yes", fmt::format("{:.1f} against {:.1f}", high[1], high[0]),
                                       high[1] >= (1 - kDeadBand) * high[0]));
  result.comparison.push_back(
      ClaimRow("ch-8", "P99 slowdown at high load (FIFO, chunked, SJF, optimized): optimized scheduling has the lowest",
               "yes", show, optimized < std::min({high[0], high[1], high[2]})));
  result.tables.push_back(std::move(table));
  result.plots.push_back({"slowdown", chart.title, RenderSvg(chart)});
  return Ok{};
}

}  // namespace

Result<ExperimentResult> RunChameleonMotivation(ExperimentContext& context) {
  ExperimentResult result;
  RETURN_IF_ERROR(AddRanks(context, result));
  RETURN_IF_ERROR(AddLink(context, result));
  RETURN_IF_ERROR(AddParallelLoads(context, result));
  RETURN_IF_ERROR(AddMemory(context, result));
  RETURN_IF_ERROR(AddAlone(context, result));
  RETURN_IF_ERROR(AddSlowdowns(context, result));
  result.remarks = {
      "ch-4: requests for 500 adapters of rank 32 at 8 RPS move about 1 GB/s, a twentieth of the link of the data "
      "sheet; "
      "a saturated link would have 1 GB/s, which figures 2 and 14 (30 ms for 268 MB) exclude. The slowdowns appear "
      "without it: 8 RPS is what S-LoRA hardly sustains here, so that a few ms for each load become long queues.",
      "ch-8: all orders admit on every iteration, as the paper's FIFO does. Chunked prefill computes prompts beside "
      "decodes, so that the least time of a step (42 ms of the host's work) is paid once and not for each phase, and "
      "more "
      "load is sustained. The optimized order is Chameleon's, whose lanes let large requests wait longer; beyond the "
      "load "
      "that the device sustains this is what the tail shows.",
      "ch-5: 68 % for a load of 256 MB means 20 ms of loading beside 10 ms of computing, or a link of about 1 GB/s "
      "beside a prompt of 512 tokens of 70B. The paper gives neither the prompt nor the link."};
  return result;
}

}  // namespace loramux
