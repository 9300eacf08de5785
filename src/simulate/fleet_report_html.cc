// The report of `loramux simulate --servers` as a page of its own.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "report/html.h"
#include "report/number_format.h"
#include "report/plot.h"
#include "simulate/fleet_report.h"

namespace loramux {
namespace {

constexpr int kFleetColours = 8;  // further policies have no line
constexpr int kFleetPoints = 200;
constexpr std::size_t kWorstRows = 20;

std::string FleetTable(const std::string& title, const std::vector<std::string>& heads,
                       const std::vector<std::vector<std::string>>& rows) {
  const auto row_of = [](const char* tag, const std::vector<std::string>& cells) {
    std::string html = "<tr>";
    for (const std::string& cell : cells) html += fmt::format("<{0}>{1}</{0}>", tag, EscapeHtml(cell));
    return html + "</tr>";
  };
  std::string html = "<h2>" + EscapeHtml(title) + "</h2><div class=\"card\"><table>" + row_of("th", heads);
  for (const auto& row : rows) html += row_of("td", row);
  return html + "</table></div>\n";
}

// One line a policy.
template <typename Points>
std::string PolicyLines(const FleetReport& report, Plot plot, Points points) {
  int colour = 0;
  for (const FleetRun& run : report.runs) {
    if (colour == kFleetColours) break;
    plot.series.push_back({.name = run.policy, .points = points(run), .colour = ++colour});
  }
  return RenderPlot(plot);
}

std::vector<std::pair<double, double>> ShareBelow(std::vector<double> values) {
  const std::vector<double> curve = QuantileCurve(std::move(values), kFleetPoints);
  std::vector<std::pair<double, double>> points;
  for (std::size_t i = 0; i < curve.size(); ++i)
    points.emplace_back(std::max(curve[i], 1e-3), 100.0 * static_cast<double>(i) / kFleetPoints);
  return points;
}

std::vector<double> FleetTtfts(const FleetRun& run, const FleetObjective& objective) {
  std::vector<double> ttfts;
  for (std::size_t i = 0; i < run.result.requests.size(); ++i) {
    const RequestRecord& record = run.result.run.requests[i];
    if (run.result.requests[i].end == FleetEnd::kFinished && record.arrival >= objective.warmup)
      ttfts.push_back(static_cast<double>(record.Ttft()) / kNsPerMs);
  }
  return ttfts;
}

// What the adapters get, worst first: x in per cent of the requests, so that busy adapters count more.
std::vector<std::pair<double, double>> AttainedByAdapter(const FleetRun& run) {
  std::vector<std::pair<double, double>> points;
  double seen = 0;
  for (const AdapterSummary& adapter : run.summary.adapters) {
    seen += static_cast<double>(adapter.requests);
    points.emplace_back(100 * seen / static_cast<double>(run.summary.requests), 100 * adapter.attained);
  }
  return points;
}

std::vector<std::pair<double, double>> BusyByServer(const FleetRun& run) {
  std::vector<double> busy;
  for (const FleetServerTotals& server : run.result.servers)
    busy.push_back(100 * static_cast<double>(server.busy) / kNsPerSecond / std::max(1e-9, run.summary.seconds));
  std::sort(busy.begin(), busy.end());
  std::vector<std::pair<double, double>> points;
  for (std::size_t i = 0; i < busy.size(); ++i) points.emplace_back(static_cast<double>(i + 1), busy[i]);
  return points;
}

std::string FleetPlots(const FleetReport& report) {
  Plot ttft{.title = "Time to first token",
            .x_label = "ms",
            .y_label = "% of requests",
            .log_x = true,
            .y_max = 100,
            .cumulative = true};
  ttft.marker_x = static_cast<double>(report.objective.ttft) / kNsPerMs;
  ttft.marker_label = "objective";
  Plot token{.title = "Time per token",
             .x_label = "ms",
             .y_label = "% of requests",
             .log_x = true,
             .y_max = 100,
             .cumulative = true};
  if (report.objective.token > 0) {
    token.marker_x = static_cast<double>(report.objective.token) / kNsPerMs;
    token.marker_label = "objective";
  }
  const auto over_time = [](std::int64_t FleetSample::*field) {
    return [field](const FleetRun& run) {
      std::vector<std::pair<double, double>> points;
      for (const FleetSample& sample : run.result.samples)
        points.emplace_back(static_cast<double>(sample.at) / kNsPerSecond, static_cast<double>(sample.*field));
      return points;
    };
  };
  std::string html = "<h2>Latency</h2><div class=\"plots\">";
  html += PolicyLines(report, ttft, [&](const FleetRun& run) { return ShareBelow(FleetTtfts(run, report.objective)); });
  html += PolicyLines(report, token,
                      [&](const FleetRun& run) { return ShareBelow(TokenTimesOf(run.result, report.objective)); });
  html += PolicyLines(report,
                      {.title = "What adapters get, worst first",
                       .x_label = "% of requests",
                       .y_label = "% of the adapter's requests within the objective",
                       .y_max = 100},
                      AttainedByAdapter);
  html += "</div><h2>Servers</h2><div class=\"plots\">";
  html += PolicyLines(report,
                      {.title = "How busy the servers are",
                       .x_label = "server, least busy first",
                       .y_label = "% of time",
                       .y_max = 100},
                      BusyByServer);
  html += PolicyLines(report, {.title = "Waiting requests, all servers", .x_label = "s", .y_label = "requests"},
                      over_time(&FleetSample::waiting));
  html += PolicyLines(report, {.title = "Waiting requests, longest queue", .x_label = "s", .y_label = "requests"},
                      over_time(&FleetSample::most_waiting));
  html += PolicyLines(report, {.title = "Servers that are up", .x_label = "s", .y_label = "servers"},
                      over_time(&FleetSample::servers));
  return html + "</div>\n";
}

std::string SizePlot(const FleetReport& report) {
  if (report.runs.empty() || report.runs.front().size.probes.empty()) return {};
  const auto points = [](const FleetRun& run) {
    std::vector<std::pair<double, double>> points;
    for (const FleetSize::Probe& probe : run.size.probes)
      points.emplace_back(static_cast<double>(probe.servers), 100 * probe.attained);
    return points;
  };
  return fmt::format("<h2>Servers needed for {} within the objective</h2><div class=\"plots\">",
                     FormatShare(report.wanted_share)) +
         PolicyLines(report,
                     {.title = "Attainment by size", .x_label = "servers", .y_label = "% of requests", .y_max = 100},
                     points) +
         "</div>\n";
}

std::string LatencyFigures(const FleetReport& report) {
  std::vector<std::vector<std::string>> rows;
  for (const FleetRun& run : report.runs) {
    const FleetSummary& s = run.summary;
    rows.push_back({run.policy, FormatShare(s.attained), FormatMs(s.ttft.p50), FormatMs(s.ttft.p99),
                    FormatMs(s.tpot.mean), FormatMs(s.token.mean), FormatMs(s.token.p99),
                    FormatNumber(s.requests_per_second), FormatNumber(s.output_tokens_per_second)});
  }
  return FleetTable(report.answer.empty() ? "Policies" : "Presets",
                    {report.first_column, "within objective", "TTFT P50", "P99", "TPOT mean", "time per token", "P99",
                     "requests /s", "tokens /s"},
                    rows);
}

std::string MachineTable(const FleetReport& report) {
  if (report.machines.size() < 2) return {};
  std::vector<std::vector<std::string>> rows = MachineRows(report);
  const std::vector<std::string> heads = rows.front();
  rows.erase(rows.begin());
  return FleetTable("What each needs", heads, rows);
}

std::string WorkFigures(const FleetReport& report) {
  std::vector<std::vector<std::string>> rows;
  for (const FleetRun& run : report.runs) {
    const FleetSummary& s = run.summary;
    const auto count = [](std::int64_t number) { return FormatNumber(static_cast<double>(number)); };
    rows.push_back({run.policy, count(static_cast<std::int64_t>(run.result.servers.size())), FormatShare(s.cold),
                    FormatShare(s.prefix_hits), count(s.device_loads), count(s.disk_loads),
                    fmt::format("{} to {}", FormatNumber(s.sent.min), FormatNumber(s.sent.max)),
                    fmt::format("{} to {}", FormatShare(s.busy.min), FormatShare(s.busy.max)), count(s.preemptions),
                    count(s.retries), count(s.broken), count(s.not_served), count(s.refused)});
  }
  return FleetTable("Work",
                    {report.first_column, "servers", "cold", "prefix hits", "loads", "from disk", "requests a server",
                     "busy", "preempted", "retries", "broken", "not served", "refused"},
                    rows);
}

std::string WorstAdapters(const FleetReport& report) {
  const FleetRun& best = BestOf(report);
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < std::min(kWorstRows, best.summary.adapters.size()); ++i) {
    const AdapterSummary& a = best.summary.adapters[i];
    rows.push_back({a.name, FormatNumber(static_cast<double>(a.rank)), FormatNumber(static_cast<double>(a.requests)),
                    FormatShare(a.attained), FormatMs(a.p50_ttft), FormatMs(a.p99_ttft), FormatMs(a.mean_token),
                    FormatShare(a.cold)});
  }
  return FleetTable("Adapters that " + best.policy + " serves worst",
                    {"adapter", "rank", "requests", "within objective", "TTFT P50", "P99", "time per token", "cold"},
                    rows);
}

}  // namespace

std::string ReportAsHtml(const FleetReport& report) {
  std::string html = fmt::format("<h1>{}</h1><p class=\"sub\">{}. {}</p>", EscapeHtml(report.device),
                                 EscapeHtml(report.workload), EscapeHtml(report.fleet));
  if (!report.answer.empty()) html += "<p class=\"answer\">" + EscapeHtml(report.answer) + "</p>";
  html +=
      "<p class=\"note\">Simulated: routers, schedulers, caches and engines are the program's own code on a virtual "
      "clock. Models give the durations of steps and transfers, and how late routers hear of servers.</p>";
  html += "<div class=\"tiles\">";
  if (!report.runs.empty()) {
    const FleetRun& best = BestOf(report);
    html += HtmlTile("best " + report.first_column, best.policy,
                     FormatShare(best.summary.attained) + " within the objective");
    if (best.size.servers > 0)
      html += HtmlTile("servers needed", FormatNumber(static_cast<double>(best.size.servers)),
                       "for " + FormatShare(report.wanted_share));
    if (!best.summary.adapters.empty())
      html += HtmlTile("worst adapter", FormatShare(best.summary.adapters.front().attained), "within the objective");
  }
  html += HtmlTile("objective, TTFT", FormatMs(static_cast<double>(report.objective.ttft) / kNsPerMs),
                   report.objective_source);
  if (report.objective.tpot > 0)
    html += HtmlTile("objective, TPOT", FormatMs(static_cast<double>(report.objective.tpot) / kNsPerMs),
                     report.objective_source);
  html += "</div>\n" + MachineTable(report) + LatencyFigures(report) + SizePlot(report) + FleetPlots(report) +
          WorkFigures(report);
  if (!report.runs.empty()) html += WorstAdapters(report);
  html += "<details><summary>Command</summary><pre>" + EscapeHtml(report.command) + "</pre></details>";
  return HtmlPage("loramux fleet: " + report.device, html);
}

}  // namespace loramux
