#include "loadgen/html_report.h"

#include <algorithm>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "report/html.h"
#include "report/number_format.h"
#include "report/plot.h"

namespace loramux::load {
namespace {

constexpr std::size_t kMaxAdapters = 200;

double Latency(const ReportJson& summary, const char* what, const char* quantile) {
  return NumberAt(summary, {"latency", what, quantile});
}

std::string Tiles(const ReportJson& report) {
  const ReportJson& summary = ChildAt(report, "summary");
  const double total = NumberAt(summary, {"requests", "total"}), failed = NumberAt(summary, {"requests", "failed"});
  const double checked = NumberAt(summary, {"requests", "checked"}),
               wrong = NumberAt(summary, {"requests", "wrong_answers"});
  std::string html = "<div class=\"tiles\">\n";
  html += HtmlTile("requests answered", FormatNumber(total - failed),
                   checked > 0 ? fmt::format("of {}; {} checked, {} wrong", FormatNumber(total), FormatNumber(checked),
                                             FormatNumber(wrong))
                               : fmt::format("of {}", FormatNumber(total)),
                   failed > 0 ? "" : "good");
  html +=
      HtmlTile("failed", FormatNumber(failed), total > 0 ? FormatShare(failed / total) : "", failed > 0 ? "bad" : "");
  html += HtmlTile("throughput", FormatNumber(NumberAt(summary, {"throughput", "output_tokens_per_s"})) + " tok/s",
                   fmt::format("{} requests/s", FormatNumber(NumberAt(summary, {"throughput", "requests_per_s"}))));
  if (Latency(summary, "ttft_ms", "count") > 0) {
    html += HtmlTile("first token, P50", FormatMs(Latency(summary, "ttft_ms", "p50")),
                     "P99 " + FormatMs(Latency(summary, "ttft_ms", "p99")));
  }
  if (Latency(summary, "tpot_ms", "count") > 0) {
    html += HtmlTile("output token, P50", FormatMs(Latency(summary, "tpot_ms", "p50")),
                     "P99 " + FormatMs(Latency(summary, "tpot_ms", "p99")));
  }
  html += HtmlTile("end to end, P50", FormatMs(Latency(summary, "e2e_ms", "p50")),
                   "P99 " + FormatMs(Latency(summary, "e2e_ms", "p99")));
  if (ChildAt(summary, "goodput").is_object()) {
    const double share = NumberAt(summary, {"goodput", "share"});
    html += HtmlTile("goodput", FormatNumber(NumberAt(summary, {"goodput", "requests_per_s"})) + " /s",
                     FormatShare(share) + " in objective",
                     share >= 0.99 ? "good"
                     : share < 0.9 ? "bad"
                                   : "");
  }
  return html + "</div>\n";
}

std::string LatencyTable(const ReportJson& summary) {
  std::string html =
      "<h2>Latency</h2><div class=\"card\"><table><tr><th></th><th>mean</th><th>min</th><th>P50</th><th>P90</th>"
      "<th>P99</th><th>max</th><th>samples</th></tr>\n";
  const std::pair<const char*, const char*> rows[] = {{"ttft_ms", "time to first token"},
                                                      {"tpot_ms", "time per output token"},
                                                      {"itl_ms", "between tokens"},
                                                      {"e2e_ms", "end to end"}};
  for (const auto& [key, name] : rows) {
    if (Latency(summary, key, "count") <= 0) continue;
    html += fmt::format("<tr><td>{}</td>", name);
    for (const char* what : {"mean", "min", "p50", "p90", "p99", "max"}) {
      html += fmt::format("<td>{}</td>", FormatMs(Latency(summary, key, what)));
    }
    html += fmt::format("<td>{}</td></tr>\n", FormatNumber(Latency(summary, key, "count")));
  }
  if (NumberAt(summary, {"scheduling_lag_ms", "count"}) > 0) {
    html += "<tr><td>sending delay (this client)</td>";
    for (const char* what : {"mean", "min", "p50", "p90", "p99", "max"}) {
      html += fmt::format("<td>{}</td>", FormatMs(NumberAt(summary, {"scheduling_lag_ms", what})));
    }
    html += fmt::format("<td>{}</td></tr>\n", FormatNumber(NumberAt(summary, {"scheduling_lag_ms", "count"})));
  }
  return html + "</table></div>\n";
}

Plot CurvePlot(const ReportJson& report, const char* key, const std::string& title) {
  Plot plot{.title = title, .x_label = "ms", .y_label = "% of requests", .y_max = 100};
  PlotSeries series{.name = "% up to here"};
  const ReportJson& curve = ChildAt(ChildAt(report, "curves"), key);
  for (std::size_t i = 0; curve.is_array() && i < curve.size(); ++i) {
    const double share = curve.size() > 1 ? static_cast<double>(i) / static_cast<double>(curve.size() - 1) : 1;
    if (curve[i].is_number()) series.points.emplace_back(curve[i].get<double>(), 100 * share);
  }
  if (!series.points.empty()) {
    plot.log_x = series.points.front().first > 0 && series.points.back().first > 20 * series.points.front().first;
  }
  plot.series.push_back(std::move(series));
  const double objective =
      NumberAt(report, {"summary", "goodput", key == std::string_view("ttft_ms") ? "slo_ttft_ms" : "slo_tpot_ms"});
  if (objective > 0 && key != std::string_view("e2e_ms")) {
    plot.marker_x = objective;
    plot.marker_label = "objective " + FormatMs(objective);
  }
  return plot;
}

PlotSeries OverTime(const ReportJson& report, const char* key, std::string name, int colour, bool area) {
  PlotSeries series{.name = std::move(name), .colour = colour, .area = area};
  const double bin_s = NumberAt(report, {"series", "bin_s"});
  for (const ReportJson& bin : ChildAt(ChildAt(report, "series"), "bins")) {
    const bool known = bin.is_object() && bin.contains(key) && bin[key].is_number();
    series.points.emplace_back(NumberAt(bin, {"t_s"}) + bin_s / 2,
                               known ? bin[key].get<double>() : std::numeric_limits<double>::quiet_NaN());
  }
  return series;
}

Plot LatencyOverTime(const ReportJson& report) {
  Plot plot{.title = "Time to first token over time", .x_label = "s after the start", .y_label = "ms"};
  for (const ReportJson& sample : ChildAt(report, "samples")) {
    if (!sample.is_array() || sample.size() < 3 || !sample[0].is_number() || !sample[1].is_number()) continue;
    plot.dots.emplace_back(sample[0].get<double>(), sample[1].get<double>());
  }
  plot.series = {OverTime(report, "ttft_p50_ms", "P50", 1, false), OverTime(report, "ttft_p99_ms", "P99", 2, false)};
  return plot;
}

std::string Plots(const ReportJson& report) {
  Plot tokens{.title = "Output tokens",
              .x_label = "s after the start",
              .y_label = "tokens/s",
              .series = {OverTime(report, "output_tokens_per_s", "tokens/s", 3, true)}};
  Plot flight{.title = "Requests in flight",
              .x_label = "s after the start",
              .y_label = "requests",
              .series = {OverTime(report, "in_flight", "in flight", 4, true)}};
  std::string html = "<h2>Distributions</h2><div class=\"plots\">\n";
  html += RenderPlot(CurvePlot(report, "ttft_ms", "Time to first token"));
  html += RenderPlot(CurvePlot(report, "tpot_ms", "Time per output token"));
  html += RenderPlot(CurvePlot(report, "e2e_ms", "End to end"));
  html += "</div>\n<h2>Over time</h2><div class=\"plots\">\n";
  html += RenderPlot(LatencyOverTime(report)) + RenderPlot(tokens) + RenderPlot(flight);
  return html + "</div>\n";
}

std::string BarCell(double value, double largest, bool second) {
  const double percent = largest > 0 ? 100 * value / largest : 0;
  return fmt::format("<td class=\"bar{}\"><i style=\"width:calc({:.1f}% - 8px)\"></i>{}</td>", second ? " two" : "",
                     percent, value > 0 ? FormatMs(value) : "");
}

std::string AdapterTable(const ReportJson& report) {
  std::vector<const ReportJson*> adapters;
  double p50 = 0, p99 = 0, e2e = 0;
  for (const ReportJson& adapter : ChildAt(report, "adapters")) {
    adapters.push_back(&adapter);
    p50 = std::max(p50, Latency(adapter, "ttft_ms", "p50"));
    p99 = std::max(p99, Latency(adapter, "ttft_ms", "p99"));
    e2e = std::max(e2e, Latency(adapter, "e2e_ms", "p99"));
  }
  if (adapters.empty()) return {};
  std::stable_sort(adapters.begin(), adapters.end(), [](const auto* a, const auto* b) {
    return NumberAt(*a, {"requests", "total"}) > NumberAt(*b, {"requests", "total"});
  });
  const bool goodput = ChildAt(ChildAt(report, "summary"), "goodput").is_object();
  std::string html =
      "<h2>By adapter</h2><div class=\"card\"><table><tr><th>adapter</th><th>requests</th><th>failed</th><th>wrong</th>"
      "<th>tokens out</th><th>TTFT P50</th><th>TTFT P99</th><th>TPOT P50</th><th>end to end P99</th>";
  html += goodput ? "<th>in objective</th></tr>\n" : "</tr>\n";
  for (std::size_t i = 0; i < std::min(adapters.size(), kMaxAdapters); ++i) {
    const ReportJson& a = *adapters[i];
    const double failed = NumberAt(a, {"requests", "failed"}), wrong = NumberAt(a, {"requests", "wrong_answers"});
    html += fmt::format(
        "<tr><td class=\"name\" title=\"{0}\">{0}{1}</td><td>{2}</td><td class=\"{3}\">{4}</td>"
        "<td class=\"{5}\">{6}</td><td>{7}</td>",
        EscapeHtml(StringAt(a, "name")), TrueAt(a, "base") ? " (base)" : "",
        FormatNumber(NumberAt(a, {"requests", "total"})), failed > 0 ? "bad" : "", FormatNumber(failed),
        wrong > 0 ? "bad" : "", FormatNumber(wrong), FormatNumber(NumberAt(a, {"tokens", "output"})));
    html += BarCell(Latency(a, "ttft_ms", "p50"), p50, false) + BarCell(Latency(a, "ttft_ms", "p99"), p99, true);
    html +=
        fmt::format("<td>{}</td>", Latency(a, "tpot_ms", "count") > 0 ? FormatMs(Latency(a, "tpot_ms", "p50")) : "");
    html += BarCell(Latency(a, "e2e_ms", "p99"), e2e, false);
    html += goodput ? fmt::format("<td>{}</td></tr>\n", FormatShare(NumberAt(a, {"goodput", "share"}))) : "</tr>\n";
  }
  html += "</table></div>\n";
  if (adapters.size() > kMaxAdapters)
    html += fmt::format("<p class=\"sub\">and {} more in the JSON</p>", adapters.size() - kMaxAdapters);
  return html;
}

std::string FailureTable(const ReportJson& report) {
  const ReportJson& failures = ChildAt(ChildAt(report, "summary"), "failures");
  if (!failures.is_object() || failures.empty()) return {};
  std::string html =
      "<h2>Failures</h2><div class=\"card\"><table><tr><th>kind</th><th>requests</th>"
      "<th class=\"text\">for example</th></tr>\n";
  for (const auto& [kind, count] : failures.items()) {
    std::string example;
    for (const ReportJson& one : ChildAt(report, "failure_examples")) {
      if (StringAt(one, "kind") == kind && example.empty())
        example = StringAt(one, "model") + ": " + StringAt(one, "detail");
    }
    html += fmt::format("<tr><td class=\"bad\">{}</td><td>{}</td><td class=\"text wrap\">{}</td></tr>\n",
                        EscapeHtml(kind), FormatNumber(NumberAt(failures, {kind.c_str()})), EscapeHtml(example));
  }
  return html + "</table></div>\n";
}

}  // namespace

std::string DescribeRun(const ReportJson& report) {
  const ReportJson& configuration = ChildAt(report, "configuration");
  const auto started = static_cast<std::time_t>(std::clamp(NumberAt(report, {"started_unix_s"}), 0.0, 4e9));
  return fmt::format("{} at {}; {}; {:%Y-%m-%d %H:%M:%S} UTC, {} s", StringAt(configuration, "model"),
                     StringAt(configuration, "url"), StringAt(configuration, "load"), fmt::gmtime(started),
                     FormatNumber(NumberAt(report, {"duration_s"})));
}

std::string HtmlReport(const ReportJson& report) {
  std::string body = "<h1>loramux bench</h1>\n<p class=\"sub\">" + EscapeHtml(DescribeRun(report)) + "</p>\n";
  if (TrueAt(report, "interrupted")) body += "<p class=\"note\">The run was stopped before its end.</p>\n";
  for (const ReportJson& warning : ChildAt(report, "warnings")) {
    if (warning.is_string()) body += "<p class=\"note\">" + EscapeHtml(warning.get<std::string>()) + "</p>\n";
  }
  body += Tiles(report) + LatencyTable(ChildAt(report, "summary")) + FailureTable(report) + Plots(report) +
          AdapterTable(report);
  const std::string configuration =
      ChildAt(report, "configuration").dump(2, ' ', false, ReportJson::error_handler_t::replace);
  body +=
      "<details><summary>Configuration</summary><pre class=\"card\">" + EscapeHtml(configuration) + "</pre></details>";
  return HtmlPage("loramux bench: " + StringAt(ChildAt(report, "configuration"), "model"), body);
}

}  // namespace loramux::load
