#include "model/write_quantised.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/prng.h"
#include "model/model.h"
#include "model/text_quality.h"

namespace loramux::write_quantised_test {
namespace {

namespace fs = std::filesystem;

const fs::path kDemo = fs::path(LORAMUX_SOURCE_DIR) / "demo/model";

class WriteQuantisedTest : public testing::Test {
 protected:
  WriteQuantisedTest() { fs::remove_all(directory_); }
  ~WriteQuantisedTest() override { fs::remove_all(directory_); }

  static std::unique_ptr<Model> Load(const fs::path& directory, const WeightOptions& options = {}) {
    auto model = Model::Load(directory, options, nullptr);
    EXPECT_TRUE(model.ok()) << model.error().message;
    return model.ok() ? std::move(model).value() : nullptr;
  }

  // Random tokens.
  static TextLogits Logits(Model& model) {
    Prng prng(3);
    std::vector<TokenId> tokens(200);
    for (TokenId& token : tokens) {
      token = static_cast<TokenId>(prng.NextBelow(static_cast<std::uint64_t>(model.config().vocab_size)));
    }
    return ComputeTextLogits(model, tokens, 64, 2, nullptr);
  }

  const fs::path directory_ =
      fs::temp_directory_path() / ("loramux_write_quantised_" + std::to_string(::getpid()) + "_test");
};

TEST_F(WriteQuantisedTest, TheDirectoryIsTheModelQuantisedAtLoad) {
  for (const WeightFormat format : {WeightFormat::kQ8, WeightFormat::kQ4}) {
    const WeightOptions options = {.layers = format};
    const fs::path out = directory_ / WeightFormatName(format);
    const Status written = WriteQuantisedModel(kDemo, out, options, nullptr);
    ASSERT_TRUE(written.ok()) << written.error().message;
    const auto from_file = Load(out), at_load = Load(kDemo, options);
    ASSERT_TRUE(from_file && at_load);
    EXPECT_EQ(from_file->weights().layers[0].qkv.format(), format);
    EXPECT_EQ(from_file->weights().lm_head.format(), WeightFormat::kQ8);
    // Used where it is mapped: matrices follow each other as in the file.
    const LayerWeights& layer = from_file->weights().layers[0];
    EXPECT_EQ(layer.qkv.data() + layer.qkv.bytes(), layer.o.data());
    EXPECT_EQ(Logits(*from_file).logits, Logits(*at_load).logits);
    EXPECT_TRUE(fs::exists(out / "tokenizer.json"));
  }
}

// What single families have besides: norms of heads, projections of the embedding, its norm, values that are keys, and
// recurrent layers with experts or attention beside them.
TEST_F(WriteQuantisedTest, AllTensorsOfAFamilyAreWritten) {
  for (const char* name : {"stablelm_parallel", "opt_post_norm", "bloom", "falcon_rw", "gemma4", "gemma4_small",
                           "gemma4_moe", "qwen3_5", "granite_hybrid_old", "granite_hybrid_moe", "qwen3_next",
                           "qwen3_5_moe", "falcon_h1_norm", "nemotron_h_old", "nemotron_h_moe_plain"}) {
    SCOPED_TRACE(name);
    const fs::path from = fs::path(LORAMUX_SOURCE_DIR) / "tests/golden/models" / name / "model";
    const WeightOptions options = {.layers = WeightFormat::kQ8};
    const Status written = WriteQuantisedModel(from, directory_ / name, options, nullptr);
    ASSERT_TRUE(written.ok()) << written.error().message;
    const auto from_file = Load(directory_ / name), at_load = Load(from, options);
    ASSERT_TRUE(from_file && at_load);
    EXPECT_EQ(Logits(*from_file).logits, Logits(*at_load).logits);
  }
}

// The embedding does not become an output layer.
TEST_F(WriteQuantisedTest, AModelWithoutAnOutputLayerStaysOne) {
  const fs::path golden = fs::path(LORAMUX_SOURCE_DIR) / "tests/golden/models/qwen3_headless/model";
  fs::create_directories(directory_ / "untied");
  fs::copy(golden / "model.safetensors", directory_ / "untied/model.safetensors");
  nlohmann::json config = nlohmann::json::parse(std::ifstream(golden / "config.json"));
  config["tie_word_embeddings"] = false;
  config["architectures"] = {"Qwen3ForCausalLM"};  // as the published embedding models say
  std::ofstream(directory_ / "untied/config.json") << config;
  const Status written =
      WriteQuantisedModel(directory_ / "untied", directory_ / "q8", {.layers = WeightFormat::kQ8}, {});
  ASSERT_TRUE(written.ok()) << written.error().message;
  const auto from_file = Load(directory_ / "q8"), at_load = Load(directory_ / "untied", {.layers = WeightFormat::kQ8});
  ASSERT_TRUE(from_file && at_load);
  EXPECT_FALSE(at_load->weights().generates);
  EXPECT_FALSE(from_file->weights().generates);
  EXPECT_EQ(Logits(*from_file).logits, Logits(*at_load).logits);
}

TEST_F(WriteQuantisedTest, ErrorsGrowWithFewerBits) {
  const TextLogits original = Logits(*Load(kDemo));
  const auto quality = [&](WeightFormat format) {
    return CompareTexts(original, Logits(*Load(kDemo, {.layers = format})));
  };
  const TextQuality q8 = quality(WeightFormat::kQ8), q4 = quality(WeightFormat::kQ4);
  EXPECT_LT(q8.mean_divergence, 5e-3);
  EXPECT_GT(q8.mean_divergence, 0);
  EXPECT_LT(q8.mean_divergence, q4.mean_divergence);
  EXPECT_LT(q4.mean_divergence, 0.2);
}

TEST_F(WriteQuantisedTest, AFolderWithContentIsNotTouched) {
  fs::create_directories(directory_);
  std::ofstream(directory_ / "mine") << "x";
  const Status written = WriteQuantisedModel(kDemo, directory_, {.layers = WeightFormat::kQ8}, nullptr);
  ASSERT_FALSE(written.ok());
  EXPECT_NE(written.error().message.find("found " + directory_.string() + " with content"), std::string::npos);
  EXPECT_TRUE(fs::exists(directory_ / "mine"));
}

TEST_F(WriteQuantisedTest, AFolderMayBeNamedWithASlash) {
  const fs::path out = directory_ / "";
  const Status written = WriteQuantisedModel(kDemo, out, {.layers = WeightFormat::kQ8}, nullptr);
  ASSERT_TRUE(written.ok()) << written.error().message;
  EXPECT_TRUE(fs::exists(directory_ / "config.json"));
}

TEST_F(WriteQuantisedTest, AnUnfinishedFolderIsNotRemoved) {
  const fs::path partial = directory_.string() + ".partial";
  fs::create_directories(partial);
  std::ofstream(partial / "mine") << "x";
  EXPECT_FALSE(WriteQuantisedModel(kDemo, directory_, {.layers = WeightFormat::kQ8}, nullptr).ok());
  EXPECT_TRUE(fs::exists(partial / "mine"));
  fs::remove_all(partial);
}

TEST_F(WriteQuantisedTest, AnUnknownLayoutIsRefused) {
  ASSERT_TRUE(WriteQuantisedModel(kDemo, directory_, {.layers = WeightFormat::kQ8}, nullptr).ok());
  std::ifstream in(directory_ / "config.json");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  const std::string layout = "panel32-group32";
  text.replace(text.find(layout), layout.size(), "panel64-group16");
  std::ofstream(directory_ / "config.json") << text;
  const auto model = Model::Load(directory_, {}, nullptr);
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.error().message.find("expected the layout \"panel32-group32\", found \"panel64-group16\""),
            std::string::npos)
      << model.error().message;
}

TEST_F(WriteQuantisedTest, AShortTensorIsRefused) {
  ASSERT_TRUE(WriteQuantisedModel(kDemo, directory_, {.layers = WeightFormat::kQ8}, nullptr).ok());
  const fs::path file = directory_ / "model.safetensors";
  std::fstream edit(file, std::ios::binary | std::ios::in | std::ios::out);
  std::string header(4096, '\0');
  edit.read(header.data(), static_cast<std::streamsize>(header.size()));
  const std::size_t at = header.find("\"shape\":[");
  ASSERT_NE(at, std::string::npos);
  // The same number of bytes in another shape.
  const std::size_t end = header.find(']', at);
  const std::string shape = header.substr(at + 9, end - at - 9);
  const std::size_t comma = shape.find(',');
  const std::string swapped = shape.substr(comma + 1) + "," + shape.substr(0, comma);
  edit.seekp(static_cast<std::streamoff>(at + 9));
  edit.write(swapped.data(), static_cast<std::streamsize>(swapped.size()));
  edit.close();
  const auto model = Model::Load(directory_, {}, nullptr);
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.error().message.find("expected U8 ["), std::string::npos) << model.error().message;
}

// A window is computed in steps, which know the tokens before them; the next window does not.
TEST_F(WriteQuantisedTest, AWindowRemembersAndTheNextDoesNot) {
  const auto model = Load(kDemo);
  std::vector<TokenId> tokens(200);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(3 + i % 40);
  const TextLogits whole = ComputeTextLogits(*model, tokens, 200, 2, nullptr);
  const TextLogits cut = ComputeTextLogits(*model, tokens, 128, 2, nullptr);
  const auto row = [](const TextLogits& text, std::int64_t index) {
    const auto begin = text.logits.begin() + index * text.vocab;
    return std::vector<float>(begin, begin + text.vocab);
  };
  EXPECT_EQ(whole.targets.size(), 199u);
  EXPECT_EQ(cut.targets.size(), 198u);
  EXPECT_EQ(row(whole, 100), row(cut, 100));
  EXPECT_NE(row(whole, 150), row(cut, 149));  // both predict token 151
}

// By hand: uniform predictions of 4 tokens against predictions that favour one.
TEST(CompareTexts, DivergenceAndPerplexity) {
  const TextLogits uniform = {.vocab = 4, .logits = {0, 0, 0, 0}, .targets = {1}};
  const float three = std::log(3.0f);
  const TextLogits favours = {.vocab = 4, .logits = {three, 0, 0, 0}, .targets = {1}};
  const TextQuality q = CompareTexts(uniform, favours);
  EXPECT_NEAR(q.perplexity_before, 4, 1e-6);
  EXPECT_NEAR(q.perplexity_after, 6, 1e-5);
  EXPECT_NEAR(q.mean_divergence, 0.25 * std::log(0.25 / 0.5) + 0.75 * std::log(0.25 * 6), 1e-6);
  EXPECT_EQ(CompareTexts(uniform, uniform).mean_divergence, 0);
}

}  // namespace
}  // namespace loramux::write_quantised_test
