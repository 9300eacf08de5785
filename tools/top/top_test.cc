#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/top/frame.h"
#include "tools/top/metrics_text.h"
#include "tools/top/server_view.h"

namespace loramux::top_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// A scrape after `tokens` tokens of the adapter "a".
std::string Scrape(int tokens, int fast, int slow) {
  return "# HELP x y\n"
         "vllm:num_requests_running{model_name=\"demo\"} 2\n"
         "vllm:num_requests_waiting{model_name=\"demo\"} 1\n"
         "vllm:generation_tokens_total{model_name=\"demo\"} " +
         std::to_string(tokens) +
         "\nloramux:queue_lane_waiting{lane=\"0\"} 1\nloramux:queue_lane_waiting{lane=\"1\"} 3\n"
         "loramux:pool_bytes{tier=\"gpu\",use=\"kv\"} 1048576\nloramux:pool_bytes{tier=\"gpu\",use=\"free\"} 3145728\n"
         "vllm:lora_adapter_loaded{adapter_name=\"a\",level=\"gpu\",pinned=\"true\",rank=\"8\"} 1\n"
         "vllm:lora_adapter_loaded{adapter_name=\"b\",level=\"disk\",pinned=\"false\",rank=\"16\"} 1\n"
         "loramux:adapter_requests_running{adapter_name=\"b\"} 2\n"
         "loramux:adapter_generation_tokens_total{adapter_name=\"a\"} " +
         std::to_string(tokens) + "\nvllm:time_to_first_token_seconds_bucket{le=\"0.1\"} " + std::to_string(fast) +
         "\nvllm:time_to_first_token_seconds_bucket{le=\"1.0\"} " + std::to_string(fast + slow) +
         "\nvllm:time_to_first_token_seconds_bucket{le=\"+Inf\"} " + std::to_string(fast + slow) +
         "\nprocess_start_time_seconds 1000\n";
}

TEST(MetricsText, SeriesLabelsAndEscapes) {
  const MetricSet set = MetricSet::Parse(
      "a{x=\"1, \\\"}\\\\\",y=\"b\\nc\"} 2.5 1700000000\nb 3\nc{broken 4\nd{x=\"open} 1\ne notanumber\nf\n#g 1\n "
      "a{x=\"z\",} 1e1\n");
  ASSERT_EQ(set.Of("a").size(), 2u);
  EXPECT_EQ(LabelOf(set.Of("a")[0], "x"), "1, \"}\\");
  EXPECT_EQ(LabelOf(set.Of("a")[0], "y"), "b\nc");
  EXPECT_EQ(set.Sum("a"), 12.5);
  EXPECT_EQ(set.Sum("a", "x", "z"), 10);
  EXPECT_EQ(set.Sum("b"), 3);
  for (const char* none : {"c", "d", "e", "f", "g", "#g"}) EXPECT_TRUE(set.Of(none).empty()) << none;
}

TEST(MetricsText, QuantilesLieWithinTheirBuckets) {
  const MetricSet before = MetricSet::Parse(Scrape(0, 10, 0)), now = MetricSet::Parse(Scrape(0, 10, 10));
  const std::string name = "vllm:time_to_first_token_seconds";
  EXPECT_NEAR(*HistogramQuantile(now, nullptr, name, 0.25), 0.05, 1e-9);
  EXPECT_NEAR(*HistogramQuantile(now, &before, name, 0.5), 0.55, 1e-9);
  EXPECT_EQ(HistogramQuantile(now, &now, name, 0.5), std::nullopt);
  EXPECT_EQ(HistogramQuantile(now, nullptr, "none", 0.5), std::nullopt);
}

TEST(ServerFigures, RatesAreThoseOfTheInterval) {
  const MetricSet before = MetricSet::Parse(Scrape(100, 10, 0)), now = MetricSet::Parse(Scrape(150, 10, 4));
  const ServerFigures view = ViewServer(now, &before, 2, 1090);
  EXPECT_EQ(view.model, "demo");
  EXPECT_EQ(view.uptime_s, 90);
  EXPECT_EQ(view.generated_per_s, 25);
  EXPECT_NEAR(*view.ttft.half, 0.55, 1e-9);
  EXPECT_THAT(view.lanes, ElementsAre(std::pair(std::string("0"), 1.0), std::pair(std::string("1"), 3.0)));
  ASSERT_EQ(view.adapters.size(), 2u);
  EXPECT_EQ(view.adapters[0].tokens_per_s, 25);
  EXPECT_TRUE(view.adapters[0].pinned);
  EXPECT_EQ(view.adapters[1].place, "disk");
  // A server that was started again.
  EXPECT_EQ(ViewServer(before, &now, 2, 1090).generated_per_s, 0);
}

TEST(ServerFigures, WithoutNewObservationsLatenciesAreThoseSinceTheStart) {
  const MetricSet now = MetricSet::Parse(Scrape(100, 10, 0));
  EXPECT_NEAR(*ViewServer(now, &now, 2, 0).ttft.half, 0.05, 1e-9);
}

TEST(ServerFigures, Orders) {
  std::vector<AdapterView> adapters(3);
  adapters[0].name = "c", adapters[1].name = "a", adapters[2].name = "b";
  adapters[0].running = 2, adapters[2].waiting = 1, adapters[1].requests = 9;
  const auto names = [&](AdapterOrder order) {
    SortAdapters(adapters, order);
    return adapters[0].name + adapters[1].name + adapters[2].name;
  };
  EXPECT_EQ(names(AdapterOrder::kName), "abc");
  EXPECT_EQ(names(AdapterOrder::kRunning), "cab");
  EXPECT_EQ(names(AdapterOrder::kWaiting), "bac");
  EXPECT_EQ(names(AdapterOrder::kRequests), "abc");
  EXPECT_EQ(names(AdapterOrder::kTokens), "abc");
}

TEST(Frame, FitsTheWindow) {
  const MetricSet now = MetricSet::Parse(Scrape(100, 10, 0));
  ServerFigures view = ViewServer(now, nullptr, 0, 1090);
  for (int i = 0; i < 100; ++i) view.adapters.push_back({.name = "adapter-" + std::to_string(i)});
  for (const int columns : {1, 20, 80, 300}) {
    for (const int rows : {1, 5, 24}) {
      const auto lines = LinesOf(DrawFrame(view, {.columns = columns, .rows = rows, .address = "x", .keys = true}));
      EXPECT_LE(lines.size(), static_cast<std::size_t>(rows));
      for (const std::string& line : lines) EXPECT_LE(line.size(), static_cast<std::size_t>(columns));
    }
  }
  const auto lines = LinesOf(DrawFrame(view, {.columns = 80, .rows = 24, .keys = true}));
  ASSERT_EQ(lines.size(), 24u);
  EXPECT_THAT(lines.back(), HasSubstr("q quit"));
  EXPECT_EQ(LinesOf(DrawFrame(view, {})).size(), 8u + 102u);
}

TEST(Frame, ShowsTheServer) {
  const MetricSet before = MetricSet::Parse(Scrape(100, 10, 0)), now = MetricSet::Parse(Scrape(150, 10, 4));
  const std::string frame = DrawFrame(ViewServer(now, &before, 2, 1090), {.columns = 120, .address = "http://h:1"});
  EXPECT_THAT(frame,
              AllOf(HasSubstr("http://h:1  demo  up 1 min"), HasSubstr("2 running, 1 waiting  lane 0: 1  lane 1: 3"),
                    HasSubstr("25.0/s generated"), HasSubstr("half 550 ms"), HasSubstr("# kv 1 MiB")));
  EXPECT_THAT(frame, HasSubstr("device     [###########"));
}

TEST(Frame, NamesCannotSteerTheTerminal) {
  ServerFigures view{.model = "\x1b[2J"};
  view.adapters.push_back({.name = "x\x1b]0;y\x07\n" + std::string(1000, 'z')});
  const std::string frame = DrawFrame(view, {.columns = 80, .problem = "a\x1b[1mb"});
  EXPECT_THAT(frame, Not(HasSubstr("\x1b")));
  EXPECT_THAT(DrawFrame(view, {.color = true}), HasSubstr("\x1b[1m"));
}

// Whatever a server sends, the frame is drawn.
TEST(Frame, HostileMetrics) {
  for (const std::string value : {"NaN", "-1e308", "1e308", "+Inf", "-Inf", "99999999999999999999"}) {
    std::string text = Scrape(1, 1, 1);
    for (const char* name : {"vllm:num_requests_running", "vllm:generation_tokens_total",
                             "process_resident_memory_bytes", "process_start_time_seconds", "loramux:adapter_loads"}) {
      text += std::string(name) + " " + value + "\n";
    }
    text +=
        "loramux:pool_bytes{tier=\"gpu\",use=\"kv\"} " + value + "\nloramux:pool_bytes{tier=\"cpu\",use=\"kv\"} -5\n";
    text += "vllm:time_to_first_token_seconds_bucket{le=\"" + value + "\"} " + value + "\n";
    const MetricSet set = MetricSet::Parse(text), other = MetricSet::Parse(Scrape(5, 5, 5));
    for (const std::string& line : LinesOf(DrawFrame(ViewServer(set, &other, 1, 2), {.columns = 80, .rows = 20}))) {
      EXPECT_LE(line.size(), 80u) << value;
    }
  }
}

}  // namespace
}  // namespace loramux::top_test
