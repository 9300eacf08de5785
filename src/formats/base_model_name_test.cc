#include "formats/base_model_name.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>

namespace loramux::base_model_name_test {
namespace {

TEST(BaseModelName, TheLastPartTells) {
  const std::pair<const char*, const char*> same[] = {
      {"meta-llama/Llama-3.1-8B", "/models/llama-3.1-8b/"},
      {"Llama-3.1-8B", "Llama-3.1-8B"},
      {"./demo/model/.", "demo/model"},
      {"meta-llama/Llama-3.1-8B", "/root/.cache/hub/models--meta-llama--Llama-3.1-8B/snapshots/0e9e39f249"},
      {"models--org--x/snapshots/a", "models--other--x/snapshots/b"}};
  for (const auto& [a, b] : same) EXPECT_TRUE(SameModelName(a, b)) << a << " " << b;
  const std::pair<const char*, const char*> different[] = {
      {"meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct"},
      {"a/b", "b/a"},
      {"models--org--x/snapshots/a", "models--org--y/snapshots/a"},
      {"x", ""}};
  for (const auto& [a, b] : different) EXPECT_FALSE(SameModelName(a, b)) << a << " " << b;
}

TEST(BaseModelName, NamesOfADirectory) {
  const std::filesystem::path top = std::filesystem::path(testing::TempDir()) / "base_model_name_test";
  std::filesystem::remove_all(top);
  std::filesystem::create_directories(top / "real");
  std::filesystem::create_directory_symlink(top / "real", top / "link");
  EXPECT_THAT(NamesOfModel(top / "link"),
              testing::ElementsAre((top / "link").string(), std::filesystem::canonical(top / "real").string()));
  std::ofstream(top / "real/config.json") << R"({"_name_or_path":"org/x"})";
  EXPECT_EQ(NamesOfModel(top / "link").back(), "org/x");
  std::ofstream(top / "real/config.json") << "[";
  EXPECT_EQ(NamesOfModel(top / "link").size(), 2u);
  std::filesystem::remove_all(top);
}

}  // namespace
}  // namespace loramux::base_model_name_test
