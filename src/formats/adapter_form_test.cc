// Adapters in the forms of other tools than PEFT. adapter_golden_test opens files that the tools wrote themselves.
#include "formats/adapter_form.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "formats/adapter_config.h"
#include "formats/test_files.h"

namespace loramux::adapter_form_test {
namespace {

using nlohmann::ordered_json;
using testing::ElementsAre;
using testing::HasSubstr;

ModelConfig ThreeLayers() {
  ModelConfig model;
  model.hidden_size = 4;
  model.num_layers = 3;
  model.num_heads = 2;
  model.num_kv_heads = 1;
  model.head_dim = 4;
  model.intermediate_size = 6;
  model.vocab_size = 10;
  return model;
}

ordered_json Mlx() {
  return {{"model", "mlx-community/x-4bit"},
          {"fine_tune_type", "lora"},
          {"num_layers", -1},
          {"lora_parameters", {{"rank", 2}, {"scale", 20.0}, {"dropout", 0.1}, {"alpha", 7}}}};
}

ordered_json With(ordered_json config, const ordered_json& changes) {
  config.merge_patch(changes);
  return config;
}

std::string ErrorOf(const ordered_json& config) {
  const auto parsed = ParseAdapterConfig(config.dump(), "c");
  return parsed.ok() ? "accepted" : parsed.error().message;
}

TEST(MlxAdapterConfig, ScaleIsTheFactorWhateverTheRank) {
  auto config = ParseAdapterConfig(Mlx().dump(), "c");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->form, AdapterForm::kMlx);
  EXPECT_EQ(config->RankOf("model.layers.0.self_attn.q_proj"), 2);
  EXPECT_EQ(config->ScaleOf("model.layers.0.self_attn.q_proj"), 20.0);
  EXPECT_EQ(config->lora_alpha, 40.0);
  EXPECT_EQ(config->base_model_name, "mlx-community/x-4bit");
  EXPECT_TRUE(config->Targets("model.layers.0.mlp.down_proj"));
  EXPECT_FALSE(config->Targets("lm_head"));
}

TEST(MlxAdapterConfig, LayersCountFromTheLast) {
  const auto targeted = [](const char* key, std::int64_t layers) {
    ordered_json json = Mlx();
    json.erase("num_layers");
    json[key] = layers;
    json["use_dora"] = false;
    auto config = ParseAdapterConfig(json.dump(), "c");
    EXPECT_TRUE(config.ok() && ApplyLastLayers(3, "c", *config).ok());
    std::vector<int> found;
    for (int layer = 0; layer < 3; ++layer) {
      if (config->Targets("model.layers." + std::to_string(layer) + ".mlp.up_proj")) found.push_back(layer);
    }
    return found;
  };
  for (const char* key : {"num_layers", "lora_layers"}) {
    EXPECT_THAT(targeted(key, 1), ElementsAre(2)) << key;
    EXPECT_THAT(targeted(key, 2), ElementsAre(1, 2)) << key;
    EXPECT_THAT(targeted(key, 3), ElementsAre(0, 1, 2)) << key;
    EXPECT_THAT(targeted(key, 16), ElementsAre(0, 1, 2)) << key;
    EXPECT_THAT(targeted(key, -1), ElementsAre(0, 1, 2)) << key;
  }
}

TEST(MlxAdapterConfig, KeysNameTheModules) {
  auto config = ParseAdapterConfig(
      With(Mlx(), {{"lora_parameters", {{"keys", {"self_attn.q_proj", "lm_head"}}}}, {"num_layers", 1}}).dump(), "c");
  ASSERT_TRUE(config.ok() && ApplyLastLayers(3, "c", *config).ok());
  EXPECT_TRUE(config->Targets("model.layers.2.self_attn.q_proj"));
  EXPECT_TRUE(config->Targets("lm_head"));
  EXPECT_FALSE(config->Targets("model.layers.1.self_attn.q_proj"));
  EXPECT_FALSE(config->Targets("model.layers.2.self_attn.v_proj"));
}

TEST(MlxAdapterConfig, RefusesByNameWhatIsNoLora) {
  EXPECT_THAT(ErrorOf(With(Mlx(), {{"fine_tune_type", "dora"}})), HasSubstr("fine_tune_type is \"dora\""));
  EXPECT_THAT(ErrorOf(With(Mlx(), {{"use_dora", true}})), HasSubstr("use_dora"));
  EXPECT_THAT(ErrorOf(With(Mlx(), {{"fine_tune_type", "full"}})), HasSubstr("mlx_lm.fuse"));
  EXPECT_THAT(ErrorOf(With(Mlx(), {{"fine_tune_type", "x"}})), HasSubstr("fine_tune_type: expected \"lora\""));
  EXPECT_THAT(ErrorOf(With(Mlx(), {{"lora_parameters", nullptr}})), HasSubstr("lora_parameters"));
  for (const ordered_json& rank : {ordered_json(0), ordered_json(4097), ordered_json("8"), ordered_json(nullptr)}) {
    EXPECT_THAT(ErrorOf(With(Mlx(), {{"lora_parameters", {{"rank", rank}}}})), HasSubstr("lora_parameters.rank"));
  }
  for (const ordered_json& scale : {ordered_json("1"), ordered_json(nullptr), ordered_json(true)}) {
    EXPECT_THAT(ErrorOf(With(Mlx(), {{"lora_parameters", {{"scale", scale}}}})), HasSubstr("lora_parameters.scale"));
  }
  EXPECT_THAT(ErrorOf(With(Mlx(), {{"lora_parameters", {{"keys", "q_proj"}}}})), HasSubstr("lora_parameters.keys"));
  EXPECT_THAT(ErrorOf(With(Mlx(), {{"num_layers", 1.5}})), HasSubstr("num_layers"));
}

// Of the versions that wrote lora_layers, the early ones multiplied by alpha / rank.
TEST(MlxAdapterConfig, RefusesAnAlphaThatTwoVersionsReadDifferently) {
  ordered_json old = Mlx();
  old.erase("fine_tune_type");
  old.erase("num_layers");
  old["lora_layers"] = 4;
  EXPECT_THAT(ErrorOf(old), HasSubstr("lora_parameters.alpha"));
  EXPECT_EQ(ErrorOf(With(old, {{"use_dora", false}})), "accepted");
  EXPECT_EQ(ErrorOf(With(old, {{"lora_parameters", {{"alpha", 2}}}})), "accepted");
  EXPECT_EQ(ErrorOf(With(old, {{"lora_parameters", {{"alpha", nullptr}}}})), "accepted");
}

// A file of floats 0, 1, 2, ... in one tensor after the other.
std::string CountingTensors(const std::vector<TensorSpec>& specs) {
  std::string bytes = ZeroTensors(specs);
  std::size_t count = 0;
  for (const TensorSpec& spec : specs) {
    std::size_t elements = 1;
    for (const std::int64_t extent : spec.shape) elements *= static_cast<std::size_t>(extent);
    count += elements;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(i);
    std::memcpy(bytes.data() + bytes.size() - (count - i) * sizeof(value), &value, sizeof(value));
  }
  return bytes;
}

class MlxAdapterFiles : public testing::Test {
 protected:
  Result<AdapterFile> Open(const std::vector<TensorSpec>& tensors, const ordered_json& config = Mlx()) {
    folder_.Write("adapter_config.json", config.dump());
    folder_.Write("adapters.safetensors", CountingTensors(tensors));
    return OpenAdapter(folder_.path(), ThreeLayers());
  }
  std::string OpenError(const std::vector<TensorSpec>& tensors, const ordered_json& config = Mlx()) {
    const auto adapter = Open(tensors, config);
    return adapter.ok() ? "accepted" : adapter.error().message;
  }
  static std::vector<TensorSpec> Pair(const std::string& module, std::int64_t in, std::int64_t out) {
    return {{module + ".lora_a", "F32", {in, 2}}, {module + ".lora_b", "F32", {2, out}}};
  }
  TempFolder folder_;
};

TEST_F(MlxAdapterFiles, MatricesAreReadTransposed) {
  const auto adapter = Open(Pair("model.layers.1.mlp.down_proj", 6, 4));
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  ASSERT_EQ(adapter->modules.size(), 1u);
  const LoraModule& module = adapter->modules[0];
  EXPECT_EQ(module.layer, 1);
  EXPECT_EQ(module.target, LoraTarget::kDown);
  EXPECT_EQ(module.scale, 20.0F);
  EXPECT_THAT(module.a->shape, ElementsAre(2, 6));
  EXPECT_THAT(module.b->shape, ElementsAre(4, 2));
  std::vector<std::byte> bytes;
  std::vector<float> a(12), b(8);
  ASSERT_TRUE(adapter->tensors->Read(*module.a, bytes).ok());
  std::memcpy(a.data(), bytes.data(), bytes.size());
  EXPECT_THAT(a, ElementsAre(0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11));
  ASSERT_TRUE(adapter->tensors->Read(*module.b, bytes).ok());
  std::memcpy(b.data(), bytes.data(), bytes.size());
  EXPECT_THAT(b, ElementsAre(12, 16, 13, 17, 14, 18, 15, 19));
  float one = 0;  // a part of it
  ASSERT_TRUE(adapter->tensors->Read(*module.b, 3 * sizeof(float), std::as_writable_bytes(std::span(&one, 1))).ok());
  EXPECT_EQ(one, 17);
}

TEST_F(MlxAdapterFiles, WhatDoesNotFitIsNamedAsInTheFile) {
  const auto q = Pair("model.layers.2.self_attn.q_proj", 4, 8);
  EXPECT_EQ(OpenError(q), "accepted");
  EXPECT_THAT(OpenError(q, With(Mlx(), {{"lora_parameters", {{"rank", 3}}}})),
              testing::AllOf(HasSubstr("'model.layers.2.self_attn.q_proj.lora_a'"), HasSubstr("transposed")));
  EXPECT_THAT(OpenError(Pair("model.layers.0.self_attn.q_proj", 4, 8), With(Mlx(), {{"num_layers", 2}})),
              testing::AllOf(HasSubstr("num_layers"), HasSubstr("set it to -1")));
  EXPECT_THAT(OpenError({q[0]}), HasSubstr("without its lora_B"));
  EXPECT_THAT(OpenError({q[0], q[1], {"model.layers.2.self_attn.q_proj.m", "F32", {8}}}), HasSubstr("DoRA"));
  EXPECT_THAT(OpenError({{"model.layers.2.self_attn.q_proj.weight", "F32", {8, 4}}}),
              HasSubstr("expected MODULE.lora_a, MODULE.lora_b, MODULE.m"));
  EXPECT_THAT(OpenError({{"model.layers.2.mlp.switch_mlp.up_proj.lora_a", "F32", {2, 2, 4}}}), HasSubstr("switch_mlp"));
}

TEST_F(MlxAdapterFiles, ValuesThatAreNotFiniteAreNamedInPeftsOrder) {
  folder_.Write("adapter_config.json", Mlx().dump());
  std::string bytes = CountingTensors(Pair("model.layers.2.self_attn.q_proj", 4, 8));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(bytes.data() + bytes.size() - 24 * sizeof(nan) + 3 * sizeof(nan), &nan, sizeof(nan));  // [1, 1] of 4 x 2
  folder_.Write("adapters.safetensors", bytes);
  EXPECT_THAT(OpenAdapter(folder_.path(), ThreeLayers()).error().message, HasSubstr("[1, 1]"));
}

TEST_F(MlxAdapterFiles, AFileOfTensorsThatIsMissingIsNamed) {
  folder_.Write("adapter_config.json", Mlx().dump());
  EXPECT_THAT(OpenAdapter(folder_.path(), ThreeLayers()).error().message,
              HasSubstr("an adapter directory of mlx-lm holds adapter_config.json and adapters.safetensors"));
}

}  // namespace
}  // namespace loramux::adapter_form_test
