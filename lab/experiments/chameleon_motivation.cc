// Chameleon 3: what adapters cost S-LoRA, and what queue orders do to slowdowns. Figures 2 to 8.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>

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

// Figure 3's second half: "for large batch sizes, different adapter ranks lead to diverse decode latencies for requests
// with similar input/output sizes". All requests of a batch are alike, and have adapters of one rank.
Status AddDecodes(ExperimentContext& context, ExperimentResult& result) {
  constexpr std::array<std::int64_t, 4> kBatches = {1, 8, 32, 64};
  ASSIGN_OR_RETURN(const SimulationJob job, MakeChameleonJob(context, {.preset = "s-lora"}));
  ExperimentTable table{"Time for a token in ms, by requests of the batch and rank of their adapters",
                        {"requests", "8", "16", "32", "64", "128", "128 over 8"},
                        {}};
  std::vector<double> spread;
  for (const std::int64_t batch : kBatches) {
    std::vector<std::string> row = {std::to_string(batch)};
    std::array<double, kRanks.size()> ms = {};
    for (std::size_t i = 0; i < kRanks.size(); ++i) {
      Workload workload;
      for (std::int64_t n = 0; n < batch; ++n) {
        workload.adapter_ranks.push_back(kRanks[i]);
        workload.requests.push_back(
            {.arrival = 0, .adapter = static_cast<std::int32_t>(n), .input_tokens = 32, .output_tokens = 256});
      }
      ASSIGN_OR_RETURN(const SimulationResult run, Simulate(job.options, workload));
      ms[i] = Summarise(run, TimeNs{0}).between_tokens.p50;
      row.push_back(fmt::format("{:.1f}", ms[i]));
    }
    spread.push_back(ms.back() / std::max(1e-9, ms.front()));
    row.push_back(ShowFactor(spread.back()));
    table.rows.push_back(std::move(row));
  }
  result.comparison.push_back(
      ClaimRow("ch-3", "in a large batch, different ranks lead to diverse decode latencies (128 over 8, 64 requests)",
               "yes", ShowFactor(spread.back()), spread.back() > 1 + kDeadBand));
  result.tables.push_back(std::move(table));
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

// What a factor of the lengths makes of the trace with its own arrivals on S-LoRA.
constexpr double kFull = 0.95;  // share of the memory at the peak
struct ScaledTrace {
  double factor = 0, peak = 0, mean = 0, median = 0, p90 = 0;       // shares of the memory beside the weights
  double objective_s = 0, gap_ms = 0, mean_gap_ms = 0, ttft_s = 0;  // P99s, but for the objective
  std::int64_t waiting = 0;                                         // at the most
};

using ChangeOfJob = std::function<void(SimulationJob&)>;

// What is assumed of all jobs comes last: it changes the objective that follows from the factor.
Result<SimulationJob> MakeScaled(const ExperimentContext& context, double factor, const ChangeOfJob& change) {
  ExperimentContext as_read = context;
  as_read.assume = nullptr;
  ASSIGN_OR_RETURN(SimulationJob job,
                   MakeChameleonJob(as_read, {.preset = "s-lora", .rate = 0, .trace_arrivals = true}));
  job.load.input_scale = job.load.output_scale = factor;
  job.options.samples = 4000;
  if (change) change(job);
  RETURN_IF_ERROR(SetChameleonObjective(job, job.options.preset.program));
  if (context.assume) context.assume(job);
  return job;
}

ScaledTrace ScaledOf(const SimulationJob& job, const SimulationOutcome& outcome) {
  const auto pages = static_cast<double>(job.options.device.device_pages);
  std::vector<double> shares;
  ScaledTrace scaled{.factor = job.load.input_scale};
  for (const WorldSample& sample : outcome.result.samples) {
    shares.push_back(1 - static_cast<double>(sample.free_pages) / pages);
    scaled.waiting = std::max(scaled.waiting, sample.waiting);
  }
  scaled.mean = Summarise(shares).mean;
  std::sort(shares.begin(), shares.end());
  scaled.peak = shares.empty() ? 0 : shares.back();
  scaled.median = Quantile(shares, 0.5);
  scaled.p90 = Quantile(shares, 0.9);
  scaled.objective_s = static_cast<double>(job.options.preset.spec.objective) / kNsPerSecond;
  scaled.gap_ms = outcome.summary.between_tokens.p99;
  scaled.mean_gap_ms = outcome.summary.tpot.p99;
  scaled.ttft_s = outcome.summary.ttft.p99 / 1000;
  return scaled;
}

// The least factor, to 0.005, at which the memory is full at the peak: "a constant factor that results in the peak
// memory consumption of the scaled-down trace to be equal to the memory capacity" (3.2).
Result<ScaledTrace> FillMemory(ExperimentContext& context, const ChangeOfJob& change) {
  double low = 0.05, high = 1;
  std::optional<ScaledTrace> found;
  while (high - low > 0.005 || !found.has_value()) {
    const double factor = found.has_value() ? (low + high) / 2 : high;
    ASSIGN_OR_RETURN(const SimulationJob job, MakeScaled(context, factor, change));
    ASSIGN_OR_RETURN(const auto outcomes, SimulateAll(context, {&job, 1}));
    const ScaledTrace scaled = ScaledOf(job, outcomes.front());
    const bool full = scaled.peak >= kFull;
    (full ? high : low) = factor;
    if (full) found = scaled;
    if (!found.has_value()) return scaled;  // not even the whole lengths fill it
  }
  return *found;
}

std::vector<std::string> RowOf(std::string name, const ScaledTrace& scaled) {
  return {std::move(name),
          fmt::format("{:.3g}", scaled.factor),
          fmt::format("{:.0f} %", 100 * scaled.peak),
          fmt::format("{:.0f} %", 100 * scaled.median),
          fmt::format("{:.0f} %", 100 * scaled.p90),
          fmt::format("{:.1f}", scaled.objective_s),
          fmt::format("{:.0f}", scaled.mean_gap_ms),
          fmt::format("{:.0f}", scaled.gap_ms),
          fmt::format("{:.1f}", scaled.ttft_s),
          std::to_string(scaled.waiting)};
}

const std::vector<std::string> kScaledHeader = {
    "",           "factor",     "peak memory",        "median", "P90", "objective s", "TBT P99 of means ms",
    "of gaps ms", "TTFT P99 s", "waiting at the most"};

Status AddFactors(ExperimentContext& context, ExperimentResult& result) {
  const auto no_host = [](SimulationJob& job) {
    job.options.preset.program.layer_seconds = job.options.preset.program.request_seconds = 0;
  };
  const auto quick_kernels = [](SimulationJob& job) {
    job.options.device.model.per_adapter_token_rank /= ChameleonKernelFactor();
  };
  std::vector<std::pair<const char*, ChangeOfJob>> assumptions = {
      {"as above", nullptr},
      {"the host's work takes no time", no_host},
      {"kernels of adapters by the data sheet", quick_kernels},
      {"both",
       [=](SimulationJob& job) {
         no_host(job);
         quick_kernels(job);
       }},
      {"half of the memory", [](SimulationJob& job) {
         job.options.device.device_pages /= 2;
         LimitPromptsTogether(job);
       }}};
  ExperimentTable table{
      "The least factor of the lengths that fills the memory at the peak, one assumption at a time", kScaledHeader, {}};
  std::vector<ScaledTrace> found;
  if (context.rows_only) assumptions.resize(1);
  for (const auto& [name, change] : assumptions) {
    ASSIGN_OR_RETURN(found.emplace_back(), FillMemory(context, change));
    table.rows.push_back(RowOf(name, found.back()));
  }
  if (context.rows_only && found[0].peak < kFull) return Ok{};  // the rows are about a memory that is full
  // Figures 20 and 21 have 5 s, figure 12 has 150 ms.
  constexpr double kObjective = 5, kGap = 150;
  result.comparison.push_back(ValueRow("ch-6", "the objective at the factor that fills the memory", kObjective,
                                       found[0].objective_s, {" s", 1}));
  result.comparison.push_back(
      AtMostRow("ch-6", "P99 time between tokens there, mean of each request", kGap, found[0].mean_gap_ms, {" ms"}));
  result.tables.push_back(std::move(table));
  if (context.rows_only) return Ok{};
  result.remarks.push_back(fmt::format(
      "ch-6: the least factor that fills the memory is {:.3g}. The objective is then {:.1f} s, {:.1f} times the "
      "document's 5 s; without the host's work {:.1f} s, with kernels by the data sheet {:.1f} s, with both {:.1f} s. "
      "The "
      "P99 time between tokens is {:.0f} ms there ({:.0f}, {:.0f} and {:.0f} ms), the document's at most 150 ms.",
      found[0].factor, found[0].objective_s, found[0].objective_s / kObjective, found[1].objective_s,
      found[2].objective_s, found[3].objective_s, found[0].mean_gap_ms, found[1].mean_gap_ms, found[2].mean_gap_ms,
      found[3].mean_gap_ms));
  return Ok{};
}

Status AddMemory(ExperimentContext& context, ExperimentResult& result) {
  constexpr std::array<double, 7> kScales = {0.1, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45};
  std::vector<double> scales(kScales.begin(), kScales.end());
  scales.push_back(kLengthScale);
  std::sort(scales.begin(), scales.end());
  scales.erase(std::unique(scales.begin(), scales.end()), scales.end());
  std::vector<SimulationJob> jobs;
  for (const double scale : scales) {
    ASSIGN_OR_RETURN(jobs.emplace_back(), MakeScaled(context, scale, nullptr));
  }
  ASSIGN_OR_RETURN(const auto outcomes, SimulateAll(context, jobs));
  ExperimentTable table{"Figure 6: the trace's own times on S-LoRA, by the factor of the lengths", kScaledHeader, {}};
  Chart chart{.title = "Memory in use over time",
              .subtitle = "of what the weights leave free, simulated",
              .x_label = "s",
              .y_label = "%",
              .lines = {{.name = "keys and values", .points = {}}, {.name = "with adapters", .points = {}}}};
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const ScaledTrace scaled = ScaledOf(jobs[i], outcomes[i]);
    const bool drawn = scales[i] == kLengthScale;
    table.rows.push_back(RowOf(drawn ? "all experiments" : "", scaled));
    if (!drawn) continue;
    const auto pages = static_cast<double>(jobs[i].options.device.device_pages);
    const auto& samples = outcomes[i].result.samples;
    for (std::size_t at = 0; at < samples.size(); at += 20) {
      const double seconds = static_cast<double>(samples[at].at) / kNsPerSecond;
      chart.lines[0].points.emplace_back(seconds, 100 * static_cast<double>(samples[at].running_kv_pages) / pages);
      chart.lines[1].points.emplace_back(seconds, 100 - 100 * static_cast<double>(samples[at].free_pages) / pages);
    }
    result.comparison.push_back(
        ValueRow("ch-6", "peak memory in use, of the capacity (the rule for lengths)", 100, 100 * scaled.peak, {" %"}));
    result.comparison.push_back(AtMostRow("ch-6", "median memory in use (\"abundant idle memory most of the time\")",
                                          75, 100 * scaled.median, {" %"}));
  }
  result.tables.push_back(std::move(table));
  result.plots.push_back({"memory", chart.title, RenderSvg(chart)});
  return AddFactors(context, result);
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
  RETURN_IF_ERROR(AddDecodes(context, result));
  RETURN_IF_ERROR(AddLink(context, result));
  RETURN_IF_ERROR(AddParallelLoads(context, result));
  RETURN_IF_ERROR(AddMemory(context, result));
  RETURN_IF_ERROR(AddAlone(context, result));
  RETURN_IF_ERROR(AddSlowdowns(context, result));
  return result;
}

}  // namespace loramux
