#include "costs/pace.h"

#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace loramux::pace_test {
namespace {

constexpr TimeNs kTenth = kNsPerSecond / 10;

std::string FileOf(const std::string& text) {
  const std::string path = testing::TempDir() + "/pace.csv";
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST(Pace, IsTheModelsUntilItChanges) {
  EXPECT_EQ(Pace().At(7), 1);
  const Pace pace({{.at = 10, .factor = 2}, {.at = 20, .factor = 0.5}, {.at = 20, .factor = 3}});
  EXPECT_EQ(pace.At(9), 1);
  EXPECT_EQ(pace.At(10), 2);
  EXPECT_EQ(pace.At(19), 2);
  EXPECT_EQ(pace.At(20), 3);
  EXPECT_EQ(pace.At(1'000'000), 3);
}

TEST(Pace, BeginsAnewAfterItsPeriod) {
  const Pace pace({{.at = 10, .factor = 2}, {.at = 20, .factor = 0.5}}, 30);
  EXPECT_EQ(pace.At(29), 0.5);
  EXPECT_EQ(pace.At(30), 1);
  EXPECT_EQ(pace.At(300'000'010), 2);
}

TEST(Pace, FromAFile) {
  const auto pace = ReadPace(FileOf("seconds,factor\r\n0.1,1.5\r\n\r\n2,0.25\r\n"));
  ASSERT_TRUE(pace.ok()) << pace.error().message;
  EXPECT_EQ(pace->At(0), 1);
  EXPECT_EQ(pace->At(kTenth), 1.5);
  EXPECT_EQ(pace->At(2 * kNsPerSecond), 0.25);
}

TEST(Pace, WhatIsNoneIsRefusedWithItsLine) {
  for (const char* line : {"1", "1,2,3", "x,1", "1,x", "-1,1", "1,0", "1,-2", "1,1e4", "1e300,1", "nan,1", "1,nan",
                           "1,inf", ",", "0.4,1"}) {
    const auto pace = ReadPace(FileOf(std::string("seconds,factor\n0.5,1\n") + line + "\n"));
    ASSERT_FALSE(pace.ok()) << line;
    EXPECT_NE(pace.error().message.find("pace.csv:3: expected seconds,factor"), std::string::npos)
        << pace.error().message;
    EXPECT_EQ(pace.error().param, "--pace");
  }
  EXPECT_FALSE(ReadPace(FileOf("seconds,factor\n")).ok());
  EXPECT_FALSE(ReadPace(testing::TempDir() + "/no-such-file").ok());
}

}  // namespace
}  // namespace loramux::pace_test
