#include "tools/bench/trace.h"

#include <gtest/gtest.h>

namespace loramux::load::trace_test {
namespace {

constexpr const char* kAzure =
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 23:59:59.5000000,374,44\r\n"
    "2023-11-17 00:00:01.7500000,396,109\r\n"
    "\r\n"
    "2023-11-17 00:00:00.0000000,1,0\r\n";

TEST(TextFile, IsReadUpToItsFirstNulByte) {
  const auto path = std::filesystem::temp_directory_path() / ("loramux_text_file_" + std::to_string(::getpid()));
  ASSERT_TRUE(WriteTextFile(path.string(), "one\ntwo\n").ok());
  EXPECT_EQ(*ReadTextFile(path.string()), "one\ntwo\n");
  std::filesystem::resize_file(path, std::uintmax_t{1} << 30);  // sparse
  const auto text = ReadTextFile(path.string());
  std::filesystem::remove(path);
  ASSERT_FALSE(text.ok());
  EXPECT_NE(text.error().message.find("a NUL byte at byte 8"), std::string::npos) << text.error().message;
}

TEST(AzureTrace, IsReadAcrossMidnightAndSorted) {
  const auto trace = ParseAzureTrace(kAzure, "t.csv");
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  ASSERT_EQ(trace->arrivals.size(), 3u);
  EXPECT_EQ(trace->arrivals[0].at, 0);
  EXPECT_EQ(trace->arrivals[1].at, kNsPerSecond / 2);
  EXPECT_EQ(trace->arrivals[1].output_tokens, 1);  // at least one token is requested
  EXPECT_EQ(trace->arrivals[2].at, 2'250 * kNsPerMs);
  EXPECT_EQ(trace->arrivals[2].input_tokens, 396);
  EXPECT_EQ(trace->arrivals[2].output_tokens, 109);
  EXPECT_EQ(trace->clients, 0);
}

TEST(AzureTrace, NamesTheHostileLine) {
  for (const char* line :
       {"2023-11-16 18:15:46.68,374", "2023-11-16 18:15:46.68,374,44,1", "2023-11-16 18:15:46.68,-1,44",
        "2023-11-16 18:15:46.68,3.5,44", "2023-11-16 18:15:46.68,99999999999999999999,4", "2023-13-16 18:15:46.68,3,4",
        "2023-11-16 25:15:46.68,3,4", "2023-11-16 18:15:nan,3,4", "2023-11-16T18,3,4", ",,", "\xff\xfe\x00"}) {
    const auto trace = ParseAzureTrace(std::string("2023-11-16 18:15:46.0,1,1\n") + line + "\n", "t.csv");
    ASSERT_FALSE(trace.ok()) << line;
    EXPECT_NE(trace.error().message.find("t.csv, line 2"), std::string::npos) << trace.error().message;
  }
  EXPECT_FALSE(ParseAzureTrace("", "t.csv").ok());
  EXPECT_FALSE(ParseAzureTrace("TIMESTAMP,ContextTokens,GeneratedTokens\n", "t.csv").ok());
}

TEST(MooncakeTrace, KeepsTheBlocks) {
  const auto trace =
      ParseMooncakeTrace(R"({"timestamp": 2500, "input_length": 700, "output_length": 3, "hash_ids": [4, 9]})"
                         "\n"
                         R"({"timestamp": 1000, "input_length": 5, "output_length": 0})",
                         "m.jsonl");
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  EXPECT_EQ(trace->block_tokens, 512);
  EXPECT_EQ(trace->arrivals[0].input_tokens, 5);
  EXPECT_EQ(trace->arrivals[1].at, 1'500 * kNsPerMs);
  EXPECT_EQ(trace->arrivals[1].blocks, (std::vector<std::int64_t>{4, 9}));
}

TEST(MooncakeTrace, NamesTheHostileLine) {
  for (const char* line :
       {"{", "[]", "7", "null", R"({"timestamp": 1})", R"({"timestamp": -1, "input_length": 5, "output_length": 1})",
        R"({"timestamp": 1, "input_length": "5", "output_length": 1})",
        R"({"timestamp": 1, "input_length": 0, "output_length": 1})",
        R"({"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": ["x"]})"}) {
    const auto trace = ParseMooncakeTrace(line, "m.jsonl");
    ASSERT_FALSE(trace.ok()) << line;
    EXPECT_NE(trace.error().message.find("m.jsonl, line 1"), std::string::npos);
  }
}

TEST(ClientWindows, ReadsWhatServeGenWrites) {
  const auto windows =
      ParseClientWindows("0,0,0,,0,0\n600,0.5,1.02,Gamma,0.9575,11.3\n1200,0.168,7.4,Weibull,0.4252,0.009\n", "c.csv");
  ASSERT_TRUE(windows.ok()) << windows.error().message;
  ASSERT_EQ(windows->size(), 3u);
  EXPECT_EQ((*windows)[0].rate, 0);
  EXPECT_FALSE((*windows)[1].weibull);
  EXPECT_DOUBLE_EQ((*windows)[1].shape, 0.9575);
  EXPECT_TRUE((*windows)[2].weibull);
}

TEST(ClientWindows, NamesTheHostileLine) {
  for (const char* line : {"1,2", "x,1,1,,0,0", "0,-1,1,,0,0", "0,nan,1,,0,0", "0,inf,1,,0,0", "0,1,1,Pareto,1,1",
                           "0,1,1,Gamma,0,1", "0,1,1,Weibull,x,1", "0,1,1,Weibull,0.005,1", "nan,1,1,,0,0"}) {
    const auto windows = ParseClientWindows(line, "c.csv");
    ASSERT_FALSE(windows.ok()) << line;
    EXPECT_NE(windows.error().message.find("c.csv, line 1"), std::string::npos);
  }
  EXPECT_FALSE(ParseClientWindows("600,1,1,,0,0\n600,1,1,,0,0\n", "c.csv").ok());  // time does not advance
  EXPECT_FALSE(ParseClientWindows("", "c.csv").ok());
}

TEST(PoissonTrace, HasItsRateAndIsDeterminedByItsSeed) {
  const TraceLimits limits{.duration_s = 2000};
  const Trace trace = PoissonTrace(10, limits, 5), same = PoissonTrace(10, limits, 5),
              other = PoissonTrace(10, limits, 6);
  EXPECT_NEAR(static_cast<double>(trace.arrivals.size()), 20'000, 500);  // standard deviation 141
  ASSERT_EQ(trace.arrivals.size(), same.arrivals.size());
  double squares = 0;
  for (std::size_t i = 0; i < trace.arrivals.size(); ++i) {
    ASSERT_EQ(trace.arrivals[i].at, same.arrivals[i].at);
    const TimeNs gap = trace.arrivals[i].at - (i > 0 ? trace.arrivals[i - 1].at : 0);
    ASSERT_GE(gap, 0);
    squares += static_cast<double>(gap) * static_cast<double>(gap) / 1e18;
  }
  // E[X^2] of an exponential
  EXPECT_NEAR(squares / static_cast<double>(trace.arrivals.size()), 2 * 0.1 * 0.1, 0.001);
  EXPECT_NE(trace.arrivals[0].at, other.arrivals[0].at);
  EXPECT_EQ(PoissonTrace(10, {.requests = 7}, 5).arrivals.size(), 7u);
}

TEST(ClientTrace, KeepsSharesOrderAndRate) {
  const std::vector<ClientWindow> quiet{{.start_s = 0, .rate = 1}},
      busy{{.start_s = 0, .rate = 3, .weibull = true, .shape = 0.7}};
  const auto trace = DrawClientTrace({quiet, busy}, {.rate = 40, .limits = {.duration_s = 300}, .seed = 1});
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  EXPECT_EQ(trace->clients, 2);
  std::vector<int> counts(2);
  TimeNs last = 0;
  for (const Arrival& arrival : trace->arrivals) {
    ++counts.at(static_cast<std::size_t>(arrival.client));
    ASSERT_GE(arrival.at, last);
    last = arrival.at;
  }
  EXPECT_NEAR(counts[0], 300 * 30, 700);  // client 0 is the busiest
  EXPECT_NEAR(counts[1], 300 * 10, 300);
  EXPECT_LT(last, 300 * kNsPerSecond);
}

TEST(ClientTrace, TheBurstiestClientsEnd) {
  // The smallest shape that is allowed: nearly all intervals are 0, and a few are very long.
  for (const bool weibull : {false, true}) {
    const std::vector<ClientWindow> bursty{{.start_s = 0, .rate = 5, .weibull = weibull, .shape = 0.006}};
    const auto trace = DrawClientTrace({bursty}, {.limits = {.duration_s = 10, .requests = 1000}, .seed = 2});
    if (trace.ok()) EXPECT_LE(trace->arrivals.size(), 1000u);
  }
}

TEST(ClientTrace, SaysWhenNobodyIsThere) {
  const std::vector<ClientWindow> silent{{.start_s = 0, .rate = 0}};
  EXPECT_FALSE(DrawClientTrace({silent}, {.rate = 5, .limits = {.duration_s = 10}}).ok());
  EXPECT_FALSE(DrawClientTrace({silent}, {.limits = {.duration_s = 10}}).ok());
}

TEST(ScaleTrace, StretchesThenCuts) {
  Trace trace;
  for (int i = 0; i < 10; ++i)
    trace.arrivals.push_back({.at = i * kNsPerSecond, .input_tokens = 100, .output_tokens = 1});
  ScaleTrace(trace, 0.5, 0.25, {.duration_s = 3});
  ASSERT_EQ(trace.arrivals.size(), 6u);  // 0, 0.5, ..., 2.5 s
  EXPECT_EQ(trace.arrivals[1].at, kNsPerSecond / 2);
  EXPECT_EQ(trace.arrivals[1].input_tokens, 25);
  EXPECT_EQ(trace.arrivals[1].output_tokens, 1);  // never scaled to 0
  ScaleTrace(trace, 1, 1, {.requests = 2});
  EXPECT_EQ(trace.arrivals.size(), 2u);
}

}  // namespace
}  // namespace loramux::load::trace_test
