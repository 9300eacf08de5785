#include "loadgen/compare.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "loadgen/console.h"
#include "loadgen/html_report.h"
#include "report/html.h"
#include "report/number_format.h"
#include "report/plot.h"

namespace loramux::load {
namespace {

constexpr double kNoise = 0.02;
constexpr std::size_t kMaxAdapters = 200;

std::string Show(const ComparedValue& value, double number) {
  return value.is_ms ? FormatMs(number) : FormatNumber(number);
}

std::string Ratio(const ComparedValue& value) { return value.a == 0 ? "" : fmt::format("{:.2f} x", value.ratio()); }

const char* VerdictText(Verdict verdict) {
  return verdict == Verdict::kBetter ? "better" : verdict == Verdict::kWorse ? "WORSE" : "";
}

const char* VerdictClass(Verdict verdict) {
  return verdict == Verdict::kBetter ? "good" : verdict == Verdict::kWorse ? "bad" : "";
}

PlotSeries Curve(const NamedReport& report, const char* key, const char* letter, int colour) {
  PlotSeries series{.name = letter, .colour = colour};
  const ReportJson& curve = ChildAt(ChildAt(report.report, "curves"), key);
  for (std::size_t i = 0; curve.is_array() && curve.size() > 1 && i < curve.size(); ++i) {
    if (!curve[i].is_number()) continue;
    series.points.emplace_back(curve[i].get<double>(),
                               100 * static_cast<double>(i) / static_cast<double>(curve.size() - 1));
  }
  return series;
}

std::string CurvePlots(const NamedReport& a, const NamedReport& b) {
  std::string html;
  const std::pair<const char*, const char*> plots[] = {
      {"ttft_ms", "Time to first token"}, {"tpot_ms", "Time per output token"}, {"e2e_ms", "End to end"}};
  for (const auto& [key, title] : plots) {
    Plot plot{.title = title,
              .x_label = "ms",
              .y_label = "% of requests",
              .series = {Curve(a, key, "A", 1), Curve(b, key, "B", 2)},
              .y_max = 100};
    double low = 1e300, high = 0;
    for (const PlotSeries& series : plot.series) {
      for (const auto& [x, y] : series.points) {
        low = std::min(low, x);
        high = std::max(high, x);
      }
    }
    plot.log_x = low > 0 && high > 20 * low;
    html += RenderPlot(plot);
  }
  return html;
}

std::map<std::string, const ReportJson*> Adapters(const ReportJson& report) {
  std::map<std::string, const ReportJson*> adapters;
  for (const ReportJson& adapter : ChildAt(report, "adapters")) adapters[StringAt(adapter, "name")] = &adapter;
  return adapters;
}

std::string AdapterRows(const NamedReport& a, const NamedReport& b) {
  const auto of_a = Adapters(a.report), of_b = Adapters(b.report);
  std::string rows;
  std::size_t count = 0;
  for (const auto& [name, one] : of_a) {
    const auto other = of_b.find(name);
    if (other == of_b.end() || ++count > kMaxAdapters) continue;
    rows += fmt::format("<tr><td class=\"name\">{}</td>", EscapeHtml(name));
    for (const auto& [what, quantile] :
         {std::pair{"ttft_ms", "p50"}, std::pair{"ttft_ms", "p99"}, std::pair{"e2e_ms", "p99"}}) {
      const ComparedValue value{.a = NumberAt(*one, {"latency", what, quantile}),
                                .b = NumberAt(*other->second, {"latency", what, quantile}),
                                .is_ms = true};
      rows += fmt::format("<td>{}</td><td>{}</td><td class=\"{}\">{}</td>", FormatMs(value.a), FormatMs(value.b),
                          VerdictClass(value.verdict()), Ratio(value));
    }
    rows += "</tr>\n";
  }
  return rows;
}

std::string AdapterTable(const NamedReport& a, const NamedReport& b) {
  const std::string rows = AdapterRows(a, b);
  if (rows.empty()) return {};
  return "<h2>By adapter</h2><div class=\"card\"><table><tr><th>adapter</th><th>TTFT P50, A</th><th>B</th><th>B / "
         "A</th>"
         "<th>TTFT P99, A</th><th>B</th><th>B / A</th><th>end to end P99, A</th><th>B</th><th>B / A</th></tr>\n" +
         rows + "</table></div>\n";
}

}  // namespace

Verdict ComparedValue::verdict() const {
  if (a == b || (a != 0 && std::abs(b / a - 1) <= kNoise)) return Verdict::kSame;
  return (b > a) == higher_is_better ? Verdict::kBetter : Verdict::kWorse;
}

std::vector<ComparedValue> CompareReports(const ReportJson& a, const ReportJson& b) {
  const ReportJson &in_a = ChildAt(a, "summary"), &in_b = ChildAt(b, "summary");
  std::vector<ComparedValue> values;
  const auto add = [&](std::string name, std::initializer_list<const char*> path, bool higher, bool ms) {
    values.push_back({std::move(name), NumberAt(in_a, path), NumberAt(in_b, path), higher, ms});
  };
  add("failed requests", {"requests", "failed"}, false, false);
  add("requests /s", {"throughput", "requests_per_s"}, true, false);
  add("output tokens /s", {"throughput", "output_tokens_per_s"}, true, false);
  if (ChildAt(in_a, "goodput").is_object() && ChildAt(in_b, "goodput").is_object()) {
    add("goodput /s", {"goodput", "requests_per_s"}, true, false);
  }
  const std::pair<const char*, const char*> latencies[] = {
      {"ttft_ms", "TTFT"}, {"tpot_ms", "TPOT"}, {"itl_ms", "between tokens"}, {"e2e_ms", "end to end"}};
  for (const auto& [key, name] : latencies) {
    if (NumberAt(in_a, {"latency", key, "count"}) <= 0 || NumberAt(in_b, {"latency", key, "count"}) <= 0) continue;
    for (const auto& [quantile, label] : {std::pair{"p50", "P50"}, std::pair{"p90", "P90"}, std::pair{"p99", "P99"}}) {
      add(fmt::format("{} {}", name, label), {"latency", key, quantile}, false, true);
    }
  }
  return values;
}

std::vector<std::string> ConfigurationDifferences(const ReportJson& a, const ReportJson& b) {
  const ReportJson &in_a = ChildAt(a, "configuration"), &in_b = ChildAt(b, "configuration");
  std::vector<std::string> differences;
  const auto text = [](const ReportJson& json, const std::string& key) {
    if (!json.is_object() || !json.contains(key)) return std::string("(not set)");
    return json[key].dump(-1, ' ', false, ReportJson::error_handler_t::replace).substr(0, 200);
  };
  std::map<std::string, bool> keys;
  if (in_a.is_object())
    for (const auto& [key, value] : in_a.items()) keys[key] = true;
  if (in_b.is_object())
    for (const auto& [key, value] : in_b.items()) keys[key] = true;
  for (const auto& [key, known] : keys) {
    if (text(in_a, key) != text(in_b, key))
      differences.push_back(fmt::format("{}: {} -> {}", key, text(in_a, key), text(in_b, key)));
  }
  return differences;
}

std::string ConsoleComparison(const NamedReport& a, const NamedReport& b) {
  std::string text =
      fmt::format("A: {} ({})\nB: {} ({})\n\n", a.name, DescribeRun(a.report), b.name, DescribeRun(b.report));
  for (const std::string& line : ConfigurationDifferences(a.report, b.report))
    text += "  differs: " + OneLine(line, 150) + "\n";
  text += fmt::format("\n  {:<24}{:>14}{:>14}{:>10}\n", "", "A", "B", "B / A");
  for (const ComparedValue& value : CompareReports(a.report, b.report)) {
    text += fmt::format("  {:<24}{:>14}{:>14}{:>10}  {}\n", value.name, Show(value, value.a), Show(value, value.b),
                        Ratio(value), VerdictText(value.verdict()));
  }
  return text;
}

std::string HtmlComparison(const NamedReport& a, const NamedReport& b) {
  std::string body = fmt::format(
      "<h1>loramux bench: two runs</h1>\n<p class=\"sub\"><b>A</b> {}: {}<br><b>B</b> {}: {}</p>\n", EscapeHtml(a.name),
      EscapeHtml(DescribeRun(a.report)), EscapeHtml(b.name), EscapeHtml(DescribeRun(b.report)));
  body += "<div class=\"card\"><table><tr><th></th><th>A</th><th>B</th><th>B / A</th><th class=\"text\"></th></tr>\n";
  for (const ComparedValue& value : CompareReports(a.report, b.report)) {
    const char* tone = VerdictClass(value.verdict());
    body +=
        fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"{}\">{}</td><td class=\"text {}\">{}</td></tr>\n",
                    EscapeHtml(value.name), Show(value, value.a), Show(value, value.b), tone, Ratio(value), tone,
                    VerdictText(value.verdict()));
  }
  body += "</table></div>\n<h2>Distributions</h2><div class=\"plots\">" + CurvePlots(a, b) + "</div>\n" +
          AdapterTable(a, b);
  const auto differences = ConfigurationDifferences(a.report, b.report);
  if (!differences.empty()) {
    body += "<h2>Configurations differ</h2><div class=\"card\"><table>";
    for (const std::string& line : differences) body += "<tr><td class=\"wrap\">" + EscapeHtml(line) + "</td></tr>\n";
    body += "</table></div>\n";
  }
  return HtmlPage("loramux bench: comparison", body);
}

}  // namespace loramux::load
