// The report of `loramux simulate` as a page of its own.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "report/html.h"
#include "report/number_format.h"
#include "report/plot.h"
#include "simulate/report.h"
#include "workload/statistics.h"

namespace loramux {
namespace {

constexpr int kColours = 8;  // more presets than that get plots of their own
constexpr int kCurvePoints = 200;

double Seconds(TimeNs time) { return static_cast<double>(time) / static_cast<double>(kNsPerSecond); }
double TtftObjectiveMs(const SimulationReport& report) { return static_cast<double>(report.objective.ttft) / kNsPerMs; }
std::string NameOf(const PresetRun& run) { return std::string(run.preset.name); }

// Cells are numbers, but the first of each line; or all of them words.
std::string Table(const std::vector<std::string>& heads, const std::vector<std::vector<std::string>>& rows,
                  bool words = false) {
  const std::string attribute = words ? " class=\"text\"" : "";
  const auto row_of = [&](const char* tag, const std::vector<std::string>& cells) {
    std::string html = "<tr>";
    for (const std::string& cell : cells) html += fmt::format("<{0}{1}>{2}</{0}>", tag, attribute, EscapeHtml(cell));
    return html + "</tr>";
  };
  std::string html = "<div class=\"card\"><table>" + row_of("th", heads);
  for (const auto& row : rows) html += row_of("td", row);
  return html + "</table></div>\n";
}

std::string LatencyTable(const SimulationReport& report) {
  std::vector<std::vector<std::string>> rows;
  for (const PresetRun& run : report.runs) {
    const SimulationSummary& s = run.summary;
    rows.push_back({NameOf(run), FormatMs(s.ttft.mean), FormatMs(s.ttft.p50), FormatMs(s.ttft.p90),
                    FormatMs(s.ttft.p99), FormatMs(s.tpot.mean), FormatMs(s.tpot.p99), FormatMs(s.between_tokens.p99),
                    FormatMs(s.end_to_end.mean), FormatMs(s.end_to_end.p99), FormatMs(s.queue.mean),
                    FormatShare(s.within_slo), FormatShare(s.attained)});
  }
  return "<h2>Latency</h2>" + Table({"preset", "TTFT mean", "P50", "P90", "P99", "TPOT mean", "P99", "TBT P99",
                                     "E2E mean", "P99", "waiting", "TTFT kept", "all kept"},
                                    rows);
}

std::string LoadTable(const SimulationReport& report) {
  std::vector<std::vector<std::string>> rows;
  for (const PresetRun& run : report.runs) {
    const SimulationSummary& s = run.summary;
    rows.push_back(
        {NameOf(run), FormatNumber(s.goodput), FormatNumber(s.output_tokens_per_second), FormatShare(s.busy_share),
         FormatShare(s.adapter_hit_share), FormatNumber(static_cast<double>(s.adapter_loads)), FormatMs(s.mean_load_ms),
         FormatShare(s.prefix_hit_share), FormatNumber(s.gigabytes_to_device), FormatNumber(s.gigabytes_from_disk),
         FormatShare(s.link_busy_share), FormatNumber(static_cast<double>(s.preemptions)),
         FormatNumber(static_cast<double>(s.squashes)), FormatNumber(static_cast<double>(s.refused))});
  }
  return "<h2>Throughput and cache</h2>" +
         Table({"preset", "goodput /s", "tokens /s", "device busy", "adapter hits", "adapter loads", "mean load",
                "prefix hits", "GB to device", "GB from disk", "link busy", "preempted", "squashed", "refused"},
               rows);
}

std::string SizeTable(const SimulationReport& report) {
  std::vector<std::vector<std::string>> rows;
  for (const PresetRun& run : report.runs) {
    const auto sizes = SummariseBySize(run.result);
    std::vector<std::string> row = {NameOf(run)};
    for (const SizeClassSummary& size : sizes) {
      row.push_back(FormatMs(size.ttft.p50));
      row.push_back(FormatMs(size.ttft.p99));
      row.push_back(FormatShare(size.queue_share));
    }
    rows.push_back(std::move(row));
  }
  return "<h2>By size of the request (thirds)</h2>" +
         Table({"preset", "small: TTFT P50", "P99", "waiting share", "medium: TTFT P50", "P99", "waiting share",
                "large: TTFT P50", "P99", "waiting share"},
               rows);
}

std::string WhatTable(const SimulationReport& report) {
  std::vector<std::vector<std::string>> rows;
  for (const PresetRun& run : report.runs) {
    rows.push_back({NameOf(run), std::string(run.preset.what), std::string(run.preset.spec.cache),
                    std::string(run.preset.spec.queue), run.preset.spec.chunked_prefill ? "in chunks" : "whole"});
  }
  return "<h2>Presets</h2>" +
         Table({"preset", "description", "cache regime", "queue order", "prompts"}, rows, /*words=*/true);
}

// One line a preset.
template <typename Points>
std::string Lines(const SimulationReport& report, Plot plot, Points points) {
  int colour = 0;
  for (const PresetRun& run : report.runs) {
    if (colour == kColours) break;
    plot.series.push_back({.name = NameOf(run), .points = points(run), .colour = ++colour});
  }
  return RenderPlot(plot);
}

std::vector<std::pair<double, double>> Cumulative(const std::vector<double>& values) {
  const std::vector<double> curve = QuantileCurve(values, kCurvePoints);
  std::vector<std::pair<double, double>> points;
  for (std::size_t i = 0; i < curve.size(); ++i) {
    points.emplace_back(std::max(curve[i], 1e-3), 100.0 * static_cast<double>(i) / kCurvePoints);
  }
  return points;
}

std::vector<double> TpotsOf(const SimulationResult& result) {
  std::vector<double> values;
  for (const RequestRecord& record : result.requests) {
    if (!record.Ended() || record.output_tokens < 2) continue;
    values.push_back(Seconds(record.last_token - record.first_token) * 1e3 / (record.output_tokens - 1));
  }
  return values;
}

// P99 of those that arrived in each of 50 equal parts of the time.
std::vector<std::pair<double, double>> TtftOverTime(const SimulationResult& result) {
  constexpr std::size_t kParts = 50;
  TimeNs last = 1;
  for (const RequestRecord& record : result.requests) last = std::max(last, record.arrival);
  std::vector<std::vector<double>> parts(kParts);
  for (const RequestRecord& record : result.requests) {
    if (!record.Ended()) continue;
    const auto part =
        static_cast<std::size_t>(static_cast<double>(record.arrival) / static_cast<double>(last) * (kParts - 1));
    parts[part].push_back(Seconds(record.Ttft()) * 1e3);
  }
  std::vector<std::pair<double, double>> points;
  for (std::size_t i = 0; i < kParts; ++i) {
    if (parts[i].empty()) continue;
    points.emplace_back(Seconds(last) * (static_cast<double>(i) + 0.5) / kParts, Summarise(std::move(parts[i])).p99);
  }
  return points;
}

std::string LatencyPlots(const SimulationReport& report) {
  const auto plot = [&](const char* title, const char* x) {
    return Plot{
        .title = title, .x_label = x, .y_label = "% of requests", .log_x = true, .y_max = 100, .cumulative = true};
  };
  Plot ttft = plot("Time to first token", "ms");
  ttft.marker_x = TtftObjectiveMs(report);
  ttft.marker_label = "objective";
  std::string html = "<h2>Latency in plots</h2><div class=\"plots\">";
  html += Lines(report, ttft, [](const PresetRun& run) { return Cumulative(TtftsOf(run.result)); });
  html += Lines(report, plot("Time per output token", "ms"),
                [](const PresetRun& run) { return Cumulative(TpotsOf(run.result)); });
  html += Lines(report, {.title = "Time to first token, P99, over time", .x_label = "s", .y_label = "ms"},
                [](const PresetRun& run) { return TtftOverTime(run.result); });
  html += Lines(report, {.title = "Waiting requests", .x_label = "s", .y_label = "requests"}, [](const PresetRun& run) {
    std::vector<std::pair<double, double>> points;
    for (const WorldSample& sample : run.result.samples)
      points.emplace_back(Seconds(sample.at), static_cast<double>(sample.waiting));
    return points;
  });
  html += Lines(report, {.title = "Running requests", .x_label = "s", .y_label = "requests"}, [](const PresetRun& run) {
    std::vector<std::pair<double, double>> points;
    for (const WorldSample& sample : run.result.samples)
      points.emplace_back(Seconds(sample.at), static_cast<double>(sample.running));
    return points;
  });
  html += Lines(report, plot("End to end", "ms"), [](const PresetRun& run) {
    std::vector<double> values;
    for (const RequestRecord& record : run.result.requests) {
      if (record.Ended()) values.push_back(Seconds(record.EndToEnd()) * 1e3);
    }
    return Cumulative(values);
  });
  return html + "</div>\n";
}

std::string SustainedPlot(const SimulationReport& report) {
  if (report.runs.empty() || report.runs.front().sustained.probes.empty()) return {};
  std::vector<std::vector<std::string>> rows;
  for (const PresetRun& run : report.runs) {
    const SustainedLoad &first = report.runs.front().sustained, &own = run.sustained;
    const bool comparable = first.rate > 0 && !first.at_least && !own.at_least;
    rows.push_back(
        {NameOf(run), ShowSustained(own) + " /s", comparable ? fmt::format("{:.2f}x", own.rate / first.rate) : "-"});
  }
  // Beyond a few times the objective a line only says that it was missed.
  const double top = 3 * TtftObjectiveMs(report);
  Plot plot{.title = "TTFT P99 by load",
            .x_label = "requests per second",
            .y_label = "ms; the axis ends at three times the objective",
            .y_max = top};
  return "<h2>Load sustained within the objective</h2><div class=\"plots\">" +
         Lines(report, plot,
               [&](const PresetRun& run) {
                 std::vector<std::pair<double, double>> points;
                 for (const LoadProbe& probe : run.sustained.probes)
                   points.emplace_back(probe.rate, probe.p99_ttft_ms < top ? probe.p99_ttft_ms : top);
                 return points;
               }) +
         Table({"preset", "sustained load", "relative to the first"}, rows) + "</div>\n";
}

// Layers on top of each other: each area covers those above it.
std::string MemoryPlot(const SimulationReport& report, const PresetRun& run) {
  const double gigabytes = static_cast<double>(run.page_bytes > 0 ? run.page_bytes : report.page_bytes) / 1e9;
  Plot plot{.title = NameOf(run),
            .x_label = "s",
            .y_label = "GB",
            .y_max = static_cast<double>(report.device_pages * report.page_bytes) / 1e9};
  PlotSeries running{.name = "running requests", .colour = 1, .area = true},
      adapters{.name = "+ adapters", .colour = 2, .area = true},
      history{.name = "+ history", .colour = 3, .area = true};
  for (const WorldSample& sample : run.result.samples) {
    const double at = Seconds(sample.at), kv = static_cast<double>(sample.running_kv_pages) * gigabytes;
    const double with_adapters = kv + static_cast<double>(sample.adapter_pages) * gigabytes;
    running.points.emplace_back(at, kv);
    adapters.points.emplace_back(at, with_adapters);
    history.points.emplace_back(at, with_adapters + static_cast<double>(sample.history_pages) * gigabytes);
  }
  plot.series = {std::move(history), std::move(adapters), std::move(running)};
  return RenderPlot(plot);
}

std::string Tiles(const SimulationReport& report) {
  std::string html = "<div class=\"tiles\">";
  const auto best =
      std::min_element(report.runs.begin(), report.runs.end(),
                       [](const PresetRun& a, const PresetRun& b) { return a.summary.ttft.p99 < b.summary.ttft.p99; });
  if (best != report.runs.end()) {
    html += HtmlTile("best TTFT P99", FormatMs(best->summary.ttft.p99), NameOf(*best));
    html += HtmlTile("offered load", FormatNumber(best->summary.offered_per_second) + " /s",
                     "over " + FormatNumber(best->summary.seconds) + " s");
  }
  html += HtmlTile("objective, TTFT", FormatMs(TtftObjectiveMs(report)), report.objective_source);
  if (report.objective.tpot > 0)
    html += HtmlTile("objective, TPOT", FormatMs(static_cast<double>(report.objective.tpot) / kNsPerMs),
                     report.objective_source);
  html += HtmlTile("memory without the weights",
                   FormatNumber(static_cast<double>(report.device_pages * report.page_bytes) / 1e9) + " GB",
                   FormatNumber(static_cast<double>(report.device_pages)) + " pages");
  return html + "</div>\n";
}

}  // namespace

std::string ReportAsHtml(const SimulationReport& report) {
  std::string html =
      fmt::format("<h1>{}</h1><p class=\"sub\">{}</p>", EscapeHtml(report.device), EscapeHtml(report.workload));
  html +=
      "<p class=\"note\">Simulated: scheduler, caches and engine are the server's own code on a virtual clock. A model "
      "gives the durations of steps and transfers.</p>";
  html += Tiles(report) + LatencyTable(report) + LatencyPlots(report) + SustainedPlot(report) + LoadTable(report);
  html += "<h2>Device memory over time</h2><div class=\"plots\">";
  for (const PresetRun& run : report.runs) html += MemoryPlot(report, run);
  html += "</div>\n" + SizeTable(report) + WhatTable(report);
  html += "<details><summary>Command</summary><pre>" + EscapeHtml(report.command) + "</pre></details>";
  return HtmlPage("loramux simulation: " + report.device, html);
}

}  // namespace loramux
