#include "loadgen/console.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "report/number_format.h"

namespace loramux::load {
namespace {

using namespace std::string_literals;

constexpr std::size_t kNameWidth = 24;

std::string Line(const std::string& name, const std::string& value) {
  return fmt::format("  {:<22} {}\n", name, value);
}

std::string Failures(const ReportJson& summary) {
  std::string text;
  for (const auto& [kind, count] : ChildAt(summary, "failures").items()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", FormatNumber(count.is_number() ? count.get<double>() : 0),
                        kind);
  }
  return text;
}

std::string Head(const ReportJson& report) {
  const ReportJson& summary = ChildAt(report, "summary");
  const double total = NumberAt(summary, {"requests", "total"}), failed = NumberAt(summary, {"requests", "failed"});
  std::string text;
  text += Line("duration", FormatNumber(NumberAt(report, {"duration_s"})) + " s");
  text += Line("requests", fmt::format("{} ({} failed{})", FormatNumber(total), FormatNumber(failed),
                                       failed > 0 ? ": " + Failures(summary) : ""s));
  if (const double checked = NumberAt(summary, {"requests", "checked"}); checked > 0) {
    text += Line("answers checked", fmt::format("{} ({} wrong)", FormatNumber(checked),
                                                FormatNumber(NumberAt(summary, {"requests", "wrong_answers"}))));
  }
  text += Line("request throughput", FormatNumber(NumberAt(summary, {"throughput", "requests_per_s"})) + " /s");
  text += Line("tokens in / out", fmt::format("{} / {}", FormatNumber(NumberAt(summary, {"tokens", "input"})),
                                              FormatNumber(NumberAt(summary, {"tokens", "output"}))));
  text += Line("token throughput",
               fmt::format("{} in/s, {} out/s", FormatNumber(NumberAt(summary, {"throughput", "input_tokens_per_s"})),
                           FormatNumber(NumberAt(summary, {"throughput", "output_tokens_per_s"}))));
  text += Line("peak in flight", FormatNumber(NumberAt(summary, {"peak_in_flight"})));
  if (NumberAt(summary, {"scheduling_lag_ms", "count"}) > 0) {
    text += Line("sending delay",
                 fmt::format("P50 {}, P99 {}, at most {}", FormatMs(NumberAt(summary, {"scheduling_lag_ms", "p50"})),
                             FormatMs(NumberAt(summary, {"scheduling_lag_ms", "p99"})),
                             FormatMs(NumberAt(summary, {"scheduling_lag_ms", "max"}))));
  }
  if (ChildAt(summary, "goodput").is_object()) {
    text += Line("goodput", fmt::format("{} /s ({} within the objective)",
                                        FormatNumber(NumberAt(summary, {"goodput", "requests_per_s"})),
                                        FormatShare(NumberAt(summary, {"goodput", "share"}))));
  }
  return text;
}

std::string LatencyTable(const ReportJson& summary) {
  std::string text = fmt::format("\n  {:<22}{:>11}{:>11}{:>11}{:>11}{:>11}\n", "", "mean", "P50", "P90", "P99", "max");
  const std::pair<const char*, const char*> rows[] = {
      {"ttft_ms", "TTFT"}, {"tpot_ms", "TPOT"}, {"itl_ms", "between tokens"}, {"e2e_ms", "end to end"}};
  for (const auto& [key, name] : rows) {
    if (NumberAt(summary, {"latency", key, "count"}) <= 0) continue;
    const auto cell = [&, key = key](const char* what) { return FormatMs(NumberAt(summary, {"latency", key, what})); };
    text += fmt::format("  {:<22}{:>11}{:>11}{:>11}{:>11}{:>11}\n", name, cell("mean"), cell("p50"), cell("p90"),
                        cell("p99"), cell("max"));
  }
  return text;
}

std::string AdapterTable(const ReportJson& report, std::size_t limit) {
  std::vector<const ReportJson*> adapters;
  for (const ReportJson& adapter : ChildAt(report, "adapters")) adapters.push_back(&adapter);
  if (adapters.size() < 2) return {};
  std::stable_sort(adapters.begin(), adapters.end(), [](const auto* a, const auto* b) {
    return NumberAt(*a, {"requests", "total"}) > NumberAt(*b, {"requests", "total"});
  });
  std::string text = fmt::format("\n  {} {:>9}{:>8}{:>11}{:>11}{:>11}{:>11}\n", FixedWidth("adapter", kNameWidth),
                                 "requests", "failed", "TTFT P50", "TTFT P99", "TPOT P50", "E2E P99");
  for (std::size_t i = 0; i < std::min(limit, adapters.size()); ++i) {
    const ReportJson& a = *adapters[i];
    text += fmt::format(
        "  {} {:>9}{:>8}{:>11}{:>11}{:>11}{:>11}\n", FixedWidth(StringAt(a, "name"), kNameWidth),
        FormatNumber(NumberAt(a, {"requests", "total"})), FormatNumber(NumberAt(a, {"requests", "failed"})),
        FormatMs(NumberAt(a, {"latency", "ttft_ms", "p50"})), FormatMs(NumberAt(a, {"latency", "ttft_ms", "p99"})),
        FormatMs(NumberAt(a, {"latency", "tpot_ms", "p50"})), FormatMs(NumberAt(a, {"latency", "e2e_ms", "p99"})));
  }
  if (adapters.size() > limit) text += fmt::format("  and {} more\n", adapters.size() - limit);
  return text;
}

std::string Examples(const ReportJson& report) {
  std::string text;
  for (const ReportJson& example : ChildAt(report, "failure_examples")) {
    if (text.empty()) text = "\n  failures, for example:\n";
    const std::string line =
        StringAt(example, "kind") + " (" + StringAt(example, "model") + "): " + StringAt(example, "detail");
    text += "    " + OneLine(line, 130) + "\n";
  }
  return text;
}

}  // namespace

std::string FixedWidth(const std::string& text, std::size_t width) {
  std::string result;
  std::size_t columns = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool continues = (byte & 0xc0) == 0x80;
    if (!continues && columns == width) {
      result += "~";
      return result;
    }
    columns += continues ? 0 : 1;
    result += byte < 0x20 || byte == 0x7f ? '?' : text[i];
  }
  return result + std::string(width + 1 - columns, ' ');
}

std::string OneLine(const std::string& text, std::size_t width) {
  std::string line = FixedWidth(text, width);
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

std::string ConsoleSummary(const ReportJson& report, std::size_t adapters) {
  return Head(report) + LatencyTable(ChildAt(report, "summary")) + AdapterTable(report, adapters) + Examples(report);
}

}  // namespace loramux::load
