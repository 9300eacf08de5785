// CaraServe (arXiv 2401.11240, from secondary notes on it): prefill assisted by the CPU, compared with loads on demand.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <span>

#include <fmt/format.h>

#include "lab/charts/dot_chart.h"
#include "lab/experiments/assumption_rows.h"
#include "lab/experiments/experiment.h"
#include "lab/experiments/workloads.h"
#include "simulate/objective.h"

namespace loramux {
namespace {

// the notes: LoRA adapters are applied to the Q, K and V weight matrices
constexpr std::array kTargets = {LoraTarget::kQ, LoraTarget::kK, LoraTarget::kV};
// The systems: those of the figures, those of table 1, and S-LoRA without what its own program costs beside the device,
// which is the only change.
enum System : std::size_t { kOnDemand, kSLora, kCaraServe, kCached, kPunica, kHfPeft, kBareSLora };
constexpr std::array<std::string_view, 7> kPresets = {"ondmd",  "s-lora",  "caraserve", "cached",
                                                      "punica", "hf-peft", "s-lora"};
constexpr std::array<std::string_view, 7> kNames = {
    "ONDMD", "S-LoRA", "CaraServe", "CACHED", "Punica", "HF-PEFT", "S-LoRA, its program at no cost"};
constexpr std::int64_t kAdapters = 128;
// The trace of the paper's production workload, as Azure publishes it. Where it is absent, recorded clients stand for
// it.
constexpr const char* kFunctionTrace = "AzureFunctionsInvocationTraceForTwoWeeksJan2021.txt";

// One setting of the paper, simulated for all systems.
struct Setting {
  std::string name;
  std::string_view device = "a10", model = "llama-7b";
  std::int64_t gpus = 1, rank = 64;
  double rate = 9;
  bool skewed = false;  // the paper's "scaled production workload"; false: Poisson and uniform
  double link = 0;      // bytes per second to the device; 0: the published rate
};

bool HasFunctionTrace(const ExperimentContext& context) {
  std::error_code ignored;
  return std::filesystem::exists(context.Trace(kFunctionTrace), ignored);
}

Result<SimulationJob> MakeJob(const ExperimentContext& context, const Setting& setting, std::string_view preset) {
  ASSIGN_OR_RETURN(const DeviceShape device, FindDevice(setting.device));
  ASSIGN_OR_RETURN(const ModelShape model, FindModel(setting.model));
  SimulationJob job;
  ASSIGN_OR_RETURN(job.options.device, DescribeDevice(device, model, setting.gpus, 0.9, kTargets));
  ASSIGN_OR_RETURN(job.options.preset, FindPreset(preset));
  job.options.device.model.shape = preset == "s-lora" ? LoraCostShape::kMbgmv : LoraCostShape::kBgmv;
  if (setting.link > 0) job.options.device.model.host_to_device.bytes_per_second = setting.link;
  // Those that hold all adapters, as the upper bound CACHED, have additional memory for them.
  if (job.options.preset.all_on_device)
    job.options.device.device_pages += kAdapters * job.options.device.AdapterPages(setting.rank);
  job.options.seed = job.load.seed = context.seed;
  job.load = {.requests = context.Requests(12'000),  // 120 beyond the 99th percentile
              .rate = setting.rate,
              .input_mean = 128,
              .output_mean = 64,
              .max_input = 1024,
              .max_output = 512,
              .adapters = kAdapters,
              .ranks = {setting.rank},
              .popularity = Popularity::kUniform,
              .seed = context.seed};
  if (!setting.skewed) return job;
  if (HasFunctionTrace(context)) {
    job.load.trace = context.Trace(kFunctionTrace);
    job.load.poisson = false;
  } else {
    job.load.clients = context.Trace("servegen_m-small");
    job.load.clients_hour = 12;
  }
  RETURN_IF_ERROR(ReadRecordings(job.load));
  return job;
}

struct Outcomes {
  Setting setting;
  std::vector<SimulationOutcome> systems;  // ordered as kPresets; empty where a system was left out
  const SimulationSummary& Of(std::size_t system) const { return systems[system].summary; }
};

// Some systems in some settings, for rows under assumptions.
Result<std::vector<Outcomes>> SimulateSome(ExperimentContext& context, const std::vector<Setting>& settings,
                                           std::span<const System> systems) {
  std::vector<SimulationJob> jobs;
  for (const Setting& setting : settings) {
    for (const System system : systems) {
      ASSIGN_OR_RETURN(jobs.emplace_back(), MakeJob(context, setting, kPresets[system]));
    }
  }
  ASSIGN_OR_RETURN(auto all, SimulateAll(context, jobs));
  std::vector<Outcomes> outcomes;
  for (std::size_t i = 0; i < settings.size(); ++i) {
    outcomes.push_back({settings[i], std::vector<SimulationOutcome>(kPresets.size())});
    for (std::size_t k = 0; k < systems.size(); ++k)
      outcomes.back().systems[systems[k]] = std::move(all[i * systems.size() + k]);
  }
  return outcomes;
}

Result<std::vector<Outcomes>> SimulateSettings(ExperimentContext& context, const std::vector<Setting>& settings) {
  std::vector<SimulationJob> jobs;
  for (const Setting& setting : settings) {
    for (const std::string_view preset : kPresets) {
      ASSIGN_OR_RETURN(jobs.emplace_back(), MakeJob(context, setting, preset));
    }
    jobs[jobs.size() - kPresets.size() + kBareSLora].options.preset.program = {};
  }
  ASSIGN_OR_RETURN(auto all, SimulateAll(context, jobs));
  std::vector<Outcomes> outcomes;
  for (std::size_t i = 0; i < settings.size(); ++i) {
    outcomes.push_back({settings[i], {}});
    for (std::size_t k = 0; k < kPresets.size(); ++k)
      outcomes.back().systems.push_back(std::move(all[i * kPresets.size() + k]));
  }
  return outcomes;
}

// The share of requests within the notes' objective for the latency of decoding: 36 ms from one token to the next, on
// average over the answer.
constexpr double kTokenObjectiveMs = 36;
double WithinTokenObjective(const SimulationOutcome& outcome) {
  double within = 0, requests = 0;
  for (const RequestRecord& record : outcome.result.requests) {
    if (record.cancelled) continue;
    ++requests;
    if (record.refused) continue;
    within += record.output_tokens <= 1 || TpotOf(record) / kNsPerMs <= kTokenObjectiveMs;
  }
  return within / std::max(1.0, requests);
}

ExperimentTable TableOf(const Outcomes& outcomes) {
  ExperimentTable table{.title = outcomes.setting.name,
                        .header = {"system", "TTFT ms", "P99", "TPOT ms", "latency ms", "P99",
                                   "adapter on device on arrival", "mean load ms", "decodes within 36 ms"},
                        .rows = {}};
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    const SimulationSummary& s = outcomes.Of(i);
    table.rows.push_back({std::string(kNames[i]), fmt::format("{:.1f}", s.ttft.mean), fmt::format("{:.0f}", s.ttft.p99),
                          fmt::format("{:.2f}", s.tpot.mean), fmt::format("{:.0f}", s.end_to_end.mean),
                          fmt::format("{:.0f}", s.end_to_end.p99), fmt::format("{:.1f} %", 100 * s.adapter_hit_share),
                          i == kCached || i == kHfPeft ? "at the start" : fmt::format("{:.1f}", s.mean_load_ms),
                          fmt::format("{:.1f} %", 100 * WithinTokenObjective(outcomes.systems[i]))});
  }
  return table;
}

// The notes give no numbers for these figures, only claims: CaraServe is close to CACHED, and closer than the others.
void CompareClose(const Outcomes& outcomes, const char* id, ExperimentResult& result) {
  const auto add = [&](const char* metric, const Summary SimulationSummary::*field) {
    const auto value = [&](std::size_t system) { return (outcomes.Of(system).*field).mean; };
    const auto over = [&](std::size_t system) { return ShowChange(Change(value(system), value(kCached))); };
    const double least = std::min(value(kOnDemand), value(kSLora)), ours = value(kCaraServe), best = value(kCached);
    const bool close = Change(ours, best) < kDeadBand || std::abs(ours - best) < least - best;
    // Close to CACHED, and level with the better of the others, is not better than them.
    const bool level = ours > least && ours <= (1 + kDeadBand) * least;
    const Verdict verdict = close && level ? Verdict::kNoEffect : VerdictOfClaim(close && ours <= least);
    result.comparison.push_back(
        {.id = id,
         .what = fmt::format("{}: mean {}, relative to CACHED", outcomes.setting.name, metric),
         .reported = "CaraServe close to CACHED, better than ONDMD and S-LoRA",
         .ours = fmt::format("CaraServe {}, S-LoRA {}, ONDMD {}", over(kCaraServe), over(kSLora), over(kOnDemand)),
         .verdict = verdict});
  };
  add("TTFT", &SimulationSummary::ttft);
  add("TPOT", &SimulationSummary::tpot);
  add("latency", &SimulationSummary::end_to_end);
  const auto within = [&](std::size_t system) {
    return fmt::format("{} {:.1f} %", kNames[system], 100 * WithinTokenObjective(outcomes.systems[system]));
  };
  result.comparison.push_back(
      {.id = id,
       .what =
           fmt::format("{}: requests whose decoding keeps {:g} ms per token", outcomes.setting.name, kTokenObjectiveMs),
       .reported = "not reported for one server",
       .ours = fmt::format("{}, {}, {}, {}", within(kCaraServe), within(kSLora), within(kOnDemand), within(kCached))});
}

ExperimentPlot PlotOf(const std::vector<Outcomes>& all, const char* name, const char* title,
                      const Summary SimulationSummary::*field) {
  DotChart chart{
      .title = title, .subtitle = "mean over the requests, simulated", .x_label = "ms", .series = {}, .rows = {}};
  constexpr std::size_t kPlotted = kCached + 1;
  for (std::size_t i = 0; i < kPlotted; ++i) chart.series.emplace_back(kNames[i]);
  for (const Outcomes& outcomes : all) {
    DotChart::Row row{.name = outcomes.setting.name, .dots = {}};
    for (std::size_t i = 0; i < kPlotted; ++i) {
      const double value = (outcomes.Of(i).*field).mean;
      row.dots.push_back({.value = value, .low = value, .high = value});
    }
    chart.rows.push_back(std::move(row));
  }
  return {.name = name, .title = chart.title, .svg = RenderSvg(chart)};
}

std::string SettingText(const ExperimentContext& context) {
  return fmt::format(
      "A10 24 GB and PCIe 4.0 by their data sheets, because the notes give no measured load or step. {} adapters on Q, "
      "K and V in host memory. S-LoRA computes with MBGMV, the other systems with BGMV, as in the paper. Assumptions "
      "of this project, where the notes say nothing: prompts of 128 and answers of 64 tokens on average (log-normal); "
      "the number of adapters; uniform popularity where arrivals are Poisson. The production workload: {}. A prompt "
      "interrupts decoding and has a step of its own (figure 2). ONDMD: that step waits for its adapters. CaraServe, "
      "with the code that `serve` plans with: a request begins at once; a layer whose rows have not arrived on the "
      "device yet is computed with up to 16 cores of the host, at half of their published rate, and the device takes "
      "over at the first layer that has arrived. The host computes beside the base model's product of the same input "
      "(Q, K and V: a quarter of a layer's products), and only what takes longer counts; the copies of activations are "
      "beside nothing. Presets: `ondmd`, `s-lora` (that of all documents), `caraserve`, `cached`, `punica`, `hf-peft`. "
      "An adapter leaves the device with its last request. CACHED and HF-PEFT hold all adapters from the start, in "
      "additional memory.",
      kAdapters,
      HasFunctionTrace(context) ? "the 128 functions of Azure Functions' trace of 2021 that are invoked most"
                                : "recorded clients of ServeGen (bursts, skew), an adapter each, in place of MAF");
}

Result<ExperimentResult> RunSingle(ExperimentContext& context) {
  ASSIGN_OR_RETURN(const auto all, SimulateSettings(context, {{.name = "9 /s, rank 64"},
                                                              {.name = "rank 64, 3 GB/s link", .link = 3e9}}));
  constexpr std::array kCompared = {kOnDemand, kSLora, kCaraServe, kCached};
  ASSIGN_OR_RETURN(const auto some,
                   SimulateSome(context, {{.name = "6 /s", .rate = 6}, {.name = "rank 32", .rank = 32}}, kCompared));
  ExperimentResult result{.setting = SettingText(context)};
  CompareClose(all[0], "ca-10", result);
  std::vector<RowsUnder> under;
  for (const Outcomes* outcomes : {&all[0], &all[1], &some[0], &some[1]}) {
    Outcomes same = *outcomes;
    same.setting.name = all[0].setting.name;
    ExperimentResult rows;
    CompareClose(same, "ca-10", rows);
    under.push_back({outcomes->setting.name, std::move(rows.comparison)});
  }
  for (const Outcomes& outcomes : all) result.tables.push_back(TableOf(outcomes));
  result.tables.push_back(TableOfAssumptions(under));
  result.plots = {PlotOf(all, "ttft", "Time to first token", &SimulationSummary::ttft),
                  PlotOf(all, "latency", "Latency of a request", &SimulationSummary::end_to_end)};
  const auto over = [&](std::size_t setting, std::size_t system) {
    return ShowChange(Change(all[setting].Of(system).ttft.mean, all[setting].Of(kCached).ttft.mean));
  };
  result.remarks = {fmt::format(
      "Loading an adapter of rank 64 takes {:.1f} ms at the published rate of the link, and {:.1f} ms at 3 GB/s "
      "(second "
      "table, the only change). Mean TTFT over CACHED: ONDMD {} and {}, S-LoRA {} and {}, CaraServe {} and {}.",
      all[0].Of(kOnDemand).mean_load_ms, all[1].Of(kOnDemand).mean_load_ms, over(0, kOnDemand), over(1, kOnDemand),
      over(0, kSLora), over(1, kSLora), over(0, kCaraServe), over(1, kCaraServe))};
  return result;
}

// Challenge 1: the cold starts' part of the time to the first token, by traffic and by rank.
Status CompareColdStarts(ExperimentContext& context, ExperimentResult& result) {
  std::vector<Setting> settings;
  constexpr std::array kTraffic = {3.0, 6.0, 9.0, 12.0};
  constexpr std::array<std::int64_t, 5> kRanks = {8, 16, 32, 64, 128};
  for (const double rate : kTraffic) settings.push_back({.name = fmt::format("{:g} /s, rank 64", rate), .rate = rate});
  for (const std::int64_t rank : kRanks) settings.push_back({.name = fmt::format("9 /s, rank {}", rank), .rank = rank});
  std::vector<SimulationJob> jobs;
  for (const Setting& setting : settings) {
    for (const std::size_t system : {kOnDemand, kCached}) {
      ASSIGN_OR_RETURN(jobs.emplace_back(), MakeJob(context, setting, kPresets[system]));
    }
  }
  ASSIGN_OR_RETURN(const auto all, SimulateAll(context, jobs));
  ExperimentTable table{.title = "Cold starts against traffic and rank: ONDMD beside CACHED",
                        .header = {"setting", "awaited loads/s", "mean load ms", "TTFT ms: ONDMD", "CACHED",
                                   "cold starts' share of the TTFT", "TPOT ms: ONDMD", "CACHED"},
                        .rows = {}};
  std::vector<double> shares, loads;
  for (std::size_t i = 0; i < settings.size(); ++i) {
    const SimulationSummary &cold = all[2 * i].summary, &warm = all[2 * i + 1].summary;
    shares.push_back(1 - warm.ttft.mean / cold.ttft.mean);
    loads.push_back(cold.mean_load_ms);
    table.rows.push_back({settings[i].name,
                          fmt::format("{:.2f}", static_cast<double>(cold.awaited_loads) / cold.seconds),
                          fmt::format("{:.1f}", cold.mean_load_ms), fmt::format("{:.1f}", cold.ttft.mean),
                          fmt::format("{:.1f}", warm.ttft.mean), fmt::format("{:.1f} %", 100 * shares.back()),
                          fmt::format("{:.2f}", cold.tpot.mean), fmt::format("{:.2f}", warm.tpot.mean)});
  }
  const auto grows = [](std::span<const double> values) {
    return std::adjacent_find(values.begin(), values.end(), std::greater_equal<>()) == values.end();
  };
  const auto show = [](std::span<const double> values, double factor, const char* unit) {
    std::string text;
    for (const double value : values) text += fmt::format("{}{:.1f}", text.empty() ? "" : ", ", factor * value);
    return text + unit;
  };
  const std::span<const double> by_traffic = std::span(shares).first(kTraffic.size()),
                                by_rank = std::span(loads).subspan(kTraffic.size());
  result.comparison.push_back(ClaimRow("ca-13", "cold starts' share of the TTFT at 3, 6, 9 and 12 requests/s",
                                       "grows with the traffic", show(by_traffic, 100, " %"), grows(by_traffic)));
  result.comparison.push_back(ClaimRow("ca-13", "time of a load, ranks 8, 16, 32, 64 and 128", "grows with the rank",
                                       show(by_rank, 1, " ms"), grows(by_rank)));
  result.tables.push_back(std::move(table));
  return Ok{};
}

Result<ExperimentResult> RunSensitivity(ExperimentContext& context) {
  ASSIGN_OR_RETURN(
      const auto all,
      SimulateSettings(context, {{.name = "9 /s, rank 32", .rank = 32},
                                 {.name = "6 /s, rank 64, production workload", .rate = 6, .skewed = true}}));
  ExperimentResult result{.setting = SettingText(context)};
  for (const Outcomes& outcomes : all) {
    CompareClose(outcomes, "ca-13", result);
    result.tables.push_back(TableOf(outcomes));
  }
  result.plots = {PlotOf(all, "ttft", "Time to first token", &SimulationSummary::ttft)};
  RETURN_IF_ERROR(CompareColdStarts(context, result));
  result.remarks = {
      fmt::format("A load takes {:.1f} ms with rank 32 and {:.1f} ms with rank 64. On arrival, {:.1f} % of the "
                  "requests of ONDMD find "
                  "their adapter on the device with uniform popularity, and {:.1f} % in the production workload.",
                  all[0].Of(kOnDemand).mean_load_ms, all[1].Of(kOnDemand).mean_load_ms,
                  100 * all[0].Of(kOnDemand).adapter_hit_share, 100 * all[1].Of(kOnDemand).adapter_hit_share)};
  return result;
}

// The latency against ONDMD, for each of the two machines: `all` begins with them.
std::vector<ComparisonRow> LatencyRows(std::span<const Outcomes> all, std::span<const Outcomes> under) {
  constexpr std::array kReported = {-0.202, -0.185};
  std::vector<ComparisonRow> rows;
  for (std::size_t i = 0; i < kReported.size(); ++i) {
    rows.push_back(ChangeRow("ca-15", all[i].setting.name + ": mean latency against ONDMD", kReported[i],
                             Change(under[i].Of(kCaraServe).end_to_end.mean, under[i].Of(kOnDemand).end_to_end.mean)));
  }
  return rows;
}

Result<ExperimentResult> RunLarge(ExperimentContext& context) {
  const Setting small{.name = "13B on 2 A10", .model = "llama-13b", .gpus = 2, .rate = 6},
      large{.name = "70B on 4 A100", .device = "a100-80", .model = "llama-70b", .gpus = 4, .rate = 6};
  Setting slow_small = small, slow_large = large, wide_small = small, wide_large = large;
  slow_small.name = "13B, links of 3 GB/s";
  slow_small.link = slow_large.link = 3e9;
  wide_small.rank = wide_large.rank = 256;
  ASSIGN_OR_RETURN(const auto all, SimulateSettings(context, {small, large, slow_small}));
  constexpr std::array kCompared = {kOnDemand, kCaraServe};
  ASSIGN_OR_RETURN(const auto some, SimulateSome(context, {slow_small, slow_large, wide_small, wide_large}, kCompared));
  ExperimentResult result{.setting = SettingText(context)};
  const std::vector<ComparisonRow> latencies = LatencyRows(all, all);
  const std::array<RowsUnder, 3> under = {{{"as the document is read", latencies},
                                           {"links of 3 GB/s", LatencyRows(all, some)},
                                           {"rank 256", LatencyRows(all, std::span(some).subspan(2))}}};
  for (std::size_t i = 0; i < latencies.size(); ++i) {
    result.comparison.push_back(latencies[i]);
    const double cold = all[i].Of(kOnDemand).ttft.mean - all[i].Of(kCached).ttft.mean,
                 assisted = all[i].Of(kCaraServe).ttft.mean - all[i].Of(kCached).ttft.mean;
    result.comparison.push_back(
        ReportedAs(AtMostRow("ca-15", all[i].setting.name + ": cold-start overhead (TTFT over CACHED) against ONDMD",
                             -50, 100 * Change(assisted, cold), {" %", 1}),
                   "more than halved"));
  }
  for (const Outcomes& outcomes : all) result.tables.push_back(TableOf(outcomes));
  result.tables.push_back(TableOfAssumptions(under));
  result.plots = {PlotOf(all, "latency", "Latency of a request", &SimulationSummary::end_to_end)};
  const double slow = Change(all[2].Of(kCaraServe).end_to_end.mean, all[2].Of(kOnDemand).end_to_end.mean);
  result.remarks = {
      fmt::format("Each device loads its part of an adapter over its own link: {:.1f} ms for 13B. With links of 3 GB/s "
                  "each (third table, the only change) a load takes {:.1f} ms, and the latency against ONDMD is {}.",
                  all[0].Of(kOnDemand).mean_load_ms, all[2].Of(kOnDemand).mean_load_ms, ShowChange(slow))};
  return result;
}

constexpr std::array kExperiments = std::to_array<Experiment>({
    {"ca-10", "ca-10", "Prefill assisted by the CPU", "CaraServe, figures 10 and 11", RunSingle},
    {"ca-13", "ca-13", "Rank and trace", "CaraServe, figure 13", RunSensitivity},
    {"ca-15", "ca-15", "Several devices", "CaraServe, figure 15", RunLarge},
});

}  // namespace

Result<SimulationJob> MakeCaraServeJob(const ExperimentContext& context, std::string_view preset, bool recorded) {
  ASSIGN_OR_RETURN(SimulationJob job, MakeJob(context, {.skewed = recorded}, preset));
  job.options.device.model.shape = LoraCostShape::kMbgmv;    // the comparison of presets uses one kernel shape
  ASSIGN_OR_RETURN(job.options.preset, FindPreset(preset));  // unchanged
  return job;
}

std::span<const Experiment> CaraServeExperiments() { return kExperiments; }

}  // namespace loramux
