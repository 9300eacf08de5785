#include "server/adapters/adapter_checks.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace loramux::adapter_checks_test {
namespace {

TEST(AdapterChecks, AnOutcomeIsRememberedUntilTheFilesChange) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "adapter_checks_test";
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  std::ofstream(path / "adapter_config.json") << "{";
  int checks = 0;
  bool broken = true;
  AdapterChecks remembered([&](const std::string& name, const std::filesystem::path&) -> Result<std::int64_t> {
    ++checks;
    if (broken) return InvalidArgument(name + " is broken");
    return 3;
  });
  EXPECT_EQ(remembered.WhyBroken("a", path), "a is broken");
  EXPECT_EQ(remembered.WhyBroken("a", path), "a is broken");
  EXPECT_EQ(checks, 1);
  broken = false;
  std::ofstream(path / "adapter_config.json") << "{}";
  EXPECT_EQ(remembered.WhyBroken("a", path), std::nullopt);
  EXPECT_EQ(remembered.WhyBroken("a", path), std::nullopt);
  EXPECT_EQ(*remembered.ClassesOf("a", path), 3);
  EXPECT_EQ(checks, 2);
  std::ofstream(path / "adapter_model.safetensors") << "x";
  EXPECT_EQ(remembered.WhyBroken("a", path), std::nullopt);
  EXPECT_EQ(checks, 3);
  std::ofstream(path / "config.json") << "{}";
  EXPECT_EQ(remembered.WhyBroken("a", path), std::nullopt);
  EXPECT_EQ(checks, 4);
  EXPECT_EQ(remembered.WhyBroken("b", path), std::nullopt);
  remembered.KeepOnly({"b", "c"});
  EXPECT_EQ(remembered.size(), 1u);
  std::filesystem::remove_all(path);
}

}  // namespace
}  // namespace loramux::adapter_checks_test
