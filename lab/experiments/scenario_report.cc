#include "lab/experiments/scenario_report.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/text_file.h"
#include "lab/charts/dot_chart.h"
#include "lab/charts/stacked_areas.h"
#include "lab/experiments/paired_ratio.h"
#include "lab/raw_data.h"
#include "report/number_format.h"

namespace loramux {
namespace {

constexpr double kMB = 1e6;

// The reported figures of a run, except its memory over time. `key` is the JSON's.
struct Figure {
  const char* key;
  double (*value)(const CellResult&);
};

constexpr Figure kFigures[] = {
    {"requests", [](const CellResult& r) { return static_cast<double>(r.requests); }},
    {"ttft_mean_ms", [](const CellResult& r) { return r.ttft_ms.mean; }},
    {"ttft_geometric_mean_ms", [](const CellResult& r) { return r.ttft_geometric_ms; }},
    {"ttft_p50_ms", [](const CellResult& r) { return r.ttft_ms.p50; }},
    {"ttft_p99_ms", [](const CellResult& r) { return r.ttft_ms.p99; }},
    {"tpot_mean_ms", [](const CellResult& r) { return r.tpot_ms.mean; }},
    {"tpot_geometric_mean_ms", [](const CellResult& r) { return r.tpot_geometric_ms; }},
    {"tpot_p99_ms", [](const CellResult& r) { return r.tpot_ms.p99; }},
    {"prefix_hit_device", [](const CellResult& r) { return r.hit_device; }},
    {"prefix_hit_host", [](const CellResult& r) { return r.hit_host; }},
    {"adapter_hit_device", [](const CellResult& r) { return r.adapter_hit_device; }},
    {"adapter_hit_host", [](const CellResult& r) { return r.adapter_hit_host; }},
    {"adapters_disk_to_host_bytes", [](const CellResult& r) { return static_cast<double>(r.adapters_disk_to_host); }},
    {"adapters_disk_to_device_bytes",
     [](const CellResult& r) { return static_cast<double>(r.adapters_disk_to_device); }},
    {"adapters_host_to_device_bytes",
     [](const CellResult& r) { return static_cast<double>(r.adapters_host_to_device); }},
    {"adapter_load_ms", [](const CellResult& r) { return r.adapter_load_ms; }},
    {"kv_device_to_host_bytes", [](const CellResult& r) { return static_cast<double>(r.kv_device_to_host); }},
    {"kv_host_to_device_bytes", [](const CellResult& r) { return static_cast<double>(r.kv_host_to_device); }},
    {"invalid_history", [](const CellResult& r) { return r.invalid_history; }},
    {"device_running_kv_bytes", [](const CellResult& r) { return static_cast<double>(r.mean_memory.running_kv); }},
    {"device_history_bytes", [](const CellResult& r) { return static_cast<double>(r.mean_memory.history); }},
    {"device_invalid_history_bytes",
     [](const CellResult& r) { return static_cast<double>(r.mean_memory.invalid_history); }},
    {"device_adapter_bytes", [](const CellResult& r) { return static_cast<double>(r.mean_memory.adapters); }},
    {"device_free_bytes", [](const CellResult& r) { return static_cast<double>(r.mean_memory.free); }},
    {"preemptions", [](const CellResult& r) { return static_cast<double>(r.preemptions); }},
    {"wrong_answers", [](const CellResult& r) { return static_cast<double>(r.wrong_answers); }},
    {"failed", [](const CellResult& r) { return static_cast<double>(r.failed); }},
    {"drain_seconds", [](const CellResult& r) { return r.drain_seconds; }},
    {"worst_lag_ms", [](const CellResult& r) { return r.worst_lag_ms; }},
};

// Over the repetitions.
struct Spread {
  double mean = 0, low = 0, high = 0;
};

Spread Of(const ScenarioCell& cell, const std::string& key) {
  const auto figure =
      std::find_if(std::begin(kFigures), std::end(kFigures), [&](const Figure& f) { return key == f.key; });
  CHECK(figure != std::end(kFigures));
  Spread spread;
  for (const CellResult& run : cell.runs) {
    const double value = figure->value(run);
    spread.low = &run == &cell.runs.front() ? value : std::min(spread.low, value);
    spread.high = &run == &cell.runs.front() ? value : std::max(spread.high, value);
    spread.mean += value / static_cast<double>(cell.runs.size());
  }
  return spread;
}

double Mean(const ScenarioCell& cell, const std::string& key) { return Of(cell, key).mean; }

std::string FileName(const std::string& scenario, const char* what) {
  return fmt::format("cache_scenarios_{}_{}.svg", scenario, what);
}

// ---- The page ----

std::string Ttft(const ScenarioCell& cell) {
  const Spread spread = Of(cell, "ttft_mean_ms");
  if (cell.runs.size() < 2) return FormatNumber(spread.mean);
  return fmt::format("{} ({} to {})", FormatNumber(spread.mean), FormatNumber(spread.low), FormatNumber(spread.high));
}

std::string TableRow(const ScenarioCell& cell) {
  if (!cell.error.empty()) return fmt::format("| `{}` | could not run: {} |\n", cell.regime, cell.error);
  const auto number = [&](const char* key) { return FormatNumber(Mean(cell, key)); };
  const auto percent = [&](const char* key) { return fmt::format("{:.1f}", 100 * Mean(cell, key)); };
  const auto mb = [&](const char* key) { return FormatNumber(Mean(cell, key) / kMB); };
  double wrong = 0;
  for (const CellResult& run : cell.runs) wrong += static_cast<double>(run.wrong_answers + run.failed);
  return fmt::format(
      "| `{}` | {} | {} | {} | {} | {} | {} + {} | {} + {} | {} | {} | {} | {} | {} | {} | {:g} | {:g} |\n",
      cell.regime, Ttft(cell), number("ttft_p50_ms"), number("ttft_p99_ms"), number("tpot_mean_ms"),
      number("tpot_p99_ms"), percent("prefix_hit_device"), percent("prefix_hit_host"), percent("adapter_hit_device"),
      percent("adapter_hit_host"), mb("adapters_disk_to_host_bytes"), mb("adapters_disk_to_device_bytes"),
      mb("adapters_host_to_device_bytes"), mb("kv_device_to_host_bytes"), mb("kv_host_to_device_bytes"),
      percent("invalid_history"), Mean(cell, "preemptions"), wrong);
}

constexpr const char* kTableHead =
    "| regime | TTFT ms | p50 | p99 | TPOT ms | p99 | tokens found, % | adapter hits, % | adapters MB disk→host | "
    "disk→device | host→device | KV MB device→host | host→device | invalid history % | preemptions | wrong |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";

std::string ScenarioSection(const ScenarioReport& report, const ScenarioSummary& s) {
  std::string page = fmt::format(
      "\n## {}\n{} requests in {} sessions of {} adapters. After the warm-up, {:.1f} requests per second: {:.0f} % of "
      "the {:.0f} per second of 16 concurrent sessions with ample memory. On average, prompts have {:.0f} tokens and "
      "answers {:.0f}. Working set: {:.1f} MB, of which adapters {:.1f} MB.\n",
      s.name, s.requests, s.sessions, s.adapters_asked, s.rate, 100 * s.rate / s.capacity, s.capacity, s.prompt_tokens,
      s.answer_tokens, static_cast<double>(s.working_set_bytes) / kMB, static_cast<double>(s.adapter_bytes) / kMB);
  if (report.repetitions == 0) return page;
  page += fmt::format("\n![TTFT by regime and device size]({})\n\n![Memory by use over time]({})\n",
                      FileName(s.name, "ttft"), FileName(s.name, "memory"));
  for (const int percent : report.memory_percent) {
    page += fmt::format("\n### {}: device of {} % of the working set, {:.1f} MB\n{}", s.name, percent,
                        static_cast<double>(s.working_set_bytes) * percent / 100 / kMB, kTableHead);
    for (const std::string& regime : report.regimes) page += TableRow(report.Cell(s.name, percent, regime));
  }
  return page;
}

// ---- Ours against the best of the others

PairedRatio RatioOf(const ScenarioDuel& duel, double (*figure)(const CellResult&)) {
  std::vector<double> ours, others;
  for (const CellResult& run : duel.ours) ours.push_back(figure(run));
  for (const CellResult& run : duel.others) others.push_back(figure(run));
  return RatioOfPairs(ours, others);
}

// Plus one, so that there is a ratio even without any transfers.
double BytesBrought(const CellResult& run) {
  return 1 + static_cast<double>(run.adapters_disk_to_device + run.adapters_host_to_device + run.kv_host_to_device);
}

std::string ShowRatio(const PairedRatio& ratio) {
  return fmt::format("{:.3f} ({:.3f} to {:.3f})", ratio.median, ratio.low, ratio.high);
}

std::string DuelSection(const ScenarioReport& report) {
  if (report.duels.empty()) return {};
  const std::size_t pairs = report.duels.front().ours.size();
  std::string page = fmt::format(
      "\n## `{}` against the best of the others\nThe lowest of ten figures in a table like those below is partly due "
      "to chance. Therefore the other regime with the lowest mean TTFT {} and `{}` ran again, in {} pair{} of runs "
      "directly after each other, with alternating order. Only those runs count here. Each figure is the ratio of "
      "`{}`'s value to the other's; below 1 is better. It is the median of the pairs, with an interval that contains "
      "the true median with {:.0f} % probability. \"Request by request\" is the geometric mean over requests, which a "
      "few delayed requests do not dominate. Times also depend on the machine's speed. The remaining work shows the "
      "effect of the cache alone: computed prompt tokens, and bytes of adapters and history moved to the device.\n\n"
      "| scenario | device | best other | TTFT request by request | TTFT, mean | TPOT request by request | TPOT, mean "
      "| tokens computed | bytes to device |\n"
      "|---|---|---|---|---|---|---|---|---|\n",
      report.ours, report.simulated.empty() ? "in those tables" : "in virtual time", report.ours, pairs,
      pairs == 1 ? "" : "s", report.ours,
      100 * RatioOf(report.duels.front(), [](const CellResult& r) { return r.ttft_ms.mean; }).confidence);
  for (const ScenarioDuel& duel : report.duels) {
    page += fmt::format("| {} | {} % | `{}` | {} | {} | {} | {} | {} | {} |\n", duel.scenario, duel.memory_percent,
                        duel.other, ShowRatio(RatioOf(duel, [](const CellResult& r) { return r.ttft_geometric_ms; })),
                        ShowRatio(RatioOf(duel, [](const CellResult& r) { return r.ttft_ms.mean; })),
                        ShowRatio(RatioOf(duel, [](const CellResult& r) { return r.tpot_geometric_ms; })),
                        ShowRatio(RatioOf(duel, [](const CellResult& r) { return r.tpot_ms.mean; })),
                        ShowRatio(RatioOf(duel, [](const CellResult& r) { return 1 - r.hit_device - r.hit_host; })),
                        ShowRatio(RatioOf(duel, BytesBrought)));
  }
  return page;
}

// ---- In virtual time

struct SimulatedFigure {
  const char* key;
  double SimulatedCellResult::*value;
};

constexpr SimulatedFigure kSimulatedFigures[] = {
    {"ttft_geometric_mean_ms", &SimulatedCellResult::ttft_geometric_ms},
    {"ttft_mean_ms", &SimulatedCellResult::ttft_ms},
    {"tpot_geometric_mean_ms", &SimulatedCellResult::tpot_geometric_ms},
    {"tpot_mean_ms", &SimulatedCellResult::tpot_ms},
    {"end_to_end_mean_ms", &SimulatedCellResult::end_to_end_ms},
    {"tokens_computed", &SimulatedCellResult::tokens_computed},
    {"bytes_to_device", &SimulatedCellResult::bytes_to_device},
};

// The ratios ours / theirs by seed: their geometric mean and its standard error.
struct SimulatedRatio {
  double mean = 1, error = 0;
};

SimulatedRatio RatioOf(const SimulatedCell& ours, const SimulatedCell& theirs, double SimulatedCellResult::*value) {
  const auto n = static_cast<double>(ours.runs.size());
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < ours.runs.size(); ++i) {
    const double log = std::log(ours.runs[i].*value / theirs.runs[i].*value);
    sum += log;
    squares += log * log;
  }
  const double variance = n > 1 ? std::max(0.0, (squares - sum * sum / n) / (n - 1)) : 0;
  return {.mean = std::exp(sum / n), .error = std::sqrt(variance / n)};
}

// The other regime with the lowest value of this figure; nullptr: none could run.
const SimulatedCell* BestSimulated(const ScenarioReport& report, const std::string& scenario, int percent,
                                   double SimulatedCellResult::*value) {
  const SimulatedCell* best = nullptr;
  for (const SimulatedCell& cell : report.simulated) {
    if (cell.scenario != scenario || cell.memory_percent != percent || cell.regime == report.ours) continue;
    if (!cell.error.empty() || cell.runs.empty()) continue;
    if (best == nullptr || RatioOf(cell, *best, value).mean < 1) best = &cell;
  }
  return best;
}

std::string ShowRatio(const SimulatedRatio& ratio) { return fmt::format("{:.3f} ± {:.3f}", ratio.mean, ratio.error); }

// "0.987 ± 0.004 (`lru`)": compared with the regime that is best by this figure.
std::string BesideTheBest(const ScenarioReport& report, const SimulatedCell& ours, double SimulatedCellResult::*value) {
  const SimulatedCell* best = BestSimulated(report, ours.scenario, ours.memory_percent, value);
  return best == nullptr ? "-" : fmt::format("{} (`{}`)", ShowRatio(RatioOf(ours, *best, value)), best->regime);
}

std::string SimulatedRow(const ScenarioReport& report, const SimulatedCell& ours) {
  std::string row = fmt::format("| {} | {} % |", ours.scenario, ours.memory_percent);
  const SimulatedCell* first = BestSimulated(report, ours.scenario, ours.memory_percent, &SimulatedCellResult::ttft_ms);
  if (!ours.error.empty() || ours.runs.empty() || first == nullptr) {
    return row + fmt::format(" {} | | | | |\n", ours.error.empty() ? "-" : ours.error);
  }
  row += fmt::format(" {} |", BesideTheBest(report, ours, &SimulatedCellResult::ttft_geometric_ms));
  row += fmt::format(" {} |", BesideTheBest(report, ours, &SimulatedCellResult::ttft_ms));
  for (const auto value : {&SimulatedCellResult::tpot_geometric_ms, &SimulatedCellResult::tpot_ms}) {
    row += fmt::format(" {} |", ShowRatio(RatioOf(ours, *first, value)));
  }
  return row + fmt::format(" {} |\n", BesideTheBest(report, ours, &SimulatedCellResult::end_to_end_ms));
}

std::string SimulatedSection(const ScenarioReport& report) {
  const bool ours = std::find(report.regimes.begin(), report.regimes.end(), report.ours) != report.regimes.end();
  if (report.simulated.empty() || !ours) return {};
  std::string page = fmt::format(
      "\n## `{}` against the best of the others, in virtual time\nThe same engine, scheduler, tree and pages on a "
      "virtual clock ([simulator.md](../design/simulator.md)). A step and a transfer always take the profile's time, "
      "and no other program runs. The only remaining chance is in the choice of sessions: all regimes run {} seeds of "
      "them, except seeds with a request that does not fit the device alone. Each figure is the ratio to the other "
      "regime's value; below 1 is better. It is the geometric mean over the seeds, with its standard error. TTFT and "
      "the time to the last token are compared with the regime that is best by the same figure. TPOT is compared with "
      "the regime with the lowest mean TTFT, because a regime that admits requests later has a lower TPOT. Profile: "
      "{}. The model omits that loads and the executor share processors on this machine.\n\n"
      "| scenario | device | TTFT request by request | TTFT, mean | TPOT request by request | TPOT, mean "
      "| time to last token, mean |\n"
      "|---|---|---|---|---|---|---|\n",
      report.ours, report.seeds, report.profiled);
  for (const ScenarioSummary& scenario : report.scenarios) {
    for (const int percent : report.memory_percent)
      page += SimulatedRow(report, report.Simulated(scenario.name, percent, report.ours));
  }
  return page;
}

constexpr const char* kHowToRead = R"(
The real engine with the demo model, in three scenarios after FastLibra (section 6.2), under the cache's regimes
([cache.md](../design/cache.md)). The command above writes this page with its tables and plots; do not edit it.

- **chat**: conversations of 3 to 8 turns; each turn sends the whole conversation, and an adapter's users share a system
  prompt. **translate**: single short requests; the set of popular adapters changes four times in a run. **agent**:
  dialogs of Taskmaster-4 (Google, CC-BY-4.0) with their tools' answers, one scene per adapter.
- Arrivals are open loop: sessions begin at random times (Poisson), and turns follow after a thinking time, regardless
  of earlier answers. They are the same in every cell of a scenario. A run begins with an empty cache; its first part is
  warm-up and does not count.
- The adapters are copies of the demo's adapters (without the largest) that differ in one or two bits, so that each has
  its own branch in the tree.
- **TTFT** counts from the time when a request is due. It is the mean of the runs, with the least and the largest run if
  there are several. **Tokens found**: share of all prompt tokens, on the device + fetched from the host tier. **Adapter
  hits**: share of requests with their adapter on the device + in the host tier at arrival. **Invalid history**: share
  of the unused keys and values without their adapter on the device. **Wrong**: answers that differ in any token from
  those with ample memory and no cache.
- The "device" of a machine without a GPU is RAM, and so is the file system's cache that adapters are read from. Moving
  bytes is cheap here compared with recomputing them (`adapter_load_ms` in the JSON: the mean time to load an adapter,
  including waiting). A GPU has other proportions.
- The JSON has every run of every cell with more figures, such as average memory by use and the delay of sent requests.
)";

std::string Markdown(const ScenarioReport& report, const std::string& raw) {
  std::string page = fmt::format(
      "# The cache under three kinds of load\n\n```\n{}\n```\n{}\n{}- {}; {}. {} run{} of {:g} s per cell, with {:g} s "
      "of "
      "warm-up; {} adapters (Zipf {:g}); host tier of {:g} of the working set; {:.0f} minutes in total.\n",
      report.command, RawDataLine(raw), kHowToRead, report.machine, report.date, report.repetitions,
      report.repetitions == 1 ? "" : "s", report.seconds, report.warm_up_seconds, report.adapters, report.zipf,
      report.host_share, report.run_seconds / 60);
  page += fmt::format("- {} of all answers were wrong or missing.\n", report.WrongAnswers());
  page += DuelSection(report);
  page += SimulatedSection(report);
  for (const ScenarioSummary& scenario : report.scenarios) page += ScenarioSection(report, scenario);
  return page;
}

// ---- The JSON ----

nlohmann::ordered_json RunsJson(const std::vector<CellResult>& runs) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const CellResult& run : runs) {
    nlohmann::ordered_json figures;
    for (const Figure& figure : kFigures) figures[figure.key] = figure.value(run);
    json.push_back(std::move(figures));
  }
  return json;
}

nlohmann::ordered_json CellJson(const ScenarioCell& cell) {
  nlohmann::ordered_json json{
      {"scenario", cell.scenario}, {"memory_percent", cell.memory_percent}, {"regime", cell.regime}};
  if (!cell.error.empty()) json["error"] = cell.error;
  json["runs"] = RunsJson(cell.runs);
  return json;
}

nlohmann::ordered_json SimulatedJson(const SimulatedCell& cell) {
  nlohmann::ordered_json json{
      {"scenario", cell.scenario}, {"memory_percent", cell.memory_percent}, {"regime", cell.regime}};
  if (!cell.error.empty()) json["error"] = cell.error;
  json["runs"] = nlohmann::ordered_json::array();
  for (const SimulatedCellResult& run : cell.runs) {
    nlohmann::ordered_json figures;
    for (const SimulatedFigure& figure : kSimulatedFigures) figures[figure.key] = run.*figure.value;
    json["runs"].push_back(std::move(figures));
  }
  return json;
}

nlohmann::ordered_json DuelJson(const ScenarioReport& report, const ScenarioDuel& duel) {
  return {{"scenario", duel.scenario}, {"memory_percent", duel.memory_percent}, {"ours", report.ours},
          {"other", duel.other},       {"our_runs", RunsJson(duel.ours)},       {"other_runs", RunsJson(duel.others)}};
}

std::string Json(const ScenarioReport& report) {
  nlohmann::ordered_json json{{"schema", "loramux-cache-scenarios/1"},
                              {"command", report.command},
                              {"machine", report.machine},
                              {"date", report.date},
                              {"adapters", report.adapters},
                              {"zipf", report.zipf},
                              {"load", report.load},
                              {"seconds", report.seconds},
                              {"warm_up_seconds", report.warm_up_seconds},
                              {"repetitions", report.repetitions},
                              {"threads", report.threads},
                              {"host_share", report.host_share},
                              {"weight_bytes", report.weight_bytes},
                              {"run_seconds", report.run_seconds}};
  for (const ScenarioSummary& s : report.scenarios) {
    json["scenarios"].push_back({{"name", s.name},
                                 {"sessions", s.sessions},
                                 {"requests", s.requests},
                                 {"adapters_asked", s.adapters_asked},
                                 {"rate", s.rate},
                                 {"capacity", s.capacity},
                                 {"prompt_tokens", s.prompt_tokens},
                                 {"answer_tokens", s.answer_tokens},
                                 {"working_set_bytes", s.working_set_bytes},
                                 {"adapter_bytes", s.adapter_bytes}});
  }
  for (const ScenarioCell& cell : report.cells) json["cells"].push_back(CellJson(cell));
  for (const ScenarioDuel& duel : report.duels) json["duels"].push_back(DuelJson(report, duel));
  if (!report.simulated.empty()) json["profile"] = report.profiled;
  for (const SimulatedCell& cell : report.simulated) json["simulated"].push_back(SimulatedJson(cell));
  return json.dump(1) + "\n";
}

// ---- The plots ----

std::string TtftPlot(const ScenarioReport& report, const ScenarioSummary& scenario) {
  DotChart chart{.title = fmt::format("Time to first token by cache regime: {}", scenario.name),
                 .subtitle = fmt::format(
                     "demo model, {} adapters, {:.0f} requests per second; device in % of the working set of {:.0f} MB",
                     scenario.adapters_asked, scenario.rate, static_cast<double>(scenario.working_set_bytes) / kMB),
                 .x_label = "mean TTFT, ms; lines: least and largest run"};
  for (const int percent : report.memory_percent) chart.series.push_back(fmt::format("{} %", percent));
  bool any = false;
  for (const std::string& regime : report.regimes) {
    DotChart::Row row{.name = regime};
    for (const int percent : report.memory_percent) {
      const ScenarioCell& cell = report.Cell(scenario.name, percent, regime);
      const Spread ttft = Of(cell, "ttft_mean_ms");
      any |= !cell.runs.empty();
      row.dots.push_back({.value = ttft.mean, .low = ttft.low, .high = ttft.high, .present = !cell.runs.empty()});
    }
    chart.rows.push_back(std::move(row));
  }
  return any ? RenderSvg(chart) : std::string();
}

StackedAreas::Panel MemoryPanel(const ScenarioCell& cell) {
  StackedAreas::Panel panel{.name = cell.regime, .x = {}, .layers = std::vector<std::vector<double>>(5)};
  for (const MemorySample& sample : cell.runs.front().memory) {
    panel.x.push_back(sample.seconds);
    const std::int64_t layers[] = {sample.running_kv, sample.history - sample.invalid_history, sample.invalid_history,
                                   sample.adapters, sample.free};
    for (std::size_t i = 0; i < panel.layers.size(); ++i)
      panel.layers[i].push_back(static_cast<double>(layers[i]) / kMB);
  }
  return panel;
}

// Shows up to four regimes, ours and the documents' if they have run, at the middle size.
std::string MemoryPlot(const ScenarioReport& report, const ScenarioSummary& scenario) {
  std::vector<std::string> names;
  for (const char* regime : {"loramux", "fastlibra", "vllm", "s-lora"}) {
    if (std::find(report.regimes.begin(), report.regimes.end(), regime) != report.regimes.end())
      names.push_back(regime);
  }
  for (const std::string& regime : report.regimes) {
    if (names.size() < 4 && std::find(names.begin(), names.end(), regime) == names.end()) names.push_back(regime);
  }
  const int percent = report.memory_percent[report.memory_percent.size() / 2];
  StackedAreas chart{
      .title = fmt::format("Device memory by use over time: {}", scenario.name),
      .subtitle = fmt::format("device of {} % of the working set; first run; without the model's weights ({:.1f} MB)",
                              percent, static_cast<double>(report.weight_bytes) / kMB),
      .x_label = "seconds",
      .y_label = "MB",
      .layers = {"running requests' KV", "history", "invalid history", "adapters", "free"},
      .blank = 4};
  for (const std::string& regime : names) {
    const ScenarioCell& cell = report.Cell(scenario.name, percent, regime);
    if (!cell.runs.empty()) chart.panels.push_back(MemoryPanel(cell));
  }
  return chart.panels.empty() ? std::string() : RenderSvg(chart);
}

}  // namespace

const ScenarioCell& ScenarioReport::Cell(const std::string& scenario, int percent, const std::string& regime) const {
  const auto found = std::find_if(cells.begin(), cells.end(), [&](const ScenarioCell& cell) {
    return cell.scenario == scenario && cell.memory_percent == percent && cell.regime == regime;
  });
  CHECK(found != cells.end());
  return *found;
}

const SimulatedCell& ScenarioReport::Simulated(const std::string& scenario, int percent,
                                               const std::string& regime) const {
  const auto found = std::find_if(simulated.begin(), simulated.end(), [&](const SimulatedCell& cell) {
    return cell.scenario == scenario && cell.memory_percent == percent && cell.regime == regime;
  });
  CHECK(found != simulated.end());
  return *found;
}

std::int64_t ScenarioReport::WrongAnswers() const {
  std::int64_t wrong = 0;
  for (const ScenarioCell& cell : cells) {
    for (const CellResult& run : cell.runs) wrong += run.wrong_answers + run.failed;
  }
  for (const ScenarioDuel& duel : duels) {
    for (const auto* runs : {&duel.ours, &duel.others}) {
      for (const CellResult& run : *runs) wrong += run.wrong_answers + run.failed;
    }
  }
  return wrong;
}

std::optional<std::string> ScenarioReport::BestOther(const std::string& scenario, int percent) const {
  const SimulatedCell* simulated_best = BestSimulated(*this, scenario, percent, &SimulatedCellResult::ttft_ms);
  if (simulated_best != nullptr) return simulated_best->regime;
  const ScenarioCell* best = nullptr;
  for (const ScenarioCell& cell : cells) {
    if (cell.scenario != scenario || cell.memory_percent != percent || cell.regime == ours || cell.runs.empty())
      continue;
    if (best == nullptr || Mean(cell, "ttft_mean_ms") < Mean(*best, "ttft_mean_ms")) best = &cell;
  }
  return best == nullptr ? std::nullopt : std::optional(best->regime);
}

bool ScenarioReport::AllRan() const {
  return std::all_of(cells.begin(), cells.end(), [](const ScenarioCell& cell) { return cell.error.empty(); });
}

Status WriteReport(const ScenarioReport& report, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  const std::string raw = Json(report);
  RETURN_IF_ERROR(WriteTextFile((folder / "cache_scenarios.md").string(), Markdown(report, raw)));
  RETURN_IF_ERROR(WriteTextFile((folder / "cache_scenarios.json").string(), raw));
  if (report.repetitions == 0) return Ok{};
  for (const ScenarioSummary& scenario : report.scenarios) {
    RETURN_IF_ERROR(WriteTextFile((folder / FileName(scenario.name, "ttft")).string(), TtftPlot(report, scenario)));
    RETURN_IF_ERROR(WriteTextFile((folder / FileName(scenario.name, "memory")).string(), MemoryPlot(report, scenario)));
  }
  return Ok{};
}

}  // namespace loramux
