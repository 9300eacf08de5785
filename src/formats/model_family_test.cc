// What the rows of the table of families make of configurations, as transformers 4 and 5 write them.
#include "formats/model_family.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "formats/adapter_tensor_name.h"

namespace loramux::model_family_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto kMain = LayerRope::kMain, kLocal = LayerRope::kLocal, kNone = LayerRope::kNone;

json Of(const std::string& architecture, const std::string& model_type, const json& more = json::object()) {
  json config = {{"architectures", {architecture}},
                 {"model_type", model_type},
                 {"hidden_size", 64},
                 {"num_hidden_layers", 4},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"head_dim", 16},
                 {"intermediate_size", 96},
                 {"vocab_size", 128}};
  config.update(more);
  return config;
}
json Gemma3(const json& more = json::object()) { return Of("Gemma3ForCausalLM", "gemma3_text", more); }
json Phi3(const json& more = json::object()) { return Of("Phi3ForCausalLM", "phi3", more); }

ModelConfig Parsed(const json& config) {
  const auto result = ParseModelConfig(config.dump(), "config.json");
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result.ok() ? *result : ModelConfig();
}
std::string ErrorOf(const json& config) {
  const auto result = ParseModelConfig(config.dump(), "config.json");
  return result.ok() ? "accepted" : result.error().message;
}

TEST(ModelFamilyTest, EachRowIsFoundByItsNames) {
  for (const FamilyInfo& info : AllFamilies()) {
    EXPECT_EQ(&InfoOf(info.family), &info);
    EXPECT_EQ(FindFamilyByType(info.name), &info);
    json with = {{info.fields.intermediate, 96}, {"hidden_size_per_layer_input", 0}, {"global_head_dim", 32}};
    if (info.of_gemma4) with["attention_k_eq_v"] = true, with["num_global_key_value_heads"] = 1;
    if (info.experts.count != nullptr) with[info.experts.count] = 16;
    if (info.of_mamba) with["layer_types"] = {"attention", "attention", "attention", "attention"};  // by default none
    const ModelConfig config = Parsed(Of(info.architecture, info.name, with));
    EXPECT_EQ(config.family, info.family) << info.name;
    EXPECT_EQ(config.tie_word_embeddings, info.tied) << info.name;
    const bool before = info.norms.attention != nullptr, after = info.norms.attention_output != nullptr;
    const bool one_each = info.family == ModelFamily::kNemotronH;  // whose layers have one part, and one norm
    EXPECT_EQ(before && !one_each, info.norms.mlp != nullptr) << info.name;
    EXPECT_EQ(after, info.norms.mlp_output != nullptr) << info.name;
    EXPECT_TRUE(before || after) << info.name;
  }
}

TEST(ModelFamilyTest, Gemma3) {
  const ModelConfig c = Parsed(Gemma3({{"num_hidden_layers", 7}, {"sliding_window", 8}, {"dtype", "bfloat16"}}));
  EXPECT_EQ(c.norm_places, NormPlaces::kBoth);
  EXPECT_EQ(c.norm_weight_offset, 1.0);
  EXPECT_EQ(c.qk_norm, QkNorm::kHeads);
  EXPECT_EQ(c.activation, Activation::kGeluTanh);
  EXPECT_EQ(c.embedding_scale, 8.0);
  EXPECT_EQ(c.attention_scale, 1.0 / 16);
  EXPECT_EQ(c.attention_soft_cap, 0.0);
  EXPECT_EQ(c.logit_soft_cap, 0.0);
  EXPECT_THAT(c.sliding_window, ElementsAre(8, 8, 8, 8, 8, 0, 8));
  EXPECT_THAT(c.layer_rope, ElementsAre(kLocal, kLocal, kLocal, kLocal, kLocal, kMain, kLocal));
  EXPECT_EQ(c.rope.theta, 1e6);
  ASSERT_TRUE(c.local_rope.has_value());
  EXPECT_EQ(c.local_rope->theta, 1e4);
}

TEST(ModelFamilyTest, TheEmbeddingScaleIsRoundedToTheTypeOfTheWeights) {
  const auto scale = [](std::int64_t hidden, const char* dtype) {
    return Parsed(Gemma3({{"hidden_size", hidden}, {"dtype", dtype}})).embedding_scale;
  };
  // transformers 5.24: the scalar in the type of the embedding.
  EXPECT_EQ(scale(640, "bfloat16"), 25.25);
  EXPECT_EQ(scale(1152, "bfloat16"), 34.0);
  EXPECT_EQ(scale(2560, "bfloat16"), 50.5);
  EXPECT_EQ(scale(3840, "bfloat16"), 62.0);
  EXPECT_EQ(scale(5376, "bfloat16"), 73.5);
  EXPECT_EQ(scale(1152, "float32"), static_cast<double>(std::sqrt(1152.0f)));
}

TEST(ModelFamilyTest, RopesByLayerType) {
  const json old = Gemma3({{"rope_theta", 5e5},
                           {"rope_local_base_freq", 2e4},
                           {"sliding_window_pattern", 2},
                           {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8}}}});
  const json now =
      Gemma3({{"layer_types", {"sliding_attention", "full_attention", "sliding_attention", "full_attention"}},
              {"rope_parameters",
               {{"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 2e4}}},
                {"full_attention", {{"rope_type", "linear"}, {"factor", 8}, {"rope_theta", 5e5}}}}}});
  for (const json& config : {old, now}) {
    const ModelConfig c = Parsed(config);
    EXPECT_THAT(c.layer_rope, ElementsAre(kLocal, kMain, kLocal, kMain));
    EXPECT_EQ(c.rope.theta, 5e5);
    EXPECT_EQ(c.rope.scaling, RopeConfig::Scaling::kLinear);
    EXPECT_EQ(c.rope.factor, 8.0);
    EXPECT_EQ(c.local_rope->theta, 2e4);
    EXPECT_EQ(c.local_rope->scaling, RopeConfig::Scaling::kNone);
  }
}

TEST(ModelFamilyTest, Gemma2HasSoftCapsUnlessToldOtherwise) {
  const ModelConfig c = Parsed(Of("Gemma2ForCausalLM", "gemma2", {{"query_pre_attn_scalar", 144}}));
  EXPECT_EQ(c.attention_soft_cap, 50.0);
  EXPECT_EQ(c.logit_soft_cap, 30.0);
  EXPECT_DOUBLE_EQ(c.attention_scale, 1.0 / 12);
  EXPECT_THAT(c.sliding_window, ElementsAre(4096, 0, 4096, 0));
  EXPECT_FALSE(c.local_rope.has_value());
  const ModelConfig off = Parsed(
      Of("Gemma2ForCausalLM", "gemma2", {{"attn_logit_softcapping", nullptr}, {"final_logit_softcapping", 7.5}}));
  EXPECT_EQ(off.attention_soft_cap, 0.0);
  EXPECT_EQ(off.logit_soft_cap, 7.5);
}

TEST(ModelFamilyTest, GraniteMultiplies) {
  const ModelConfig c = Parsed(Of("GraniteForCausalLM", "granite",
                                  {{"embedding_multiplier", 12.0},
                                   {"residual_multiplier", 0.22},
                                   {"attention_multiplier", 0.0078125},
                                   {"logits_scaling", 16.0}}));
  EXPECT_EQ(c.embedding_scale, 12.0);
  EXPECT_EQ(c.residual_scale, 0.22);
  EXPECT_EQ(c.attention_scale, 0.0078125);
  EXPECT_EQ(c.logit_scale, 1.0 / 16);
  EXPECT_EQ(Parsed(Of("GraniteForCausalLM", "granite")).attention_scale, 1.0);
}

TEST(ModelFamilyTest, NormsAfterTheBlocks) {
  for (const auto& [architecture, type] :
       {std::pair{"Olmo2ForCausalLM", "olmo2"}, {"Olmo3ForCausalLM", "olmo3"}, {"Exaone4ForCausalLM", "exaone4"}}) {
    EXPECT_EQ(Parsed(Of(architecture, type)).norm_places, NormPlaces::kAfter) << type;
  }
  EXPECT_EQ(Parsed(Of("Olmo2ForCausalLM", "olmo2")).qk_norm, QkNorm::kRow);
  EXPECT_EQ(Parsed(Of("Exaone4ForCausalLM", "exaone4")).qk_norm, QkNorm::kHeads);
}

TEST(ModelFamilyTest, LayersWithoutRope) {
  EXPECT_THAT(Parsed(Of("SmolLM3ForCausalLM", "smollm3")).layer_rope, ElementsAre(kMain, kMain, kMain, kNone));
  const json listed = Of("SmolLM3ForCausalLM", "smollm3", {{"no_rope_layers", {0, 1, 0, 1}}});
  EXPECT_THAT(Parsed(listed).layer_rope, ElementsAre(kNone, kMain, kNone, kMain));
  EXPECT_THAT(ErrorOf(Of("SmolLM3ForCausalLM", "smollm3", {{"no_rope_layers", {0, 1}}})),
              HasSubstr("no_rope_layers: expected a list of num_hidden_layers = 4 numbers"));
  const json exaone = Of("Exaone4ForCausalLM", "exaone4", {{"sliding_window", 8}, {"sliding_window_pattern", "LLG"}});
  EXPECT_THAT(Parsed(exaone).sliding_window, ElementsAre(8, 8, 0, 8));
  EXPECT_THAT(Parsed(exaone).layer_rope, ElementsAre(kMain, kMain, kNone, kMain));
  const json all = Of("Exaone4ForCausalLM", "exaone4", {{"sliding_window", nullptr}});
  EXPECT_THAT(Parsed(all).layer_rope, ElementsAre(kMain, kMain, kMain, kMain));
}

TEST(ModelFamilyTest, PartialRotation) {
  EXPECT_EQ(Parsed(Phi3()).rope.rotary_dim, 16);
  EXPECT_EQ(Parsed(Phi3({{"partial_rotary_factor", 0.75}})).rope.rotary_dim, 12);
  const ModelConfig glm = Parsed(Of("Glm4ForCausalLM", "glm4"));
  EXPECT_EQ(glm.rope.rotary_dim, 8);
  EXPECT_TRUE(glm.rope.adjacent_pairs);
  EXPECT_TRUE(glm.attention_qkv_bias);
  EXPECT_FALSE(glm.attention_output_bias);
  EXPECT_THAT(ErrorOf(Phi3({{"partial_rotary_factor", 0.2}})), HasSubstr("expected an even number of elements"));
  EXPECT_THAT(ErrorOf(Phi3({{"partial_rotary_factor", 1.5}})), HasSubstr("at most 1"));
}

TEST(ModelFamilyTest, LongRope) {
  const json factors = {{"type", "longrope"},
                        {"short_factor", json::array({1, 1, 1, 1, 1, 1, 1, 1})},
                        {"long_factor", json::array({2, 2, 2, 2, 2, 2, 2, 2})}};
  const json config = Phi3(
      {{"max_position_embeddings", 131072}, {"original_max_position_embeddings", 4096}, {"rope_scaling", factors}});
  const ModelConfig c = Parsed(config);
  EXPECT_EQ(c.rope.scaling, RopeConfig::Scaling::kLongRope);
  EXPECT_EQ(c.rope.factor, 32.0);
  EXPECT_NEAR(c.rope.attention_factor, 1.19024, 1e-5);  // the factor of phi-3-mini-128k
  EXPECT_EQ(c.TurnsAlikeUpTo(), 4096);
  EXPECT_TRUE(c.TurnsAlike(4096));
  EXPECT_FALSE(c.TurnsAlike(4097));
  json short_one = config;
  short_one["rope_scaling"]["long_factor"] = {1, 2};
  EXPECT_THAT(ErrorOf(short_one), HasSubstr("long_factor: expected a list of 8 numbers above 0"));
}

TEST(ModelFamilyTest, Yarn) {
  const json yarn = {{"rope_type", "yarn"}, {"factor", 32}, {"original_max_position_embeddings", 4096}};
  const ModelConfig c = Parsed(Of("Qwen3ForCausalLM", "qwen3", {{"rope_scaling", yarn}}));
  EXPECT_EQ(c.rope.scaling, RopeConfig::Scaling::kYarn);
  EXPECT_NEAR(c.rope.attention_factor, 1.34657, 1e-5);  // 0.1 ln 32 + 1
  json temperature = yarn;
  temperature["llama_4_scaling_beta"] = 0.1;
  EXPECT_THAT(ErrorOf(Of("MistralForCausalLM", "mistral", {{"rope_scaling", temperature}})),
              HasSubstr("llama_4_scaling_beta is not supported for mistral"));
  const ModelConfig ministral = Parsed(Of("Ministral3ForCausalLM", "ministral3", {{"rope_parameters", temperature}}));
  EXPECT_EQ(ministral.QueryScale(4095), 1.0f);
  EXPECT_NEAR(ministral.QueryScale(4096), 1 + 0.1 * std::log(2), 1e-6);
  EXPECT_NEAR(ministral.QueryScale(3 * 4096), 1 + 0.1 * std::log(4), 1e-6);
}

TEST(ModelFamilyTest, TheTextPartOfAModelOfTextAndImages) {
  json text = Gemma3();
  text.erase("architectures");
  text.erase("num_attention_heads");  // the published files leave out what the class has
  const json config = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                       {"model_type", "gemma3"},
                       {"eos_token_id", {1, 106}},
                       {"dtype", "bfloat16"},
                       {"text_config", text},
                       {"vision_config", {{"hidden_size", 32}}}};
  const ModelConfig c = Parsed(config);
  EXPECT_EQ(c.family, ModelFamily::kGemma3);
  EXPECT_EQ(c.num_heads, 8);
  EXPECT_EQ(c.dtype, "bfloat16");
  EXPECT_THAT(c.eos_token_ids, ElementsAre(1, 106));
  json broken = config;
  broken["text_config"]["hidden_size"] = "x";
  EXPECT_THAT(ErrorOf(broken), HasSubstr("config.json: text_config.hidden_size"));
  // Qwen 2.5 VL as transformers 4 saved it.
  const json flat =
      Of("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl",
         {{"rope_scaling", {{"type", "mrope"}, {"mrope_section", {2, 3, 3}}}}, {"vision_config", {{"depth", 1}}}});
  EXPECT_EQ(Parsed(flat).family, ModelFamily::kQwen2);
}

TEST(ModelFamilyTest, BlocksInParallel) {
  const auto order = [](const json& config) { return Parsed(config).block_order; };
  EXPECT_EQ(order(Of("GPTNeoXForCausalLM", "gpt_neox")), BlockOrder::kParallel);
  EXPECT_EQ(order(Of("GPTNeoXForCausalLM", "gpt_neox", {{"use_parallel_residual", false}})), BlockOrder::kSequential);
  EXPECT_EQ(order(Of("StableLmForCausalLM", "stablelm")), BlockOrder::kSequential);
  EXPECT_EQ(order(Of("StableLmForCausalLM", "stablelm", {{"use_parallel_residual", true}})),
            BlockOrder::kParallelOneNorm);
  EXPECT_EQ(order(Of("FalconForCausalLM", "falcon")), BlockOrder::kParallelOneNorm);
  const json falcon = Of("FalconForCausalLM", "falcon", {{"new_decoder_architecture", true}, {"num_kv_heads", 2}});
  EXPECT_EQ(order(falcon), BlockOrder::kParallel);
  EXPECT_EQ(Parsed(falcon).num_kv_heads, 2);
  EXPECT_EQ(Parsed(Of("FalconForCausalLM", "falcon", {{"num_kv_heads", 4}})).num_kv_heads, 1);  // multi_query
  EXPECT_EQ(Parsed(Of("FalconForCausalLM", "falcon", {{"multi_query", false}})).num_kv_heads, 4);
}

TEST(ModelFamilyTest, WithoutAGate) {
  const ModelConfig neox = Parsed(Of("GPTNeoXForCausalLM", "gpt_neox", {{"rotary_pct", 0.5}, {"rotary_emb_base", 7}}));
  EXPECT_FALSE(neox.gated);
  EXPECT_EQ(neox.GateUpDim(neox.intermediate_size), 96);
  EXPECT_TRUE(neox.mlp_bias && neox.attention_qkv_bias && neox.attention_output_bias);
  EXPECT_EQ(neox.rope.rotary_dim, 8);
  EXPECT_EQ(neox.rope.theta, 7.0);
  const ModelConfig opt = Parsed(Of("OPTForCausalLM", "opt", {{"ffn_dim", 96}}));
  EXPECT_EQ(opt.position_rows_before, 2);
  EXPECT_EQ(opt.RopeOf(0), kNone);
  EXPECT_EQ(opt.activation, Activation::kRelu);
  EXPECT_TRUE(opt.norm_places == NormPlaces::kBefore && opt.final_norm);
  EXPECT_EQ(opt.EmbeddingSize(), 64);
  const ModelConfig small = Parsed(
      Of("OPTForCausalLM", "opt", {{"ffn_dim", 96}, {"do_layer_norm_before", false}, {"word_embed_proj_dim", 32}}));
  EXPECT_EQ(small.norm_places, NormPlaces::kOfSum);
  EXPECT_FALSE(small.final_norm);
  EXPECT_EQ(small.EmbeddingSize(), 32);
  EXPECT_EQ(small.hidden_size, 64);
  EXPECT_FALSE(Parsed(Of("OPTForCausalLM", "opt", {{"ffn_dim", 96}, {"_remove_final_layer_norm", true}})).final_norm);
  EXPECT_THAT(ErrorOf(Of("OPTForCausalLM", "opt", {{"ffn_dim", 96}, {"layer_norm_elementwise_affine", false}})),
              HasSubstr("layer_norm_elementwise_affine false is not supported"));
}

TEST(ModelFamilyTest, NormsOfHeads) {
  EXPECT_EQ(Parsed(Of("StableLmForCausalLM", "stablelm")).qk_norm, QkNorm::kNone);
  EXPECT_EQ(Parsed(Of("StableLmForCausalLM", "stablelm", {{"qk_layernorm", true}})).qk_norm, QkNorm::kLayerOfHeads);
}

TEST(ModelFamilyTest, LinearBiases) {
  const json sequential = {{"alibi", true}, {"multi_query", false}, {"parallel_attn", false}};
  const ModelConfig falcon = Parsed(Of("FalconForCausalLM", "falcon", sequential));
  EXPECT_EQ(falcon.alibi, Alibi::kBf16);
  EXPECT_EQ(falcon.RopeOf(0), kNone);
  EXPECT_EQ(falcon.block_order, BlockOrder::kSequential);
  EXPECT_EQ(Parsed(Of("FalconForCausalLM", "falcon")).alibi, Alibi::kNone);

  // As transformers 5 saves it, and as it was published.
  json saved = Of("BloomForCausalLM", "bloom", {{"n_layer", 3}, {"n_head", 8}});
  for (const char* key : {"num_hidden_layers", "num_attention_heads", "intermediate_size", "head_dim"})
    saved.erase(key);
  const ModelConfig bloom = Parsed(saved);
  EXPECT_EQ(bloom.alibi, Alibi::kExact);
  EXPECT_EQ(bloom.num_layers, 3);
  EXPECT_EQ(bloom.num_heads, 8);
  EXPECT_EQ(bloom.intermediate_size, 256);
  EXPECT_EQ(bloom.max_position, 2048);
  EXPECT_TRUE(bloom.embedding_norm && bloom.tie_word_embeddings && bloom.mlp_bias && bloom.attention_output_bias);
  json published = saved;
  published.erase("hidden_size");
  published.erase("n_head");
  published.update({{"n_embed", 32}, {"num_attention_heads", 4}, {"seq_length", 512}});
  const ModelConfig old = Parsed(published);
  EXPECT_EQ(old.hidden_size, 32);
  EXPECT_EQ(old.num_heads, 4);
  EXPECT_EQ(old.max_position, 512);
  saved["apply_residual_connection_post_layernorm"] = true;
  EXPECT_THAT(ErrorOf(saved), HasSubstr("apply_residual_connection_post_layernorm true is not supported"));
}

json Gemma4(const json& more = json::object()) {
  json config = Of("Gemma4ForCausalLM", "gemma4_text",
                   {{"hidden_size_per_layer_input", 0}, {"attention_k_eq_v", true}, {"sliding_window", 8}});
  config.update(more);
  return config;
}

TEST(ModelFamilyTest, Gemma4) {
  const json heads = {{"head_dim", 32}, {"num_key_value_heads", 1}};
  const json types = {"full_attention", "sliding_attention", "sliding_attention", "sliding_attention"};
  const json by_layer = {{"layer_types", types}, {"per_layer_config", {{"00", heads}, {"03", heads}}}};
  const json old = {{"layer_types", types}, {"global_head_dim", 32}, {"num_global_key_value_heads", 1}};
  for (const json& more : {by_layer, old}) {
    const ModelConfig c = Parsed(Gemma4(more));
    EXPECT_THAT(c.sliding_window, ElementsAre(0, 8, 8, 0));  // the last layer sees all
    EXPECT_EQ(c.HeadsOf(0), (HeadShape{1, 32}));
    EXPECT_EQ(c.HeadsOf(1), (HeadShape{2, 16}));
    EXPECT_TRUE(c.ValuesAreKeys(0) && c.ValuesAreKeys(3) && !c.ValuesAreKeys(1));
    EXPECT_EQ(c.QDim(0), 128);
    EXPECT_EQ(c.MostQkvDim(), 192);
    EXPECT_EQ(c.attention_scale, 1);
    EXPECT_TRUE(c.value_norm && c.layer_scales);
    EXPECT_EQ(c.rope.scaling, RopeConfig::Scaling::kProportional);
    EXPECT_EQ(c.rope.turning_pairs, 4);
    EXPECT_EQ(c.rope.theta, 1000000.0);
    EXPECT_EQ(c.local_rope->theta, 10000.0);
    EXPECT_EQ(c.RotaryDim(c.rope), 32);
    EXPECT_EQ(c.RotaryDim(*c.local_rope), 16);
  }
  EXPECT_EQ(Parsed(Gemma4({{"global_head_dim", 16}, {"use_bidirectional_attention", "vision"}})).logit_soft_cap, 0);
  const nlohmann::json moe = {{"enable_moe_block", true}, {"num_experts", 6}, {"moe_intermediate_size", 20}};
  EXPECT_THAT(ErrorOf(Gemma4(moe)), HasSubstr("top_k_experts is missing: expected an integer from 1 to 6"));
  nlohmann::json whole = moe;
  whole["top_k_experts"] = 2;
  const ModelConfig of_experts = Parsed(Gemma4(whole));
  ASSERT_TRUE(of_experts.experts && of_experts.experts->beside_block);
  EXPECT_TRUE(of_experts.HasOwnBlock(0) && of_experts.HasExperts(0) && of_experts.experts->route.renormalise);
  EXPECT_EQ(of_experts.BlockSize(0), of_experts.intermediate_size);
  EXPECT_EQ(of_experts.experts->intermediate_size, 20);
  whole["enable_moe_block"] = false;  // the other fields are then of no meaning
  EXPECT_FALSE(Parsed(Gemma4(whole)).experts);
  EXPECT_THAT(ErrorOf(Gemma4({{"use_bidirectional_attention", "all"}})), HasSubstr("attention is causal"));
  // What cannot be, or has no room.
  EXPECT_THAT(ErrorOf(Gemma4({{"num_global_key_value_heads", 1}, {"num_key_value_heads", 4}})),
              HasSubstr("full layers have 1 heads of keys of 512 elements"));
  EXPECT_THAT(ErrorOf(Gemma4({{"per_layer_config", {{"4", heads}}}})), HasSubstr("per_layer_config.4"));
  EXPECT_THAT(ErrorOf(Gemma4({{"per_layer_config", {{"01", heads}}}})), HasSubstr("layer 1 has other heads"));
  EXPECT_THAT(ErrorOf(Gemma4({{"per_layer_config", {{"3", {{"v_head_dim", 8}}}}}})), HasSubstr("v_head_dim"));
  EXPECT_THAT(ErrorOf(Gemma3({{"rope_parameters", {{"rope_type", "proportional"}}}})), HasSubstr("proportional"));
}

json Qwen35(const json& more = json::object()) {
  json config = Of("Qwen3_5ForCausalLM", "qwen3_5_text",
                   {{"linear_num_key_heads", 2}, {"linear_num_value_heads", 6}, {"linear_key_head_dim", 8}});
  config.update(more);
  return config;
}

TEST(ModelFamilyTest, Qwen35) {
  const ModelConfig c = Parsed(Qwen35());
  EXPECT_THAT(c.recurrent->layers, ElementsAre(true, true, true, false));  // each fourth has keys and values
  EXPECT_EQ(c.recurrent->Channels(), 2 * 2 * 8 + 6 * 128);
  EXPECT_EQ(c.recurrent->conv_width, 4);
  EXPECT_EQ(c.KvLayers(), 1);
  EXPECT_EQ(c.KvIndex(3), 0);
  EXPECT_EQ(c.QkvDim(0), 2 * 2 * 8 + 2 * 6 * 128);
  EXPECT_EQ(c.QkvDim(3), 2 * c.QDim() + 2 * c.KvDim());  // a gate for each query
  EXPECT_EQ(c.MostAttended(), 6 * 128);
  EXPECT_EQ(c.rope.rotary_dim, c.head_dim / 4);
  EXPECT_EQ(c.norm_weight_offset, 1);
  // 3 layers of 3 rows of channels and 6 heads of 8 x 128, by 64 bytes.
  EXPECT_EQ(c.recurrent->StateBytes(), 3 * (2400 + 6144) * 4);
  const json types = {"full_attention", "linear_attention", "full_attention", "linear_attention"};
  const ModelConfig listed = Parsed(Qwen35({{"layer_types", types}, {"full_attention_interval", 2}}));
  EXPECT_THAT(listed.recurrent->layers, ElementsAre(false, true, false, true));
  EXPECT_EQ(listed.KvIndex(2), 1);
  EXPECT_EQ(listed.recurrent->Before(3), 1);
  const ModelConfig halves = Parsed(Qwen35({{"full_attention_interval", 2}}));
  EXPECT_THAT(halves.recurrent->layers, ElementsAre(true, false, true, false));
}

TEST(ModelFamilyTest, Qwen35RefusesByName) {
  EXPECT_THAT(ErrorOf(Qwen35({{"linear_num_value_heads", 5}})), HasSubstr("linear_num_key_heads 2 does not divide"));
  EXPECT_THAT(ErrorOf(Qwen35({{"linear_conv_kernel_dim", 9}})), HasSubstr("linear_conv_kernel_dim"));
  EXPECT_THAT(ErrorOf(Qwen35({{"full_attention_interval", 5}})), HasSubstr("at least one layer of full_attention"));
  EXPECT_THAT(ErrorOf(Qwen35({{"layer_types", {"mamba", "mamba", "mamba", "full_attention"}}})),
              HasSubstr("layer_types[0]: \"mamba\" is not supported"));
  EXPECT_THAT(ErrorOf(Qwen35({{"layer_types", {"full_attention"}}})), HasSubstr("a list of num_hidden_layers = 4"));
  EXPECT_THAT(ErrorOf(Qwen35({{"attn_output_gate", false}})), HasSubstr("attn_output_gate false is not supported"));
  EXPECT_THAT(ErrorOf(Qwen35({{"num_experts", 8}})), HasSubstr("mixtures of experts are not supported"));
}

TEST(ModelFamilyTest, Qwen35AndQwen3NextWithExperts) {
  json of_35 = Of("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text");
  of_35.erase("intermediate_size");
  const ModelConfig c = Parsed(of_35);
  EXPECT_EQ(c.experts->route.experts, 256);
  EXPECT_EQ(c.experts->route.per_token, 8);
  EXPECT_TRUE(c.experts->route.renormalise && c.experts->shared_gate && c.output_gate);
  EXPECT_EQ(c.BlockSize(0), 512);
  const ModelConfig next = Parsed(Of("Qwen3NextForCausalLM", "qwen3_next", {{"mlp_only_layers", {2}}}));
  EXPECT_EQ(next.experts->route.experts, 512);
  EXPECT_EQ(next.experts->route.per_token, 10);
  EXPECT_TRUE(next.experts->route.renormalise);
  EXPECT_THAT(next.experts->layers, ElementsAre(true, true, false, true));
  EXPECT_EQ(next.BlockSize(2), 96);
  EXPECT_FALSE(
      Parsed(Of("Qwen3NextForCausalLM", "qwen3_next", {{"norm_topk_prob", false}})).experts->route.renormalise);
  EXPECT_EQ(Parsed({{"architectures", {"Qwen3_5MoeForConditionalGeneration"}},
                    {"model_type", "qwen3_5_moe"},
                    {"text_config", of_35}})
                .family,
            ModelFamily::kQwen35Moe);
}

// Heads of keys: q0 k0 v0 v1 z0 z1, then those of the next.
TEST(ModelFamilyTest, RowsOfFusedStates) {
  const RecurrentConfig r{.key_heads = 2, .value_heads = 4, .key_dim = 2, .value_dim = 1};
  const auto rows = RowsOfFusedStates(r, false);
  EXPECT_THAT(rows[0], ElementsAre(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13));
  EXPECT_THAT(rows[1], ElementsAre(6, 7, 14, 15));
  const auto gates = RowsOfFusedStates(r, true);
  EXPECT_THAT(gates[0], ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(gates[1], ElementsAre(2, 3, 6, 7));
}

json FalconH1(const json& more = json::object()) {
  json config = Of("FalconH1ForCausalLM", "falcon_h1", {{"mamba_d_ssm", 96}, {"mamba_n_heads", 4}});
  config.update(more);
  return config;
}

TEST(ModelFamilyTest, FalconH1) {
  const ModelConfig c = Parsed(FalconH1());
  const RecurrentConfig& r = *c.recurrent;
  EXPECT_TRUE(r.mamba && r.beside_attention && r.conv_bias && !r.input_bias && !r.output_bias);
  EXPECT_THAT(r.layers, ElementsAre(true, true, true, true));
  EXPECT_EQ(r.value_dim, 24);
  EXPECT_EQ(r.norm, RecurrentConfig::Norm::kNone);
  EXPECT_EQ(r.NormSize(), 0);
  EXPECT_EQ(c.KvLayers(), 4);
  EXPECT_EQ(c.QkvDim(0), c.QDim() + 2 * c.KvDim());
  EXPECT_EQ(c.block_scales, BlockScales());
  EXPECT_EQ(c.attention_scale, 0);
  const ModelConfig wide = Parsed(FalconH1({{"mamba_d_ssm", nullptr}, {"mamba_d_head", 32}}));
  EXPECT_EQ(wide.recurrent->Values(), 2 * c.hidden_size);
  const ModelConfig normed = Parsed(FalconH1({{"mamba_rms_norm", true}}));
  EXPECT_EQ(normed.recurrent->norm, RecurrentConfig::Norm::kBeforeGate);
  EXPECT_EQ(normed.recurrent->NormSize(), 96);
  EXPECT_EQ(Parsed(FalconH1({{"mamba_rms_norm", true}, {"mamba_norm_before_gate", false}})).recurrent->norm,
            RecurrentConfig::Norm::kAfterGate);
  const ModelConfig biased = Parsed(FalconH1({{"projectors_bias", true}}));
  EXPECT_TRUE(biased.recurrent->output_bias && !biased.recurrent->input_bias);
}

TEST(ModelFamilyTest, FalconH1HasFactors) {
  const ModelConfig c = Parsed(FalconH1({{"key_multiplier", 0.5},
                                         {"lm_head_multiplier", 0.25},
                                         {"embedding_multiplier", 2},
                                         {"mlp_multipliers", {3, 4}},
                                         {"ssm_multipliers", {5, 6, 7, 8, 9}},
                                         {"ssm_in_multiplier", 10},
                                         {"ssm_out_multiplier", 11},
                                         {"attention_in_multiplier", 12},
                                         {"attention_out_multiplier", 13}}));
  EXPECT_EQ(c.attention_scale, 0.5 / 4);
  EXPECT_EQ(c.logit_scale, 0.25);
  EXPECT_EQ(c.embedding_scale, 2);
  const BlockScales expected = {.attention_in = 12,
                                .attention_out = 13,
                                .states_in = 10,
                                .states_out = 11,
                                .states = {5, 6, 7, 8, 9},
                                .gate = 3,
                                .down = 4};
  EXPECT_EQ(c.block_scales, expected);
  for (const char* key : {"mlp_multipliers", "ssm_multipliers"}) {
    for (const json& value : {json(1), json::array({1}), json::array({1, 0}), json::array({1, 1, 1, 1, "1"})}) {
      EXPECT_THAT(ErrorOf(FalconH1({{key, value}})), HasSubstr(key));
    }
  }
  EXPECT_THAT(ErrorOf(FalconH1({{"ssm_in_multiplier", 0}})), HasSubstr("ssm_in_multiplier"));
  EXPECT_THAT(ErrorOf(FalconH1({{"mamba_d_head", 16}})), HasSubstr("expected mamba_d_ssm = 96"));
}

json NemotronH(const json& more = json::object()) {
  json config =
      Of("NemotronHForCausalLM", "nemotron_h",
         {{"layers_block_type", {"mamba", "mlp", "attention", "moe"}}, {"mamba_num_heads", 8}, {"n_group", 2}});
  config.update(more);
  return config;
}

TEST(ModelFamilyTest, NemotronH) {
  const ModelConfig c = Parsed(NemotronH());
  using Part = LayerPart;
  EXPECT_THAT(c.layer_parts, ElementsAre(Part::kMixer, Part::kFeedForward, Part::kMixer, Part::kFeedForward));
  EXPECT_THAT(c.recurrent->layers, ElementsAre(true, false, false, false));
  EXPECT_TRUE(!c.HasAttention(0) && !c.HasAttention(1) && c.HasAttention(2));
  EXPECT_EQ(c.KvLayers(), 1);
  EXPECT_EQ(c.KvIndex(2), 0);
  EXPECT_EQ(c.QkvDim(1), 0);
  EXPECT_TRUE(!c.HasOwnBlock(0) && c.HasOwnBlock(1) && c.HasOwnBlock(3));
  EXPECT_EQ(c.recurrent->value_dim, 64);  // whatever `expand` says
  EXPECT_EQ(c.RopeOf(2), LayerRope::kNone);
  EXPECT_EQ(c.activation, Activation::kRelu2);
  EXPECT_FALSE(c.gated);
  const RouteForm& route = c.experts->route;
  EXPECT_EQ(route.score, RouteForm::Score::kSigmoid);
  EXPECT_TRUE(route.renormalise && c.experts->route_bias && !c.experts->shared_gate);
  EXPECT_EQ(route.groups, 2);
  EXPECT_THAT(c.experts->layers, ElementsAre(false, false, false, true));
  // NVIDIA's spelling, in which Python's infinity is no JSON.
  json old = NemotronH({{"hybrid_override_pattern", "M-*E"}});
  old.erase("layers_block_type");
  old.erase("num_hidden_layers");
  std::string text = old.dump();
  text.insert(1, R"("time_step_limit": [0.0, Infinity], "note": "\"Infinity", )");
  const auto parsed = ParseModelConfig(text, "config.json");
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(parsed->layer_parts, c.layer_parts);
  EXPECT_EQ(parsed->recurrent->most_step, std::numeric_limits<double>::infinity());
  // Without model_type, and with the list's older name alone.
  json by_class = NemotronH();
  by_class.erase("model_type");
  EXPECT_EQ(Parsed(by_class).layer_parts, c.layer_parts);
  EXPECT_EQ(Parsed(by_class).experts->layers, c.experts->layers);
  old["layer_types"] = nullptr;
  EXPECT_EQ(Parsed(old).layer_parts, c.layer_parts);
  // Older names win.
  const ModelConfig renamed = Parsed(NemotronH(
      {{"mamba_d_conv", 3}, {"mamba_conv_bias", false}, {"use_conv_bias", true}, {"mamba_dt_limit", {0.0, 0.5}}}));
  EXPECT_EQ(renamed.recurrent->conv_width, 3);
  EXPECT_FALSE(renamed.recurrent->conv_bias);
  EXPECT_EQ(renamed.recurrent->most_step, 0.5);
  const ModelConfig dense = Parsed(NemotronH({{"layers_block_type", {"mamba", "mlp", "attention", "mlp"}}}));
  EXPECT_FALSE(dense.experts);
}

TEST(ModelFamilyTest, NemotronHRefusesByName) {
  const auto error = [](const json& more) { return ErrorOf(NemotronH(more)); };
  EXPECT_THAT(error({{"moe_latent_size", 16}}), HasSubstr("moe_latent_size 16 is not supported"));
  EXPECT_THAT(error({{"mamba_hidden_act", "gelu"}}), HasSubstr("mamba_hidden_act 'gelu' is not supported"));
  EXPECT_THAT(error({{"mlp_hidden_act", "silu"}}), HasSubstr("mlp_hidden_act 'silu' is not supported, only relu2"));
  EXPECT_THAT(error({{"n_group", 3}}), HasSubstr("expected groups of equally many experts"));
  EXPECT_THAT(error({{"n_group", 4}, {"num_experts_per_tok", 3}}), HasSubstr("of which the chosen"));
  EXPECT_THAT(error({{"layers_block_type", {"mamba", "mlp", "mlp", "moe"}}}), HasSubstr("one layer of full_attention"));
  EXPECT_THAT(error({{"layers_block_type", nullptr}, {"hybrid_override_pattern", "M-*X"}}),
              HasSubstr("layer_types[3]: \"X\" is not supported, only mlp, moe, mamba"));
}

json GraniteHybrid(const json& more = json::object()) {
  json config = Of("GraniteMoeHybridForCausalLM", "granitemoehybrid",
                   {{"layer_types", {"mamba", "linear_attention", "attention", "full_attention"}},
                    {"num_local_experts", 0},
                    {"shared_intermediate_size", 40},
                    {"mamba_n_heads", 4},
                    {"mamba_d_head", 32},
                    {"mamba_n_groups", 2},
                    {"mamba_d_state", 6}});
  config.update(more);
  return config;
}

TEST(ModelFamilyTest, GraniteHybrid) {
  const ModelConfig c = Parsed(GraniteHybrid());
  const RecurrentConfig& r = *c.recurrent;
  EXPECT_TRUE(r.mamba && r.conv_bias && !r.input_bias && !r.output_bias && !c.output_gate);
  EXPECT_THAT(r.layers, ElementsAre(true, true, false, false));
  EXPECT_EQ(r.Values(), 2 * c.hidden_size);
  EXPECT_EQ(r.Channels(), 2 * c.hidden_size + 2 * 2 * 6);
  EXPECT_EQ(c.QkvDim(0), r.Channels() + r.Values() + 4);  // a step for each head
  EXPECT_EQ(c.KvLayers(), 2);
  EXPECT_EQ(c.intermediate_size, 40);
  EXPECT_FALSE(c.experts);
  EXPECT_EQ(c.RopeOf(2), LayerRope::kNone);  // unless it is named
  EXPECT_EQ(Parsed(GraniteHybrid({{"position_embedding_type", "nope"}})).RopeOf(2), LayerRope::kNone);
  EXPECT_EQ(Parsed(GraniteHybrid({{"position_embedding_type", "rope"}})).RopeOf(2), LayerRope::kMain);
  EXPECT_EQ(r.least_step, 0);
  EXPECT_EQ(r.most_step, std::numeric_limits<double>::infinity());
  const ModelConfig limits = Parsed(GraniteHybrid({{"time_step_limit", {0.25, 4}}}));
  EXPECT_EQ(limits.recurrent->least_step, 0.25);
  EXPECT_EQ(limits.recurrent->most_step, 4);
  const json infinity = {{"__float__", "Infinity"}};
  EXPECT_EQ(Parsed(GraniteHybrid({{"time_step_limit", {0.0, infinity}}})).recurrent->most_step, r.most_step);
  EXPECT_EQ(Parsed(GraniteHybrid({{"mamba_d_head", "auto"}})).recurrent->value_dim, r.value_dim);

  const ModelConfig experts = Parsed(GraniteHybrid({{"num_local_experts", 6}}));
  EXPECT_EQ(experts.experts->route.per_token, 2);
  EXPECT_TRUE(experts.experts->route.renormalise && !experts.experts->shared_gate);
  EXPECT_EQ(experts.BlockSize(0), 40);
  EXPECT_EQ(experts.experts->intermediate_size, 96);

  const json attention = {"attention", "attention", "attention", "attention"};
  EXPECT_FALSE(Parsed(GraniteHybrid({{"layer_types", attention}})).recurrent);
}

TEST(ModelFamilyTest, GraniteHybridRefusesByName) {
  const auto error = [](const json& more) { return ErrorOf(GraniteHybrid(more)); };
  EXPECT_THAT(error({{"mamba_n_groups", 3}}), HasSubstr("mamba_n_groups 3 does not divide mamba_n_heads 4"));
  EXPECT_THAT(error({{"mamba_n_heads", 8}}), HasSubstr("mamba_expand * hidden_size"));
  EXPECT_THAT(error({{"mamba_d_head", "all"}}), HasSubstr("mamba_d_head"));
  EXPECT_THAT(error({{"mamba_d_conv", 9}}), HasSubstr("mamba_d_conv"));
  EXPECT_THAT(error({{"layer_types", nullptr}}), HasSubstr("layer_types is missing: expected at least one layer of"));
  EXPECT_EQ(error({{"layer_types", nullptr}, {"layers_block_type", {"mamba", "mamba", "mamba", "attention"}}}),
            "accepted");
  EXPECT_THAT(error({{"layer_types", {"mamba2", "mamba", "mamba", "attention"}}}),
              HasSubstr("layer_types[0]: \"mamba2\" is not supported"));
  EXPECT_THAT(error({{"position_embedding_type", "alibi"}}), HasSubstr("position_embedding_type 'alibi'"));
  for (const json& limits :
       {json(1), json::array({0}), json::array({2, 1}), json::array({-1, 1}), json::array({0, {{"__float__", "NaN"}}}),
        json::array({0, {{"__float__", 1}}}), json::array({0, {{"float", "Infinity"}}})}) {
    EXPECT_THAT(error({{"time_step_limit", limits}}), HasSubstr("time_step_limit"));
  }
  EXPECT_THAT(error({{"hidden_act", "gelu"}}), HasSubstr("hidden_act"));
}

// As its models of few parameters.
TEST(ModelFamilyTest, Gemma4WithInputsOfLayers) {
  const json types = {"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  const json small = {{"hidden_size_per_layer_input", 8},
                      {"vocab_size_per_layer_input", 128},
                      {"num_kv_shared_layers", 2},
                      {"use_double_wide_mlp", true},
                      {"attention_k_eq_v", false},
                      {"global_head_dim", 32},
                      {"layer_types", types}};
  const ModelConfig c = Parsed(Gemma4(small));
  EXPECT_EQ(c.layer_input_size, 8);
  EXPECT_NEAR(c.layer_input_scale, std::sqrt(8.0), 1e-6);
  EXPECT_FALSE(c.ValuesAreKeys(1));
  EXPECT_EQ(c.HeadsOf(0), (HeadShape{2, 16}));
  EXPECT_EQ(c.HeadsOf(1), (HeadShape{2, 32}));
  EXPECT_EQ(c.KvDim(), 64);  // pages have room for the larger
  EXPECT_TRUE(c.SharesKv(2) && !c.SharesKv(1));
  EXPECT_EQ(c.KvSource(2), 0);
  EXPECT_EQ(c.KvSource(3), 1);
  EXPECT_EQ(c.BlockSize(1), 96);
  EXPECT_EQ(c.BlockSize(2), 192);
  EXPECT_EQ(c.QkvDim(2), 64);
  EXPECT_EQ(c.QkvDim(0), 128);
  json wrong = small;
  wrong["num_kv_shared_layers"] = 3;
  EXPECT_THAT(ErrorOf(Gemma4(wrong)), HasSubstr("no layer before has keys and values for layer 1"));
  wrong = small;
  wrong["vocab_size_per_layer_input"] = 64;
  EXPECT_THAT(ErrorOf(Gemma4(wrong)), HasSubstr("vocab_size_per_layer_input 64 is not supported"));
}

TEST(ModelFamilyTest, Experts) {
  const ModelConfig mixtral = Parsed(Of("MixtralForCausalLM", "mixtral", {{"num_local_experts", 6}}));
  ASSERT_TRUE(mixtral.experts);
  EXPECT_EQ(mixtral.experts->route.experts, 6);
  EXPECT_EQ(mixtral.experts->route.per_token, 2);
  EXPECT_TRUE(mixtral.experts->route.renormalise);
  EXPECT_EQ(mixtral.experts->intermediate_size, 96);
  EXPECT_TRUE(mixtral.HasExperts(0));
  EXPECT_FALSE(mixtral.HasOwnBlock(3));

  const auto qwen3 = [](const json& more) { return Parsed(Of("Qwen3MoeForCausalLM", "qwen3_moe", more)); };
  const ModelConfig published = qwen3({{"num_experts", 16}, {"moe_intermediate_size", 32}});
  EXPECT_EQ(published.experts->route.per_token, 8);
  EXPECT_FALSE(published.experts->route.renormalise);
  EXPECT_EQ(published.experts->intermediate_size, 32);
  EXPECT_EQ(published.intermediate_size, 32);  // no layer has a block of 96
  EXPECT_EQ(qwen3({{"num_local_experts", 16}}).experts->route.experts, 16);
  const ModelConfig mixed = qwen3({{"num_experts", 16}, {"decoder_sparse_step", 2}, {"mlp_only_layers", {3}}});
  EXPECT_THAT(mixed.experts->layers, ElementsAre(false, true, false, false));
  EXPECT_EQ(mixed.BlockSize(0), 96);
  EXPECT_FALSE(qwen3({{"num_experts", 16}, {"mlp_only_layers", {0, 1, 2, 3}}}).experts);

  const ModelConfig qwen2 = Parsed(
      Of("Qwen2MoeForCausalLM", "qwen2_moe", {{"shared_expert_intermediate_size", 40}, {"mlp_only_layers", {1}}}));
  EXPECT_TRUE(qwen2.attention_qkv_bias);
  EXPECT_TRUE(qwen2.experts->shared_gate);
  EXPECT_EQ(qwen2.BlockSize(0), 40);
  EXPECT_EQ(qwen2.BlockSize(1), 96);
  EXPECT_EQ(qwen2.MostBlockSize(), 1408);  // the default size of an expert
}

TEST(ModelFamilyTest, GptOss) {
  const ModelConfig config =
      Parsed(Of("GptOssForCausalLM", "gpt_oss", {{"num_local_experts", 4}, {"swiglu_limit", 5.0}}));
  EXPECT_EQ(config.activation, Activation::kClampedSwiglu);
  EXPECT_EQ(config.swiglu_alpha, 1.702);
  EXPECT_EQ(config.swiglu_limit, 5);
  EXPECT_TRUE(config.sinks);
  EXPECT_TRUE(config.attention_output_bias);
  EXPECT_TRUE(config.experts->biases && config.experts->router_bias && config.experts->route.renormalise);
  EXPECT_THAT(config.sliding_window, ElementsAre(128, 0, 128, 0));
}

TEST(ModelFamilyTest, ExpertsThatCannotBe) {
  const auto error = [](const json& more) { return ErrorOf(Of("Qwen3MoeForCausalLM", "qwen3_moe", more)); };
  EXPECT_THAT(error({{"num_experts", 4}}), HasSubstr("the default is 8"));
  EXPECT_THAT(error({{"num_experts", 4}, {"num_experts_per_tok", 5}}), HasSubstr("num_experts_per_tok"));
  EXPECT_THAT(error({{"num_experts", 16}, {"num_local_experts", 8}}), HasSubstr("contradicts"));
  EXPECT_THAT(error({{"num_experts", 16}, {"mlp_only_layers", {4}}}), HasSubstr("mlp_only_layers"));
  EXPECT_THAT(error({{"num_experts", 16}, {"mlp_only_layers", 1}}), HasSubstr("mlp_only_layers"));
  EXPECT_THAT(error({{"num_experts", 16}, {"decoder_sparse_step", 0}}), HasSubstr("decoder_sparse_step"));
  EXPECT_THAT(error({{"num_experts", 16}, {"moe_intermediate_size", 0}}), HasSubstr("moe_intermediate_size"));
  EXPECT_THAT(error({{"num_experts", 1 << 20}}), HasSubstr("num_experts"));
  EXPECT_THAT(ErrorOf(Gemma3({{"num_experts", 4}})), HasSubstr("not supported for gemma3_text"));
  EXPECT_THAT(ErrorOf(Of("OlmoeForCausalLM", "olmoe", {{"clip_qkv", 8.0}})), HasSubstr("clip_qkv"));
  EXPECT_THAT(ErrorOf(Of("Qwen2MoeForCausalLM", "qwen2_moe", {{"use_sliding_window", true}})),
              HasSubstr("use_sliding_window"));
}

TEST(ModelFamilyTest, NamesOfModulesInFiles) {
  const FamilyNames& neox = *NamesOf(ModelFamily::kGptNeoX);
  EXPECT_EQ(TheirNames(neox, "model.layers.3.mlp.up_proj.weight").front(),
            "gpt_neox.layers.3.mlp.dense_h_to_4h.weight");
  EXPECT_EQ(TheirNames(neox, "lm_head.weight"), (std::vector<std::string>{"embed_out.weight", "lm_head.weight"}));
  EXPECT_EQ(OurName(neox, "gpt_neox.layers.11.attention.query_key_value"), "model.layers.11.self_attn.qkv_proj");
  EXPECT_EQ(OurName(neox, "gpt_neox.embed_in"), "model.embed_tokens");
  EXPECT_EQ(OurName(neox, "model.layers.1.mlp.up_proj"), "model.layers.1.mlp.up_proj");
  const FamilyNames& falcon = *NamesOf(ModelFamily::kFalcon);
  EXPECT_EQ(TheirNames(falcon, "model.layers.0.input_layernorm.bias"),
            (std::vector<std::string>{"transformer.h.0.ln_attn.bias", "transformer.h.0.input_layernorm.bias",
                                      "model.layers.0.input_layernorm.bias"}));
  EXPECT_EQ(TheirNames(*NamesOf(ModelFamily::kBloom), "model.embed_norm.bias").front(),
            "transformer.word_embeddings_layernorm.bias");
  EXPECT_EQ(TheirNames(*NamesOf(ModelFamily::kOpt), "model.project_in.weight").front(),
            "model.decoder.project_in.weight");
  EXPECT_EQ(NamesOf(ModelFamily::kLlama), nullptr);
}

TEST(ModelFamilyTest, NamesAreGuessedWithoutABase) {
  const auto tensor = [](const char* name) { return std::vector<TensorEntry>{{.name = name}}; };
  EXPECT_EQ(GuessFamilyNames(tensor("base_model.model.transformer.h.0.mlp.dense_h_to_4h.lora_A.weight")),
            NamesOf(ModelFamily::kFalcon));
  EXPECT_EQ(GuessFamilyNames(tensor("base_model.model.model.layers.0.mlp.up_proj.lora_A.weight")), nullptr);
  EXPECT_EQ(&GuessNormNames(tensor("base_model.model.model.layers.0.pre_feedforward_layernorm.weight")),
            &InfoOf(ModelFamily::kGemma2).norms);
}

TEST(ModelFamilyTest, RefusesWhatItDoesNotCompute) {
  EXPECT_THAT(ErrorOf(Gemma3({{"hidden_activation", "gelu"}})), HasSubstr("hidden_activation 'gelu' is not supported"));
  EXPECT_THAT(ErrorOf(Gemma3({{"use_bidirectional_attention", true}})), HasSubstr("attention is causal"));
  EXPECT_THAT(ErrorOf(Gemma3({{"final_logit_softcapping", -1}})), HasSubstr("final_logit_softcapping"));
}

}  // namespace
}  // namespace loramux::model_family_test
