#include "formats/embedding_config.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include <gmock/gmock.h>

namespace loramux::embedding_config_test {
namespace {

using testing::HasSubstr;

namespace fs = std::filesystem;

std::string Module(const std::string& type, const std::string& path) {
  return R"({"idx":0,"name":"0","path":")" + path + R"(","type":"sentence_transformers.models.)" + type + R"("})";
}
std::string Modules(const std::string& more = "") {
  return "[" + Module("Transformer", "") + "," + Module("Pooling", "1_Pooling") + more + "]";
}

TEST(EmbeddingConfig, ModulesSayWhatIsNormalized) {
  EXPECT_EQ(*ParseEmbeddingModules(Modules(), "m"), (EmbeddingModules{"1_Pooling", false}));
  EXPECT_EQ(*ParseEmbeddingModules(Modules("," + Module("Normalize", "2_Normalize")), "m"),
            (EmbeddingModules{"1_Pooling", true}));
}

TEST(EmbeddingConfig, ModulesThatAreNotServedAreNamed) {
  for (const auto& [json, message] :
       {std::pair{Modules("," + Module("Dense", "2_Dense")), "'sentence_transformers.models.Dense'"},
        std::pair{"[" + Module("Transformer", "") + "]", "expected a module of the class Pooling"},
        std::pair{Modules("," + Module("Pooling", "2_Pooling")), "each once"},
        std::pair{"[" + Module("Pooling", "../x") + "]", "path"}, std::pair{"[" + Module("Pooling", "") + "]", "path"},
        std::pair{std::string("[7]"), "objects"}, std::pair{std::string("{}"), "an array"},
        std::pair{std::string("[{}]"), "type"}, std::pair{std::string("["), "not valid JSON"}}) {
    const auto modules = ParseEmbeddingModules(json, "m.json");
    ASSERT_FALSE(modules.ok()) << json;
    EXPECT_THAT(modules.error().message, HasSubstr(message));
    EXPECT_THAT(modules.error().message, HasSubstr("m.json"));
  }
}

TEST(EmbeddingConfig, PoolingIsMeanOrLastInBothSpellings) {
  EXPECT_EQ(*ParsePoolingConfig(R"({"word_embedding_dimension":8,"pooling_mode_cls_token":false,
            "pooling_mode_mean_tokens":true,"pooling_mode_lasttoken":false,"include_prompt":true})",
                                "p"),
            Pooling::kMean);
  EXPECT_EQ(*ParsePoolingConfig(R"({"pooling_mode_lasttoken":true})", "p"), Pooling::kLast);
  EXPECT_EQ(*ParsePoolingConfig(R"({"pooling_mode":"lasttoken"})", "p"), Pooling::kLast);
  EXPECT_EQ(*ParsePoolingConfig(R"({"pooling_mode":"mean"})", "p"), Pooling::kMean);
}

TEST(EmbeddingConfig, OtherPoolingIsRefusedByName) {
  for (const auto& [json, message] :
       {std::pair{R"({"pooling_mode_cls_token":true})", "'cls_token'"},
        std::pair{R"({"pooling_mode":"weightedmean"})", "'weightedmean'"},
        std::pair{R"({"pooling_mode_mean_tokens":true,"pooling_mode_lasttoken":true})", "several modes"},
        std::pair{R"({"pooling_mode_mean_tokens":false})", "neither"}, std::pair{"[]", "object"}}) {
    const auto pooling = ParsePoolingConfig(json, "p.json");
    ASSERT_FALSE(pooling.ok()) << json;
    EXPECT_THAT(pooling.error().message, HasSubstr(message));
    EXPECT_THAT(pooling.error().message, HasSubstr("p.json"));
  }
}

TEST(EmbeddingConfig, IsReadFromADirectory) {
  const fs::path directory = fs::path(testing::TempDir()) / "embedding_config_test";
  fs::remove_all(directory);
  fs::create_directories(directory / "1_Pooling");
  EXPECT_EQ(*LoadEmbeddingConfig(directory), std::nullopt);
  std::ofstream(directory / "modules.json") << Modules();
  EXPECT_THAT(LoadEmbeddingConfig(directory).error().message, HasSubstr("1_Pooling"));  // a file is missing
  std::ofstream(directory / "1_Pooling/config.json") << R"({"pooling_mode_mean_tokens":true})";
  EXPECT_EQ(**LoadEmbeddingConfig(directory), (EmbeddingConfig{Pooling::kMean, false}));
  fs::remove_all(directory);
}

TEST(EmbeddingConfig, NamesOfPooling) {
  for (const Pooling pooling : {Pooling::kLast, Pooling::kMean}) EXPECT_EQ(FindPooling(PoolingName(pooling)), pooling);
  EXPECT_EQ(FindPooling("cls"), std::nullopt);
}

}  // namespace
}  // namespace loramux::embedding_config_test
