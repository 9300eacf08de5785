// Chameleon 5.3 and 5.4: queue orders, eviction, prefetching, predictions, lanes.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "experiments/chameleon_testbed.h"
#include "report/line_chart.h"

namespace loramux {
namespace {

double MsOf(TimeNs time) { return static_cast<double>(time) / kNsPerMs; }

std::vector<double> TtftsOfRank(const SimulationOutcome& outcome, const Workload& workload, std::int64_t rank) {
  std::vector<double> ms;
  for (const RequestRecord& record : outcome.result.requests) {
    const bool wanted = record.adapter >= 0 && workload.adapter_ranks[static_cast<std::size_t>(record.adapter)] == rank;
    if (wanted && !record.refused) ms.push_back(MsOf(record.Ttft()));
  }
  return ms;
}

// The queueing of one size class. Classes are thirds of the requests by computed tokens, as in SummariseBySize.
struct QueueOfClass {
  double mean_ms = 0, share = 0;  // mean wait for admission; share: of the class's total end-to-end time
  double p99_ttft_ms = 0;
};
std::array<QueueOfClass, 3> QueueBySize(const SimulationOutcome& outcome) {
  std::vector<const RequestRecord*> records;
  for (const RequestRecord& record : outcome.result.requests) {
    if (!record.refused) records.push_back(&record);
  }
  std::stable_sort(records.begin(), records.end(), [](const RequestRecord* a, const RequestRecord* b) {
    return a->prompt_tokens + 2 * a->output_tokens < b->prompt_tokens + 2 * b->output_tokens;
  });
  std::array<QueueOfClass, 3> classes;
  for (std::size_t nth = 0; nth < classes.size(); ++nth) {
    const std::size_t begin = records.size() * nth / classes.size(), end = records.size() * (nth + 1) / classes.size();
    double waited = 0, total = 0;
    std::vector<double> ttfts;
    for (std::size_t i = begin; i < end; ++i) {
      ttfts.push_back(MsOf(records[i]->Ttft()));
      waited += MsOf(records[i]->first_scheduled - records[i]->arrival);
      total += MsOf(records[i]->EndToEnd());
    }
    classes[nth] = {.mean_ms = waited / static_cast<double>(std::max<std::size_t>(1, end - begin)),
                    .share = total > 0 ? waited / total : 0,
                    .p99_ttft_ms = Summarise(std::move(ttfts)).p99};
  }
  return classes;
}

// Returns the P99 TTFT of the requests that arrived in each window of the run: (seconds, milliseconds).
std::vector<std::pair<double, double>> TailOverTime(const SimulationOutcome& outcome) {
  constexpr std::int64_t kWindows = 16;
  TimeNs last = 1;
  for (const RequestRecord& record : outcome.result.requests) last = std::max(last, record.arrival + 1);
  std::vector<std::vector<double>> windows(kWindows);
  for (const RequestRecord& record : outcome.result.requests) {
    if (!record.refused)
      windows[static_cast<std::size_t>(record.arrival * kWindows / last)].push_back(MsOf(record.Ttft()));
  }
  std::vector<std::pair<double, double>> points;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const double middle = (static_cast<double>(i) + 0.5) * static_cast<double>(last) / kWindows / kNsPerSecond;
    if (!windows[i].empty()) points.emplace_back(middle, Summarise(windows[i]).p99);
  }
  return points;
}

// Returns the mean waits, in seconds, of the thirds of the requests by `size`. The thirds are formed within groups of
// `near` consecutive arrivals, because the trace's lengths, and with them the load, change over its hour. 0: thirds of
// the whole run.
using ThirdsOf = std::array<double, 3>;
template <typename Size>
ThirdsOf WaitsByThird(const SimulationOutcome& outcome, std::size_t near, Size size) {
  const std::vector<RequestRecord>& all = outcome.result.requests;
  if (near == 0 || near > all.size()) near = all.size();
  ThirdsOf waited = {}, count = {};
  for (std::size_t begin = 0; begin + near <= all.size(); begin += near) {
    std::vector<const RequestRecord*> records;
    for (std::size_t i = begin; i < begin + near; ++i) {
      if (!all[i].refused) records.push_back(&all[i]);
    }
    std::stable_sort(records.begin(), records.end(),
                     [&](const RequestRecord* a, const RequestRecord* b) { return size(*a) < size(*b); });
    for (std::size_t i = 0; i < records.size(); ++i) {
      const std::size_t third = i * waited.size() / records.size();
      waited[third] += static_cast<double>(records[i]->first_scheduled - records[i]->arrival) / kNsPerSecond;
      ++count[third];
    }
  }
  for (std::size_t third = 0; third < waited.size(); ++third) waited[third] /= std::max(1.0, count[third]);
  return waited;
}
std::int32_t OutputOf(const RequestRecord& record) { return record.output_tokens; }
std::int32_t TokensOf(const RequestRecord& record) { return record.prompt_tokens + 2 * record.output_tokens; }

// Returns the share of requests that started after a request that arrived later.
double OvertakenShare(const SimulationOutcome& outcome) {
  std::vector<const RequestRecord*> records;
  for (const RequestRecord& record : outcome.result.requests) {
    if (!record.refused) records.push_back(&record);
  }
  std::stable_sort(records.begin(), records.end(),
                   [](const RequestRecord* a, const RequestRecord* b) { return a->arrival < b->arrival; });
  TimeNs first = std::numeric_limits<TimeNs>::max();  // earliest start of a request that arrived later
  std::size_t overtaken = 0;
  for (std::size_t i = records.size(); i-- > 0;) {
    if (records[i]->first_scheduled > first) ++overtaken;
    first = std::min(first, records[i]->first_scheduled);
  }
  return static_cast<double>(overtaken) / static_cast<double>(std::max<std::size_t>(1, records.size()));
}

// Shortest-first with single protections against starvation changed.
struct SjfVariant {
  const char* name;
  std::string_view preset;
  double load;  // as a share of the load that S-LoRA sustains
  double accuracy = 0.8;
  TimeNs age_bound = 30 * kNsPerSecond;
};
constexpr TimeNs kNoAging = 1'000'000 * kNsPerSecond;
constexpr double kReportedStarving = 5.15 / 1.5;
constexpr const char* kReportedStarvingText = "5.15 / 1.5 s = 3.43x";
constexpr std::size_t kNear = 500;  // requests: half a minute
constexpr std::array kSjfVariants = std::to_array<SjfVariant>({
    {"FIFO", "s-lora", kHighLoad},
    {"SJF", "s-lora-sjf", kHighLoad},
    {"FIFO", "s-lora", kOverload},
    {"SJF", "s-lora-sjf", kOverload},
    {"SJF, exact length predictions", "s-lora-sjf", kOverload, 1},
    {"SJF, no aging", "s-lora-sjf", kOverload, 0.8, kNoAging},
    {"SJF, exact length predictions, no aging", "s-lora-sjf", kOverload, 1, kNoAging},
});

Status AddSjf(ExperimentContext& context, double base, ExperimentResult& result) {
  std::vector<ChameleonSetting> settings;
  for (const SjfVariant& variant : kSjfVariants) {
    settings.push_back(
        {.preset = variant.preset, .rate = variant.load * base, .change = [&variant](SimulationJob& job) {
           job.options.predictor_accuracy = variant.accuracy;
           job.options.age_bound = variant.age_bound;
         }});
  }
  ASSIGN_OR_RETURN(const auto jobs, MakeChameleonJobs(context, settings));
  ASSIGN_OR_RETURN(const auto outcomes, SimulateAll(context, jobs));
  ExperimentTable table{
      fmt::format("SJF: waits in s by size class (small / medium / large thirds). Classes by output length, which SJF "
                  "orders by, and by tokens; over the whole run, and over each {} consecutive requests",
                  kNear),
      {"RPS", "order", "started after a later request", "by output", fmt::format("by output, per {} requests", kNear),
       "by tokens", fmt::format("by tokens, per {} requests", kNear), "TTFT P99 s"},
      {}};
  const auto show = [](const ThirdsOf& waits) {
    return fmt::format("{:.2f} / {:.2f} / {:.2f}", waits[0], waits[1], waits[2]);
  };
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    table.rows.push_back(
        {fmt::format("{:.2f}", jobs[i].load.rate), kSjfVariants[i].name,
         fmt::format("{:.1f} %", 100 * OvertakenShare(outcomes[i])), show(WaitsByThird(outcomes[i], 0, OutputOf)),
         show(WaitsByThird(outcomes[i], kNear, OutputOf)), show(WaitsByThird(outcomes[i], 0, TokensOf)),
         show(WaitsByThird(outcomes[i], kNear, TokensOf)), fmt::format("{:.1f}", outcomes[i].summary.ttft.p99 / 1000)});
  }
  const auto waits = [&](std::size_t i) { return WaitsByThird(outcomes[i], kNear, OutputOf); };
  const auto factor = [&](std::size_t i) { return waits(i)[2] / std::max(1e-9, waits(i)[0]); };
  const std::size_t pure = kSjfVariants.size() - 1;
  result.comparison.push_back(ReportedAs(
      FactorRow("ch-16", "the same where memory is short, no aging, exact length predictions, thirds by output length",
                kReportedStarving, factor(pure)),
      kReportedStarvingText));
  result.remarks.push_back(fmt::format(
      "SJF (second table), with one change at a time. At {:.1f} RPS all waiting requests are admitted together at the "
      "next admission, so there is nothing to order: {:.1f} % start after a later request, under FIFO {:.1f} % (their "
      "adapters arrive later). At {:.1f} RPS memory is short and the order matters: {:.1f} % do. There, requests with "
      "large outputs wait {:.2f} times as long as requests with small ones of the same half minute. With exact length "
      "predictions it is {:.2f} times (a fifth of the predictions are wrong, by whole buckets, and put short requests "
      "behind long ones). Without aging as well it is {:.2f} times (a request that waits for 30 s is served first; the "
      "paper does not give uServe's setting), {:.2f} s against {:.2f}, and P99 TTFT is {:.0f} s. By tokens over the "
      "whole run the effect is smaller: most tokens are prompts, and the trace's outputs are shortest when its queue "
      "is longest.",
      jobs[1].load.rate, 100 * OvertakenShare(outcomes[1]), 100 * OvertakenShare(outcomes[0]), jobs[3].load.rate,
      100 * OvertakenShare(outcomes[3]), factor(3), factor(4), factor(pure), waits(pure)[2], waits(pure)[0],
      outcomes[pure].summary.ttft.p99 / 1000));
  result.tables.push_back(std::move(table));
  return Ok{};
}

}  // namespace

// ---------------------------------------------------------------- Figures 15 and 16

Result<ExperimentResult> RunChameleonQueueing(ExperimentContext& context) {
  const std::array<std::string_view, 4> systems = {"s-lora", "s-lora-sjf", "chameleon-nocache", "chameleon"};
  ASSIGN_OR_RETURN(const double base, SLoraLoad(context, {}));
  const std::array<double, 3> rates = {9, kHighLoad * base, kOverload * base};
  std::vector<ChameleonSetting> settings;
  for (const double rate : rates) {
    for (const std::string_view system : systems) settings.push_back({.preset = system, .rate = rate});
  }
  ASSIGN_OR_RETURN(const auto jobs, MakeChameleonJobs(context, settings));
  ASSIGN_OR_RETURN(const auto outcomes, SimulateAll(context, jobs));
  ExperimentResult result{.setting = DescribeChameleonTestbed(jobs.front())};
  std::array<std::array<QueueOfClass, 3>, 4> queues, overload;
  ExperimentTable table{"Queueing by size class (thirds by tokens)",
                        {"RPS", "system", "small ms", "medium ms", "large ms", "small share", "medium share",
                         "large share", "TTFT P50 ms", "P99 ms", "P99, small", "medium", "large"},
                        {}};
  Chart chart{.title = "P99 time to first token over time",
              .subtitle = fmt::format("{:.1f} requests per second, simulated", rates[1]),
              .x_label = "s",
              .y_label = "ms",
              .lines = {}};
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const auto queue = QueueBySize(outcomes[i]);
    std::vector<std::string> row = {fmt::format("{:.2f}", jobs[i].load.rate), std::string(systems[i % systems.size()])};
    for (const QueueOfClass& part : queue) row.push_back(fmt::format("{:.0f}", part.mean_ms));
    for (const QueueOfClass& part : queue) row.push_back(fmt::format("{:.1f} %", 100 * part.share));
    row.push_back(fmt::format("{:.0f}", outcomes[i].summary.ttft.p50));
    row.push_back(fmt::format("{:.0f}", outcomes[i].summary.ttft.p99));
    for (const QueueOfClass& part : queue) row.push_back(fmt::format("{:.0f}", part.p99_ttft_ms));
    table.rows.push_back(std::move(row));
    if (i >= 2 * systems.size()) overload[i - 2 * systems.size()] = queue;
    if (i < systems.size() || i >= 2 * systems.size()) continue;
    queues[i - systems.size()] = queue;
    chart.lines.push_back({.name = std::string(systems[i - systems.size()]), .points = TailOverTime(outcomes[i])});
  }
  const auto share = [&](const char* what, double reported, double ours) {
    result.comparison.push_back(ValueRow("ch-16", what, 100 * reported, 100 * ours, {" %", 1}));
  };
  share("FIFO: waiting share of the end-to-end time, small requests", 0.286, queues[0][0].share);
  share("FIFO: waiting share of the end-to-end time, large requests", 0.12, queues[0][2].share);
  const double starved = queues[1][2].mean_ms / std::max(1e-9, queues[1][0].mean_ms);
  result.comparison.push_back(ReportedAs(
      FactorRow("ch-16", "SJF: waiting time of large requests against small ones", kReportedStarving, starved),
      kReportedStarvingText));
  for (const std::size_t system : {2, 3}) {
    double most = 0;
    for (const QueueOfClass& part : queues[system]) most = std::max(most, part.share);
    result.comparison.push_back(AtMostRow(
        "ch-16", fmt::format("{}: waiting share of the end-to-end time, in the class with most", systems[system]), 8,
        100 * most, {" %", 1}));
  }
  const auto p99 = [&](std::size_t system) { return outcomes[systems.size() + system].summary.ttft.p99; };
  const bool ordered = std::min(p99(0), p99(1)) > p99(2) && p99(2) > p99(3);
  result.comparison.push_back({.id = "ch-15",
                               .what = "P99 TTFT: FIFO and SJF above MLQ, MLQ above MLQ with cache",
                               .reported = "yes",
                               .ours = fmt::format("{:.1f}, {:.1f}, {:.1f}, {:.1f} s", p99(0) / 1000, p99(1) / 1000,
                                                   p99(2) / 1000, p99(3) / 1000),
                               .verdict = VerdictOfClaim(ordered)});
  result.tables.push_back(std::move(table));
  result.plots.push_back({"over_time", chart.title, RenderSvg(chart)});
  RETURN_IF_ERROR(AddSjf(context, base, result));
  result.remarks.insert(
      result.remarks.end(),
      {fmt::format("The paper's 9 RPS are 105 % of the load that its S-LoRA sustains. The rows above are at 105 % of "
                   "what S-LoRA sustains here, {:.1f} RPS.",
                   rates[1]),
       fmt::format("By class: lanes shorten the P99 of small, medium and large requests alike (table), because at "
                   "{:.1f} RPS S-LoRA's requests wait for the next admission and for loads. At {:.1f} RPS the P99 of "
                   "small requests is {:.1f} s under lanes without the cache, {:.1f} s under FIFO and {:.1f} s under "
                   "SJF; that of large ones is {:.1f}, {:.1f} and {:.1f} s. There S-LoRA's loop, which admits more "
                   "prompts at once, has the higher throughput (ch-11). Lanes then behave like FIFO, because requests "
                   "that wait longer than the age limit (half the objective) are served first.",
                   rates[1], rates[2], overload[2][0].p99_ttft_ms / 1000, overload[0][0].p99_ttft_ms / 1000,
                   overload[1][0].p99_ttft_ms / 1000, overload[2][2].p99_ttft_ms / 1000,
                   overload[0][2].p99_ttft_ms / 1000, overload[1][2].p99_ttft_ms / 1000)});
  return result;
}

// ---------------------------------------------------------------- Figure 17

namespace {

struct EvictionCell {
  // ms; large: requests for adapters of rank 128
  double p50 = 0, p99 = 0, large_p99 = 0, hits = 0, gigabytes = 0;
};

Result<std::vector<EvictionCell>> RunEvictions(ExperimentContext& context,
                                               const std::vector<ChameleonSetting>& settings) {
  ASSIGN_OR_RETURN(const auto jobs, MakeChameleonJobs(context, settings));
  ASSIGN_OR_RETURN(const auto outcomes, SimulateAll(context, jobs));
  // All jobs have adapters of the same ranks.
  ASSIGN_OR_RETURN(const Workload workload, MakeWorkload(jobs.front().load));
  std::vector<EvictionCell> cells(settings.size());
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const SimulationSummary& summary = outcomes[i].summary;
    cells[i] = {.p50 = summary.ttft.p50,
                .p99 = summary.ttft.p99,
                .large_p99 = Summarise(TtftsOfRank(outcomes[i], workload, 128)).p99,
                .hits = summary.adapter_hit_share,
                .gigabytes = summary.gigabytes_to_device};
  }
  return cells;
}

}  // namespace

Result<ExperimentResult> RunChameleonEviction(ExperimentContext& context) {
  constexpr std::array<std::string_view, 6> kSystems = {"s-lora",    "chameleon-lru",  "chameleon-fairshare",
                                                        "chameleon", "chameleon-gdsf", "chameleon-nosched"};
  constexpr std::array<const char*, 6> kNames = {"s-lora",    "chameleon-lru",  "chameleon-fairshare",
                                                 "chameleon", "chameleon-gdsf", "s-lora with cache, GDSF"};
  ASSIGN_OR_RETURN(const double base, SLoraLoad(context, {}));
  std::vector<ChameleonSetting> settings;
  for (const bool pressed : {false, true}) {
    for (const double rate : {pressed ? 8.0 : kMediumLoad * base, pressed ? 8.5 : 9.5 / 8.6 * base}) {
      for (const std::string_view system : kSystems) {
        settings.push_back({.preset = system, .rate = rate, .change = [=](SimulationJob& job) {
                              if (pressed) job.options.device.device_pages /= 3;
                              if (system == kSystems.back()) job.options.preset.cache = "gdsf";
                            }});
      }
    }
  }
  ASSIGN_OR_RETURN(const auto cells, RunEvictions(context, settings));
  ASSIGN_OR_RETURN(const SimulationJob job, MakeChameleonJob(context, {}));
  ExperimentResult result{.setting = DescribeChameleonTestbed(job)};
  ExperimentTable table{
      "By eviction policy",
      {"memory", "RPS", "system", "TTFT P50 ms", "P99 ms", "P99 of rank 128 ms", "adapter hits", "GB loaded"},
      {}};
  for (std::size_t i = 0; i < cells.size(); ++i) {
    table.rows.push_back({i < 2 * kSystems.size() ? "all" : "a third", fmt::format("{:.2f}", settings[i].rate),
                          kNames[i % kNames.size()], fmt::format("{:.0f}", cells[i].p50),
                          fmt::format("{:.0f}", cells[i].p99), fmt::format("{:.0f}", cells[i].large_p99),
                          fmt::format("{:.1f} %", 100 * cells[i].hits), fmt::format("{:.1f}", cells[i].gigabytes)});
  }
  const auto compare = [&](std::size_t from, std::size_t high, const std::string& where) {
    const auto against = [&](std::size_t at, std::size_t other) {
      return Change(cells[from + at].p99, cells[from + other].p99);
    };
    result.comparison.push_back(ChangeRow("ch-17", "P99 TTFT of LRU against S-LoRA" + where, -0.18, against(1, 0)));
    result.comparison.push_back(
        ChangeRow("ch-17", "P99 TTFT of FairShare against S-LoRA" + where, -0.22, against(2, 0)));
    result.comparison.push_back(
        ChangeRow("ch-17", "P99 TTFT of Chameleon against S-LoRA" + where, -0.26, against(3, 0)));
    result.comparison.push_back(ChangeRow("ch-17", "P99 TTFT of rank 128, Chameleon against FairShare" + where, -0.12,
                                          Change(cells[from + 3].large_p99, cells[from + 2].large_p99)));
    const double gdsf = Change(cells[high + 5].p99, cells[high + 3].p99);
    result.comparison.push_back({.id = "ch-17",
                                 .what = "P99 TTFT of S-LoRA with cache and GDSF against Chameleon, high load" + where,
                                 .reported = "substantially worse",
                                 .ours = ShowChange(gdsf),
                                 .verdict = VerdictOfClaim(gdsf > 0.1)});
  };
  compare(0, kSystems.size(), "");
  compare(2 * kSystems.size(), 3 * kSystems.size(), ", a third of the memory");
  const auto short_of_memory = [&](std::size_t system) { return cells[3 * kSystems.size() + system].p99; };
  result.comparison.push_back(
      {.id = "ch-17",
       .what = "P99 TTFT: LRU, FairShare, Chameleon, each better than the previous one; a third of the memory, 8.5 RPS",
       .reported = "yes",
       .ours = fmt::format("{:.1f}, {:.1f}, {:.1f} s", short_of_memory(1) / 1000, short_of_memory(2) / 1000,
                           short_of_memory(3) / 1000),
       .verdict = VerdictOfClaim(short_of_memory(1) > short_of_memory(2) && short_of_memory(2) > short_of_memory(3))});
  result.tables.push_back(std::move(table));
  result.remarks = {
      "With the whole card nothing is evicted at medium load: 10 GB of adapters fit beside the requests, so the "
      "policies do not differ. The rows with a third of the memory, where something must be evicted, compare them.",
      "All caches gain more than reported, because loads are slower here (ch-11).",
      "With a third of the memory, LRU and Chameleon are equal at 8 RPS. At 8.5 RPS, where memory is really short, the "
      "order is that of the paper. Chameleon's score keeps large adapters: it has the fewest hits of all caches, but "
      "its misses cost less (table).",
      "The paper compares GDSF on S-LoRA with the whole of Chameleon. Most of that difference is the scheduler: within "
      "Chameleon, GDSF is as good with all memory, and somewhat worse where memory is short (table)."};
  return result;
}

// ---------------------------------------------------------------- Figure 18

Result<ExperimentResult> RunChameleonPrefetch(ExperimentContext& context) {
  ASSIGN_OR_RETURN(const double base, SLoraLoad(context, {}));
  const auto prefetch = [](SimulationJob& job) { job.options.adapter_prefetch = AdapterPrefetch::kHistogram; };
  const auto many = [](SimulationJob& job) { job.options.device.device_pages /= 3; };
  const auto many_prefetch = [=](SimulationJob& job) {
    many(job);
    prefetch(job);
  };
  const std::vector<ChameleonSetting> settings = {
      {.preset = "s-lora", .rate = kMediumLoad * base},
      {.preset = "chameleon", .rate = kMediumLoad * base},
      {.preset = "chameleon", .rate = kMediumLoad * base, .change = prefetch},
      {.preset = "s-lora", .rate = 8, .change = many},
      {.preset = "chameleon", .rate = 8, .change = many},
      {.preset = "chameleon", .rate = 8, .change = many_prefetch}};
  ASSIGN_OR_RETURN(const auto jobs, MakeChameleonJobs(context, settings));
  ASSIGN_OR_RETURN(const auto outcomes, SimulateAll(context, jobs));
  ExperimentResult result{.setting = DescribeChameleonTestbed(jobs.front())};
  ExperimentTable table{"Prefetching",
                        {"memory", "RPS", "system", "TTFT P50 ms", "P99 ms", "adapter hits", "prefetched",
                         "prefetched and used", "GB loaded"},
                        {}};
  constexpr std::array<const char*, 3> kNames = {"s-lora", "chameleon", "chameleon + prefetch"};
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const SimulationSummary& summary = outcomes[i].summary;
    const AdapterPrefetchStats& stats = outcomes[i].result.stats.prefetches;
    table.rows.push_back({i < 3 ? "all" : "a third", fmt::format("{:.2f}", jobs[i].load.rate), kNames[i % 3],
                          fmt::format("{:.0f}", summary.ttft.p50), fmt::format("{:.0f}", summary.ttft.p99),
                          fmt::format("{:.1f} %", 100 * summary.adapter_hit_share), std::to_string(stats.loads),
                          std::to_string(stats.used), fmt::format("{:.1f}", summary.gigabytes_to_device)});
  }
  const auto row = [&](const char* what, std::size_t with) {
    return WithEvents(
        ChangeRow("ch-18", what, -0.088, Change(outcomes[with].summary.ttft.p99, outcomes[with - 1].summary.ttft.p99)),
        outcomes[with].result.stats.prefetches.loads, "prefetches");
  };
  result.comparison = {row("P99 TTFT with prefetching against Chameleon", 2),
                       row("the same, a third of the memory", 5)};
  result.tables.push_back(std::move(table));
  result.remarks = {
      "Nothing is prefetched. The histogram (cache/adapter_arrival_histogram.h) predicts an adapter only if the "
      "intervals between its uses are similar: within a factor of four from the 5th to the 99th percentile. With "
      "Poisson arrivals they never are. A prediction from popularity alone would only repeat the cache's own score.",
      "Prefetching can only help where adapters have been evicted. With the whole card each adapter is loaded once, "
      "and the histogram knows an adapter only after its first use. With a third of the memory it competes for the "
      "memory that requests need."};
  return result;
}

// ---------------------------------------------------------------- Figure 19

Result<ExperimentResult> RunChameleonPredictor(ExperimentContext& context) {
  constexpr std::array<std::string_view, 2> kSystems = {"chameleon", "chameleon-output-only"};
  constexpr std::array<double, 3> kAccuracies = {1, 0.8, 0.6};
  ASSIGN_OR_RETURN(const double base, SLoraLoad(context, {}));
  std::vector<ChameleonSetting> settings;
  const std::array<double, 2> rates = {9.5 / 8.6 * base, kOverload * base};
  for (const double rate : rates) {
    for (const std::string_view system : kSystems) {
      for (const double accuracy : kAccuracies) {
        settings.push_back({.preset = system, .rate = rate, .change = [=](SimulationJob& job) {
                              job.options.predictor_accuracy = accuracy;
                            }});
      }
    }
  }
  ASSIGN_OR_RETURN(const auto jobs, MakeChameleonJobs(context, settings));
  ASSIGN_OR_RETURN(const auto outcomes, SimulateAll(context, jobs));
  ExperimentResult result{.setting = DescribeChameleonTestbed(jobs.front())};
  ExperimentTable table{"P99 TTFT in ms", {"RPS", "size by", "100 %", "80 %", "60 %"}, {}};
  std::array<std::array<double, 3>, 4> p99 = {};  // by rate and system, then by accuracy
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    p99[i / kAccuracies.size()][i % kAccuracies.size()] = outcomes[i].summary.ttft.p99;
  }
  for (std::size_t i = 0; i < p99.size(); ++i) {
    table.rows.push_back({fmt::format("{:.2f}", rates[i / kSystems.size()]), std::string(kSystems[i % kSystems.size()]),
                          fmt::format("{:.0f}", p99[i][0]), fmt::format("{:.0f}", p99[i][1]),
                          fmt::format("{:.0f}", p99[i][2])});
  }
  const auto change = [&](std::size_t line, std::size_t accuracy) { return Change(p99[line][accuracy], p99[line][0]); };
  const double eighty = change(0, 1);
  result.comparison = {
      ReportedAs(ChangeRow("ch-19", "P99 TTFT at 80 % accuracy against 100 %", 0, eighty), "about the same"),
      ClaimRow("ch-19", "P99 TTFT at 60 % against 100 %, high load: size by output alone suffers more", "yes",
               fmt::format("{} against {}", ShowChange(change(3, 2)), ShowChange(change(2, 2))),
               change(3, 2) > change(2, 2))};
  result.tables.push_back(std::move(table));
  result.remarks = {
      fmt::format("At the paper's share of S-LoRA's load ({:.2f} RPS) Chameleon is far from its own limit. No request "
                  "waits for a quota, and predictions have no effect, as in the paper's figure except for its burst. "
                  "Near the limit ({:.2f} RPS): {} at 80 %, {} at 60 %; with size by output alone {} and {} (table).",
                  rates[0], rates[1], ShowChange(change(2, 1)), ShowChange(change(2, 2)), ShowChange(change(3, 1)),
                  ShowChange(change(3, 2)))};
  return result;
}

// ---------------------------------------------------------------- Figure 22

Result<ExperimentResult> RunChameleonStaticLanes(ExperimentContext& context) {
  constexpr std::array<double, 4> kLoads = {kLowLoad, kMediumLoad, 9.5 / 8.6, kOverload};
  constexpr std::array<double, 3> kReported = {0, 0, -0.10};
  constexpr std::array<const char*, 4> kNames = {"low", "medium", "high", "beyond Chameleon's limit"};
  ASSIGN_OR_RETURN(const double base, SLoraLoad(context, {}));
  std::vector<ChameleonSetting> settings;
  for (const double load : kLoads) {
    for (const char* preset : {"chameleon-static", "chameleon"})
      settings.push_back({.preset = preset, .rate = load * base});
  }
  ASSIGN_OR_RETURN(const auto jobs, MakeChameleonJobs(context, settings));
  ASSIGN_OR_RETURN(const auto outcomes, SimulateAll(context, jobs));
  ExperimentResult result{.setting = DescribeChameleonTestbed(jobs.front())};
  ExperimentTable table{"Four equal lanes against fitted ones",
                        {"load", "RPS", "equal: TTFT P50 ms", "P99 ms", "fitted: P50 ms", "P99 ms"},
                        {}};
  for (std::size_t i = 0; i < kLoads.size(); ++i) {
    const SimulationSummary &fixed = outcomes[2 * i].summary, &fitted = outcomes[2 * i + 1].summary;
    if (i < kReported.size()) {
      result.comparison.push_back(
          ChangeRow("ch-22", fmt::format("P99 TTFT of fitted lanes against equal ones, {} load", kNames[i]),
                    kReported[i], Change(fitted.ttft.p99, fixed.ttft.p99)));
    }
    table.rows.push_back({kNames[i], fmt::format("{:.2f}", kLoads[i] * base), fmt::format("{:.0f}", fixed.ttft.p50),
                          fmt::format("{:.0f}", fixed.ttft.p99), fmt::format("{:.0f}", fitted.ttft.p50),
                          fmt::format("{:.0f}", fitted.ttft.p99)});
  }
  result.tables.push_back(std::move(table));
  const SimulationSummary &fixed = outcomes[6].summary, &fitted = outcomes[7].summary;
  result.remarks = {
      fmt::format("Lanes and quotas have an effect only where tokens are short. At the paper's share of S-LoRA's load "
                  "they are not, because Chameleon sustains a third more here (ch-11). At {:.1f} RPS, near the load "
                  "that it sustains, the P99 of fitted lanes is {} against equal lanes (table).",
                  kOverload * base, ShowChange(Change(fitted.ttft.p99, fixed.ttft.p99)))};
  return result;
}

}  // namespace loramux
