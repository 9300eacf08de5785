// Adapters in the forms of other tools than PEFT. adapter_golden_test opens files that the tools wrote themselves.
#include "formats/adapter_form.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "formats/adapter_config.h"
#include "formats/gguf_writer_for_test.h"
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

TEST(MlxAdapterConfig, SaysWhetherItIsDora) {
  const auto dora = [](const ordered_json& config) { return ParseAdapterConfig(config.dump(), "FILE")->use_dora; };
  EXPECT_FALSE(dora(Mlx()));
  EXPECT_TRUE(dora(With(Mlx(), {{"fine_tune_type", "dora"}})));
  EXPECT_TRUE(dora(With(Mlx(), {{"use_dora", true}})));  // mlx-lm up to 0.18
}

TEST(MlxAdapterConfig, RefusesByNameWhatIsNoLora) {
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

// Among the versions that wrote lora_layers, the early ones multiplied by alpha / rank.
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

// The elements of an f32 tensor.
std::vector<float> Values(const AdapterFile& file, const TensorEntry& tensor) {
  std::vector<std::byte> bytes;
  EXPECT_TRUE(file.tensors->Read(tensor, bytes).ok());
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::string ErrorOf(const Result<AdapterFile>& adapter) { return adapter.ok() ? "accepted" : adapter.error().message; }

class MlxAdapterFiles : public testing::Test {
 protected:
  Result<AdapterFile> Open(const std::vector<TensorSpec>& tensors, const ordered_json& config = Mlx()) {
    folder_.Write("adapter_config.json", config.dump());
    folder_.Write("adapters.safetensors", CountingTensors(tensors));
    return OpenAdapter(folder_.path(), ThreeLayers());
  }
  std::string OpenError(const std::vector<TensorSpec>& tensors, const ordered_json& config = Mlx()) {
    return ErrorOf(Open(tensors, config));
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
  EXPECT_THAT(OpenError({q[0], q[1], {"model.layers.2.self_attn.q_proj.m", "F32", {8}}}), HasSubstr("use_dora"));
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

// ---------------------------------------------------------------------------------------------------------- GGUF

class GgufAdapterFiles : public testing::Test {
 protected:
  static GgufWriter Head(float alpha, const std::string& architecture = "llama") {
    GgufWriter file;
    file.Text("general.type", "adapter").Text("general.architecture", architecture).Text("adapter.type", "lora");
    return file.F32("adapter.lora.alpha", alpha);
  }
  static std::string Counting(std::int64_t count) {
    std::string bytes;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(i);
      bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    return bytes;
  }
  // Extents as in the file, the innermost first.
  static void AddPair(GgufWriter& file, const std::string& module, std::int64_t in, std::int64_t rank,
                      std::int64_t out) {
    file.Tensor(module + ".weight.lora_a", 0, {in, rank}, Counting(in * rank));
    file.Tensor(module + ".weight.lora_b", 0, {rank, out}, Counting(rank * out));
  }
  Result<AdapterFile> Open(const GgufWriter& file) {
    return OpenAdapter(folder_.Write("x.gguf", file.Bytes()), ThreeLayers());
  }
  std::string OpenError(const GgufWriter& file) { return ErrorOf(Open(file)); }
  TempFolder folder_;
};

TEST_F(GgufAdapterFiles, RowsOfQueriesAndKeysAreInTheModelsOrder) {
  GgufWriter file = Head(6);
  AddPair(file, "blk.1.attn_q", 4, 1, 8);
  AddPair(file, "blk.1.attn_v", 4, 1, 4);
  const auto adapter = Open(file);
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  ASSERT_EQ(adapter->modules.size(), 2u);
  EXPECT_EQ(adapter->modules[0].scale, 6.0F);
  EXPECT_THAT(Values(*adapter, *adapter->modules[0].a), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Values(*adapter, *adapter->modules[0].b), ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));  // two heads of four
  EXPECT_THAT(Values(*adapter, *adapter->modules[1].b), ElementsAre(0, 1, 2, 3));
  GgufWriter plain = Head(6, "qwen2");
  AddPair(plain, "blk.1.attn_q", 4, 1, 8);
  const auto qwen = Open(plain);
  ASSERT_TRUE(qwen.ok()) << qwen.error().message;
  EXPECT_THAT(Values(*qwen, *qwen->modules[0].b), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST_F(GgufAdapterFiles, EachModuleHasItsOwnRankAndAlphaZeroIsTheFactorOne) {
  GgufWriter file = Head(4);
  AddPair(file, "blk.0.ffn_up", 4, 2, 6);
  AddPair(file, "blk.2.ffn_up", 4, 2, 6);
  AddPair(file, "output", 4, 1, 10);
  const auto adapter = Open(file);
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  EXPECT_EQ(adapter->config.r, 2);
  EXPECT_EQ(adapter->modules[0].scale, 2.0F);
  EXPECT_EQ(adapter->modules[2].target, LoraTarget::kLmHead);
  EXPECT_EQ(adapter->modules[2].rank, 1);
  EXPECT_EQ(adapter->modules[2].scale, 4.0F);
  GgufWriter without = Head(0);
  AddPair(without, "blk.0.ffn_up", 4, 2, 6);
  EXPECT_EQ(Open(without)->modules[0].scale, 1.0F);
  EXPECT_TRUE(Open(without)->config.invocation_tokens.empty());
  without.Numbers("adapter.alora.invocation_tokens", {5, 6});
  EXPECT_THAT(Open(without)->config.invocation_tokens, ElementsAre(5, 6));
}

TEST_F(GgufAdapterFiles, BlocksOfQ8AreReadAsFloats) {
  GgufWriter file = Head(1);
  std::string block("\x00\x3c", 2);  // the scale 1
  for (int i = 0; i < 32; ++i) block += static_cast<char>(i - 16);
  ModelConfig model = ThreeLayers();
  model.hidden_size = 32;
  file.Tensor("blk.0.ffn_up.weight.lora_a", 8, {32, 1}, block);
  file.Tensor("blk.0.ffn_up.weight.lora_b", 0, {1, 6}, Counting(6));
  const auto adapter = OpenAdapter(folder_.Write("x.gguf", file.Bytes()), model);
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  const std::vector<float> values = Values(*adapter, *adapter->modules[0].a);
  ASSERT_EQ(values.size(), 32u);
  EXPECT_EQ(values[0], -16);
  EXPECT_EQ(values[31], 15);
  EXPECT_EQ(adapter->modules[0].a->dtype, DType::kF32);
}

TEST_F(GgufAdapterFiles, RefusesByNameWhatIsNoPlainLora) {
  GgufWriter model = Head(1);
  model = GgufWriter().Text("general.type", "model").Text("general.architecture", "llama");
  EXPECT_THAT(OpenError(model), HasSubstr("serve it as the base model"));
  GgufWriter other = GgufWriter().Text("general.type", "adapter").Text("general.architecture", "llama");
  EXPECT_THAT(OpenError(other.Text("adapter.type", "control_vector")), HasSubstr("adapter.type"));
  GgufWriter alora = Head(1);
  EXPECT_THAT(OpenError(alora.Numbers("adapter.alora.invocation_tokens", {1, -2})), HasSubstr("token ids"));
  GgufWriter unknown = Head(1);
  EXPECT_THAT(OpenError(unknown.U32("adapter.lora.x", 1)), HasSubstr("'adapter.lora.x' = 1"));
  EXPECT_THAT(OpenError(Head(1, "gpt2")), HasSubstr("general.architecture"));
  EXPECT_THAT(OpenError(Head(1, "falcon")), HasSubstr("adapters of general.architecture 'falcon'"));
  EXPECT_THAT(OpenError(Head(1)), HasSubstr("found none"));
  GgufWriter norm = Head(1);
  norm.Tensor("blk.0.attn_norm.weight", 0, {4}, Counting(4));
  EXPECT_THAT(OpenError(norm), HasSubstr("expected MODULE.weight.lora_a"));
  GgufWriter half = Head(1);
  half.Tensor("blk.0.ffn_up.weight.lora_a", 0, {4, 2}, Counting(8));
  EXPECT_THAT(OpenError(half), HasSubstr("without its lora_B"));
  GgufWriter quantised = Head(1);
  quantised.Tensor("blk.0.ffn_up.weight.lora_a", 2, {32, 1}, std::string(18, '\0'));
  EXPECT_THAT(OpenError(quantised), HasSubstr("found Q4_0"));
}

TEST_F(GgufAdapterFiles, AFolderWithOneFileIsAnAdapterToo) {
  GgufWriter file = Head(1);
  AddPair(file, "blk.1.attn_q", 4, 1, 8);
  const auto alone = Open(file);
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(OpenAdapter(folder_.path(), ThreeLayers())->digest, alone->digest);
  const auto without_base = OpenAdapterWithoutBase(folder_.path());
  ASSERT_TRUE(without_base.ok()) << without_base.error().message;
  EXPECT_TRUE(without_base->rows_need_base);
  EXPECT_EQ(without_base->digest, "");
  folder_.Write("y.gguf", file.Bytes());
  EXPECT_THAT(OpenAdapter(folder_.path(), ThreeLayers()).error().message, HasSubstr("name one of them"));
}

// ------------------------------------------------------------------------------------------------- fused, torchtune

class FusedAdapterFiles : public testing::Test {
 protected:
  static ordered_json Config(const std::vector<std::string>& targets) {
    return {{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 4}, {"target_modules", targets}};
  }
  static std::vector<TensorSpec> Pair(const std::string& module, std::int64_t in, std::int64_t out) {
    const std::string name = "base_model.model.model.layers.1." + module;
    return {{name + ".lora_A.weight", "F32", {2, in}}, {name + ".lora_B.weight", "F32", {out, 2}}};
  }
  void Write(const std::vector<TensorSpec>& tensors, const std::vector<std::string>& targets) {
    folder_.Write("adapter_config.json", Config(targets).dump());
    folder_.Write("adapter_model.safetensors", CountingTensors(tensors));
  }
  std::string OpenError(const std::vector<TensorSpec>& tensors, const std::vector<std::string>& targets) {
    Write(tensors, targets);
    return ErrorOf(OpenAdapter(folder_.path(), ThreeLayers()));
  }
  TempFolder folder_;
};

TEST_F(FusedAdapterFiles, EachLayerOfTheBaseGetsItsRows) {
  Write(Pair("self_attn.qkv_proj", 4, 16), {"qkv_proj"});
  const auto adapter = OpenAdapter(folder_.path(), ThreeLayers());
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  ASSERT_EQ(adapter->modules.size(), 3u);
  const std::vector<std::pair<LoraTarget, float>> expected = {
      {LoraTarget::kQ, 8.0F}, {LoraTarget::kK, 24.0F}, {LoraTarget::kV, 32.0F}};
  for (std::size_t m = 0; m < expected.size(); ++m) {
    const LoraModule& module = adapter->modules[m];
    EXPECT_EQ(module.target, expected[m].first);
    EXPECT_EQ(module.scale, 2.0F);
    EXPECT_THAT(Values(*adapter, *module.a), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
    EXPECT_EQ(Values(*adapter, *module.b).front(), expected[m].second);  // after the 8 numbers of lora_A
    EXPECT_THAT(module.b->shape, ElementsAre(m == 0 ? 8 : 4, 2));
  }
}

TEST_F(FusedAdapterFiles, RowsOfATransposedMatrixAreCutToo) {
  folder_.Write("adapter_config.json", With(Mlx(), {{"lora_parameters", {{"keys", {"mlp.gate_up_proj"}}}}}).dump());
  folder_.Write("adapters.safetensors", CountingTensors({{"model.layers.0.mlp.gate_up_proj.lora_a", "F32", {4, 2}},
                                                         {"model.layers.0.mlp.gate_up_proj.lora_b", "F32", {2, 12}}}));
  for (const bool with_base : {true, false}) {
    const auto adapter =
        with_base ? OpenAdapter(folder_.path(), ThreeLayers()) : OpenAdapterWithoutBase(folder_.path());
    ASSERT_TRUE(adapter.ok()) << adapter.error().message;
    ASSERT_EQ(adapter->modules.size(), 2u);
    EXPECT_EQ(adapter->modules[1].target, LoraTarget::kUp);
    EXPECT_THAT(Values(*adapter, *adapter->modules[1].b), ElementsAre(14, 26, 15, 27, 16, 28, 17, 29, 18, 30, 19, 31));
  }
}

TEST_F(FusedAdapterFiles, WhatDoesNotFitIsRefusedByName) {
  const auto fused = Pair("self_attn.qkv_proj", 4, 16);
  EXPECT_EQ(OpenError(fused, {"qkv_proj"}), "accepted");
  EXPECT_THAT(OpenError(fused, {"q_proj"}), HasSubstr("not among target_modules"));
  EXPECT_THAT(OpenError(Pair("self_attn.qkv_proj", 4, 24), {"qkv_proj"}),
              testing::AllOf(HasSubstr("expected 8 + 4 + 4 rows of the base model's q_proj, k_proj, v_proj"),
                             HasSubstr("found [24, 2]")));
  auto both = fused;
  for (const TensorSpec& spec : Pair("self_attn.k_proj", 4, 4)) both.push_back(spec);
  EXPECT_THAT(OpenError(both, {"qkv_proj", "k_proj"}), HasSubstr("holds its module twice"));
  auto biased = fused;
  biased.push_back({"base_model.model.model.layers.1.self_attn.qkv_proj.bias", "F32", {16}});
  EXPECT_THAT(OpenError(biased, {"qkv_proj"}), HasSubstr("the base model's layer has no bias"));
  Write(fused, {"qkv_proj"});
  EXPECT_THAT(OpenAdapterWithoutBase(folder_.path()).error().message, HasSubstr("give --base"));
  Write(Pair("mlp.gate_up_proj", 4, 0), {"gate_up_proj"});
  EXPECT_THAT(OpenAdapterWithoutBase(folder_.path()).error().message, HasSubstr("as many rows for each"));
  EXPECT_THAT(OpenError({{"decoder.layers.0.self_attention.linear_qkv.adapter.linear_in.weight", "F32", {2, 4}}}, {}),
              testing::AllOf(HasSubstr("Megatron"), HasSubstr("export_adapter_ckpt")));
}

// As Tinker saves them: A of gate and up, and B of down, are those of all experts.
class StackedAdapterFiles : public FusedAdapterFiles {
 protected:
  static ModelConfig WithExperts() {
    ModelConfig model = ThreeLayers();
    model.family = ModelFamily::kQwen3Moe;
    model.experts =
        ExpertsConfig{.route = {.experts = 3, .per_token = 1}, .intermediate_size = 5, .layers = {false, true, true}};
    return model;
  }
  static TensorSpec Of(const std::string& layer_and_part, const char* side, std::vector<std::int64_t> shape) {
    return {"base_model.model.model.layers." + layer_and_part + side, "F32", std::move(shape)};
  }
  static constexpr const char *kA = ".lora_A.weight", *kB = ".lora_B.weight";
};

TEST_F(StackedAdapterFiles, EachExpertGetsItsMatrixOrThatOfAll) {
  folder_.Write("adapter_config.json", With(Config({}), {{"target_modules", "all-linear"}}).dump());
  folder_.Write("adapter_model.safetensors",
                CountingTensors({Of("1.attn.q_proj", kA, {2, 4}), Of("1.attn.q_proj", kB, {8, 2}),
                                 Of("1.mlp.experts.w1", kA, {1, 2, 4}), Of("1.mlp.experts.w1", kB, {3, 5, 2}),
                                 Of("1.mlp.experts.w2", kA, {3, 2, 5}), Of("1.mlp.experts.w2", kB, {1, 4, 2})}));
  const auto adapter = OpenAdapter(folder_.path(), WithExperts());
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  ASSERT_EQ(adapter->modules.size(), 7u);
  EXPECT_EQ(adapter->modules[0].target, LoraTarget::kQ);
  const LoraModule& gate_of_first = adapter->modules[1];
  const LoraModule& down_of_first = adapter->modules[4];
  for (std::size_t m = 1; m < 7; ++m) {
    const LoraModule& module = adapter->modules[m];
    const auto expert = static_cast<float>(module.expert);
    const bool of_gate = module.target == LoraTarget::kGate;
    EXPECT_EQ(module.target, of_gate ? LoraTarget::kGate : LoraTarget::kDown);
    // 24 numbers come before w1, 32 before its B, 62 before w2, 92 before its B.
    EXPECT_EQ(Values(*adapter, *module.a).front(), of_gate ? 24.0F : 62 + 10 * expert);
    EXPECT_EQ(Values(*adapter, *module.b).front(), of_gate ? 32 + 10 * expert : 92.0F);
    EXPECT_THAT(module.a->shape, ElementsAre(2, of_gate ? 4 : 5));
    EXPECT_THAT(module.b->shape, ElementsAre(of_gate ? 5 : 4, 2));
    // What all share is one tensor, so that its rows need one place in memory.
    if (of_gate) EXPECT_EQ(module.a, gate_of_first.a);
    if (!of_gate) EXPECT_EQ(module.b, down_of_first.b);
  }
}

TEST_F(StackedAdapterFiles, WhatDoesNotFitIsRefusedByName) {
  const auto error = [&](std::vector<std::int64_t> a, std::vector<std::int64_t> b, const std::string& layer = "1") {
    const std::string module = layer + ".mlp.experts.w1";
    Write({Of(module, kA, std::move(a)), Of(module, kB, std::move(b))}, {"w1"});
    return ErrorOf(OpenAdapter(folder_.path(), WithExperts()));
  };
  EXPECT_EQ(error({1, 2, 4}, {3, 5, 2}), "accepted");
  EXPECT_THAT(error({2, 2, 4}, {3, 5, 2}), HasSubstr("a matrix for each of 3 experts, or one that all share"));
  EXPECT_THAT(error({0, 2, 4}, {3, 5, 2}), HasSubstr("found [0, 2, 4]"));
  EXPECT_THAT(error({2, 4}, {3, 5, 2}), HasSubstr("expected three dimensions, found [2, 4]"));
  EXPECT_THAT(error({1, 2, 4}, {3, 5, 2}, "0"), HasSubstr("layer 0 of the base model has none"));
  EXPECT_THAT(error({1, 2, 4}, {3, 6, 2}), HasSubstr("5"));
  EXPECT_THAT(error({1, 3, 4}, {3, 5, 3}), HasSubstr("rank"));
  Write({Of("1.mlp.experts.w1", kA, {1, 2, 4}), Of("1.mlp.experts.w1", kB, {3, 5, 2})}, {"w1"});
  EXPECT_THAT(OpenAdapterWithoutBase(folder_.path()).error().message, HasSubstr("give --base"));
}

TEST_F(FusedAdapterFiles, TorchtunesRowsAreTurnedWhereItTurnsThem) {
  folder_.Write("adapter_config.json", Config({"q_proj", "w2"}).dump());
  folder_.Write("adapter_model.safetensors", CountingTensors({{"layers.2.attn.q_proj.lora_a.weight", "F32", {2, 4}},
                                                              {"layers.2.attn.q_proj.lora_b.weight", "F32", {8, 2}},
                                                              {"layers.2.mlp.w2.lora_a.weight", "F32", {2, 6}},
                                                              {"layers.2.mlp.w2.lora_b.weight", "F32", {4, 2}}}));
  ModelConfig model = ThreeLayers();
  const auto llama = OpenAdapter(folder_.path(), model);
  ASSERT_TRUE(llama.ok()) << llama.error().message;
  EXPECT_EQ(llama->config.form, AdapterForm::kTorchtune);
  ASSERT_EQ(llama->modules.size(), 2u);
  EXPECT_THAT(Values(*llama, *llama->modules[0].b),
              ElementsAre(8, 9, 12, 13, 10, 11, 14, 15, 16, 17, 20, 21, 18, 19, 22, 23));
  EXPECT_EQ(llama->modules[1].target, LoraTarget::kDown);
  model.family = ModelFamily::kQwen2;
  const auto qwen = OpenAdapter(folder_.path(), model);
  ASSERT_TRUE(qwen.ok()) << qwen.error().message;
  EXPECT_EQ(Values(*qwen, *qwen->modules[0].b)[2], 10);
  const auto without_base = OpenAdapterWithoutBase(folder_.path());
  ASSERT_TRUE(without_base.ok()) << without_base.error().message;
  EXPECT_TRUE(without_base->rows_need_base);
}

}  // namespace
}  // namespace loramux::adapter_form_test
