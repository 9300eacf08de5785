// Chameleon (MICRO '25): its adapter cache and its scheduler compared with S-LoRA. This file covers load, latency and
// loading; chameleon_policies.cc covers policies, chameleon_scale.cc scale.
#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "base/check.h"
#include "lab/charts/line_chart.h"
#include "lab/experiments/chameleon_testbed.h"

namespace loramux {
namespace {

constexpr std::array<std::string_view, 4> kSystems = {"s-lora", "chameleon-nocache", "chameleon-nosched", "chameleon"};
constexpr std::size_t kSLora = 0, kNoCache = 1, kNoSched = 2, kChameleon = 3;

// ---------------------------------------------------------------- Figures 11 to 13

struct LoadCurves {
  std::vector<double> rates;
  std::vector<SimulationOutcome> outcomes;  // ordered by rate, then by system
  const SimulationOutcome& At(std::size_t rate, std::size_t system) const {
    return outcomes[rate * kSystems.size() + system];
  }
};

Result<LoadCurves> RunCurves(ExperimentContext& context, std::vector<double> rates) {
  std::vector<ChameleonSetting> settings;
  for (const double rate : rates) {
    for (const std::string_view system : kSystems) settings.push_back({.preset = system, .rate = rate});
  }
  ASSIGN_OR_RETURN(const auto jobs, MakeChameleonJobs(context, settings));
  LoadCurves curves{.rates = std::move(rates), .outcomes = {}};
  ASSIGN_OR_RETURN(curves.outcomes, SimulateAll(context, jobs));
  return curves;
}

void CompareLatencies(const LoadCurves& at, bool relative, ExperimentResult& result) {
  constexpr std::array<double, 3> kRates = {6, 8, 9}, kTail = {-0.147, -0.246, -0.807},
                                  kMedian = {-0.139, -0.209, -0.481};
  for (std::size_t i = 0; i < kRates.size(); ++i) {
    const std::string where = relative
                                  ? fmt::format("at {:.0f} % of the load that S-LoRA sustains", 100 * kRates[i] / 8.6)
                                  : fmt::format("at {:g} RPS", kRates[i]);
    const SimulationSummary &base = at.At(i, kSLora).summary, &ours = at.At(i, kChameleon).summary;
    result.comparison.push_back(
        ChangeRow("ch-11", "P99 TTFT against S-LoRA " + where, kTail[i], Change(ours.ttft.p99, base.ttft.p99)));
    result.comparison.push_back(
        ChangeRow("ch-13", "P50 TTFT against S-LoRA " + where, kMedian[i], Change(ours.ttft.p50, base.ttft.p50)));
  }
}

// The load that each of kSystems sustains. ch-one has the same under other assumptions.
Result<std::array<double, 4>> SustainedLoads(ExperimentContext& context) {
  std::vector<ChameleonSetting> settings;
  for (const std::string_view system : kSystems) settings.push_back({.preset = system, .rate = 10});
  ASSIGN_OR_RETURN(const auto jobs, MakeChameleonJobs(context, settings));
  ASSIGN_OR_RETURN(const auto loads, FindLoads(context, jobs));
  std::array<double, 4> rates = {};
  for (std::size_t i = 0; i < rates.size(); ++i) rates[i] = loads[i].rate;
  return rates;
}

void CompareSustained(const std::array<double, 4>& rates, ExperimentResult& result) {
  const auto factor = [&](const char* what, double reported, std::size_t system) {
    result.comparison.push_back(FactorRow("ch-11b", fmt::format("sustained load against S-LoRA: {}", what), reported,
                                          rates[system] / std::max(1e-9, rates[kSLora])));
  };
  factor("cache only", 1.2, kNoSched);
  factor("scheduler only", 1.05, kNoCache);
  factor("both", 1.5, kChameleon);
  const auto absolute = [&](const char* what, double reported, std::size_t system) {
    result.comparison.push_back(
        ValueRow("ch-11b", fmt::format("sustained load: {}", what), reported, rates[system], {" RPS", 1}));
  };
  const double least = std::min(rates[kNoCache], rates[kNoSched]), most = std::max(rates[kNoCache], rates[kNoSched]);
  result.comparison.push_back(ClaimRow(
      "ch-11b", "sustained load: scheduler alone and cache alone above S-LoRA, both together above either", "yes",
      fmt::format("{:.2f}; {:.2f}, {:.2f}; {:.2f} RPS", rates[kSLora], rates[kNoCache], rates[kNoSched],
                  rates[kChameleon]),
      rates[kSLora] < least && most < rates[kChameleon]));
  absolute("S-LoRA", 8.6, kSLora);
  absolute("Chameleon", 12.9, kChameleon);
}

void AddCurves(const LoadCurves& curves, ExperimentResult& result) {
  ExperimentTable table{"By load",
                        {"RPS", "system", "TTFT P50 ms", "P99 ms", "TBT P99 ms", "P99 of request means ms",
                         "E2E mean ms", "adapter hits", "running", "squashed"},
                        {}};
  std::array<Chart, 3> charts = {{{.title = "P99 time to first token", .y_label = "ms"},
                                  {.title = "P50 time to first token", .y_label = "ms"},
                                  {.title = "P99 time between tokens", .y_label = "ms"}}};
  for (Chart& chart : charts) {
    chart.subtitle = "Llama-7B on one A40, simulated";
    chart.x_label = "requests per second";
    chart.log_y = true;  // beyond the load that is sustained, times grow a hundredfold
    for (const std::string_view system : kSystems) chart.lines.push_back({.name = std::string(system), .points = {}});
  }
  for (std::size_t rate = 0; rate < curves.rates.size(); ++rate) {
    for (std::size_t system = 0; system < kSystems.size(); ++system) {
      const SimulationSummary& summary = curves.At(rate, system).summary;
      const double running = summary.requests_per_second * summary.end_to_end.mean / 1000;  // Little's law
      table.rows.push_back({fmt::format("{:g}", curves.rates[rate]), std::string(kSystems[system]),
                            fmt::format("{:.0f}", summary.ttft.p50), fmt::format("{:.0f}", summary.ttft.p99),
                            fmt::format("{:.0f}", summary.between_tokens.p99), fmt::format("{:.0f}", summary.tpot.p99),
                            fmt::format("{:.0f}", summary.end_to_end.mean),
                            fmt::format("{:.1f} %", 100 * summary.adapter_hit_share), fmt::format("{:.0f}", running),
                            std::to_string(summary.squashes)});
      const std::array<double, 3> values = {summary.ttft.p99, summary.ttft.p50, summary.between_tokens.p99};
      for (std::size_t i = 0; i < charts.size(); ++i)
        charts[i].lines[system].points.emplace_back(curves.rates[rate], values[i]);
    }
  }
  result.tables.push_back(std::move(table));
  const std::array<const char*, 3> names = {"p99_ttft", "p50_ttft", "p99_tbt"};
  for (std::size_t i = 0; i < charts.size(); ++i)
    result.plots.push_back({names[i], charts[i].title, RenderSvg(charts[i])});
}

// "Chameleon has lower latencies than S-LoRA for all loads" (figure 12).
ComparisonRow CompareGaps(const LoadCurves& curves) {
  std::size_t below = 0;
  for (std::size_t rate = 0; rate < curves.rates.size(); ++rate)
    below +=
        curves.At(rate, kChameleon).summary.between_tokens.p99 < curves.At(rate, kSLora).summary.between_tokens.p99;
  return ClaimRow("ch-12", "P99 time between tokens, every gap: Chameleon below S-LoRA at all loads", "yes",
                  fmt::format("at {} of {} loads", below, curves.rates.size()), below == curves.rates.size());
}

void CompareSquashes(const LoadCurves& curves, ExperimentResult& result) {
  double most = 0;
  std::int64_t squashes = 0;
  for (const SimulationOutcome& outcome : curves.outcomes) {
    squashes += outcome.summary.squashes;
    most = std::max(most, static_cast<double>(outcome.summary.squashes) /
                              static_cast<double>(std::max<std::int64_t>(1, outcome.summary.finished)));
  }
  result.comparison.push_back(WithEvents(
      AtMostRow("ch-sq", "requests squashed because of bypassing", 5, 100 * most, {" %", 2}), squashes, "squashes"));
}

// "By 12.5 RPS, most of the time, GPU memory is fully used and there is no space for caching adapters not in use"
// (5.2.1).
Status CompareIdleMemory(ExperimentContext& context, double base, ExperimentResult& result) {
  constexpr double kNone = 0.05;  // share of the memory that is free, or held by adapters that no request uses
  const std::array<double, 2> rates = {12.5, 12.5 / 8.6 * base};
  std::vector<ChameleonSetting> settings;
  for (const double rate : rates) {
    settings.push_back({.rate = rate, .change = [](SimulationJob& job) { job.options.samples = 4000; }});
  }
  ASSIGN_OR_RETURN(const auto jobs, MakeChameleonJobs(context, settings));
  ASSIGN_OR_RETURN(const auto outcomes, SimulateAll(context, jobs));
  for (std::size_t i = 0; i < rates.size(); ++i) {
    const auto pages = static_cast<double>(jobs[i].options.device.device_pages);
    std::int64_t full = 0;
    const auto& samples = outcomes[i].result.samples;
    for (const WorldSample& sample : samples)
      full +=
          static_cast<std::int64_t>(static_cast<double>(sample.free_pages + sample.idle_adapter_pages) < kNone * pages);
    result.comparison.push_back(AtLeastRow(
        "ch-11",
        fmt::format("time without memory for adapters that are not in use (\"most of the time\"): {}",
                    i == 0 ? "12.5 RPS" : "12.5 / 8.6 of the load that S-LoRA sustains"),
        50, 100 * static_cast<double>(full) / static_cast<double>(std::max<std::size_t>(1, samples.size())), {" %"}));
  }
  return Ok{};
}

std::string GapRemark(const LoadCurves& at) {
  return fmt::format(
      "TBT: the paper does not say whether its P99 covers all gaps or the means of requests. By the second reading "
      "Chameleon has {:.0f} ms at 8 RPS and S-LoRA {:.0f} ms.",
      at.At(1, kChameleon).summary.tpot.p99, at.At(1, kSLora).summary.tpot.p99);
}

Result<ExperimentResult> RunLoad(ExperimentContext& context) {
  ASSIGN_OR_RETURN(const auto rates, SustainedLoads(context));
  const double base = rates[kSLora];
  ASSIGN_OR_RETURN(const LoadCurves at, RunCurves(context, {6, 8, 9}));
  ASSIGN_OR_RETURN(const LoadCurves relative,
                   RunCurves(context, {kLowLoad * base, kMediumLoad * base, kHighLoad * base}));
  ASSIGN_OR_RETURN(const SimulationJob job, MakeChameleonJob(context, {}));
  ExperimentResult result{.setting = DescribeChameleonTestbed(job)};
  CompareLatencies(at, false, result);
  CompareLatencies(relative, true, result);
  CompareSustained(rates, result);
  for (const std::size_t system : {kSLora, kChameleon}) {
    const SimulationSummary& summary = at.At(1, system).summary;
    const auto under = [&](const char* what, double ms) {
      result.comparison.push_back(AtMostRow(
          "ch-12", fmt::format("P99 time between tokens at 8 RPS, {}: {}", what, kSystems[system]), 150, ms, {" ms"}));
    };
    under("mean of each request", summary.tpot.p99);
    under("every gap", summary.between_tokens.p99);
  }
  RETURN_IF_ERROR(CompareIdleMemory(context, base, result));
  if (context.rows_only) return result;
  ASSIGN_OR_RETURN(const LoadCurves curves, RunCurves(context, {2, 4, 6, 7, 8, 9, 10, 11, 12, 13}));
  result.comparison.push_back(CompareGaps(curves));
  CompareSquashes(curves, result);
  AddCurves(curves, result);
  result.remarks = {GapRemark(at)};
  return result;
}

// ---------------------------------------------------------------- Figure 14 and section 3.2

std::vector<double> LoadsOf(const SimulationOutcome& outcome) {
  std::vector<double> ms;
  for (const RequestRecord& record : outcome.result.requests)
    ms.push_back(static_cast<double>(record.adapter_load) / kNsPerMs);
  std::sort(ms.begin(), ms.end());
  return ms;
}

Result<ExperimentResult> RunLoading(ExperimentContext& context) {
  const std::vector<ChameleonSetting> settings = {{.preset = "s-lora", .rate = 0, .trace_arrivals = true},
                                                  {.preset = "chameleon", .rate = 0, .trace_arrivals = true}};
  ASSIGN_OR_RETURN(const auto jobs, MakeChameleonJobs(context, settings));
  ASSIGN_OR_RETURN(const auto outcomes, SimulateAll(context, jobs));
  ExperimentResult result{.setting = DescribeChameleonTestbed(jobs.front())};
  ExperimentTable table{"Adapter load time on the critical path (ms); the trace's own times",
                        {"system", "hits", "no wait", "P50", "P75", "P90", "P99", "max", "loads"},
                        {}};
  Chart chart{.title = "Adapter load time on the critical path",
              .subtitle = "share of requests that wait at most this long, the trace's own times, simulated",
              .x_label = "ms",
              .y_label = "% of requests",
              .lines = {}};
  std::array<std::vector<double>, 2> loads;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const SimulationSummary& summary = outcomes[i].summary;
    loads[i] = LoadsOf(outcomes[i]);
    const auto none = std::upper_bound(loads[i].begin(), loads[i].end(), 0.0) - loads[i].begin();
    std::vector<std::string> row = {
        std::string(settings[i].preset), fmt::format("{:.1f} %", 100 * summary.adapter_hit_share),
        fmt::format("{:.1f} %", 100.0 * static_cast<double>(none) / static_cast<double>(loads[i].size()))};
    for (const double share : {0.5, 0.75, 0.9, 0.99, 1.0})
      row.push_back(fmt::format("{:.1f}", Quantile(loads[i], share)));
    row.push_back(std::to_string(summary.adapter_loads));
    table.rows.push_back(std::move(row));
    ChartLine& line = chart.lines.emplace_back(ChartLine{.name = std::string(settings[i].preset), .points = {}});
    for (int percent = 0; percent <= 99; ++percent)
      line.points.emplace_back(Quantile(loads[i], percent / 100.0), percent);
  }
  const SimulationSummary& cached = outcomes[1].summary;
  const std::int64_t reloads = std::max<std::int64_t>(0, cached.adapter_loads - jobs[1].load.adapters);
  result.comparison.push_back(WithEvents(ValueRow("ch-14", "Chameleon: requests with their adapter on the device", 75,
                                                  100 * cached.adapter_hit_share, {" %"}),
                                         reloads, "loads of evicted adapters"));
  result.comparison.push_back(ValueRow("ch-14", "S-LoRA: loads on the critical path, P99 (up to 30 ms)", 30,
                                       Quantile(loads[0], 0.99), {" ms", 1}));
  const std::vector<double> misses(std::upper_bound(loads[1].begin(), loads[1].end(), 0.0), loads[1].end());
  result.comparison.push_back(WithEvents(ValueRow("ch-14", "Chameleon: misses, P99 (up to 6 ms)", 6,
                                                  misses.empty() ? 0 : Quantile(misses, 0.99), {" ms", 1}),
                                         reloads, "loads of evicted adapters"));
  result.tables.push_back(std::move(table));
  result.plots.push_back({"cdf", chart.title, RenderSvg(chart)});
  const SimulatedDevice& device = jobs[0].options.device;
  const ProgramCosts& program = jobs[0].options.preset.program;
  const auto alone_ms = [&](std::int64_t rank) {
    const PerformanceModel::Link& link = device.model.host_to_device;
    const double bytes = static_cast<double>(rank * device.adapter_bytes_per_rank * program.link_passes);
    return 1e3 * (link.latency + bytes / link.bytes_per_second + program.load_seconds);
  };
  result.remarks = {fmt::format(
      "A load of rank 128 takes {:.0f} ms alone, one of rank 16 takes {:.0f} ms. Several loads of one admission follow "
      "each other on the link. Chameleon loaded {} adapters that it had evicted.",
      alone_ms(128), alone_ms(16), reloads)};
  return result;
}

constexpr std::array kExperiments = std::to_array<Experiment>({
    {"ch-11", "ch-11, ch-11b, ch-12, ch-13, ch-sq", "Latency and load sustained", "Chameleon 5.2, figures 11 to 13",
     RunLoad},
    {"ch-2", "ch-2, ch-3, ch-4, ch-5, ch-6, ch-7, ch-8", "Why adapters matter", "Chameleon 3, figures 2 to 8",
     RunChameleonMotivation},
    {"ch-14", "ch-14", "Adapter loading on the critical path", "Chameleon 5.2.5, figure 14", RunLoading},
    {"ch-15", "ch-15, ch-16", "Queueing by size class and order", "Chameleon 5.3, figures 15 and 16",
     RunChameleonQueueing},
    {"ch-17", "ch-17", "Eviction policies", "Chameleon 5.3.3, figure 17", RunChameleonEviction},
    {"ch-18", "ch-18", "Prefetching by histogram", "Chameleon 5.3.4, figure 18", RunChameleonPrefetch},
    {"ch-19", "ch-19", "Accuracy of predicted lengths", "Chameleon 5.4.1, figure 19", RunChameleonPredictor},
    {"ch-20", "ch-20", "Number and popularity of adapters", "Chameleon 5.4.2 and 5.4.3, figure 20",
     RunChameleonAdapters},
    {"ch-21", "ch-21", "Other traces", "Chameleon 5.4.4, figure 21", RunChameleonTraces},
    {"ch-22", "ch-22", "Fitted lanes against equal ones", "Chameleon 5.4.5, figure 22", RunChameleonStaticLanes},
    {"ch-23", "ch-23", "Larger models", "Chameleon 5.5.1, figure 23", RunChameleonModels},
    {"ch-24", "ch-24", "More memory", "Chameleon 5.5.2, figure 24", RunChameleonMemory},
    {"ch-25", "ch-25", "Tensor parallelism", "Chameleon 5.6, figure 25", RunChameleonParallel},
    {"ch-one", "ch-one", "One assumption at a time", "Chameleon 5.2: what would have to be true",
     RunChameleonAssumptions, "assumptions, not seeds, are compared"},
    {"ch-rows", "ch-rows", "Rows under one assumption at a time", "Chameleon: what would have to be true for each row",
     RunChameleonRows, "assumptions, not seeds, are compared"},
});

}  // namespace

std::span<const Experiment> ChameleonExperiments() { return kExperiments; }

}  // namespace loramux
