#include "simulate/fleet_report.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "report/number_format.h"

namespace loramux {
namespace {

using FleetJson = nlohmann::ordered_json;
constexpr std::size_t kWorstShown = 10;

std::string Count(std::int64_t number) { return FormatNumber(static_cast<double>(number)); }

std::string AlignRows(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i)
      text += i == 0 ? fmt::format("{:<{}}", row[i], widths[i]) : fmt::format("  {:>{}}", row[i], widths[i]);
    text += "\n";
  }
  return text;
}

std::string ShowSize(const FleetSize& size) {
  return size.servers > 0 ? Count(size.servers) : fmt::format("> {}", size.probes.back().servers);
}

bool HasSizes(const FleetReport& report) { return !report.runs.empty() && !report.runs.front().size.probes.empty(); }

std::string ObjectiveText(const FleetReport& report) {
  const FleetObjective& objective = report.objective;
  const std::string share = report.answer.empty() ? "" : FormatShare(report.wanted_share) + " of requests with ";
  std::string text = fmt::format("objective: {}{} ({})", share, ShowObjective(objective), report.objective_source);
  if (objective.warmup > 0)
    text += fmt::format("; the first {} s are not counted", FormatNumber(static_cast<double>(objective.warmup) / 1e9));
  return text;
}

std::vector<std::vector<std::string>> PolicyRows(const FleetReport& report) {
  std::vector<std::vector<std::string>> rows = {{report.first_column, "in SLO", "TTFT P50", "P99", "TPOT mean",
                                                 "per token", "P99", "cold", "prefix hits", "loads", "busy", "busiest",
                                                 "retries", "failed", "worst adapter"}};
  if (HasSizes(report)) rows.front().insert(rows.front().begin() + 1, "servers");
  for (const FleetRun& run : report.runs) {
    const FleetSummary& s = run.summary;
    rows.push_back({run.policy, FormatShare(s.attained), FormatMs(s.ttft.p50), FormatMs(s.ttft.p99),
                    FormatMs(s.tpot.mean), FormatMs(s.token.mean), FormatMs(s.token.p99), FormatShare(s.cold),
                    FormatShare(s.prefix_hits), Count(s.device_loads), FormatShare(s.busy.mean),
                    FormatShare(s.busy.max), Count(s.retries), Count(s.broken + s.not_served + s.refused),
                    s.adapters.empty() ? "-" : FormatShare(s.adapters.front().attained)});
    if (HasSizes(report)) rows.back().insert(rows.back().begin() + 1, ShowSize(run.size));
  }
  return rows;
}

FleetJson MachinesAsJson(const FleetReport& report) {
  constexpr std::array kKnown = {"exact", "more than", "estimated", "more than"};
  FleetJson json = FleetJson::array();
  for (const MachineCount& count : report.machines) {
    FleetJson probes = FleetJson::array();
    for (const FleetSize::Probe& probe : count.probes)
      probes.push_back({{"servers", probe.servers}, {"attained", probe.attained}});
    json.push_back({{"preset", count.choice.preset.name},
                    {"gpus_per_server", count.choice.gpus},
                    {"servers", count.servers},
                    {"gpus", count.Gpus()},
                    {"known", kKnown.at(static_cast<std::size_t>(count.known))},
                    {"fleets", probes}});
  }
  return json;
}

FleetJson LatencyAsJson(const Summary& latency) {
  return {
      {"mean", latency.mean}, {"p50", latency.p50}, {"p90", latency.p90}, {"p99", latency.p99}, {"max", latency.max}};
}

FleetJson AdaptersAsJson(const std::vector<AdapterSummary>& adapters) {
  FleetJson json = FleetJson::array();
  for (const AdapterSummary& a : adapters) {
    json.push_back({{"adapter", a.adapter},
                    {"name", a.name},
                    {"rank", a.rank},
                    {"requests", a.requests},
                    {"attained", a.attained},
                    {"cold", a.cold},
                    {"ttft_ms", {{"p50", a.p50_ttft}, {"p99", a.p99_ttft}}},
                    {"time_per_token_ms", a.mean_token}});
  }
  return json;
}

FleetJson ServersAsJson(const FleetRun& run) {
  FleetJson json = FleetJson::array();
  for (const FleetServerTotals& s : run.result.servers) {
    json.push_back({{"sent", s.sent},
                    {"finished", s.finished},
                    {"cold", s.cold},
                    {"broken", s.broken},
                    {"output_tokens", s.output_tokens},
                    {"device_loads", s.device_loads},
                    {"disk_loads", s.disk_loads},
                    {"starts", s.starts},
                    {"busy_s", static_cast<double>(s.busy) / static_cast<double>(kNsPerSecond)}});
  }
  return json;
}

FleetJson SizeAsJson(const FleetSize& size, double share) {
  FleetJson probes = FleetJson::array();
  for (const FleetSize::Probe& probe : size.probes)
    probes.push_back({{"servers", probe.servers}, {"attained", probe.attained}, {"p99_ttft_ms", probe.p99_ttft_ms}});
  FleetJson json{{"wanted_share", share}, {"probes", probes}};
  json["servers"] = size.servers > 0 ? FleetJson(size.servers) : FleetJson(nullptr);
  return json;
}

FleetJson RunAsJson(const FleetReport& report, const FleetRun& run) {
  const FleetSummary& s = run.summary;
  FleetJson json{
      {"policy", run.policy},
      {"attained",
       {{"share", s.attained},
        {"ttft", s.ttft_attained},
        {"tpot", s.tpot_attained},
        {"time_per_token", s.token_attained}}},
      {"requests",
       {{"counted", s.requests},
        {"finished", s.finished},
        {"refused", s.refused},
        {"cancelled", s.cancelled},
        {"broken", s.broken},
        {"not_served", s.not_served},
        {"retries", s.retries}}},
      {"ttft_ms", LatencyAsJson(s.ttft)},
      {"tpot_ms", LatencyAsJson(s.tpot)},
      {"time_per_token_ms", LatencyAsJson(s.token)},
      {"seconds", s.seconds},
      {"throughput", {{"requests_per_s", s.requests_per_second}, {"output_tokens_per_s", s.output_tokens_per_second}}},
      {"cold_share", s.cold},
      {"prefix_hit_share", s.prefix_hits},
      {"loads", {{"device", s.device_loads}, {"disk", s.disk_loads}}},
      {"preemptions", s.preemptions},
      {"busy_share", {{"mean", s.busy.mean}, {"min", s.busy.min}, {"max", s.busy.max}}},
      {"servers", ServersAsJson(run)},
      {"adapters", AdaptersAsJson(s.adapters)}};
  if (!run.size.probes.empty()) json["size"] = SizeAsJson(run.size, report.wanted_share);
  return json;
}

}  // namespace

const FleetRun& BestOf(const FleetReport& report) {
  CHECK(!report.runs.empty());
  if (!report.answer.empty()) return report.runs.front();
  return *std::min_element(report.runs.begin(), report.runs.end(), [](const FleetRun& a, const FleetRun& b) {
    const auto need = [](const FleetRun& run) { return run.size.servers > 0 ? run.size.servers : INT64_MAX; };
    if (!a.size.probes.empty() && need(a) != need(b)) return need(a) < need(b);
    return a.summary.attained > b.summary.attained;
  });
}

std::vector<std::vector<std::string>> MachineRows(const FleetReport& report) {
  std::vector<std::vector<std::string>> rows = {{"preset", "GPUs a server", "servers", "GPUs"}};
  for (const MachineCount& count : report.machines) {
    const char* before = count.known == MachineKnowledge::kExact       ? ""
                         : count.known == MachineKnowledge::kEstimated ? "about "
                                                                       : "> ";
    rows.push_back({std::string(count.choice.preset.name), Count(count.choice.gpus), before + Count(count.servers),
                    before + Count(count.Gpus())});
  }
  return rows;
}

std::string ReportAsTable(const FleetReport& report) {
  std::string text = report.answer.empty() ? "" : report.answer + "\n\n";
  text += fmt::format("{}\n{}\n{}\n{}\n\n", report.device, report.workload, report.fleet, ObjectiveText(report));
  if (report.machines.size() > 1) text += AlignRows(MachineRows(report)) + "\n";
  if (report.runs.empty()) return text;
  text += AlignRows(PolicyRows(report));
  const FleetRun& best = BestOf(report);
  text += fmt::format("\nadapters that {} serves worst, of {} with requests:\n", best.policy,
                      Count(static_cast<std::int64_t>(best.summary.adapters.size())));
  std::vector<std::vector<std::string>> rows = {
      {"adapter", "rank", "requests", "in SLO", "TTFT P50", "P99", "per token", "cold"}};
  for (std::size_t i = 0; i < std::min(kWorstShown, best.summary.adapters.size()); ++i) {
    const AdapterSummary& a = best.summary.adapters[i];
    rows.push_back({a.name, Count(a.rank), Count(a.requests), FormatShare(a.attained), FormatMs(a.p50_ttft),
                    FormatMs(a.p99_ttft), FormatMs(a.mean_token), FormatShare(a.cold)});
  }
  return text + AlignRows(rows);
}

std::string ReportAsJson(const FleetReport& report) {
  FleetJson json{
      {"kind", "loramux fleet simulation"},
      {"device", report.device},
      {"workload", report.workload},
      {"fleet", report.fleet},
      {"command", report.command},
      {"simulated",
       "all times come from models of the executor, the transfers and the network; router, scheduler, caches "
       "and engine are the program's own code"},
      {"slo_ttft_ms", static_cast<double>(report.objective.ttft) / kNsPerMs}};
  if (report.objective.tpot > 0) json["slo_tpot_ms"] = static_cast<double>(report.objective.tpot) / kNsPerMs;
  if (report.objective.token > 0)
    json["slo_time_per_token_ms"] = static_cast<double>(report.objective.token) / kNsPerMs;
  if (report.low_load_ms > 0) json["low_load_e2e_ms"] = report.low_load_ms;
  if (!report.answer.empty()) {
    json["answer"] = report.answer;
    json["wanted_share"] = report.wanted_share;
    json["machines"] = MachinesAsJson(report);
  }
  json["policies"] = FleetJson::array();
  for (const FleetRun& run : report.runs) json["policies"].push_back(RunAsJson(report, run));
  // arguments and names of files are any bytes
  return json.dump(1, ' ', false, FleetJson::error_handler_t::replace) + "\n";
}

}  // namespace loramux
