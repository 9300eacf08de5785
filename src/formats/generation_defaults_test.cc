#include "formats/generation_defaults.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include <gmock/gmock.h>

namespace loramux::generation_defaults_test {
namespace {

using testing::HasSubstr;

GenerationDefaults Good(const char* json) {
  auto defaults = ParseGenerationDefaults(json, "g.json");
  EXPECT_TRUE(defaults.ok()) << defaults.error().message;
  return defaults.ok() ? *defaults : GenerationDefaults();
}

TEST(GenerationDefaults, TakesWhatVllmTakes) {
  const GenerationDefaults defaults = Good(
      R"({"temperature":0.6,"top_p":0.9,"top_k":20,"min_p":0.05,"repetition_penalty":1.05,"max_new_tokens":2048,
          "do_sample":true,"num_beams":4,"eos_token_id":[1,2],"transformers_version":"4.51.0"})");
  EXPECT_EQ(defaults.temperature, 0.6f);
  EXPECT_EQ(defaults.top_p, 0.9f);
  EXPECT_EQ(defaults.top_k, 20);
  EXPECT_EQ(defaults.min_p, 0.05f);
  EXPECT_EQ(defaults.repetition_penalty, 1.05f);
  EXPECT_EQ(defaults.max_new_tokens, 2048);
  EXPECT_EQ(DescribeDefaults(defaults),
            "temperature 0.6, top_p 0.9, top_k 20, min_p 0.05, repetition_penalty 1.05, max_new_tokens 2048");
}

TEST(GenerationDefaults, NothingIsSetWithoutFields) {
  EXPECT_EQ(Good("{}"), GenerationDefaults());
  EXPECT_EQ(Good(R"({"temperature":null,"top_k":null,"eos_token_id":2})"), GenerationDefaults());
  EXPECT_EQ(DescribeDefaults({}), "");
}

TEST(GenerationDefaults, ErrorsNameTheFieldAndTheFile) {
  for (const auto& [json, message] :
       {std::pair{R"({"temperature":-1})", "temperature"}, std::pair{R"({"temperature":"hot"})", "temperature"},
        std::pair{R"({"top_p":0})", "a number above 0 to 1"}, std::pair{R"({"top_p":1.5})", "top_p"},
        std::pair{R"({"min_p":2})", "min_p"}, std::pair{R"({"repetition_penalty":0})", "repetition_penalty"},
        std::pair{R"({"top_k":-2})", "top_k"}, std::pair{R"({"top_k":1.5})", "top_k"},
        std::pair{R"({"max_new_tokens":0})", "max_new_tokens"}, std::pair{R"([])", "g.json"},
        std::pair{R"({)", "g.json"}}) {
    const auto defaults = ParseGenerationDefaults(json, "g.json");
    ASSERT_FALSE(defaults.ok()) << json;
    EXPECT_THAT(defaults.error().message, HasSubstr(message));
    EXPECT_THAT(defaults.error().message, HasSubstr("g.json"));
  }
}

TEST(GenerationDefaults, AreReadFromAFileOrADirectory) {
  const std::string directory = testing::TempDir();
  const std::string path = directory + "/generation_config.json";
  std::ofstream(path) << R"({"top_k":7})";
  EXPECT_EQ(LoadGenerationDefaults(path)->top_k, 7);
  EXPECT_EQ(LoadGenerationDefaults(directory)->top_k, 7);
  std::filesystem::remove(path);
  EXPECT_EQ(LoadGenerationDefaults(directory).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace loramux::generation_defaults_test
