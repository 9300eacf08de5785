#include "formats/gguf_file.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "formats/generation_defaults.h"
#include "formats/gguf_config.h"
#include "formats/gguf_tokenizer.h"
#include "formats/gguf_writer_for_test.h"
#include "formats/model_config.h"
#include "formats/model_files.h"
#include "formats/test_files.h"

namespace loramux::gguf_file_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::span<const std::byte> AsBytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string ErrorOf(const std::string& bytes) {
  const auto file = GgufFile::Parse(AsBytes(bytes), "FILE");
  return file.ok() ? "accepted" : file.error().message;
}

std::string ErrorOf(const GgufWriter& writer) { return ErrorOf(writer.Bytes()); }

TEST(GgufFileTest, ReadsMetadataAndTensors) {
  GgufWriter writer;
  writer.Text("a", "text").U32("b", 7).F32("c", 1e-5f).Bool("d", true).Texts("e", {"x", "", "yz"});
  writer.Numbers("f", {3, -4});
  writer.Tensor("m", 0, {2, 3}, std::string(24, '\1')).Tensor("q", 8, {32}, std::string(34, '\2'));
  for (const std::uint32_t version : {2u, 3u}) {
    writer.version = version;
    const std::string bytes = writer.Bytes();
    const GgufFile file = GgufFile::Parse(AsBytes(bytes), "FILE").value();
    EXPECT_EQ(**file.Text("a"), "text");
    EXPECT_EQ(**file.Int("b", 0, 9), 7);
    EXPECT_EQ(**file.Number("c"), 1e-5);  // not the double nearest to the float32
    EXPECT_EQ(**file.Bool("d"), true);
    EXPECT_THAT((*file.Array("e", GgufArray::Element::kText))->Texts(), testing::ElementsAre("x", "", "yz"));
    EXPECT_THAT((*file.Array("f", GgufArray::Element::kNumber))->Numbers(), testing::ElementsAre(3, -4));
    EXPECT_FALSE(file.Text("z").value());
    const GgufTensor* const matrix = file.FindTensor("m");
    EXPECT_THAT(matrix->shape, testing::ElementsAre(3, 2));
    EXPECT_EQ(matrix->data.size(), 24u);
    EXPECT_EQ(matrix->data[0], std::byte{1});
    EXPECT_EQ(file.FindTensor("q")->data[33], std::byte{2});
    EXPECT_EQ(file.FindTensor("nothing"), nullptr);
    EXPECT_THAT(file.Int("b", 0, 6).error().message, HasSubstr("'b': expected an integer from 0 to 6, found 7"));
    EXPECT_THAT(file.Text("b").error().message, HasSubstr("expected a text, found 7"));
    EXPECT_THAT(file.Array("e", GgufArray::Element::kNumber).error().message, HasSubstr("an array of numbers"));
  }
}

TEST(GgufFileTest, RefusesOtherFiles) {
  EXPECT_THAT(ErrorOf(std::string("GGML")), HasSubstr("begins with 'GGUF'"));
  EXPECT_THAT(ErrorOf(std::string()), HasSubstr("ends at byte 0"));
  GgufWriter old;
  old.version = 1;
  EXPECT_THAT(ErrorOf(old), HasSubstr("version 1 is not supported"));
  old.version = 0x03000000;
  EXPECT_THAT(ErrorOf(old), HasSubstr("big-endian"));
  GgufWriter part;
  part.U32("split.count", 3);
  EXPECT_THAT(ErrorOf(part), HasSubstr("one of 3 parts"));
}

TEST(GgufFileTest, RefusesDamagedMetadata) {
  GgufWriter many;
  many.num_keys = std::uint64_t{1} << 60;
  EXPECT_THAT(ErrorOf(many), HasSubstr("metadata keys, found"));
  GgufWriter twice;
  EXPECT_THAT(ErrorOf(twice.U32("a", 1).U32("a", 2)), HasSubstr("'a' appears twice"));
  GgufWriter type;
  EXPECT_THAT(ErrorOf(type.Key("a", 13)), HasSubstr("unknown type 13"));
  const std::string huge("\xff\xff\xff\xff\xff\xff\xff\x7f", 8);
  GgufWriter text;
  EXPECT_THAT(ErrorOf(text.Key("a", 8).RawKey(huge)), HasSubstr("the file ends"));
  for (const char element : {'\4', '\10', '\0'}) {
    GgufWriter array;
    array.Key("a", 9).RawKey(std::string{element, 0, 0, 0} + huge);
    EXPECT_THAT(ErrorOf(array), HasSubstr("the file ends"));
  }
  GgufWriter nested;
  EXPECT_THAT(ErrorOf(nested.Key("a", 9).RawKey(std::string("\t\0\0\0\1\0\0\0\0\0\0\0", 12))),
              HasSubstr("arrays of arrays"));
  GgufWriter alignment;
  EXPECT_THAT(ErrorOf(alignment.U32("general.alignment", 24)), HasSubstr("a power of two, found 24"));
  GgufWriter number;
  EXPECT_THAT(ErrorOf(number.Key("a", 10).RawKey(std::string(8, '\xff'))), HasSubstr("below 2^63"));
}

TEST(GgufFileTest, RefusesDamagedTensors) {
  const auto error = [](std::uint32_t type, const std::vector<std::int64_t>& extents, std::uint64_t offset) {
    GgufWriter writer;
    writer.TensorAt("t", type, extents, offset).Data(std::string(64, '\0'));
    return ErrorOf(writer);
  };
  EXPECT_EQ(error(0, {16}, 0), "accepted");
  EXPECT_THAT(error(0, {17}, 0), HasSubstr("'t' of 68 bytes at 0 lies outside the 64 bytes"));
  EXPECT_THAT(error(0, {1}, 64), HasSubstr("lies outside"));
  EXPECT_THAT(error(0, {1}, std::uint64_t{1} << 63), HasSubstr("lies outside"));
  EXPECT_THAT(error(0, {1}, 4), HasSubstr("a multiple of 32 as its offset"));
  EXPECT_THAT(error(0, {}, 0), HasSubstr("1 to 4 extents"));
  EXPECT_THAT(error(0, {1, 1, 1, 1, 1}, 0), HasSubstr("1 to 4 extents"));
  EXPECT_THAT(error(0, {0}, 0), HasSubstr("above 0"));
  EXPECT_THAT(error(0, {-1}, 0), HasSubstr("above 0"));
  EXPECT_THAT(error(0, {std::int64_t{1} << 62, std::int64_t{1} << 62}, 0), HasSubstr("63 bits"));
  EXPECT_THAT(error(8, {31}, 0), HasSubstr("a multiple of 32 elements"));
  EXPECT_THAT(error(99, {1}, 0), HasSubstr("type 99, which is unknown"));
  GgufWriter overlap;
  overlap.TensorAt("a", 0, {16}, 0).TensorAt("b", 0, {1}, 32).Data(std::string(64, '\0'));
  EXPECT_THAT(ErrorOf(overlap), HasSubstr("'a' and 'b' overlap"));
  GgufWriter twice;
  twice.TensorAt("a", 0, {1}, 0).TensorAt("a", 0, {1}, 32).Data(std::string(64, '\0'));
  EXPECT_THAT(ErrorOf(twice), HasSubstr("'a' appears twice"));
}

// A file that ends anywhere is refused, whatever was read before.
TEST(GgufFileTest, RefusesEveryPrefix) {
  GgufWriter writer;
  writer.Text("a", "text").Texts("e", {"x", "yz"}).Numbers("f", {3}).Tensor("m", 0, {2, 3}, std::string(24, '\1'));
  const std::string bytes = writer.Bytes();
  const std::size_t whole = bytes.size() - 8;  // without what fills the last tensor's place
  for (std::size_t size = 0; size < whole; ++size) EXPECT_NE(ErrorOf(bytes.substr(0, size)), "accepted") << size;
  EXPECT_EQ(ErrorOf(bytes.substr(0, whole)), "accepted");
}

// ---- configuration

// `kv_heads`: by layer; empty: 1 in all.
GgufWriter Model(const std::string& architecture, const std::vector<std::int32_t>& kv_heads = {}) {
  GgufWriter writer;
  const std::string prefix = architecture + ".";
  writer.Text("general.architecture", architecture).Text("general.name", "Tiny Model");
  writer.U32(prefix + "context_length", 512).U32(prefix + "embedding_length", 8).U32(prefix + "block_count", 2);
  writer.U32(prefix + "feed_forward_length", 16).U32(prefix + "attention.head_count", 2);
  const std::string heads = prefix + "attention.head_count_kv";
  kv_heads.empty() ? writer.U32(heads, 1) : writer.Numbers(heads, kv_heads);
  writer.F32(prefix + "attention.layer_norm_rms_epsilon", 1e-5f);
  writer.F32(prefix + "rope.freq_base", 500000.0f).U32(prefix + "rope.dimension_count", 4);
  writer.U32("tokenizer.ggml.eos_token_id", 2).U32("tokenizer.ggml.eot_token_id", 3);
  writer.Tensor("token_embd.weight", 0, {8, 5}, std::string(160, '\0'));
  return writer;
}

Result<ModelConfig> ConfigOf(const GgufWriter& writer) {
  const std::string bytes = writer.Bytes();
  ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Parse(AsBytes(bytes), "FILE"));
  ASSIGN_OR_RETURN(const std::string text, GgufModelConfig(file));
  return ParseModelConfig(text, "FILE");
}

std::string ConfigError(const GgufWriter& writer) {
  const auto config = ConfigOf(writer);
  return config.ok() ? "accepted" : config.error().message;
}

TEST(GgufConfigTest, DescribesTheModel) {
  const ModelConfig config = ConfigOf(Model("llama")).value();
  EXPECT_EQ(config.family, ModelFamily::kLlama);
  EXPECT_EQ(config.hidden_size, 8);
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.intermediate_size, 16);
  EXPECT_EQ(config.num_heads, 2);
  EXPECT_EQ(config.num_kv_heads, 1);
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.vocab_size, 5);
  EXPECT_EQ(config.max_position, 512);
  EXPECT_EQ(config.norm_eps, 1e-5);
  EXPECT_EQ(config.rope.theta, 500000.0);
  EXPECT_EQ(config.rope.scaling, RopeConfig::Scaling::kNone);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_FALSE(config.attention_qkv_bias);
  EXPECT_EQ(config.bos_token_id, -1);
  EXPECT_EQ(ConfigOf(Model("qwen2"))->family, ModelFamily::kQwen2);
  EXPECT_EQ(ConfigOf(Model("qwen3"))->qk_norm, QkNorm::kHeads);
  GgufWriter untied = Model("llama");
  untied.Tensor("output.weight", 0, {8, 5}, std::string(160, '\0'));
  untied.Tensor("blk.0.attn_q.bias", 0, {8}, std::string(32, '\0'));
  EXPECT_FALSE(ConfigOf(untied)->tie_word_embeddings);
  EXPECT_TRUE(ConfigOf(untied)->attention_qkv_bias);
}

TEST(GgufConfigTest, KnowsWindowsAndScaling) {
  GgufWriter mistral = Model("llama");
  const ModelConfig windowed = ConfigOf(mistral.U32("llama.attention.sliding_window", 64)).value();
  EXPECT_EQ(windowed.family, ModelFamily::kMistral);
  EXPECT_EQ(windowed.sliding_window, (std::vector<std::int64_t>{64, 64}));
  GgufWriter linear = Model("qwen2");
  linear.Text("qwen2.rope.scaling.type", "linear").F32("qwen2.rope.scaling.factor", 4);
  EXPECT_EQ(ConfigOf(linear)->rope.scaling, RopeConfig::Scaling::kLinear);
  EXPECT_EQ(ConfigOf(linear)->rope.factor, 4);
}

// Heads of size 8 turn with wavelengths of 6, 167, 4,443 and 118,141 positions; Llama 3 leaves those below 2,048 as
// they are, scales those above 8,192, and scales what lies between in part.
TEST(GgufConfigTest, FindsTheScalingOfLlama3Again) {
  const auto with = [](const std::vector<float>& factors) {
    GgufWriter writer = Model("llama");
    writer.U32("llama.attention.key_length", 8);
    writer.Tensor("rope_freqs.weight", 0, {4}, {reinterpret_cast<const char*>(factors.data()), 16});
    return writer;
  };
  GgufWriter llama3 = with({1, 1, 2.69454f, 8});
  EXPECT_THAT(ConfigError(llama3), HasSubstr("partial_rotary_factor 0.5"));
  const auto config = [&](const std::vector<float>& factors) {
    std::string text = with(factors).Bytes();
    const std::string key = "rope.dimension_count";
    text[text.find(key) + key.size() + 4] = 8;
    const GgufFile file = GgufFile::Parse(AsBytes(text), "FILE").value();
    const auto json_text = GgufModelConfig(file);
    return json_text.ok() ? ParseModelConfig(*json_text, "FILE") : json_text.error();
  };
  const RopeConfig rope = config({1, 1, 2.69454f, 8}).value().rope;
  EXPECT_EQ(rope.scaling, RopeConfig::Scaling::kLlama3);
  EXPECT_EQ(rope.factor, 8);
  EXPECT_EQ(rope.low_freq_factor, 1);
  EXPECT_EQ(rope.high_freq_factor, 4);
  EXPECT_EQ(rope.original_max_position, 8192);
  EXPECT_EQ(config({1, 1, 1, 1}).value().rope.scaling, RopeConfig::Scaling::kNone);
  EXPECT_THAT(config({1, 1, 2.8f, 8}).error().message, HasSubstr("other factors than Llama 3's"));
  EXPECT_THAT(config({1, 2, 2.69454f, 8}).error().message, HasSubstr("other factors than Llama 3's"));
}

// As Model, of a family with LayerNorm.
GgufWriter LayerNormModel(const std::string& architecture) {
  GgufWriter writer;
  const std::string prefix = architecture + ".";
  writer.Text("general.architecture", architecture);
  writer.U32(prefix + "context_length", 512).U32(prefix + "embedding_length", 40).U32(prefix + "block_count", 2);
  writer.U32(prefix + "feed_forward_length", 16).U32(prefix + "attention.head_count", 2);
  writer.F32(prefix + "attention.layer_norm_epsilon", 1e-4f);
  writer.Tensor("token_embd.weight", 0, {40, 5}, std::string(800, '\0'));
  return writer;
}

TEST(GgufConfigTest, KnowsFamiliesWithLayerNorm) {
  // 18 of 20 elements turn, though 18 / 20 * 20 may be below 18.
  GgufWriter neox = LayerNormModel("gptneox");
  neox.Bool("gptneox.use_parallel_residual", false).U32("gptneox.rope.dimension_count", 18);
  const ModelConfig config = ConfigOf(neox).value();
  EXPECT_EQ(config.family, ModelFamily::kGptNeoX);
  EXPECT_EQ(config.norm_kind, NormKind::kLayer);
  EXPECT_EQ(config.norm_eps, 1e-4);
  EXPECT_EQ(config.block_order, BlockOrder::kSequential);
  EXPECT_EQ(config.rope.rotary_dim, 18);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_FALSE(config.attention_qkv_bias);
  GgufWriter falcon = LayerNormModel("falcon");
  falcon.U32("falcon.attention.head_count_kv", 1);
  EXPECT_EQ(ConfigOf(falcon)->block_order, BlockOrder::kParallelOneNorm);
  EXPECT_EQ(ConfigOf(falcon)->num_kv_heads, 1);
  EXPECT_EQ(ConfigOf(falcon)->intermediate_size, 16);
  falcon.Tensor("blk.0.attn_norm_2.weight", 0, {40}, std::string(160, '\0'));
  EXPECT_EQ(ConfigOf(falcon)->block_order, BlockOrder::kParallel);
  EXPECT_EQ(ConfigOf(LayerNormModel("bloom"))->alibi, Alibi::kExact);
  EXPECT_EQ(ConfigOf(LayerNormModel("bloom"))->max_position, 512);
  GgufWriter stable = LayerNormModel("stablelm");
  stable.Bool("stablelm.use_parallel_residual", true);
  EXPECT_EQ(ConfigOf(stable)->block_order, BlockOrder::kParallelOneNorm);
  EXPECT_EQ(ConfigOf(stable)->qk_norm, QkNorm::kNone);
  EXPECT_EQ(ConfigOf(stable)->rope.rotary_dim, 20);
  stable.Tensor("blk.0.ffn_norm.weight", 0, {40}, std::string(160, '\0'));
  stable.Tensor("blk.0.attn_q_norm.weight", 0, {20, 2}, std::string(160, '\0'));
  EXPECT_EQ(ConfigOf(stable)->block_order, BlockOrder::kSequential);
  EXPECT_EQ(ConfigOf(stable)->qk_norm, QkNorm::kLayerOfHeads);
}

TEST(GgufConfigTest, RefusesWhatContradictsAFamilyWithLayerNorm) {
  const auto with = [](const std::string& architecture, const std::function<void(GgufWriter&)>& add) {
    GgufWriter writer = LayerNormModel(architecture);
    add(writer);
    return ConfigError(writer);
  };
  EXPECT_THAT(with("gptneox", [](GgufWriter&) {}),
              HasSubstr("'gptneox.use_parallel_residual': expected true or false"));
  EXPECT_THAT(with("stablelm", [](GgufWriter& w) { w.Bool("stablelm.use_parallel_residual", false); }),
              HasSubstr("false needs a tensor 'blk.0.ffn_norm.weight'"));
  EXPECT_THAT(with("falcon", [](GgufWriter& w) { w.Bool("falcon.use_parallel_residual", true); }),
              HasSubstr("'falcon.use_parallel_residual' = true is not supported"));
  EXPECT_THAT(with("bloom", [](GgufWriter& w) { w.F32("bloom.attention.max_alibi_bias", 4); }),
              HasSubstr("'bloom.attention.max_alibi_bias' = 4.000000 may change"));
  EXPECT_THAT(with("bloom", [](GgufWriter& w) { w.F32("bloom.attention.layer_norm_rms_epsilon", 1); }),
              HasSubstr("layer_norm_rms_epsilon' = 1.000000 may change"));
  EXPECT_THAT(ConfigError(Model("gptneox").Bool("gptneox.use_parallel_residual", true)),
              HasSubstr("layer_norm_rms_epsilon"));
  EXPECT_THAT(with("gptneox",
                   [](GgufWriter& w) {
                     w.Bool("gptneox.use_parallel_residual", true).U32("gptneox.rope.dimension_count", 22);
                   }),
              HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(with("falcon", [](GgufWriter& w) { w.U32("falcon.attention.head_count_kv", 3); }), HasSubstr("divide"));
}

TEST(GgufConfigTest, KnowsTheTextOfModelsWithImages) {
  GgufWriter qwen = Model("qwen2vl"), deep = Model("qwen3vl");
  EXPECT_EQ(ConfigOf(qwen.Numbers("qwen2vl.rope.dimension_sections", {1, 1, 0, 0}))->family, ModelFamily::kQwen2);
  deep.Numbers("qwen3vl.rope.dimension_sections", {1, 1, 0, 0}).U32("qwen3vl.n_deepstack_layers", 3);
  EXPECT_EQ(ConfigOf(deep)->family, ModelFamily::kQwen3);
  GgufWriter three = Model("qwen2vl"), fourth = Model("qwen2vl"), text = Model("qwen2vl");
  for (GgufWriter* writer : {&three.Numbers("qwen2vl.rope.dimension_sections", {1, 1, 0}),
                             &fourth.Numbers("qwen2vl.rope.dimension_sections", {1, 0, 0, 1})}) {
    EXPECT_THAT(ConfigError(*writer),
                HasSubstr("'qwen2vl.rope.dimension_sections': expected an array of four numbers"));
  }
  EXPECT_THAT(ConfigError(text.Text("qwen2vl.rope.dimension_sections", "1")), HasSubstr("dimension_sections"));
}

TEST(GgufConfigTest, KnowsTheTemperatureOfMinistral) {
  EXPECT_EQ(ConfigOf(Model("mistral3"))->family, ModelFamily::kMistral);
  GgufWriter plain = Model("mistral3");
  plain.F32("mistral3.attention.temperature_scale", 0.5f).U32("mistral3.rope.scaling.original_context_length", 64);
  EXPECT_EQ(ConfigOf(plain)->family, ModelFamily::kMinistral3);
  EXPECT_EQ(ConfigOf(plain)->rope.query_beta, 0.5);
  EXPECT_EQ(ConfigOf(plain)->rope.original_max_position, 64);
  EXPECT_EQ(ConfigOf(plain)->rope.scaling, RopeConfig::Scaling::kNone);
  GgufWriter yarn = plain;
  yarn.Text("mistral3.rope.scaling.type", "yarn").F32("mistral3.rope.scaling.factor", 4);
  EXPECT_NEAR(ConfigOf(yarn)->rope.attention_factor, 0.1 * std::log(4.0) + 1, 1e-12);
  EXPECT_EQ(ConfigOf(yarn.F32("mistral3.rope.scaling.yarn_log_multiplier", 1))->rope.attention_factor, 1);
  EXPECT_THAT(ConfigError(Model("llama").F32("llama.attention.temperature_scale", 0.5f)), HasSubstr("may change"));
}

// Four layers, of which the second and the last are full and share nothing; `changed` is left out.
GgufWriter Gemma4(const std::string& changed = "", std::vector<float> factors = {1, 1e30f}) {
  GgufWriter writer;
  writer.Text("general.architecture", "gemma4").F32("gemma4.attention.layer_norm_rms_epsilon", 1e-5f);
  const auto number = [&](const std::string& key, std::uint32_t value) {
    if (key != changed) writer.U32("gemma4." + key, value);
  };
  number("context_length", 512);
  number("embedding_length", 8);
  number("block_count", 4);
  number("feed_forward_length", 16);
  number("attention.head_count", 4);
  number("attention.key_length", 4);
  number("attention.value_length", 4);
  number("attention.key_length_swa", 2);
  number("attention.value_length_swa", 2);
  number("attention.sliding_window", 64);
  number("rope.dimension_count", 4);
  if (changed != "attention.head_count_kv") writer.Numbers("gemma4.attention.head_count_kv", {4, 2, 4, 2});
  const std::string pattern = "attention.sliding_window_pattern";
  if (changed != pattern) writer.Numbers("gemma4." + pattern, {1, 0, 1, 0});
  writer.F32("gemma4.rope.freq_base", 1e6f).F32("gemma4.rope.freq_base_swa", 1e4f);
  writer.Tensor("token_embd.weight", 0, {8, 5}, std::string(160, '\0'));
  if (changed != "rope_freqs.weight") {
    writer.Tensor("rope_freqs.weight", 0, {2}, {reinterpret_cast<const char*>(factors.data()), 8});
  }
  return writer;
}

TEST(GgufConfigTest, KnowsTheKindsOfLayersOfGemma4) {
  GgufWriter writer = Gemma4();
  writer.Tensor("blk.1.attn_v.weight", 0, {8, 8}, std::string(256, '\0'));
  const ModelConfig config = ConfigOf(writer).value();
  EXPECT_EQ(config.family, ModelFamily::kGemma4);
  EXPECT_EQ(config.sliding_window, (std::vector<std::int64_t>{64, 0, 64, 0}));
  EXPECT_EQ(config.HeadsOf(0).head_dim, 2);
  EXPECT_EQ(config.HeadsOf(0).num_kv_heads, 4);
  EXPECT_EQ(config.HeadsOf(3).head_dim, 4);
  EXPECT_EQ(config.HeadsOf(3).num_kv_heads, 2);
  EXPECT_EQ(config.rope.turning_pairs, 1);
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_EQ(config.local_rope->theta, 1e4);
  EXPECT_EQ(config.layer_input_size, 0);
  EXPECT_FALSE(config.keys_are_values);
  EXPECT_TRUE(ConfigOf(Gemma4())->keys_are_values);
  EXPECT_EQ(ConfigOf(Gemma4("", {1, 1}))->rope.turning_pairs, 2);
  GgufWriter wide = Gemma4("feed_forward_length");
  wide.Numbers("gemma4.feed_forward_length", {16, 16, 32, 32}).U32("gemma4.attention.shared_kv_layers", 2);
  EXPECT_TRUE(ConfigOf(wide)->shared_are_wide);
  EXPECT_EQ(ConfigOf(wide)->shared_kv_layers, 2);
}

TEST(GgufConfigTest, RefusesWhatContradictsGemma4) {
  const auto with = [](const std::string& key, const std::function<void(GgufWriter&)>& add) {
    GgufWriter writer = Gemma4(key);
    add(writer);
    return ConfigError(writer);
  };
  const auto nothing = [](GgufWriter&) {};
  for (const char* key : {"attention.key_length", "attention.value_length_swa", "attention.sliding_window",
                          "attention.head_count_kv", "attention.sliding_window_pattern", "rope_freqs.weight"}) {
    EXPECT_THAT(with(key, nothing), HasSubstr(key));
  }
  const std::string kv = "attention.head_count_kv", ffn = "feed_forward_length";
  EXPECT_THAT(with(kv,
                   [](GgufWriter& w) {
                     w.Numbers("gemma4.attention.head_count_kv", {4, 2, 4});
                   }),
              HasSubstr("4 layers"));
  EXPECT_THAT(with(kv,
                   [](GgufWriter& w) {
                     w.Numbers("gemma4.attention.head_count_kv", {4, 2, 4, -1});
                   }),
              HasSubstr("integers above 0"));
  EXPECT_THAT(with(kv,
                   [](GgufWriter& w) {
                     w.Numbers("gemma4.attention.head_count_kv", {4, 1, 4, 2});
                   }),
              HasSubstr("layer 1 has other heads"));
  EXPECT_THAT(with(ffn,
                   [](GgufWriter& w) {
                     w.Numbers("gemma4.feed_forward_length", {16, 16, 32, 32});
                   }),
              HasSubstr("feed_forward_length': layer 2 has 32"));
  EXPECT_THAT(with("attention.sliding_window_pattern",
                   [](GgufWriter& w) {
                     w.Numbers("gemma4.attention.sliding_window_pattern", {0, 0, 1, 1});
                   }),
              HasSubstr("false for the last one"));
  EXPECT_THAT(with("", [](GgufWriter& w) { w.U32("gemma4.attention.shared_kv_layers", 4); }),
              HasSubstr("shared_kv_layers"));
  EXPECT_THAT(with("", [](GgufWriter& w) { w.U32("gemma4.expert_count", 8); }), HasSubstr("gemma4.expert_used_count"));
  EXPECT_THAT(with("", [](GgufWriter& w) { w.F32("gemma4.rope.scaling.factor", 2); }),
              HasSubstr("rope.scaling.factor"));
  EXPECT_THAT(with("rope.dimension_count", [](GgufWriter& w) { w.U32("gemma4.rope.dimension_count", 2); }),
              HasSubstr("the length of a head"));
  EXPECT_THAT(ConfigError(Gemma4("", {1, 2})), HasSubstr("other factors than 1"));
  EXPECT_THAT(ConfigError(Gemma4("", {1e30f, 1})), HasSubstr("other factors than 1"));
}

// The sizes of states, but that under `changed`.
void AddStates(GgufWriter& writer, const std::string& architecture, const std::string& changed) {
  for (const auto& [key, value] : {std::pair{"conv_kernel", 4}, std::pair{"state_size", 6}, std::pair{"group_count", 2},
                                   std::pair{"time_step_rank", 4}, std::pair{"inner_size", 32}}) {
    const std::string name = "ssm." + std::string(key);
    if (name != changed) writer.U32(architecture + "." + name, static_cast<std::uint32_t>(value));
  }
}

// Two layers.
GgufWriter Qwen35(const std::string& changed = "") {
  GgufWriter writer = Model("qwen35");
  AddStates(writer, "qwen35", changed);
  return writer;
}

// Refuses files without a size of states, and sizes that contradict each other. `with`: a file without that under a
// key.
template <typename With>
void ExpectStatesAreChecked(const std::string& architecture, const With& with) {
  const std::string prefix = architecture + ".ssm.";
  for (const char* key : {"conv_kernel", "state_size", "group_count", "time_step_rank", "inner_size"}) {
    const std::string name = "ssm." + std::string(key);
    EXPECT_THAT(ConfigError(with(name)), HasSubstr("'" + prefix + key + "': expected an integer above 0"));
  }
  GgufWriter values = with("ssm.inner_size"), groups = with("ssm.group_count");
  EXPECT_THAT(ConfigError(values.U32(prefix + "inner_size", 30)), HasSubstr("inner_size': expected a multiple of"));
  EXPECT_THAT(ConfigError(groups.U32(prefix + "group_count", 3)), HasSubstr("a multiple of ssm.group_count"));
}

TEST(GgufConfigTest, KnowsTheRecurrentLayersOfQwen35) {
  GgufWriter writer = Qwen35();
  writer.Numbers("qwen35.attention.recurrent_layers", {1, 0});
  const ModelConfig config = ConfigOf(writer).value();
  EXPECT_EQ(config.family, ModelFamily::kQwen35);
  EXPECT_EQ(config.recurrent->layers, (std::vector<bool>{true, false}));
  EXPECT_EQ(config.recurrent->key_dim, 6);
  EXPECT_EQ(config.recurrent->value_dim, 8);
  EXPECT_EQ(config.recurrent->value_heads, 4);
  GgufWriter interval = Qwen35();
  interval.U32("qwen35.full_attention_interval", 1);
  EXPECT_EQ(ConfigOf(interval)->recurrent->layers, (std::vector<bool>{false, false}));
  GgufWriter mtp = Qwen35();
  mtp.Numbers("qwen35.attention.recurrent_layers", {0, 0}).U32("qwen35.nextn_predict_layers", 1);
  EXPECT_EQ(ConfigOf(mtp)->num_layers, 1);
  EXPECT_THAT(ConfigError(mtp.U32("qwen35.x", 1)), HasSubstr("'qwen35.x' = 1 may change"));
}

TEST(GgufConfigTest, RefusesWhatContradictsQwen35) {
  ExpectStatesAreChecked("qwen35", [](const std::string& without) { return Qwen35(without); });
  EXPECT_THAT(ConfigError(Qwen35()), HasSubstr("at least one layer of full_attention"));
  EXPECT_THAT(ConfigError(Qwen35().U32("qwen35.nextn_predict_layers", 2)), HasSubstr("fewer than block_count"));
  EXPECT_THAT(ConfigError(Qwen35().Numbers("qwen35.attention.recurrent_layers", {1})), HasSubstr("for each layer"));
  EXPECT_THAT(ConfigError(Qwen35().U32("qwen35.attention.sliding_window", 8)), HasSubstr("not supported for qwen35"));
  EXPECT_THAT(ConfigError(Model("llama").U32("llama.nextn_predict_layers", 1)), HasSubstr("may change"));
}

// Two layers, the first of them Mamba-2, and a block of as many elements as Model's.
GgufWriter GraniteHybrid(const std::string& changed = "", const std::vector<std::int32_t>& kv_heads = {0, 2}) {
  GgufWriter writer = Model("granitehybrid", kv_heads);
  AddStates(writer, "granitehybrid", changed);
  if (const std::string shared = "expert_shared_feed_forward_length"; shared != changed)
    writer.U32("granitehybrid." + shared, 16);
  return writer;
}

TEST(GgufConfigTest, KnowsTheLayersOfGraniteHybrid) {
  GgufWriter writer = GraniteHybrid();
  const ModelConfig config = ConfigOf(writer).value();
  EXPECT_EQ(config.family, ModelFamily::kGraniteHybrid);
  EXPECT_TRUE(config.recurrent->mamba);
  EXPECT_EQ(config.recurrent->layers, (std::vector<bool>{true, false}));
  EXPECT_EQ(config.recurrent->key_heads, 2);
  EXPECT_EQ(config.recurrent->key_dim, 6);
  EXPECT_EQ(config.recurrent->value_dim, 8);
  EXPECT_FALSE(config.recurrent->conv_bias);  // the file has no such tensor
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.intermediate_size, 16);
  EXPECT_FALSE(config.experts);
  EXPECT_EQ(config.RopeOf(1), LayerRope::kMain);
  GgufWriter without_rope = GraniteHybrid();
  without_rope.Bool("granitehybrid.rope.scaling.finetuned", false);
  EXPECT_EQ(ConfigOf(without_rope)->RopeOf(1), LayerRope::kNone);
  GgufWriter experts = GraniteHybrid("expert_shared_feed_forward_length");
  experts.U32("granitehybrid.expert_shared_feed_forward_length", 24);
  experts.U32("granitehybrid.expert_count", 6).U32("granitehybrid.expert_used_count", 2);
  const ModelConfig of_experts = ConfigOf(experts).value();
  EXPECT_EQ(of_experts.experts->route.experts, 6);
  EXPECT_EQ(of_experts.experts->shared_size, 24);
  EXPECT_FALSE(of_experts.experts->shared_gate);
}

// Those without Mamba layers have the architecture of Granite 3; the converter writes the sizes of states into them
// too.
TEST(GgufConfigTest, KnowsGranite4WithoutMamba) {
  for (const std::string architecture : {"granite", "granitemoe"}) {
    GgufWriter writer = Model(architecture, {2, 2});
    AddStates(writer, architecture, "");
    writer.U32(architecture + ".expert_shared_feed_forward_length", 16)
        .Bool(architecture + ".rope.scaling.finetuned", false);
    const ModelConfig config = ConfigOf(writer).value();
    EXPECT_EQ(config.family, ModelFamily::kGraniteHybrid);
    EXPECT_FALSE(config.recurrent);
    EXPECT_EQ(config.RopeOf(1), LayerRope::kNone);
    EXPECT_EQ(config.intermediate_size, 16);
    GgufWriter granite3 = Model(architecture);
    EXPECT_NE(ConfigOf(granite3)->family, ModelFamily::kGraniteHybrid);
    EXPECT_THAT(ConfigError(granite3.Bool(architecture + ".rope.scaling.finetuned", false)),
                HasSubstr("rope.scaling.finetuned' = false is not supported"));
  }
  EXPECT_EQ(ConfigError(Model("llama").Bool("llama.rope.scaling.finetuned", false)), "accepted");
}

TEST(GgufConfigTest, RefusesWhatContradictsGraniteHybrid) {
  ExpectStatesAreChecked("granitehybrid", [](const std::string& without) { return GraniteHybrid(without); });
  const auto heads = [](const std::vector<std::int32_t>& by_layer) { return ConfigError(GraniteHybrid("", by_layer)); };
  EXPECT_THAT(heads({0, 0}), HasSubstr("head_count_kv': expected above 0 in one layer at least"));
  EXPECT_THAT(heads({1, 2}), HasSubstr("0, or one number in all other layers"));
  EXPECT_THAT(heads({0}), HasSubstr("an integer for each of 2 layers"));
  EXPECT_THAT(heads({-1, 2}), HasSubstr("integers from 0 on"));
  GgufWriter experts = GraniteHybrid("expert_shared_feed_forward_length");
  experts.U32("granitehybrid.expert_count", 6).U32("granitehybrid.expert_used_count", 2);
  EXPECT_THAT(ConfigError(experts), HasSubstr("the size of the block beside the experts"));
  GgufWriter other_size = GraniteHybrid("expert_shared_feed_forward_length");
  EXPECT_THAT(ConfigError(other_size.U32("granitehybrid.expert_shared_feed_forward_length", 24)),
              HasSubstr("that of feed_forward_length, 16"));
}

// Two layers, the second of attention; the first is what its tensor says.
GgufWriter NemotronH(const std::string& changed = "", const std::string& first = "ssm_in",
                     const std::vector<std::int32_t>& kv_heads = {0, 2}) {
  GgufWriter writer = Model("nemotron_h", kv_heads);
  AddStates(writer, "nemotron_h", changed);
  writer.Tensor("blk.0." + first + ".weight", 0, {8, 8}, std::string(256, '\0'));
  writer.Tensor("blk.1.attn_q.weight", 0, {8, 8}, std::string(256, '\0'));
  return writer;
}

TEST(GgufConfigTest, KnowsTheLayersOfNemotronH) {
  const ModelConfig config = ConfigOf(NemotronH()).value();
  EXPECT_EQ(config.family, ModelFamily::kNemotronH);
  EXPECT_EQ(config.layer_parts, (std::vector<LayerPart>{LayerPart::kMixer, LayerPart::kMixer}));
  EXPECT_EQ(config.recurrent->layers, (std::vector<bool>{true, false}));
  EXPECT_EQ(config.recurrent->value_dim, 8);
  EXPECT_EQ(config.KvLayers(), 1);
  EXPECT_EQ(config.RopeOf(1), LayerRope::kNone);
  EXPECT_FALSE(config.experts || config.recurrent->conv_bias || config.mlp_bias);
  const ModelConfig feeds = ConfigOf(NemotronH("", "ffn_up")).value();
  EXPECT_EQ(feeds.layer_parts.front(), LayerPart::kFeedForward);
  EXPECT_EQ(feeds.intermediate_size, 16);
  EXPECT_FALSE(feeds.recurrent);
}

TEST(GgufConfigTest, RefusesWhatContradictsNemotronH) {
  ExpectStatesAreChecked("nemotron_h", [](const std::string& without) { return NemotronH(without); });
  EXPECT_THAT(ConfigError(NemotronH("", "ssm_in", {1, 2})), HasSubstr("one number in all layers of attention"));
  EXPECT_THAT(ConfigError(NemotronH("", "attn_q", {1, 2})), HasSubstr("one number in all layers of attention"));
  EXPECT_THAT(ConfigError(NemotronH().Bool("nemotron_h.rope.scaling.finetuned", true)), HasSubstr("does not turn"));
  EXPECT_THAT(ConfigError(NemotronH().U32("nemotron_h.moe_latent_size", 8)), HasSubstr("may change what the model"));
  EXPECT_THAT(ConfigError(Model("falcon-h1")), HasSubstr("weights times the model's multipliers"));
}

TEST(GgufConfigTest, KnowsTheMixturesWithDeltaNet) {
  for (const std::string architecture : {"qwen35moe", "qwen3next"}) {
    GgufWriter writer = Model(architecture);
    AddStates(writer, architecture, "");
    writer.U32(architecture + ".full_attention_interval", 2).U32(architecture + ".expert_count", 6);
    writer.U32(architecture + ".expert_used_count", 3).U32(architecture + ".expert_feed_forward_length", 20);
    writer.U32(architecture + ".expert_shared_feed_forward_length", 28);
    const ModelConfig config = ConfigOf(writer).value();
    EXPECT_EQ(config.recurrent->layers, (std::vector<bool>{true, false}));
    EXPECT_EQ(config.experts->route.per_token, 3);
    EXPECT_EQ(config.experts->intermediate_size, 20);
    EXPECT_EQ(config.experts->shared_size, 28);
    EXPECT_TRUE(config.experts->route.renormalise && config.experts->shared_gate && config.output_gate);
  }
}

TEST(GgufConfigTest, BoundsTheNumberOfLayers) {
  for (const char* architecture : {"llama", "gemma2"}) {
    GgufWriter writer;
    const std::string prefix = std::string(architecture) + ".";
    writer.Text("general.architecture", architecture).F32(prefix + "attention.layer_norm_rms_epsilon", 1e-5f);
    writer.U32(prefix + "embedding_length", 8).U32(prefix + "block_count", 1 << 30);
    EXPECT_THAT(ConfigError(writer), HasSubstr("block_count'")) << architecture;
  }
}

TEST(GgufConfigTest, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(ConfigError(Model("mamba")), HasSubstr("general.architecture 'mamba' is not supported; loramux serves"));
  EXPECT_THAT(ConfigError(GgufWriter()), HasSubstr("general.architecture is missing"));
  const auto with = [](const std::function<void(GgufWriter&)>& add) {
    GgufWriter writer = Model("llama");
    add(writer);
    return ConfigError(writer);
  };
  EXPECT_EQ(with([](GgufWriter& w) { w.Text("tokenizer.ggml.model", "gpt2").U32("llama.expert_count", 0); }),
            "accepted");
  EXPECT_THAT(with([](GgufWriter& w) { w.F32("llama.attn_logit_softcapping", 50); }),
              HasSubstr("'llama.attn_logit_softcapping' = 50.000000 may change"));
  EXPECT_THAT(with([](GgufWriter& w) { w.U32("llama.expert_count", 8); }), HasSubstr("llama.expert_used_count"));
  EXPECT_THAT(with([](GgufWriter& w) { w.Bool("llama.attention.causal", false); }), HasSubstr("causal' = false"));
  EXPECT_THAT(with([](GgufWriter& w) { w.U32("llama.attention.value_length", 6); }), HasSubstr("value_length 6"));
  EXPECT_THAT(with([](GgufWriter& w) { w.Text("general.type", "adapter"); }), HasSubstr("'adapter'"));
  EXPECT_THAT(with([](GgufWriter& w) { w.Text("general.type", "adapter"); }), HasSubstr("--lora-modules NAME=FILE"));
  EXPECT_THAT(
      with([](GgufWriter& w) { w.Text("llama.rope.scaling.type", "longrope").F32("llama.rope.scaling.factor", 4); }),
      HasSubstr("rope_scaling.short_factor is missing"));
  GgufWriter heads = Model("qwen3");
  EXPECT_THAT(ConfigError(heads.Numbers("qwen3.attention.key_length", {4, 4})), HasSubstr("an array of 2"));
}

// ---- the files of a model

std::string TokenizerError(const GgufWriter& writer) {
  const std::string bytes = writer.Bytes();
  const auto text = GgufTokenizer(GgufFile::Parse(AsBytes(bytes), "FILE").value());
  return text.ok() ? "accepted" : text.error().message;
}

TEST(GgufTokenizerTest, RefusesOthersByName) {
  const auto with = [](const std::string& model, const std::function<void(GgufWriter&)>& add) {
    GgufWriter writer;
    add(writer.Text("tokenizer.ggml.model", model));
    return TokenizerError(writer);
  };
  EXPECT_THAT(with("bert", [](GgufWriter&) {}), HasSubstr("'bert' found"));
  EXPECT_THAT(with("gpt2", [](GgufWriter&) {}),
              HasSubstr("a list of 1 to 1048576 tokens; give the model's own with --tokenizer"));
  EXPECT_THAT(with("gpt2",
                   [](GgufWriter& w) {
                     w.Texts("tokenizer.ggml.tokens", {"a", "b"});
                   }),
              HasSubstr("tokenizer.ggml.pre: none found, but loramux knows how text is cut only for gpt-2, phi-2"));
  EXPECT_THAT(
      with("gpt2",
           [](GgufWriter& w) { w.Texts("tokenizer.ggml.tokens", {"a"}).Text("tokenizer.ggml.pre", "deepseek-v3"); }),
      HasSubstr("'deepseek-v3' found"));
  EXPECT_THAT(with("gpt2", [](GgufWriter& w) { w.Texts("tokenizer.ggml.tokens", {"a", "a"}); }), HasSubstr("twice"));
  EXPECT_THAT(
      with("gpt2",
           [](GgufWriter& w) { w.Texts("tokenizer.ggml.tokens", {"\xff"}).Text("tokenizer.ggml.pre", "gpt-2"); }),
      HasSubstr("UTF-8"));
  EXPECT_THAT(with("llama", [](GgufWriter& w) { w.Texts("tokenizer.ggml.tokens", {"a"}); }), HasSubstr("scores"));
  EXPECT_THAT(with("gpt2",
                   [](GgufWriter& w) {
                     w.Texts("tokenizer.ggml.tokens", {"a", "b"}).Numbers("tokenizer.ggml.token_type", {1});
                   }),
              HasSubstr("a number for each of the 2 tokens"));
  EXPECT_THAT(with("gemma4", [](GgufWriter& w) { w.Texts("tokenizer.ggml.tokens", {"a"}); }),
              HasSubstr("tokenizer.ggml.merges: expected the merges of the tokens, found none"));
  EXPECT_THAT(
      with("gemma4",
           [](GgufWriter& w) { w.Texts("tokenizer.ggml.tokens", {"a"}).Texts("tokenizer.ggml.merges", {" a"}); }),
      HasSubstr("two tokens and a space between them, found ' a'"));
}

TEST(GgufGenerationConfigTest, KnowsTheTokensThatEndATurn) {
  const auto ends = [](const std::vector<std::string>& tokens) {
    GgufWriter writer = Model("llama");  // whose keys name the tokens 2 and 3
    const std::string bytes = writer.Texts("tokenizer.ggml.tokens", tokens).Bytes();
    const auto text = GgufGenerationConfig(GgufFile::Parse(AsBytes(bytes), "FILE").value());
    return json::parse(text.value())["eos_token_id"];
  };
  EXPECT_EQ(ends({"a", "b", "c", "<end_of_turn>", "<|im_end|>", "x"}), json({2, 3, 4}));
  EXPECT_EQ(ends({"<|end|>", "b", "c", "d"}), json({2, 3, 0}));                        // Phi-3
  EXPECT_EQ(ends({"<|end|>", "<|call|>", "<|return|>", "d"}), json({2, 3, 1}));        // gpt-oss
  EXPECT_EQ(ends({"<turn|>", "<|tool_response>", "c", "<end>"}), json({2, 3, 0, 1}));  // Gemma 4
}

TEST(ModelFilesTest, AGgufFileHasTheFilesOfADirectory) {
  const TempFolder folder;
  GgufWriter writer = Model("llama");
  writer.F32("general.sampling.temp", 0.7f).Text("tokenizer.chat_template", "{{ bos_token }}");
  writer.U32("tokenizer.ggml.bos_token_id", 1).Texts("tokenizer.ggml.tokens", {"a", "b", "c", "d", "e"});
  const std::filesystem::path path = folder.path() / "model.gguf";
  std::ofstream(path, std::ios::binary) << writer.Bytes();
  EXPECT_TRUE(IsGgufModel(path));
  const ModelConfig config = LoadModelConfig(path).value();
  EXPECT_EQ(config.hidden_size, 8);
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.eos_token_ids, (std::vector<TokenId>{2, 3}));
  EXPECT_EQ(LoadGenerationDefaults(path)->temperature, 0.7f);
  EXPECT_EQ(json::parse(ReadModelFile(path / "tokenizer_config.json", 1000).value()),
            (json{{"bos_token", "b"}, {"eos_token", "c"}, {"chat_template", "{{ bos_token }}"}}));
  EXPECT_EQ(ReadModelFile(path / "special_tokens_map.json", 1).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(ReadModelFile(folder.path() / "none.gguf" / "config.json", 1).error().code, ErrorCode::kNotFound);
  std::filesystem::create_directory(folder.path() / "folder.gguf");
  std::ofstream(folder.path() / "folder.gguf" / "config.json") << "{}";
  EXPECT_FALSE(IsGgufModel(folder.path() / "folder.gguf"));
  EXPECT_EQ(ReadModelFile(folder.path() / "folder.gguf" / "config.json", 9).value(), "{}");
}

}  // namespace
}  // namespace loramux::gguf_file_test
