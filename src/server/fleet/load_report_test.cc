#include "server/fleet/load_report.h"

#include <string>

#include <gtest/gtest.h>

#include "http/json_reader.h"

namespace loramux::load_report_test {
namespace {

constexpr GenerationLoad kLoad{
    .running = 6, .waiting = 2, .max_running = 16, .memory_share = 0.75, .kv_share = 0.123456};

TEST(LoadReport, AsText) {
  for (const char* format : {"TEXT", "text"}) {
    EXPECT_EQ(LoadReport(format, kLoad),
              "TEXT application_utilization=0.5, mem_utilization=0.75, named_metrics.kv_cache_usage_perc=0.1235, "
              "named_metrics.num_requests_running=6, named_metrics.num_requests_waiting=2");
  }
}

TEST(LoadReport, AsJson) {
  const auto report = LoadReport("Json", kLoad);
  ASSERT_TRUE(report && report->starts_with("JSON "));
  EXPECT_EQ(DumpJson(Json::parse(report->substr(5))),
            R"({"application_utilization":0.5,"mem_utilization":0.75,"named_metrics":{"kv_cache_usage_perc":0.1235,)"
            R"("num_requests_running":6,"num_requests_waiting":2}})");
}

TEST(LoadReport, AnotherFormGetsNone) {
  for (const char* format : {"", "BIN", "TEXT ", "JSONX", "TEX"}) EXPECT_FALSE(LoadReport(format, kLoad)) << format;
}

TEST(LoadReport, AQueueIsMoreThanAFullServer) {
  EXPECT_TRUE(LoadReport("TEXT", {.running = 4, .waiting = 4, .max_running = 4})
                  ->starts_with("TEXT application_utilization=2, "));
  EXPECT_TRUE(LoadReport("TEXT", {})->starts_with("TEXT application_utilization=0, "));
}

}  // namespace
}  // namespace loramux::load_report_test
