#include "simulate/report.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "report/number_format.h"

namespace loramux {
namespace {

using Json = nlohmann::ordered_json;

struct Column {
  std::string name;
  std::vector<std::string> cells;
};

std::string Align(const std::vector<Column>& columns, std::size_t rows) {
  std::string text;
  std::vector<std::size_t> widths;
  for (const Column& column : columns) {
    std::size_t width = column.name.size();
    for (const std::string& cell : column.cells) width = std::max(width, cell.size());
    widths.push_back(width);
  }
  for (std::size_t row = 0; row <= rows; ++row) {
    std::string line;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const std::string& cell = row == 0 ? columns[i].name : columns[i].cells[row - 1];
      line += i == 0 ? fmt::format("{:<{}}", cell, widths[i]) : fmt::format("  {:>{}}", cell, widths[i]);
    }
    text += line + "\n";
  }
  return text;
}

template <typename Show>
Column MakeColumn(const SimulationReport& report, std::string name, Show show) {
  Column column{std::move(name), {}};
  for (const PresetRun& run : report.runs) column.cells.push_back(show(run));
  return column;
}

bool Searched(const SimulationReport& report) {
  return !report.runs.empty() && !report.runs.front().sustained.probes.empty();
}

Json LatencyJson(const Summary& latency) {
  Json json{{"count", latency.count},
            {"mean", latency.mean},
            {"p50", latency.p50},
            {"p90", latency.p90},
            {"p99", latency.p99}};
  if (latency.max > 0) json["max"] = latency.max;
  return json;
}

Json ResumedJson(const ResumedTokens& tokens) { return {{"found", tokens.found}, {"recomputed", tokens.recomputed}}; }

Json SummaryJson(const SimulationSummary& s) {
  return {
      {"requests", {{"finished", s.finished}, {"refused", s.refused}, {"offered_per_s", s.offered_per_second}}},
      {"seconds", s.seconds},
      {"ttft_ms", LatencyJson(s.ttft)},
      {"tpot_ms", LatencyJson(s.tpot)},
      {"time_per_token_ms", LatencyJson(s.token)},
      {"between_tokens_ms", LatencyJson(s.between_tokens)},
      {"e2e_ms", LatencyJson(s.end_to_end)},
      {"queue_ms", LatencyJson(s.queue)},
      {"throughput", {{"requests_per_s", s.requests_per_second}, {"output_tokens_per_s", s.output_tokens_per_second}}},
      {"goodput", {{"requests_per_s", s.goodput}, {"share", s.within_slo}}},
      {"attained",
       {{"share", s.attained}, {"ttft", s.within_slo}, {"tpot", s.within_tpot}, {"time_per_token", s.within_token}}},
      {"adapters",
       {{"hit_share", s.adapter_hit_share},
        {"loads", s.adapter_loads},
        {"awaited_loads_per_s", s.seconds > 0 ? static_cast<double>(s.awaited_loads) / s.seconds : 0},
        {"mean_load_ms", s.mean_load_ms}}},
      {"prefix_hit_share", s.prefix_hit_share},
      {"invalid_history_share", s.invalid_history_share},
      {"history_evictions_pages", s.history_evictions},
      {"preemptions", s.preemptions},
      {"squashes", s.squashes},
      {"lanes_least_share", s.lanes_least_share},
      {"resumed_tokens",
       {{"after_preemptions", ResumedJson(s.resumed)}, {"after_squashes", ResumedJson(s.resumed_squashes)}}},
      {"moved_gb",
       {{"to_device", s.gigabytes_to_device}, {"to_host", s.gigabytes_to_host}, {"from_disk", s.gigabytes_from_disk}}},
      {"busy_share", {{"device", s.busy_share}, {"host_link", s.link_busy_share}}}};
}

Json SizeJson(const SimulationResult& result) {
  Json classes = Json::array();
  constexpr const char* kNames[] = {"small", "medium", "large"};
  const auto sizes = SummariseBySize(result);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    classes.push_back(
        {{"size", kNames[i]}, {"ttft_ms", LatencyJson(sizes[i].ttft)}, {"queue_share_of_e2e", sizes[i].queue_share}});
  }
  return classes;
}

Json SamplesJson(const SimulationResult& result) {
  Json samples = Json::array();
  for (const WorldSample& s : result.samples) {
    samples.push_back({{"s", static_cast<double>(s.at) / static_cast<double>(kNsPerSecond)},
                       {"running", s.running},
                       {"waiting", s.waiting},
                       {"free_pages", s.free_pages},
                       {"running_kv_pages", s.running_kv_pages},
                       {"history_pages", s.history_pages},
                       {"adapter_pages", s.adapter_pages},
                       {"steps", s.steps}});
  }
  return samples;
}

Json SustainedJson(const SustainedLoad& load) {
  Json probes = Json::array();
  for (const LoadProbe& probe : load.probes) {
    probes.push_back({{"rate", probe.rate},
                      {"p50_ttft_ms", probe.p50_ttft_ms},
                      {"p99_ttft_ms", probe.p99_ttft_ms},
                      {"within", probe.within}});
  }
  return {{"requests_per_s", load.rate}, {"at_least", load.at_least}, {"probes", probes}};
}

}  // namespace

std::string ShowSustained(const SustainedLoad& load) { return (load.at_least ? ">= " : "") + FormatNumber(load.rate); }

std::string ReportAsTable(const SimulationReport& report) {
  std::string text = fmt::format("{}\n{}\nobjective: {} ({})\n\n", report.device, report.workload,
                                 ShowObjective(report.objective), report.objective_source);
  const auto column = [&](const char* name, auto show) { return MakeColumn(report, name, show); };
  std::vector<Column> columns = {
      column("preset", [](const PresetRun& run) { return std::string(run.preset.name); }),
      column("TTFT mean", [](const PresetRun& run) { return FormatMs(run.summary.ttft.mean); }),
      column("P50", [](const PresetRun& run) { return FormatMs(run.summary.ttft.p50); }),
      column("P90", [](const PresetRun& run) { return FormatMs(run.summary.ttft.p90); }),
      column("P99", [](const PresetRun& run) { return FormatMs(run.summary.ttft.p99); }),
      column("TPOT mean", [](const PresetRun& run) { return FormatMs(run.summary.tpot.mean); }),
      column("P99", [](const PresetRun& run) { return FormatMs(run.summary.tpot.p99); }),
      column("TBT P99", [](const PresetRun& run) { return FormatMs(run.summary.between_tokens.p99); }),
      column("E2E mean", [](const PresetRun& run) { return FormatMs(run.summary.end_to_end.mean); }),
      column("goodput/s", [](const PresetRun& run) { return FormatNumber(run.summary.goodput); }),
      column("in SLO", [](const PresetRun& run) { return FormatShare(run.summary.attained); }),
      column("adapter hits", [](const PresetRun& run) { return FormatShare(run.summary.adapter_hit_share); }),
      column("prefix hits", [](const PresetRun& run) { return FormatShare(run.summary.prefix_hit_share); }),
      column("GB to device", [](const PresetRun& run) { return FormatNumber(run.summary.gigabytes_to_device); }),
      column("preempted",
             [](const PresetRun& run) { return FormatNumber(static_cast<double>(run.summary.preemptions)); }),
      column("refused", [](const PresetRun& run) { return FormatNumber(static_cast<double>(run.summary.refused)); })};
  const auto add_share = [&](const char* name, double SimulationSummary::*share) {
    const auto after = std::find_if(columns.begin(), columns.end(), [](const Column& c) { return c.name == "in SLO"; });
    columns.insert(after + 1, column(name, [share](const PresetRun& run) { return FormatShare(run.summary.*share); }));
  };
  // by which part of the objective requests miss it
  if (report.objective.token > 0) add_share("per token", &SimulationSummary::within_token);
  if (report.objective.tpot > 0) add_share("TPOT", &SimulationSummary::within_tpot);
  if (columns.size() > 16) add_share("TTFT", &SimulationSummary::within_slo);
  if (Searched(report)) {
    columns.push_back(column("sustained/s", [](const PresetRun& run) { return ShowSustained(run.sustained); }));
  }
  text += Align(columns, report.runs.size());
  for (const PresetRun& run : report.runs) {
    if (run.summary.lanes_least_share <= 1) continue;
    text +=
        fmt::format("{}: to keep the objective its lanes need {} times the tokens of the memory (Chameleon 4.3.5)\n",
                    run.preset.name, FormatNumber(run.summary.lanes_least_share));
  }
  return text;
}

std::string ReportAsJson(const SimulationReport& report) {
  Json json{{"kind", "loramux simulation"},
            {"device", report.device},
            {"workload", report.workload},
            {"command", report.command},
            {"simulated",
             "all times come from models of the executor and the transfers; scheduler, caches and engine are the "
             "server's own "
             "code"},
            {"page_bytes", report.page_bytes},
            {"device_pages", report.device_pages},
            {"slo_ttft_ms", static_cast<double>(report.objective.ttft) / kNsPerMs}};
  if (report.objective.tpot > 0) json["slo_tpot_ms"] = static_cast<double>(report.objective.tpot) / kNsPerMs;
  if (report.objective.token > 0)
    json["slo_time_per_token_ms"] = static_cast<double>(report.objective.token) / kNsPerMs;
  if (report.low_load_ms > 0) json["low_load_e2e_ms"] = report.low_load_ms;
  json["presets"] = Json::array();
  for (const PresetRun& run : report.runs) {
    Json entry{{"preset", run.preset.name},
               {"what", run.preset.what},
               {"cache", run.preset.spec.cache},
               {"queue", run.preset.spec.queue}};
    if (run.page_bytes > 0) entry["page_bytes"] = run.page_bytes;
    entry.update(SummaryJson(run.summary));
    entry["by_size"] = SizeJson(run.result);
    if (!run.sustained.probes.empty()) entry["sustained"] = SustainedJson(run.sustained);
    entry["over_time"] = SamplesJson(run.result);
    json["presets"].push_back(std::move(entry));
  }
  // arguments and names of files are any bytes
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace loramux
