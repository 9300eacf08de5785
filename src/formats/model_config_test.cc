#include "formats/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "formats/test_files.h"

namespace loramux::model_config_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

json Llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", 64},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 4},
          {"intermediate_size", 96},
          {"vocab_size", 128}};
}
json Family(const std::string& architecture, const std::string& model_type) {
  json config = Llama();
  config["architectures"] = {architecture};
  config["model_type"] = model_type;
  config["num_key_value_heads"] = 2;
  return config;
}
json Qwen2() { return Family("Qwen2ForCausalLM", "qwen2"); }

json With(json config, const json& changes) {
  config.update(changes);
  return config;
}

ModelConfig Parsed(const json& config) {
  const auto result = ParseModelConfig(config.dump(), "config.json");
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result.ok() ? *result : ModelConfig();
}

std::string ErrorOf(const json& config) {
  const auto result = ParseModelConfig(config.dump(), "config.json");
  return result.ok() ? "accepted" : result.error().message;
}

TEST(ModelConfigTest, LlamaDefaultsAreThoseOfTransformers) {
  const ModelConfig config = Parsed(Llama());
  EXPECT_EQ(config.family, ModelFamily::kLlama);
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.max_position, 2048);
  EXPECT_EQ(config.norm_eps, 1e-6);
  EXPECT_EQ(config.rope.theta, 10000.0);
  EXPECT_EQ(config.rope.scaling, RopeConfig::Scaling::kNone);
  EXPECT_FALSE(config.attention_qkv_bias || config.attention_output_bias || config.mlp_bias);
  EXPECT_EQ(config.qk_norm, QkNorm::kNone);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_THAT(config.sliding_window, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2));
  EXPECT_EQ(config.bos_token_id, 1);
}

TEST(ModelConfigTest, FamiliesDiffer) {
  const ModelConfig mistral = Parsed(Family("MistralForCausalLM", "mistral"));
  EXPECT_THAT(mistral.sliding_window, ElementsAre(4096, 4096, 4096, 4096));
  EXPECT_FALSE(mistral.attention_qkv_bias);
  const ModelConfig qwen2 = Parsed(Qwen2());
  EXPECT_TRUE(qwen2.attention_qkv_bias);
  EXPECT_FALSE(qwen2.attention_output_bias);
  EXPECT_TRUE(qwen2.eos_token_ids.empty());
  EXPECT_EQ(qwen2.bos_token_id, -1);
  const ModelConfig qwen3 = Parsed(Family("Qwen3ForCausalLM", "qwen3"));
  EXPECT_EQ(qwen3.qk_norm, QkNorm::kHeads);
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_FALSE(qwen3.attention_qkv_bias);
  const ModelConfig biased = Parsed(With(Family("Qwen3ForCausalLM", "qwen3"), {{"attention_bias", true}}));
  EXPECT_TRUE(biased.attention_qkv_bias && biased.attention_output_bias);
  const ModelConfig llama = Parsed(With(Llama(), {{"attention_bias", true}, {"mlp_bias", true}, {"head_dim", 20}}));
  EXPECT_TRUE(llama.attention_output_bias && llama.mlp_bias);
  EXPECT_EQ(llama.QDim(), 80);
}

TEST(ModelConfigTest, RopeInBothSpellings) {
  const json factors = {
      {"factor", 8.0}, {"low_freq_factor", 1}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 64}};
  const ModelConfig old_form =
      Parsed(With(Llama(), {{"rope_theta", 500000}, {"rope_scaling", With(factors, {{"rope_type", "llama3"}})}}));
  const ModelConfig new_form =
      Parsed(With(Llama(), {{"rope_parameters", With(factors, {{"rope_type", "llama3"}, {"rope_theta", 500000.0}})}}));
  for (const RopeConfig& rope : {old_form.rope, new_form.rope}) {
    EXPECT_EQ(rope.scaling, RopeConfig::Scaling::kLlama3);
    EXPECT_EQ(rope.theta, 500000.0);
    EXPECT_EQ(rope.factor, 8.0);
    EXPECT_EQ(rope.original_max_position, 64);
  }
  const ModelConfig linear = Parsed(With(Llama(), {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}));
  EXPECT_EQ(linear.rope.scaling, RopeConfig::Scaling::kLinear);
  EXPECT_EQ(linear.rope.factor, 2.0);
  const ModelConfig dynamic = Parsed(With(Llama(), {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2}}}}));
  EXPECT_EQ(dynamic.rope.scaling, RopeConfig::Scaling::kDynamic);
  EXPECT_EQ(dynamic.rope.original_max_position, 2048);
  EXPECT_EQ(Parsed(With(Llama(), {{"rope_scaling", nullptr}})).rope.scaling, RopeConfig::Scaling::kNone);
  EXPECT_EQ(Parsed(With(Llama(), {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7}}}})).rope.theta,
            7.0);
}

TEST(ModelConfigTest, RefusesRopeItDoesNotKnow) {
  for (const char* type : {"mrope", "proportional", ""}) {
    EXPECT_THAT(ErrorOf(With(Llama(), {{"rope_scaling", {{"rope_type", type}, {"factor", 2}}}})),
                HasSubstr("rope_type '" + std::string(type) + "' is not supported"));
  }
  EXPECT_THAT(ErrorOf(With(Llama(), {{"rope_scaling", {{"type", "linear"}}}})), HasSubstr("factor is missing"));
  EXPECT_THAT(ErrorOf(With(Llama(), {{"rope_scaling", {{"type", "linear"}, {"factor", 0}}}})), HasSubstr("factor"));
  EXPECT_THAT(ErrorOf(With(Llama(), {{"rope_scaling", 4}})), HasSubstr("rope_scaling: expected an object"));
  EXPECT_THAT(ErrorOf(With(Llama(), {{"rope_theta", -1}})),
              HasSubstr("rope_theta: expected a number above 0, found -1"));
  EXPECT_THAT(ErrorOf(With(Llama(), {{"partial_rotary_factor", 0.5}})), HasSubstr("partial_rotary_factor 0.5"));
  EXPECT_THAT(ErrorOf(With(Llama(), {{"rope_parameters", {{"partial_rotary_factor", 0.5}}}})),
              HasSubstr("rope_parameters.partial_rotary_factor"));
  EXPECT_THAT(ErrorOf(With(Llama(), {{"rope_parameters", {{"full_attention", {{"rope_theta", 1}}}}}})),
              HasSubstr("differ between layers"));
  EXPECT_THAT(
      ErrorOf(
          With(Llama(), {{"rope_scaling",
                          {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}}})),
      HasSubstr("above low_freq_factor"));
}

TEST(ModelConfigTest, OnlyDynamicRopeReachesBeyondTheModelsLength) {
  const auto with = [](const char* type, double factor) {
    return Parsed(
        With(Llama(), {{"max_position_embeddings", 100}, {"rope_scaling", {{"type", type}, {"factor", factor}}}}));
  };
  EXPECT_EQ(with("linear", 4).MostPositions(), 100);
  EXPECT_TRUE(with("linear", 4).TurnsAlike(400));
  const ModelConfig dynamic = with("dynamic", 2.5);
  EXPECT_EQ(dynamic.MostPositions(), 250);
  EXPECT_TRUE(dynamic.TurnsAlike(100));
  EXPECT_FALSE(dynamic.TurnsAlike(101));
  EXPECT_EQ(with("dynamic", 0.5).MostPositions(), 100);
  EXPECT_EQ(with("dynamic", 1e300).MostPositions(), 1 << 24);
}

TEST(ModelConfigTest, ModelsWithoutAnOutputLayer) {
  EXPECT_FALSE(Parsed(Llama()).without_head);
  for (const auto& [name, type] : {std::pair{"LlamaModel", "llama"}, std::pair{"MistralModel", "mistral"},
                                   std::pair{"Qwen2Model", "qwen2"}, std::pair{"Qwen3Model", "qwen3"}}) {
    EXPECT_TRUE(Parsed(Family(name, type)).without_head) << name;
  }
  EXPECT_THAT(ErrorOf(Family("Qwen3Model", "llama")), HasSubstr("contradicts"));
}

TEST(ModelConfigTest, RefusesWhatMlxQuantised) {
  const json mlx = {{"group_size", 64}, {"bits", 4}, {"mode", "affine"}};
  EXPECT_THAT(ErrorOf(With(Llama(), {{"quantization", mlx}, {"quantization_config", mlx}})),
              HasSubstr("mlx_lm.convert --dequantize"));
  EXPECT_THAT(ErrorOf(With(Llama(), {{"quantization_config", mlx}})), HasSubstr("quantised by mlx-lm"));
  EXPECT_EQ(ErrorOf(With(Llama(), {{"quantization", {{"bits", 4}}}})), "accepted");
}

TEST(ModelConfigTest, SlidingWindows) {
  const json mistral = Family("MistralForCausalLM", "mistral");
  EXPECT_THAT(Parsed(With(mistral, {{"sliding_window", nullptr}})).sliding_window, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(Parsed(With(mistral, {{"sliding_window", 8}})).sliding_window, ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(ErrorOf(With(mistral, {{"sliding_window", 0}})), HasSubstr("sliding_window"));

  const json windowed = With(Qwen2(), {{"sliding_window", 8}, {"max_window_layers", 2}});
  EXPECT_THAT(Parsed(windowed).sliding_window, ElementsAre(0, 0, 0, 0));  // use_sliding_window is not set
  const json used = With(windowed, {{"use_sliding_window", true}});
  EXPECT_THAT(Parsed(used).sliding_window, ElementsAre(0, 0, 8, 8));
  EXPECT_THAT(Parsed(With(used, {{"max_window_layers", 28}})).sliding_window, ElementsAre(0, 0, 0, 0));
  const json types = {"sliding_attention", "full_attention", "full_attention", "sliding_attention"};
  EXPECT_THAT(Parsed(With(used, {{"layer_types", types}})).sliding_window, ElementsAre(8, 0, 0, 8));
  EXPECT_THAT(ErrorOf(With(windowed, {{"layer_types", types}})), HasSubstr("layer_types[0]: sliding_attention"));
  EXPECT_THAT(ErrorOf(With(used, {{"layer_types", {"full_attention"}}})), HasSubstr("layer_types: expected a list of"));
  EXPECT_THAT(ErrorOf(With(used, {{"layer_types", {"full_attention", "x", "x", "x"}}})),
              HasSubstr("layer_types[1]: \"x\" is not supported"));
  EXPECT_THAT(ErrorOf(With(mistral, {{"layer_types", types}})), HasSubstr("contradicts sliding_window"));
  EXPECT_THAT(Parsed(With(Llama(), {{"sliding_window", 8}})).sliding_window, ElementsAre(0, 0, 0, 0));
}

TEST(ModelConfigTest, RefusesOtherModelsByName) {
  EXPECT_THAT(ErrorOf(Family("GPT2LMHeadModel", "gpt2")),
              HasSubstr("'GPT2LMHeadModel' is not supported; loramux serves LlamaForCausalLM"));
  EXPECT_THAT(ErrorOf(Family("GPTJForCausalLM", "mixtral")), HasSubstr("GPTJForCausalLM"));
  EXPECT_THAT(ErrorOf(Family("LlamaForCausalLM", "mistral")), HasSubstr("contradicts"));
  EXPECT_THAT(ErrorOf(With(Llama(), {{"architectures", nullptr}, {"model_type", "bert"}})),
              HasSubstr("model_type 'bert'"));
  EXPECT_EQ(ErrorOf(With(Llama(), {{"architectures", nullptr}})), "accepted");
  EXPECT_THAT(ErrorOf(With(Llama(), {{"architectures", nullptr}, {"model_type", nullptr}})),
              HasSubstr("architectures is missing"));
  EXPECT_THAT(ErrorOf(With(Llama(), {{"architectures", {1}}})), HasSubstr("architectures: expected"));
  EXPECT_THAT(ErrorOf(With(Llama(), {{"hidden_act", "gelu"}})), HasSubstr("hidden_act 'gelu'"));
  EXPECT_THAT(ErrorOf(With(Llama(), {{"num_local_experts", 8}})), HasSubstr("num_local_experts is 8"));
}

TEST(ModelConfigTest, KeepsWhatIsSaidAboutQuantisedWeights) {
  const auto quantization = [](const json& config) { return ParseModelConfig(config.dump(), "FILE")->quantization; };
  EXPECT_EQ(quantization(Llama()), "");
  EXPECT_EQ(quantization(With(Llama(), {{"quantization_config", nullptr}})), "");
  const json gptq = {{"quant_method", "gptq"}};
  EXPECT_EQ(quantization(With(Llama(), {{"quantization_config", gptq}})), gptq.dump());
  EXPECT_EQ(quantization(With(Llama(), {{"compression_config", gptq}})), gptq.dump());
}

TEST(ModelConfigTest, RefusesBadNumbers) {
  for (const char* key :
       {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"}) {
    for (const json& value : {json(0), json(-1), json(1.5), json("8"), json(1 << 25), json(~0ull), json(true)}) {
      EXPECT_THAT(ErrorOf(With(Llama(), {{key, value}})), HasSubstr(std::string(key) + ": expected an integer"))
          << value;
    }
    EXPECT_THAT(ErrorOf(With(Llama(), {{key, nullptr}})), HasSubstr(key));
  }
  EXPECT_THAT(ErrorOf(With(Llama(), {{"num_key_value_heads", 3}})), HasSubstr("does not divide num_attention_heads 4"));
  EXPECT_THAT(ErrorOf(With(Llama(), {{"hidden_size", 66}})), HasSubstr("does not divide hidden_size"));
  EXPECT_THAT(ErrorOf(With(Llama(), {{"head_dim", 15}})), HasSubstr("head_dim: expected an even number"));
  EXPECT_THAT(ErrorOf(With(Llama(), {{"num_attention_heads", 1 << 20}, {"head_dim", 64}})),
              HasSubstr("num_attention_heads * head_dim"));
  for (const json& value : {json(0), json(-1e-6), json("x"), json(2)}) {
    EXPECT_THAT(ErrorOf(With(Llama(), {{"rms_norm_eps", value}})), HasSubstr("rms_norm_eps")) << value;
  }
  EXPECT_THAT(ErrorOf(With(Llama(), {{"tie_word_embeddings", "yes"}})),
              HasSubstr("tie_word_embeddings: expected true or false"));
  EXPECT_EQ(Parsed(With(Llama(), {{"rms_norm_eps", 1}})).norm_eps, 1.0);  // an integer is accepted as a number
}

TEST(ModelConfigTest, RefusesWhatIsNoConfiguration) {
  for (const char* text : {"", "[]", "null", "{", R"({"hidden_size":1e999})", R"({"hidden_size":NaN})", "\xff"}) {
    const auto result = ParseModelConfig(text, "config.json");
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_THAT(result.error().message, HasSubstr("config.json"));
  }
  std::string deep = R"({"a":)";
  EXPECT_THAT(ParseModelConfig(deep.append(1'000'000, '['), "config.json").error().message,
              HasSubstr("64 levels deep"));
}

TEST(ModelConfigTest, LengthsOfEmbeddings) {
  EXPECT_EQ(Parsed(Llama()).matryoshka, std::nullopt);
  EXPECT_EQ(Parsed(With(Llama(), {{"is_matryoshka", false}})).matryoshka, std::nullopt);
  EXPECT_THAT(*Parsed(With(Llama(), {{"is_matryoshka", true}})).matryoshka, ElementsAre());
  EXPECT_THAT(*Parsed(With(Llama(), {{"matryoshka_dimensions", {16, 32}}})).matryoshka, ElementsAre(16, 32));
  for (const nlohmann::json& wrong : {nlohmann::json(16), nlohmann::json::array(), nlohmann::json({0}),
                                      nlohmann::json({1 << 20}), nlohmann::json({"x"})}) {
    EXPECT_THAT(ErrorOf(With(Llama(), {{"matryoshka_dimensions", wrong}})), HasSubstr("matryoshka_dimensions"));
  }
}

TEST(ModelConfigTest, EndOfSequenceTokens) {
  EXPECT_THAT(Parsed(With(Llama(), {{"eos_token_id", {5, 7, 5}}})).eos_token_ids, ElementsAre(5, 7));
  EXPECT_TRUE(Parsed(With(Llama(), {{"eos_token_id", nullptr}})).eos_token_ids.empty());
  EXPECT_THAT(ErrorOf(With(Llama(), {{"eos_token_id", 128}})), HasSubstr("below vocab_size 128"));
  EXPECT_THAT(ErrorOf(With(Llama(), {{"eos_token_id", {1, -1}}})), HasSubstr("eos_token_id"));
  EXPECT_THAT(ErrorOf(With(Llama(), {{"bos_token_id", -1}})), HasSubstr("bos_token_id"));

  const TempFolder folder;
  EXPECT_EQ(LoadModelConfig(folder.path()).error().code, ErrorCode::kNotFound);
  folder.Write("config.json", With(Llama(), {{"torch_dtype", "bfloat16"}}).dump());
  EXPECT_THAT(LoadModelConfig(folder.path())->eos_token_ids, ElementsAre(2));
  EXPECT_EQ(LoadModelConfig(folder.path())->dtype, "bfloat16");
  folder.Write("generation_config.json", R"({"eos_token_id":[3,4]})");
  EXPECT_THAT(LoadModelConfig(folder.path())->eos_token_ids, ElementsAre(3, 4));
  folder.Write("generation_config.json", "{}");
  EXPECT_THAT(LoadModelConfig(folder.path())->eos_token_ids, ElementsAre(2));
  folder.Write("generation_config.json", "[");
  EXPECT_THAT(LoadModelConfig(folder.path()).error().message, HasSubstr("generation_config.json"));
}

}  // namespace
}  // namespace loramux::model_config_test
