// CaraServe (arXiv 2401.11240, from secondary notes on it): prefill assisted by the CPU, compared with loads on demand.
#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "lab/charts/dot_chart.h"
#include "lab/experiments/experiment.h"
#include "lab/experiments/workloads.h"

namespace loramux {
namespace {

// the notes: LoRA adapters are applied to the Q, K and V weight matrices
constexpr std::array kTargets = {LoraTarget::kQ, LoraTarget::kK, LoraTarget::kV};
// The systems. The last one is no system of the paper: S-LoRA if its steps waited for its loads.
enum System : std::size_t { kOnDemand, kSLora, kCaraServe, kCached, kHolding };
constexpr std::array<std::string_view, 5> kPresets = {"ondmd", "s-lora", "caraserve", "cached", "s-lora"};
constexpr std::array<std::string_view, 5> kNames = {"ONDMD", "S-LoRA", "CaraServe", "CACHED",
                                                    "S-LoRA, steps wait for loads"};
constexpr std::int64_t kAdapters = 128;

// One setting of the paper, simulated for all four systems.
struct Setting {
  std::string name;
  std::string_view device = "a10", model = "llama-7b";
  std::int64_t gpus = 1, rank = 64;
  double rate = 9;
  // the paper's "MAF-scaled": here recorded clients with bursts and skew; false: Poisson and uniform
  bool skewed = false;
  double link = 0;  // bytes per second to the device; 0: the published rate
};

Result<SimulationJob> MakeJob(const ExperimentContext& context, const Setting& setting, std::string_view preset) {
  ASSIGN_OR_RETURN(const DeviceShape device, FindDevice(setting.device));
  ASSIGN_OR_RETURN(const ModelShape model, FindModel(setting.model));
  SimulationJob job;
  ASSIGN_OR_RETURN(job.options.device, DescribeDevice(device, model, setting.gpus, 0.9, kTargets));
  ASSIGN_OR_RETURN(job.options.preset, FindPreset(preset));
  // All systems fill their steps alike and cost the host alike, so that they differ in cold starts only. S-LoRA's
  // adapters load during other requests' steps.
  if (preset == "s-lora") {
    job.options.preset.program = {};
    job.options.preset.spec.reserve_output = false;
    job.options.preset.spec.separate_phases = false;
    job.options.preset.spec.cold_start = ColdStart::kPassOver;
  }
  job.options.device.model.shape = preset == "s-lora" ? LoraCostShape::kMbgmv : LoraCostShape::kBgmv;
  if (setting.link > 0) job.options.device.model.host_to_device.bytes_per_second = setting.link;
  // CACHED, the upper bound, has additional memory for its adapters.
  if (preset == "cached") job.options.device.device_pages += kAdapters * job.options.device.AdapterPages(setting.rank);
  job.options.seed = job.load.seed = context.seed;
  job.load = {.requests = context.Requests(3000),
              .rate = setting.rate,
              .input_mean = 128,
              .output_mean = 64,
              .max_input = 1024,
              .max_output = 512,
              .adapters = kAdapters,
              .ranks = {setting.rank},
              .popularity = Popularity::kUniform,
              .seed = context.seed};
  if (setting.skewed) {
    job.load.clients = context.Trace("servegen_m-small");
    job.load.clients_hour = 12;
    RETURN_IF_ERROR(ReadRecordings(job.load));
  }
  return job;
}

struct Outcomes {
  Setting setting;
  std::vector<SimulationOutcome> systems;  // ordered as kPresets
  const SimulationSummary& Of(std::size_t system) const { return systems[system].summary; }
};

Result<std::vector<Outcomes>> SimulateSettings(ExperimentContext& context, const std::vector<Setting>& settings) {
  std::vector<SimulationJob> jobs;
  for (const Setting& setting : settings) {
    for (const std::string_view preset : kPresets) {
      ASSIGN_OR_RETURN(jobs.emplace_back(), MakeJob(context, setting, preset));
    }
    jobs[jobs.size() - kPresets.size() + kHolding].options.preset.spec.cold_start = ColdStart::kHold;
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

// The share of requests within the notes' objective for decoding, 36 ms per token, from the arrival to the last token
// over the tokens of the answer: as the fleet's simulation counts it (ca-20).
constexpr double kTokenObjectiveMs = 36;
double WithinTokenObjective(const SimulationOutcome& outcome) {
  double within = 0, requests = 0;
  for (const RequestRecord& record : outcome.result.requests) {
    if (record.cancelled) continue;
    ++requests;
    if (record.refused) continue;
    const double total = static_cast<double>(record.EndToEnd()) / kNsPerMs;
    within += total / std::max(1, record.output_tokens) <= kTokenObjectiveMs;
  }
  return within / std::max(1.0, requests);
}

ExperimentTable TableOf(const Outcomes& outcomes) {
  ExperimentTable table{.title = outcomes.setting.name,
                        .header = {"system", "TTFT ms", "P99", "TPOT ms", "latency ms", "P99",
                                   "adapter on device on arrival", "mean load ms", "within 36 ms per token"},
                        .rows = {}};
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    const SimulationSummary& s = outcomes.Of(i);
    table.rows.push_back({std::string(kNames[i]), fmt::format("{:.1f}", s.ttft.mean), fmt::format("{:.0f}", s.ttft.p99),
                          fmt::format("{:.2f}", s.tpot.mean), fmt::format("{:.0f}", s.end_to_end.mean),
                          fmt::format("{:.0f}", s.end_to_end.p99), fmt::format("{:.1f} %", 100 * s.adapter_hit_share),
                          i == kCached ? "at the start" : fmt::format("{:.1f}", s.mean_load_ms),
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
       .what = fmt::format("{}: requests within {:g} ms per token", outcomes.setting.name, kTokenObjectiveMs),
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

std::string SettingText() {
  return fmt::format(
      "A10 24 GB and PCIe 4.0 by their data sheets, because the notes give no measured load or step. {} adapters on Q, "
      "K and V in host memory. S-LoRA computes with MBGMV, the other systems with BGMV, as in the paper. Assumptions "
      "of this project, where the notes say nothing: prompts of 128 and answers of 64 tokens on average (log-normal); "
      "the number of adapters; uniform popularity where arrivals are Poisson; in place of MAF, the recorded clients of "
      "ServeGen (bursts, skew), with one adapter per client. ONDMD: a step waits for the adapters of the requests that "
      "join it. CaraServe, with the code that `serve` plans with: a request "
      "begins at once; a layer whose rows have not arrived on the device yet is computed with 16 cores of the host, at "
      "half of their published rate, and the device takes over at the first layer that has arrived. The host computes "
      "beside the base model's product of the same input (Q, K and V: a quarter of a layer's products), and only what "
      "takes longer counts; the copies of activations are beside nothing. Presets: `ondmd`, `s-lora`, `caraserve`, "
      "`cached`. An adapter leaves the device with its last request. CACHED holds all adapters from the start, in "
      "additional memory.",
      kAdapters);
}

Result<ExperimentResult> RunSingle(ExperimentContext& context) {
  ASSIGN_OR_RETURN(const auto all, SimulateSettings(context, {{.name = "9 /s, rank 64"},
                                                              {.name = "rank 64, 3 GB/s link", .link = 3e9}}));
  ExperimentResult result{.setting = SettingText()};
  CompareClose(all[0], "ca-10", result);
  for (const Outcomes& outcomes : all) result.tables.push_back(TableOf(outcomes));
  result.plots = {PlotOf(all, "ttft", "Time to first token", &SimulationSummary::ttft),
                  PlotOf(all, "latency", "Latency of a request", &SimulationSummary::end_to_end)};
  const auto over = [&](std::size_t setting, std::size_t system, const Summary SimulationSummary::*field) {
    return ShowChange(Change((all[setting].Of(system).*field).mean, (all[setting].Of(kCached).*field).mean));
  };
  constexpr auto kTtft = &SimulationSummary::ttft, kTpot = &SimulationSummary::tpot;
  result.remarks = {
      fmt::format("Loading an adapter of 100 MB takes {:.1f} ms at the published rate, while steps take 30 ms and "
                  "more. This is all that a cold start costs, and all that the CPU can save. With a link of 3 GB/s "
                  "(second table, the only change) ONDMD's mean TTFT is {} over CACHED, and CaraServe's {}. The paper "
                  "calls its cold starts long, so its loads were probably of that kind.",
                  all[0].Of(kOnDemand).mean_load_ms, over(1, kOnDemand, kTtft), over(1, kCaraServe, kTtft)),
      "At the published rate, layers arrive faster than a prefill comes to them: the CPU computes only the first ones.",
      fmt::format(
          "Here S-LoRA loads adapters while other requests' steps run. The waiting request joins one step later "
          "(mean TTFT {} over CACHED), and other requests are not delayed (TPOT {}). CaraServe lets the request "
          "join with the next step, whose assisted layers the others share: better than S-LoRA in TTFT and "
          "latency, but {} in TPOT. If S-LoRA's steps waited for loads, as Chameleon describes it (the last "
          "rows), it would be as ONDMD: with equal ranks, both kernels cost the same.",
          over(0, kSLora, kTtft), over(0, kSLora, kTpot), over(0, kCaraServe, kTpot))};
  return result;
}

Result<ExperimentResult> RunSensitivity(ExperimentContext& context) {
  ASSIGN_OR_RETURN(const auto all,
                   SimulateSettings(context, {{.name = "9 /s, rank 32", .rank = 32},
                                              {.name = "6 /s, rank 64, clients", .rate = 6, .skewed = true}}));
  ExperimentResult result{.setting = SettingText()};
  for (const Outcomes& outcomes : all) {
    CompareClose(outcomes, "ca-13", result);
    result.tables.push_back(TableOf(outcomes));
  }
  result.plots = {PlotOf(all, "ttft", "Time to first token", &SimulationSummary::ttft)};
  result.remarks = {
      "Half of the rank halves the load time. With a skewed trace more adapters are on the device already, because "
      "other requests use them. As the paper says, the rank determines the cost of a cold start, and the trace how "
      "often one occurs."};
  return result;
}

Result<ExperimentResult> RunLarge(ExperimentContext& context) {
  ASSIGN_OR_RETURN(
      const auto all,
      SimulateSettings(context,
                       {{.name = "13B on 2 A10", .model = "llama-13b", .gpus = 2, .rate = 6},
                        {.name = "70B on 4 A100", .device = "a100-80", .model = "llama-70b", .gpus = 4, .rate = 6},
                        {.name = "13B, links of 3 GB/s", .model = "llama-13b", .gpus = 2, .rate = 6, .link = 3e9}}));
  ExperimentResult result{.setting = SettingText()};
  const std::array reported = {-0.202, -0.185};
  for (std::size_t i = 0; i < reported.size(); ++i) {
    const double ours = Change(all[i].Of(kCaraServe).end_to_end.mean, all[i].Of(kOnDemand).end_to_end.mean);
    result.comparison.push_back(
        ChangeRow("ca-15", all[i].setting.name + ": mean latency against ONDMD", reported[i], ours));
    const double cold = all[i].Of(kOnDemand).ttft.mean - all[i].Of(kCached).ttft.mean,
                 assisted = all[i].Of(kCaraServe).ttft.mean - all[i].Of(kCached).ttft.mean;
    result.comparison.push_back(
        ReportedAs(AtMostRow("ca-15", all[i].setting.name + ": cold-start overhead (TTFT over CACHED) against ONDMD",
                             -50, 100 * Change(assisted, cold), {" %", 1}),
                   "more than halved"));
  }
  for (const Outcomes& outcomes : all) result.tables.push_back(TableOf(outcomes));
  result.plots = {PlotOf(all, "latency", "Latency of a request", &SimulationSummary::end_to_end)};
  const double slow = Change(all[2].Of(kCaraServe).end_to_end.mean, all[2].Of(kOnDemand).end_to_end.mean);
  result.remarks = {
      fmt::format("With several devices, each loads its part of an adapter over its own link, so a load is short "
                  "({:.1f} ms for 13B). With links of 3 GB/s each (third table, the only change) the latency against "
                  "ONDMD is {}: the paper's loads must have been that slow.",
                  all[0].Of(kOnDemand).mean_load_ms, ShowChange(slow))};
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
