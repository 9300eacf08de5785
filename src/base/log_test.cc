// Tests of the two log formats: each record is one line, whatever it contains.
#include "base/log.h"

#include <sstream>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <spdlog/sinks/ostream_sink.h>

namespace loramux::log_test {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

// The output of the default logger while `log` runs.
template <typename Log>
std::string Written(std::unique_ptr<spdlog::formatter> formatter, Log log) {
  std::ostringstream out;
  const auto before = spdlog::default_logger();
  auto logger = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(out));
  logger->set_formatter(std::move(formatter));
  spdlog::set_default_logger(logger);
  log();
  spdlog::set_default_logger(before);
  return out.str();
}

const std::string kHostile = "a\nb\r\n2026-01-01T00:00:00.000 error forged \x1b[31m\"q\\\x7f\xff\xc3";

TEST(Log, TextKeepsARecordOnItsLine) {
  const std::string line = Written(MakeTextFormatter(), [] {
    LogWith(spdlog::level::info, kHostile,
            {{"path", kHostile}, {"n", std::int64_t{7}}, {"ms", 1.25}, {"id", "ab-1"}, {"none", ""}});
  });
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  EXPECT_THAT(line, EndsWith(" n=7 ms=1.2 id=ab-1 none=\"\"\n"));
  EXPECT_THAT(line, HasSubstr("a\\x0ab\\x0d"));
  for (const char c : {'\r', '\x1b', '\x7f'}) EXPECT_THAT(line, Not(HasSubstr(std::string(1, c))));
}

TEST(Log, JsonIsOneObjectALine) {
  const std::string line = Written(MakeJsonFormatter(), [] {
    LogWith(spdlog::level::warn, kHostile, {{"path", kHostile}, {"n", std::int64_t{-7}}, {"ms", 0.5}});
  });
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  const auto json = nlohmann::json::parse(line, nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << line;
  EXPECT_EQ(json["level"], "warning");
  EXPECT_EQ(json["n"], -7);
  EXPECT_EQ(json["ms"], 0.5);
  EXPECT_THAT(json["message"].get<std::string>(), HasSubstr("a\nb\r\n2026"));
  EXPECT_EQ(json["path"], json["message"]);
  EXPECT_THAT(json["time"].get<std::string>(), testing::MatchesRegex("....-..-..T..:..:..\\....Z"));
}

TEST(Log, FieldsBelongToOneRecord) {
  const std::string lines = Written(MakeJsonFormatter(), [] {
    LogWith(spdlog::level::info, "first", {{"request_id", "x"}});
    spdlog::info("second {}", 2);
  });
  const auto second = nlohmann::json::parse(lines.substr(lines.find('\n') + 1), nullptr, false);
  EXPECT_EQ(second["message"], "second 2");
  EXPECT_FALSE(second.contains("request_id"));
}

TEST(Log, LongStringsAreCut) {
  const std::string huge(1 << 20, 'x');
  for (const bool json : {false, true}) {
    const std::string line = Written(json ? MakeJsonFormatter() : MakeTextFormatter(), [&] {
      LogWith(spdlog::level::info, huge, {{"path", huge}});
    });
    EXPECT_LT(line.size(), 10000u);
  }
}

TEST(Log, UnknownFormatIsNamed) {
  const Status status = InitLogging("info", "xml");
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("'xml'"));
}

}  // namespace
}  // namespace loramux::log_test
