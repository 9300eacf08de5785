#include "model/length_proxy.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <unistd.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace loramux::length_proxy_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kGolden = fs::path(LORAMUX_SOURCE_DIR) / "tests/golden/length_proxy";

fs::path DirectoryOf(const std::string& name) {
  return name == "demo" ? fs::path(LORAMUX_SOURCE_DIR) / "demo/length_proxy" : kGolden / name;
}

json ReadJson(const fs::path& path) { return json::parse(std::ifstream(path)); }

class LengthProxyTest : public testing::TestWithParam<std::tuple<std::string, Backend>> {};
INSTANTIATE_TEST_SUITE_P(All, LengthProxyTest,
                         testing::Combine(testing::Values("random", "demo"),
                                          testing::Values(Backend::kReference, Backend::kCpu)));

TEST_P(LengthProxyTest, ComputesTheLogitsOfTransformers) {
  const auto& [name, backend] = GetParam();
  const auto proxy = LengthProxy::Load(DirectoryOf(name));
  ASSERT_TRUE(proxy.ok()) << proxy.error().message;
  const json golden = ReadJson(kGolden / "golden.json")[name];
  ASSERT_GE(golden.size(), 5u);
  for (const json& sample : golden) {
    const std::vector<float> expected = sample["logits"];
    const std::vector<float> logits = proxy->Logits(sample["ids"].get<std::vector<TokenId>>(), backend);
    ASSERT_EQ(logits.size(), expected.size());
    for (std::size_t i = 0; i < logits.size(); ++i)
      EXPECT_NEAR(logits[i], expected[i], 1e-4f * (1 + std::abs(expected[i]))) << i;
  }
}

TEST(LengthProxy, OfALongPromptTheBeginningAndTheEndRemain) {
  const auto proxy = LengthProxy::Load(DirectoryOf("random"));
  ASSERT_TRUE(proxy.ok());
  std::vector<TokenId> ids(100);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<TokenId>(i * 7 % 61);
  std::vector<TokenId> cut(ids.begin(), ids.begin() + 40);
  cut.back() = ids.back();
  EXPECT_EQ(proxy->Logits(ids), proxy->Logits(cut));
  ids[60] = (ids[60] + 1) % 61;
  EXPECT_EQ(proxy->Logits(ids), proxy->Logits(cut));
}

// Classes 1-3, 4-9, 10-30, 31-100, 101-.
TEST(LengthProxy, GuessesTheMiddleOfWhatIsProbable) {
  const auto proxy = LengthProxy::Load(DirectoryOf("random"));
  ASSERT_TRUE(proxy.ok());
  EXPECT_EQ(proxy->GuessOf(std::vector<float>{50, 0, 0, 0, 0}), 2);     // sqrt 3
  EXPECT_EQ(proxy->GuessOf(std::vector<float>{0, 0, 50, 0, 0}), 17);    // sqrt 300
  EXPECT_EQ(proxy->GuessOf(std::vector<float>{0, 0, 0, 0, 500}), 143);  // 101 sqrt 2
  EXPECT_EQ(proxy->GuessOf(std::vector<float>{0, 90, 90, 0, 0}), 10);   // between 6 and 17.3, geometrically
}

TEST(LengthProxy, GuessesAreNumbersOfTokens) {
  const auto proxy = LengthProxy::Load(DirectoryOf("random"));
  ASSERT_TRUE(proxy.ok());
  EXPECT_EQ(proxy->GuessOf(std::vector<float>(5, std::nanf(""))), 0);
}

// ---------------------------------------------------------------- Malformed directories

class Scratch {
 public:
  Scratch() {
    std::string pattern = (fs::temp_directory_path() / "loramux_proxy_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
    fs::copy(DirectoryOf("random"), path_, fs::copy_options::recursive);
  }
  ~Scratch() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }
  // The error with a config.json modified by `change`.
  std::string Refused(const std::function<void(json&)>& change) const {
    json config = ReadJson(DirectoryOf("random") / "config.json");
    change(config);
    std::ofstream(path_ / "config.json") << config;
    const auto proxy = LengthProxy::Load(path_);
    return proxy.ok() ? "" : proxy.error().message;
  }

 private:
  fs::path path_;
};

TEST(LengthProxy, ErrorsNameTheField) {
  const Scratch scratch;
  const auto refused = [&](const char* key, const json& value) {
    return scratch.Refused([&](json& config) { config[key] = value; });
  };
  EXPECT_EQ(scratch.Refused([](json&) {}), "");
  const std::tuple<const char*, json, const char*> cases[] = {
      {"model_type", "roberta", "expected \"bert\""},
      {"model_type", nullptr, "model_type"},
      {"architectures", {"BertModel"}, "BertForSequenceClassification"},
      {"architectures", "BertForSequenceClassification", "architectures"},
      {"hidden_act", "relu", "hidden_act"},
      {"position_embedding_type", "relative_key", "position_embedding_type"},
      {"hidden_size", 0, "hidden_size"},
      {"hidden_size", 1 << 30, "hidden_size"},
      {"num_attention_heads", 5, "a divisor of hidden_size (36)"},
      {"num_hidden_layers", "3", "num_hidden_layers"},
      {"max_position_embeddings", -1, "max_position_embeddings"},
      {"layer_norm_eps", -1e-6, "layer_norm_eps"},
      {"layer_norm_eps", 1e-60, "layer_norm_eps"},
      {"layer_norm_eps", 1e300, "layer_norm_eps"},
      {"id2label", json::array(), "id2label"},
      {"id2label", {{"0", "LABEL_0"}}, "id2label.0: expected a range of output tokens"},
      {"id2label", {{"0", "1-3"}, {"2", "4-"}}, "the keys \"0\" to \"1\""},
      {"id2label", {{"0", "1-"}, {"1", "4-9"}}, "id2label.0"},
      {"id2label", {{"0", "1-3"}, {"1", "5-9"}}, "id2label.1"},
      {"id2label", {{"0", "3-1"}}, "id2label.0"},
      {"id2label", {{"0", "0-3"}}, "id2label.0"},
      {"id2label", {{"0", "1-99999999999"}}, "id2label.0"},
      {"id2label", {{"0", "1-2147483647"}, {"1", "2147483647-"}}, "id2label.1"},
      {"id2label", {{"0", 7}}, "found 7"},
      {"intermediate_size", 1 << 20,
       "intermediate.dense.weight' has shape [50, 36], but config.json asks for [1048576, 36]"},
      {"num_hidden_layers", 2, "'bert.encoder.layer.2."},
      {"num_hidden_layers", 4,
       "tensor 'bert.encoder.layer.3.attention.self.query.weight' of shape [36, 36] is missing"},
      {"vocab_size", 60, "has shape [61, 36], but config.json asks for [60, 36]"},
      {"id2label", {{"0", "1-"}}, "tensor 'classifier.weight' has shape [5, 36], but config.json asks for [1, 36]"},
  };
  for (const auto& [key, value, expected] : cases) {
    EXPECT_NE(refused(key, value).find(expected), std::string::npos) << key << ": " << refused(key, value);
  }
}

TEST(LengthProxy, TheLargestBucketsGuessFits) {
  const Scratch scratch;
  const json buckets = {{"0", "1-1"}, {"1", "2-2"}, {"2", "3-3"}, {"3", "4-2147483646"}, {"4", "2147483647-"}};
  ASSERT_EQ(scratch.Refused([&](json& config) { config["id2label"] = buckets; }), "");
  const auto proxy = LengthProxy::Load(scratch.path());
  ASSERT_TRUE(proxy.ok());
  EXPECT_EQ(proxy->GuessOf(std::vector<float>{0, 0, 0, 0, 500}), std::numeric_limits<std::int32_t>::max());
}

TEST(LengthProxy, ErrorsNameTheFile) {
  const Scratch scratch;
  const auto message = [&] { return LengthProxy::Load(scratch.path()).error().message; };
  fs::resize_file(scratch.path() / "model.safetensors", 1000);
  EXPECT_NE(message().find("model.safetensors"), std::string::npos);
  fs::remove(scratch.path() / "model.safetensors");
  EXPECT_NE(message().find("model.safetensors"), std::string::npos);
  std::ofstream(scratch.path() / "config.json") << "{";
  EXPECT_NE(message().find("config.json"), std::string::npos);
  fs::remove(scratch.path() / "config.json");
  EXPECT_NE(message().find("config.json"), std::string::npos);
}

}  // namespace
}  // namespace loramux::length_proxy_test
