#include "workload/client_arrivals.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "workload/temp_file_for_test.h"

namespace loramux::client_arrivals_test {
namespace {

double Seconds(TimeNs time) { return static_cast<double>(time) / static_cast<double>(kNsPerSecond); }

TEST(ClientWindows, ReadsWhatServeGenWrites) {
  const auto windows =
      ParseClientWindows("0,0,0,,0,0\n600,0.5,1.02,Gamma,0.9575,11.3\n1200,0.168,7.4,Weibull,0.4252,0.009\n", "c.csv");
  ASSERT_TRUE(windows.ok()) << windows.error().message;
  ASSERT_EQ(windows->size(), 3u);
  EXPECT_EQ((*windows)[0].rate, 0);
  EXPECT_EQ((*windows)[0].gaps, ClientWindow::Gaps::kNone);
  EXPECT_EQ((*windows)[1].gaps, ClientWindow::Gaps::kGamma);
  EXPECT_DOUBLE_EQ((*windows)[1].shape, 0.9575);
  EXPECT_DOUBLE_EQ((*windows)[1].scale, 11.3);
  EXPECT_EQ((*windows)[2].gaps, ClientWindow::Gaps::kWeibull);
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

TEST(ClientTrace, KeepsSharesOrderAndRate) {
  const std::vector<ClientWindow> quiet{{.start_seconds = 0, .rate = 1}},
      busy{{.start_seconds = 0, .rate = 3, .gaps = ClientWindow::Gaps::kWeibull, .shape = 0.7}};
  const auto trace = DrawClientTrace({quiet, busy}, {.rate = 40, .duration_s = 300, .seed = 1});
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
  for (const auto gaps : {ClientWindow::Gaps::kGamma, ClientWindow::Gaps::kWeibull}) {
    const std::vector<ClientWindow> bursty{{.start_seconds = 0, .rate = 5, .gaps = gaps, .shape = 0.006}};
    const auto trace = DrawClientTrace({bursty}, {.duration_s = 10, .requests = 1000, .seed = 2});
    if (trace.ok()) EXPECT_LE(trace->arrivals.size(), 1000u);
  }
}

TEST(ClientTrace, SaysWhenNobodyIsThere) {
  const std::vector<ClientWindow> silent{{.start_seconds = 0, .rate = 0}};
  EXPECT_FALSE(DrawClientTrace({silent}, {.rate = 5, .duration_s = 10}).ok());
  EXPECT_FALSE(DrawClientTrace({silent}, {.duration_s = 10}).ok());
}

TEST(Clients, ArriveAtTheirRates) {
  std::string busy, idle;
  for (int i = 0; i < 12; ++i) {
    busy += std::to_string(600 * i) + ",8,1,Gamma,1,0.125\n";
    idle += std::to_string(600 * i) + (i % 2 == 0 ? ",2,1,Weibull,1,0.5\n" : ",0,0,,0,0\n");
  }
  const TempFile file("chunk-0-trace.csv", idle);
  std::ofstream(std::filesystem::path(file.directory()) / "chunk-1-trace.csv") << busy;
  const auto clients = ReadClients(file.directory()).value();
  ASSERT_EQ(clients.size(), 2u);
  EXPECT_EQ(clients[0][0].rate, 8);  // busiest first
  Prng prng(5);
  const auto arrivals = DrawClientArrivals(clients, 0, 0, 20000, prng);
  ASSERT_EQ(arrivals.size(), 20000u);
  EXPECT_NEAR(20000 / Seconds(arrivals.back().at), 9, 0.4);
  const auto of_second =
      std::count_if(arrivals.begin(), arrivals.end(), [](const ClientArrival& a) { return a.client == 1; });
  EXPECT_NEAR(static_cast<double>(of_second) / 20000, 1.0 / 9, 0.02);
  EXPECT_TRUE(
      std::is_sorted(arrivals.begin(), arrivals.end(), [](const auto& a, const auto& b) { return a.at < b.at; }));
  const auto slower = DrawClientArrivals(clients, 0, 3, 5000, prng);
  EXPECT_NEAR(5000 / Seconds(slower.back().at), 3, 0.25);
}

TEST(Clients, NumbersMustBeSane) {
  for (const char* line :
       {"0,inf,1,Gamma,1,1", "nan,1,1,Gamma,1,1", "0,1,1,Gamma,inf,1", "0,1,nan,Gamma,1,1", "1e300,1,1,Gamma,1,1"}) {
    const TempFile file("chunk-0-trace.csv", std::string(line) + "\n");
    EXPECT_FALSE(ReadClients(file.directory()).ok()) << line;
  }
}

TEST(Clients, GapsOfNothingEnd) {
  const TempFile file("chunk-0-trace.csv", "0,1,1,Gamma,1,1e-300\n600,1,1,Gamma,1,1e-300\n");
  Prng prng(5);
  EXPECT_EQ(DrawClientArrivals(ReadClients(file.directory()).value(), 0, 0, 1000, prng).size(), 1000u);
}

}  // namespace
}  // namespace loramux::client_arrivals_test
