// Chameleon (MICRO '25): its adapter cache and its scheduler compared with S-LoRA. This file covers load, latency and
// loading; chameleon_policies.cc covers policies, chameleon_scale.cc scale.
#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "experiments/chameleon_testbed.h"
#include "report/line_chart.h"

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

// Other possible causes of the sustained load: each variant changes one thing.
struct Variant {
  std::string what;
  std::function<void(SimulationJob&)> change;
};
constexpr std::size_t kEveryStep = 1, kLanesTenth = 2, kQuickLink = 4, kHalfMemory = 7, kShortRun = 8, kSjf = 9,
                      kFifo = 10, kLonger = 13, kTight = 14, kSeeds = 17, kBothQuick = 19;  // indices into LoadVariants
void LetInAlwaysWithQuickLink(SimulationJob& job) {
  job.options.preset.shape.decode_turns = 1;
  job.options.device.model.host_to_device.bytes_per_second = kChameleonQuietLink;
}

std::vector<Variant> LoadVariants() {
  const auto has_lanes = [](const SimulationJob& job) { return job.options.preset.queue == "mlq"; };
  std::vector<Variant> variants = {
      {"as above", nullptr},
      {"S-LoRA also admits after every step", [](SimulationJob& job) { job.options.preset.shape.decode_turns = 1; }},
      {"lanes also admit only after every tenth step",
       [](SimulationJob& job) { job.options.preset.shape.decode_turns = 10; }},
      {"at most 3,072 prompt tokens per step",
       [](SimulationJob& job) { job.options.preset.whole_prompt_tokens = 3072; }},
      {"adapters of rank 128 load in 30 ms (figures 2 and 14)",
       [](SimulationJob& job) { job.options.device.model.host_to_device.bytes_per_second = kChameleonQuietLink; }},
      {"loads run during steps, not before them",
       [](SimulationJob& job) { job.options.preset.shape.cold_start = ColdStart::kPassOver; }},
      {"prompts and decodes in one step", [](SimulationJob& job) { job.options.preset.shape.separate_phases = false; }},
      {"half of the memory for keys, values and adapters",
       [](SimulationJob& job) {
         job.options.device.device_pages /= 2;
         LimitPromptsTogether(job);
       }},
      {"4,000 requests",
       [](SimulationJob& job) { job.load.requests = std::min<std::int64_t>(job.load.requests, 4000); }},
      {"shortest job first (uServe) instead of lanes",
       [=](SimulationJob& job) {
         if (has_lanes(job)) job.options.preset.queue = "sjf";
       }},
      {"FIFO instead of lanes",
       [=](SimulationJob& job) {
         if (has_lanes(job)) job.options.preset.queue = "fifo";
       }},
      {"lanes without the age limit of half the objective (30 s instead)",
       [](SimulationJob& job) { job.options.age_bound = 30 * kNsPerSecond; }},
      {"lengths predicted without error", [](SimulationJob& job) { job.options.predictor_accuracy = 1; }},
      {"lengths doubled, objective of 10 s",
       [](SimulationJob& job) {
         job.load.input_scale *= 2;
         job.load.output_scale *= 2;
         SetObjective(job, 2 * job.options.slo);
       }},
  };
  for (const int seconds : {1, 2, 3}) {
    variants.push_back({fmt::format("objective of {} s", seconds),
                        [seconds](SimulationJob& job) { SetObjective(job, seconds * kNsPerSecond); }});
  }
  for (const std::uint64_t more : {1, 2}) {
    variants.push_back({"another seed", [more](SimulationJob& job) { job.load.seed = job.options.seed += more; }});
  }
  variants.push_back({"S-LoRA admits after every step, and rank 128 loads in 30 ms", LetInAlwaysWithQuickLink});
  return variants;
}

Result<std::vector<std::array<double, 4>>> SustainedOf(ExperimentContext& context,
                                                       const std::vector<Variant>& variants) {
  std::vector<ChameleonSetting> settings;
  for (const Variant& variant : variants) {
    for (const std::string_view system : kSystems)
      settings.push_back({.preset = system, .rate = 10, .change = variant.change});
  }
  ASSIGN_OR_RETURN(const auto jobs, MakeChameleonJobs(context, settings));
  ASSIGN_OR_RETURN(const auto loads, FindLoads(context, jobs));
  std::vector<std::array<double, 4>> rates(variants.size());
  for (std::size_t i = 0; i < loads.size(); ++i) rates[i / kSystems.size()][i % kSystems.size()] = loads[i].rate;
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

void AddVariants(const std::vector<Variant>& variants, const std::vector<std::array<double, 4>>& rates,
                 ExperimentResult& result) {
  ExperimentTable table{"Sustained load (RPS), and its causes",
                        {"", "S-LoRA", "scheduler only", "cache only", "both", "both / S-LoRA"},
                        {}};
  for (std::size_t i = 0; i < variants.size(); ++i) {
    std::vector<std::string>& row = table.rows.emplace_back();
    row.push_back(variants[i].what);
    for (const double rate : rates[i]) row.push_back(fmt::format("{:.2f}", rate));
    row.push_back(ShowFactor(rates[i][kChameleon] / std::max(1e-9, rates[i][kSLora])));
  }
  result.tables.push_back(std::move(table));
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

// The change of Chameleon against S-LoRA at 6 RPS, with admission after every step and the quick link for both: the
// settings that reproduce figure 11's gain at low load.
struct QuietGain {
  double tail = 0, median = 0;
};
Result<QuietGain> RunQuiet(ExperimentContext& context) {
  const auto quick = [](SimulationJob& job) { LetInAlwaysWithQuickLink(job); };
  const std::vector<ChameleonSetting> settings = {{.preset = "s-lora", .rate = 6, .change = quick},
                                                  {.preset = "chameleon", .rate = 6, .change = quick}};
  ASSIGN_OR_RETURN(const auto jobs, MakeChameleonJobs(context, settings));
  ASSIGN_OR_RETURN(const auto outcomes, SimulateAll(context, jobs));
  const Summary &base = outcomes[0].summary.ttft, &ours = outcomes[1].summary.ttft;
  return QuietGain{.tail = Change(ours.p99, base.p99), .median = Change(ours.p50, base.p50)};
}

std::vector<std::string> LoadRemarks(const std::vector<std::array<double, 4>>& rates, const LoadCurves& at,
                                     const QuietGain& quiet) {
  const auto row = [&](std::size_t variant) {
    const auto& r = rates[variant];
    return fmt::format("{:.2f}, {:.2f}, {:.2f}, {:.2f}", r[kSLora], r[kNoCache], r[kNoSched], r[kChameleon]);
  };
  const auto factor = [&](std::size_t variant) {
    return ShowFactor(rates[variant][kChameleon] / std::max(1e-9, rates[variant][kSLora]));
  };
  return {
      fmt::format("Most of the difference comes from the loop. S-LoRA's own router (source: `RouterManager._step`, "
                  "`max_wait_tokens` = 10) admits requests after every tenth decode step and prefetches at the sixth "
                  "and the eighth. Chameleon's scheduler works on every iteration (4.1). If S-LoRA admits after every "
                  "step, the sustained load is {} RPS (S-LoRA, scheduler, cache, both) and the factor {}. With "
                  "S-LoRA's loop it is {}, and the factor {}. With S-LoRA's loop the slowdowns of section 3.2 (ch-14) "
                  "and the shares of figure 16 (ch-15) also agree with the paper, without a change to any constant.",
                  row(kEveryStep), factor(kEveryStep), row(0), factor(0)),
      fmt::format("The length of a run matters too. In 4,000 requests, five minutes, S-LoRA's queue has no time to "
                  "grow, and S-LoRA seems to sustain {:.2f} RPS rather than {:.2f}: {} instead of {}. The rows use the "
                  "whole trace, each request once. Two further seeds give {} and {}.",
                  rates[kShortRun][kSLora], rates[0][kSLora], factor(kShortRun), factor(0), factor(kSeeds),
                  factor(kSeeds + 1)),
      fmt::format(
          "The cache alone and both parts together are equal, where the paper has 1.2x and 1.5x. Without the loads, "
          "both reach the limit of this A40's arithmetic. Admission after every tenth step computes more prompts "
          "together, so the weights are read less often for them; with lanes that admit in this way the loads are {}. "
          "In that loop, lanes gain nothing ({:.2f} against {:.2f}). With admission after every step, FIFO instead of "
          "lanes ends at {:.2f}, shortest job first at {:.2f}, and both parts together at {:.2f}.",
          row(kLanesTenth), rates[kLanesTenth][kChameleon], rates[kLanesTenth][kNoSched], rates[kFifo][kChameleon],
          rates[kSjf][kChameleon], rates[0][kChameleon]),
      fmt::format(
          "The scheduler has an effect where the objective is tight: at 3 s {}, at 2 s {}, at 1 s {}. The paper's 5 s "
          "are five times a request's time, which for TTFT alone is about 20 times the P99 of a server at low load.",
          row(kTight + 2), row(kTight + 1), row(kTight)),
      fmt::format("Where memory is short, lanes do not help: with half of it {}, with doubled lengths {}. Every step "
                  "then admits only the one or two requests for which memory has just become free, and reads all "
                  "weights for their prompts; admission after every tenth step takes ten times as many at once. The "
                  "paper's \"by 12.5 RPS GPU memory is fully used\" does not hold here: at 0.165 of the lengths about "
                  "50 requests run at 12.5 RPS. They hold a sixth of the memory, and all adapters a third.",
                  row(kHalfMemory), row(kLonger)),
      fmt::format("The paper's statements about loading contradict each other. P99 TTFT at 8 RPS grows by 1.69 and "
                  "2.60 with 50 and 500 adapters (section 3.2), and a load is 68 % of TTFT for 256 MB on four GPUs "
                  "(figure 5): about 1 GB/s. Loads of at most 30 ms (figure 14), 17.5 % of TTFT (figure 2) and a gain "
                  "of 14 % at 6 RPS (figure 11) mean 9 GB/s. With the first rate, used here, the gain at low load is "
                  "larger than reported. With the second, the sustained load is {}, factor {}: loads that quick cannot "
                  "be the reason why the paper's S-LoRA stops at 8.6 RPS.",
                  row(kQuickLink), factor(kQuickLink)),
      fmt::format("At low load the gain is larger than reported, because S-LoRA's requests wait for the next admission "
                  "(half of ten steps on average) and for loads, and Chameleon's for neither. A gain of 14 % at 6 RPS "
                  "needs quick loads, and either a Chameleon that waits for admission as S-LoRA does or an S-LoRA that "
                  "does not. If S-LoRA admits after every step, with the quick link, the gain is {} (P99) and {} "
                  "(P50), but then the factor of the load is {}. No single setting gives both.",
                  ShowChange(quiet.tail), ShowChange(quiet.median), factor(kBothQuick)),
      fmt::format("TBT: the paper does not say whether its P99 covers all gaps or the means of requests. By the second "
                  "reading Chameleon has {:.0f} ms at 8 RPS and S-LoRA {:.0f} ms. Single gaps contain whole prompts of "
                  "other requests, with adapter kernels as slow as in figure 2; S-LoRA's gaps also contain the loads "
                  "for newly admitted requests.",
                  at.At(1, kChameleon).summary.tpot.p99, at.At(1, kSLora).summary.tpot.p99)};
}

Result<ExperimentResult> RunLoad(ExperimentContext& context) {
  const std::vector<Variant> variants = LoadVariants();
  ASSIGN_OR_RETURN(const auto rates, SustainedOf(context, variants));
  const double base = rates[0][kSLora];
  ASSIGN_OR_RETURN(const LoadCurves at, RunCurves(context, {6, 8, 9}));
  ASSIGN_OR_RETURN(const LoadCurves relative,
                   RunCurves(context, {kLowLoad * base, kMediumLoad * base, kHighLoad * base}));
  ASSIGN_OR_RETURN(const LoadCurves curves, RunCurves(context, {2, 4, 6, 8, 9, 10, 11, 11.5, 12, 12.5, 13}));
  ASSIGN_OR_RETURN(const SimulationJob job, MakeChameleonJob(context, {}));
  ExperimentResult result{.setting = DescribeChameleonTestbed(job)};
  CompareLatencies(at, false, result);
  CompareLatencies(relative, true, result);
  CompareSustained(rates[0], result);
  for (const std::size_t system : {kSLora, kChameleon}) {
    const SimulationSummary& summary = at.At(1, system).summary;
    const auto under = [&](const char* what, double ms) {
      result.comparison.push_back(AtMostRow(
          "ch-12", fmt::format("P99 time between tokens at 8 RPS, {}: {}", what, kSystems[system]), 150, ms, {" ms"}));
    };
    under("mean of each request", summary.tpot.p99);
    under("every gap", summary.between_tokens.p99);
  }
  CompareSquashes(curves, result);
  AddVariants(variants, rates, result);
  AddCurves(curves, result);
  ASSIGN_OR_RETURN(const QuietGain quiet, RunQuiet(context));
  result.remarks = LoadRemarks(rates, at, quiet);
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

// Section 3.2: adapters of rank 32, uniform popularity, 8 RPS: the slowdown of many adapters against one.
Status AddCalibration(ExperimentContext& context, ExperimentResult& result) {
  const std::array<std::int64_t, 3> adapters = {1, 50, 500};
  const std::array<double, 2> links = {kChameleonLink, kChameleonQuietLink};
  std::vector<ChameleonSetting> settings;
  for (const double link : links) {
    for (const std::int64_t count : adapters) {
      settings.push_back({.preset = "s-lora", .rate = 8, .adapters = count, .change = [link](SimulationJob& job) {
                            job.load.ranks = {32};
                            job.load.popularity = Popularity::kUniform;
                            job.options.device.model.host_to_device.bytes_per_second = link;
                          }});
    }
  }
  ASSIGN_OR_RETURN(const auto jobs, MakeChameleonJobs(context, settings));
  ASSIGN_OR_RETURN(const auto outcomes, SimulateAll(context, jobs));
  ExperimentTable table{"Section 3.2: P99 TTFT of S-LoRA at 8 RPS, rank 32",
                        {"link GB/s", "1 adapter ms", "50 adapters", "500 adapters"},
                        {}};
  for (std::size_t i = 0; i < links.size(); ++i) {
    const double one = outcomes[3 * i].summary.ttft.p99;
    table.rows.push_back({fmt::format("{:.2f}", links[i] / 1e9), fmt::format("{:.0f}", one),
                          ShowFactor(outcomes[3 * i + 1].summary.ttft.p99 / one),
                          ShowFactor(outcomes[3 * i + 2].summary.ttft.p99 / one)});
  }
  result.comparison.push_back({.id = "ch-14",
                               .what = "section 3.2, the source of the link's rate: 50 and 500 adapters against one",
                               .reported = "1.69x, 2.60x",
                               .ours = table.rows[0][2] + ", " + table.rows[0][3]});
  result.tables.push_back(std::move(table));
  return Ok{};
}

Result<ExperimentResult> RunLoading(ExperimentContext& context) {
  const auto quiet = [](SimulationJob& job) {
    job.options.device.model.host_to_device.bytes_per_second = kChameleonQuietLink;
  };
  const std::vector<ChameleonSetting> settings = {{.preset = "s-lora", .rate = 8},
                                                  {.preset = "chameleon", .rate = 8},
                                                  {.preset = "s-lora", .rate = 8, .change = quiet},
                                                  {.preset = "chameleon", .rate = 8, .change = quiet}};
  const std::array<const char*, 4> names = {"s-lora", "chameleon", "s-lora, 30 ms link", "chameleon, 30 ms link"};
  ASSIGN_OR_RETURN(const auto jobs, MakeChameleonJobs(context, settings));
  ASSIGN_OR_RETURN(const auto outcomes, SimulateAll(context, jobs));
  ExperimentResult result{.setting = DescribeChameleonTestbed(jobs.front())};
  ExperimentTable table{"Adapter load time on the critical path at 8 RPS (ms)",
                        {"system", "hits", "no wait", "P50", "P75", "P90", "P99", "max"},
                        {}};
  Chart chart{.title = "Adapter load time on the critical path",
              .subtitle = "share of requests that wait at most this long, 8 RPS, simulated",
              .x_label = "ms",
              .y_label = "% of requests",
              .lines = {}};
  std::array<std::vector<double>, 4> loads;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    loads[i] = LoadsOf(outcomes[i]);
    const auto none = std::upper_bound(loads[i].begin(), loads[i].end(), 0.0) - loads[i].begin();
    table.rows.push_back(
        {names[i], fmt::format("{:.1f} %", 100 * outcomes[i].summary.adapter_hit_share),
         fmt::format("{:.1f} %", 100.0 * static_cast<double>(none) / static_cast<double>(loads[i].size())),
         fmt::format("{:.1f}", Quantile(loads[i], 0.5)), fmt::format("{:.1f}", Quantile(loads[i], 0.75)),
         fmt::format("{:.1f}", Quantile(loads[i], 0.9)), fmt::format("{:.1f}", Quantile(loads[i], 0.99)),
         fmt::format("{:.1f}", Quantile(loads[i], 1))});
    ChartLine& line = chart.lines.emplace_back(ChartLine{.name = names[i], .points = {}});
    for (int percent = 0; percent <= 100; ++percent)
      line.points.emplace_back(Quantile(loads[i], percent / 100.0), percent);
  }
  const double hits = outcomes[1].summary.adapter_hit_share;
  result.comparison.push_back(
      ValueRow("ch-14", "Chameleon: requests with their adapter on the device", 75, 100 * hits, {" %", 1}));
  const auto row = [&](const char* what, double reported, double ours) {
    result.comparison.push_back(
        ReportedAs(ValueRow("ch-14", what, reported, ours, {" ms", 1}), fmt::format("up to {:g} ms", reported)));
  };
  row("S-LoRA: loads on the critical path, P99", 30, Quantile(loads[0], 0.99));
  row("S-LoRA: loads on the critical path, P99, with the link of figures 2 and 14", 30, Quantile(loads[2], 0.99));
  const auto misses = [&](std::size_t i) {  // requests that waited for their adapter
    return std::vector<double>(std::upper_bound(loads[i].begin(), loads[i].end(), 0.0), loads[i].end());
  };
  row("Chameleon: misses, P99", 6, Quantile(misses(1), 0.99));
  row("Chameleon: misses, P99, with the link of figures 2 and 14", 6, Quantile(misses(3), 0.99));
  result.tables.push_back(std::move(table));
  result.plots.push_back({"cdf", chart.title, RenderSvg(chart)});
  RETURN_IF_ERROR(AddCalibration(context, result));
  result.remarks = {
      "Absolute load times follow from the link's rate. At the rate that fits the slowdowns of section 3.2, the "
      "largest adapters take 0.3 s to load. At the rate of figures 2 and 14, the slowdowns of section 3.2 do not "
      "appear (last table). Both cannot be true.",
      "All 100 adapters together take 10 GB and fit beside the requests at 8 RPS. So Chameleon's hits are those of a "
      "cache that evicts nothing: each adapter misses once. The paper's 75 % implies less idle memory than its 48 GB "
      "card has here."};
  return result;
}

constexpr std::array kExperiments = std::to_array<Experiment>({
    {"ch-11", "ch-11, ch-11b, ch-12, ch-13, ch-sq", "Latency and load sustained", "Chameleon 5.2, figures 11 to 13",
     RunLoad},
    {"ch-14", "ch-14", "Adapter loading on the critical path", "Chameleon 5.2.5 and 3.2, figure 14", RunLoading},
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
});

}  // namespace

std::span<const Experiment> ChameleonExperiments() { return kExperiments; }

}  // namespace loramux
