// The arithmetic of reports, compared with values computed by hand; and the escaping of untrusted names.
#include "loadgen/report.h"

#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "base/text_file.h"
#include "loadgen/compare.h"
#include "loadgen/console.h"
#include "loadgen/html_report.h"
#include "loadgen/time_series.h"
#include "report/html.h"
#include "report/number_format.h"
#include "report/plot.h"

namespace loramux::load::report_test {
namespace {

constexpr const char* kHostile = "<script>alert('x')</script>\"&\x01";

// Times are in milliseconds.
RequestRecord Answer(int model, double sent, double first, double last, double end, std::int64_t tokens) {
  const auto ns = [](double ms) { return static_cast<TimeNs>(ms * 1e6); };
  return {.model = model,
          .scheduled = ns(sent - 1),
          .sent = ns(sent),
          .first_token = ns(first),
          .last_token = ns(last),
          .end = ns(end),
          .requested_output_tokens = tokens,
          .input_tokens = 10,
          .output_tokens = tokens,
          .has_usage = true,
          .gaps_ms = {static_cast<float>(last - first)},
          .http_status = 200};
}

RunResult SmallRun() {
  RunResult run{.duration = 2 * kNsPerSecond, .started_unix_s = 1'700'000'000};
  run.records.push_back(Answer(0, 100, 150, 250, 260, 11));     // TTFT 50, TPOT 10
  run.records.push_back(Answer(0, 200, 400, 1200, 1210, 21));   // TTFT 200, TPOT 40
  run.records.push_back(Answer(1, 1000, 1010, 1010, 1020, 1));  // TTFT 10, no TPOT
  RequestRecord failed = Answer(1, 1500, 1600, 1700, 2000, 5);
  failed.failure = Failure::kHttpStatus;
  failed.http_status = 429;
  failed.detail = kHostile;
  run.records.push_back(failed);
  return run;
}

ReportJson SmallReport(const char* name = "a") {
  return BuildReport(SmallRun(), {name, "base"}, {.ttft_ms = 100, .tpot_ms = 20},
                     {{"model", "base"}, {"url", "http://x"}, {"load", "some"}}, /*with_requests=*/true);
}

TEST(Report, Counts) {
  const ReportJson report = SmallReport();
  const ReportJson& summary = report["summary"];
  EXPECT_EQ(NumberAt(summary, {"requests", "total"}), 4);
  EXPECT_EQ(NumberAt(summary, {"requests", "failed"}), 1);
  EXPECT_EQ(NumberAt(summary, {"failures", "http_429"}), 1);
  EXPECT_EQ(NumberAt(summary, {"tokens", "output"}), 38);
  EXPECT_EQ(NumberAt(summary, {"throughput", "requests_per_s"}), 1.5);
  EXPECT_EQ(NumberAt(summary, {"throughput", "output_tokens_per_s"}), 19);
  EXPECT_EQ(NumberAt(summary, {"peak_in_flight"}), 2);
  EXPECT_EQ(NumberAt(summary, {"scheduling_lag_ms", "p50"}), 1);
  EXPECT_EQ(NumberAt(summary, {"latency", "ttft_ms", "count"}), 3);  // failures have no latency
  EXPECT_EQ(NumberAt(summary, {"latency", "ttft_ms", "p50"}), 50);
  EXPECT_EQ(NumberAt(summary, {"latency", "tpot_ms", "count"}), 2);
  EXPECT_EQ(NumberAt(summary, {"latency", "tpot_ms", "p50"}), 25);
  EXPECT_EQ(NumberAt(summary, {"latency", "e2e_ms", "max"}), 1010);
  EXPECT_EQ(report["requests"].size(), 4u);
}

TEST(Report, GoodputCountsWhatMeetsBothBounds) {
  const ReportJson report = SmallReport();
  // TTFT 50 ms with TPOT 10 ms, and TTFT 10 ms with a single token.
  EXPECT_EQ(NumberAt(report, {"summary", "goodput", "requests_met"}), 2);
  EXPECT_EQ(NumberAt(report, {"summary", "goodput", "share"}), 0.5);
  EXPECT_EQ(NumberAt(report, {"summary", "goodput", "requests_per_s"}), 1);
  const RequestRecord record = Answer(0, 0, 50, 150, 160, 11);
  EXPECT_TRUE((ServiceObjective{.ttft_ms = 50, .tpot_ms = 10}).Met(record));  // values equal to the bounds meet them
  EXPECT_FALSE((ServiceObjective{.ttft_ms = 49.9}).Met(record));
  EXPECT_FALSE((ServiceObjective{.tpot_ms = 9.9}).Met(record));
  EXPECT_TRUE(BuildReport(SmallRun(), {"a", "base"}, {})["summary"]["goodput"].is_null());
}

TEST(Report, SeparatesAdapters) {
  const ReportJson report = SmallReport();
  ASSERT_EQ(report["adapters"].size(), 2u);
  EXPECT_EQ(report["adapters"][0]["name"], "a");
  EXPECT_EQ(NumberAt(report["adapters"][0], {"latency", "ttft_ms", "p50"}), 125);
  EXPECT_EQ(report["adapters"][1]["base"], true);
  EXPECT_EQ(NumberAt(report["adapters"][1], {"requests", "failed"}), 1);
}

TEST(TimeSeries, ConservesWhatHappened) {
  const RunResult run = SmallRun();
  const auto series = TimeSeriesJson(run.records, 2);
  const double bin_s = series["bin_s"].get<double>();
  EXPECT_DOUBLE_EQ(bin_s, 0.05);
  double started = 0, ended = 0, tokens = 0, busy = 0;
  for (const auto& bin : series["bins"]) {
    started += bin["started"].get<double>();
    ended += bin["finished"].get<double>() + bin["failed"].get<double>();
    tokens += bin["output_tokens_per_s"].get<double>() * bin_s;
    busy += bin["in_flight"].get<double>() * bin_s;
  }
  EXPECT_EQ(started, 4);
  EXPECT_EQ(ended, 4);
  EXPECT_NEAR(tokens, 38, 0.1);
  EXPECT_NEAR(busy, 0.160 + 1.010 + 0.020 + 0.500, 0.001);
  EXPECT_LE(series["bins"].size(), 60u);
  EXPECT_EQ(BinSeconds(1), 0.02);
  EXPECT_EQ(BinSeconds(60), 1);
  EXPECT_EQ(BinSeconds(3600), 100);
}

TEST(HtmlReport, EscapesWhatOthersNamed) {
  const std::string html = HtmlReport(SmallReport(kHostile));
  EXPECT_EQ(html.find("<script>alert"), std::string::npos);
  EXPECT_NE(html.find("&lt;script&gt;alert(&#39;x&#39;)"), std::string::npos);
  EXPECT_EQ(html.find('\x01'), std::string::npos);
  ReportJson report = SmallReport();
  report["configuration"]["url"] = kHostile;
  report["warnings"] = {kHostile};
  EXPECT_EQ(HtmlReport(report).find("<script>alert"), std::string::npos);
  EXPECT_EQ(HtmlComparison({kHostile, report}, {kHostile, SmallReport(kHostile)}).find("<script>alert"),
            std::string::npos);
}

TEST(HtmlReport, LoadsNothing) {
  const std::string html = HtmlReport(SmallReport());
  for (const char* reference : {"src=", "href=", "url(", "@import", "https://", "fetch("}) {
    EXPECT_EQ(html.find(reference), std::string::npos) << reference;
  }
  EXPECT_NE(html.find("<svg"), std::string::npos);
}

TEST(HtmlReport, TakesHostileDocuments) {
  for (const char* text :
       {"{}", "[]", R"({"summary":3})", R"({"summary":{"latency":[1]},"adapters":[1,null,{}],"series":{"bins":[7]}})",
        R"({"curves":{"ttft_ms":[null,"x",1e308]},"samples":[[],[1],[1,2]],"summary":{"failures":{"<b>":"x"}}})"}) {
    const ReportJson json = ReportJson::parse(text);
    EXPECT_EQ(HtmlReport(json).find("<b>x"), std::string::npos) << text;
    (void)ConsoleSummary(json);
    (void)ConsoleComparison({"a", json}, {"b", json});
  }
}

TEST(EscapeHtml, KeepsUnicodeAndReplacesTheRest) {
  EXPECT_EQ(EscapeHtml("né <日本> & \"'"), "né &lt;日本&gt; &amp; &quot;&#39;");
  EXPECT_EQ(EscapeHtml("a\xff"), "a\xEF\xBF\xBD");
}

TEST(ConsoleSummary, HasNoControlCharactersOfOthers) {
  const std::string text = ConsoleSummary(SmallReport("evil\x1b[2J"));
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_NE(text.find("http_429"), std::string::npos);
  EXPECT_NE(text.find("goodput"), std::string::npos);
  EXPECT_EQ(FixedWidth("日本語", 2), "日本~");
  EXPECT_EQ(FixedWidth("ab", 4), "ab   ");
}

TEST(Compare, MarksBetterAndWorse) {
  RunResult slower = SmallRun();
  for (RequestRecord& record : slower.records) record.first_token += 30 * kNsPerMs;
  const ReportJson b = BuildReport(slower, {"a", "base"}, {}, {{"model", "base"}, {"rate_per_s", 3}});
  const ReportJson a = BuildReport(SmallRun(), {"a", "base"}, {}, {{"model", "base"}, {"rate_per_s", 2}});
  std::map<std::string, Verdict> verdicts;
  for (const ComparedValue& value : CompareReports(a, b)) verdicts[value.name] = value.verdict();
  EXPECT_EQ(verdicts.at("TTFT P50"), Verdict::kWorse);   // 50 -> 80
  EXPECT_EQ(verdicts.at("TPOT P50"), Verdict::kBetter);  // less time remains for the tokens
  EXPECT_EQ(verdicts.at("requests /s"), Verdict::kSame);
  EXPECT_EQ(verdicts.count("goodput /s"), 0u);
  EXPECT_EQ(ConfigurationDifferences(a, b), std::vector<std::string>{"rate_per_s: 2 -> 3"});
  EXPECT_NE(ConsoleComparison({"A", a}, {"B", b}).find("1.60 x  WORSE"), std::string::npos)
      << ConsoleComparison({"A", a}, {"B", b});
}

TEST(Compare, KnowsWhichWayIsBetter) {
  EXPECT_EQ((ComparedValue{.a = 100, .b = 110, .higher_is_better = true}).verdict(), Verdict::kBetter);
  EXPECT_EQ((ComparedValue{.a = 100, .b = 110}).verdict(), Verdict::kWorse);
  EXPECT_EQ((ComparedValue{.a = 100, .b = 101.9}).verdict(), Verdict::kSame);
  EXPECT_EQ((ComparedValue{.a = 0, .b = 3}).verdict(), Verdict::kWorse);
  EXPECT_EQ((ComparedValue{.a = 0, .b = 0}).verdict(), Verdict::kSame);
}

TEST(LoadReport, RefusesWhatIsNotOne) {
  const std::string path = testing::TempDir() + "bench_report_test.json";
  ASSERT_TRUE(WriteTextFile(path, SmallReport().dump()).ok());
  EXPECT_TRUE(LoadReport(path).ok());
  for (const char* text : {"", "[]", "{\"schema\":\"other\"}", "{\"schema\":\"loramux-bench/1\"}"}) {
    ASSERT_TRUE(WriteTextFile(path, text).ok());
    EXPECT_FALSE(LoadReport(path).ok()) << text;
  }
  EXPECT_FALSE(LoadReport(path + ".missing").ok());
}

TEST(NumberFormat, IsForPeople) {
  EXPECT_EQ(FormatNumber(0), "0");
  EXPECT_EQ(FormatNumber(0.1234), "0.123");
  EXPECT_EQ(FormatNumber(3), "3");
  EXPECT_EQ(FormatNumber(12.34), "12.3");
  EXPECT_EQ(FormatNumber(1234567), "1,234,567");
  EXPECT_EQ(FormatNumber(-1234), "-1,234");
  EXPECT_EQ(FormatNumber(-123), "-123");
  EXPECT_EQ(FormatMs(2500), "2.50 s");
  EXPECT_EQ(FormatShare(0.5), "50 %");
  EXPECT_EQ(FormatShare(0.99999), "99.99 %");  // not "100 %", because something failed
}

TEST(Plot, TicksAreRound) {
  EXPECT_EQ(Ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_FALSE(std::signbit(Ticks(0, 10, 5).front()));  // it would be printed as "-0"
  EXPECT_EQ(LogTicks(3, 60), (std::vector<double>{5, 10, 20, 50}));
  EXPECT_EQ(RenderPlot({}), "");
}

TEST(Plot, AxesEndAtRoundNumbers) {
  EXPECT_EQ(RoundEnd(5, 5), 5);
  EXPECT_EQ(RoundEnd(5.1, 5), 6);
  EXPECT_EQ(RoundEnd(3597, 5), 4000);
  EXPECT_EQ(RoundEnd(1, 5), 1);
  EXPECT_EQ(RoundLogEnds(3, 60), (std::pair<double, double>(2, 100)));
  EXPECT_EQ(RoundLogEnds(5, 50), (std::pair<double, double>(5, 50)));
  EXPECT_EQ(RoundLogEnds(120, 130), (std::pair<double, double>(100, 200)));
}

TEST(Plot, LabelsAreMovedApartAndStayInside) {
  EXPECT_EQ(SpreadLabels({10, 50}, 14, 0, 100), (std::vector<double>{10, 50}));
  EXPECT_EQ(SpreadLabels({50, 50}, 14, 0, 100), (std::vector<double>{43, 57}));
  EXPECT_EQ(SpreadLabels({2, 0, 1}, 10, 0, 100), (std::vector<double>{20, 0, 10}));
  EXPECT_EQ(SpreadLabels({99, 100}, 10, 0, 100), (std::vector<double>{90, 100}));
}

TEST(Plot, ALineThatHidesAnotherHasGapsAndNamesAreBesideTheLines) {
  const std::vector<std::pair<double, double>> points = {{0, 1}, {1, 2}, {2, 1}}, others = {{0, 9}, {1, 8}, {2, 7}};
  Plot plot{.series = {{.name = "one", .points = points}, {.name = "other", .points = others, .colour = 2}}};
  EXPECT_EQ(RenderPlot(plot).find("stroke-dasharray"), std::string::npos);
  EXPECT_EQ(RenderPlot(plot).find("legend"), std::string::npos);
  EXPECT_NE(RenderPlot(plot).find(">other</text>"), std::string::npos);
  plot.series[1].points = points;
  EXPECT_NE(RenderPlot(plot).find("stroke-dasharray"), std::string::npos);
}

TEST(Plot, ACumulativeCurveSaysWhatLiesBeyond) {
  std::vector<std::pair<double, double>> points;
  for (int i = 0; i <= 200; ++i) points.emplace_back(i < 200 ? 10 + i : 1e6, i / 2.0);
  Plot plot{.series = {{.name = "one", .points = points}}, .log_x = true, .y_max = 100, .cumulative = true};
  EXPECT_NE(RenderPlot(plot).find("up to 0.5 % lie further right"), std::string::npos) << RenderPlot(plot);
}

}  // namespace
}  // namespace loramux::load::report_test
