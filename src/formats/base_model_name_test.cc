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
  // As people who quantise, convert and fine-tune name one model.
  for (const char* name : {"unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit",
                           "unsloth/Llama-3.1-8B-Instruct-unsloth-bnb-4bit",
                           "unsloth/llama-3.1-8b-instruct",
                           "mlx-community/Llama-3.1-8B-Instruct-4bit",
                           "mlx-community/Meta-Llama-3.1-8B-Instruct-4bit-DWQ",
                           "mlx-community/Llama-3.1-8B-Instruct-6bit",
                           "x/Llama-3.1-8B-Instruct-MLX",
                           "x/Llama-3.1-8B-Instruct-MLX-8bit",
                           "x/Llama-3.1-8B-Instruct-GPTQ-Int4",
                           "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4",
                           "neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8-dynamic",
                           "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16",
                           "nvidia/Llama-3.1-8B-Instruct-FP8",
                           "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF",
                           "/m/Llama-3.1-8B-Instruct-Q4_K_M.gguf",
                           "/m/Meta-Llama-3.1-8B-Instruct.Q8_0.gguf",
                           "/m/Llama-3.1-8B-Instruct-UD-IQ2_XXS.gguf",
                           "x/Llama-3.1-8B-Instruct-bf16",
                           "x/Llama-3.1-8B-Instruct-4.0bpw-exl2",
                           "x/Llama_3.1_8B_Instruct_hf",
                           "Llama 3.1 8B Instruct"}) {
    EXPECT_TRUE(SameModelName("meta-llama/Llama-3.1-8B-Instruct", name)) << name;
    EXPECT_FALSE(SameModelName("meta-llama/Llama-3.1-8B", name)) << name;
    EXPECT_FALSE(SameModelName("meta-llama/Llama-3.1-70B-Instruct", name)) << name;
  }
  EXPECT_TRUE(SameModelName("meta-llama/Llama-2-7b-hf", "TheBloke/Llama-2-7B-GPTQ"));
  EXPECT_TRUE(SameModelName("4bit", "x/4bit"));
  const std::pair<const char*, const char*> different[] = {
      {"mistralai/Mistral-7B-v0.1", "mistralai/Mistral-7B-v0.2"},
      {"Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-1.5B-AWQ"},
      {"x/llama-3.2", "x/llama-3.1"},
      {"x/model-q", "x/model"},
      {"x/model-v4", "x/model-v8"},
      {"meta-", "x"},
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
