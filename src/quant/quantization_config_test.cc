#include "quant/quantization_config.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace loramux::quantization_config_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Spread = QuantScheme::Spread;
using Store = QuantScheme::Store;

json Gptq() { return {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}, {"desc_act", false}}; }
json Awq() { return {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 64}, {"version", "GEMM"}}; }
json Fp8() { return {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 64}}}; }
json Nf4() { return {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}, {"bnb_4bit_quant_type", "nf4"}}; }
json Weights(const json& more) {
  json weights = {{"num_bits", 4}, {"type", "int"}, {"strategy", "group"}, {"group_size", 32}, {"symmetric", true}};
  weights.update(more);
  return weights;
}
json Compressed(const std::string& format, const json& weights) {
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"ignore", {"lm_head", "re:.*layers\\.0\\.mlp.*"}},
          {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
}
json With(json object, const json& more) {
  object.update(more);
  return object;
}

Result<QuantizationConfig> Parse(const json& config) { return ParseQuantizationConfig(config.dump(), "FILE"); }
QuantizationConfig Parsed(const json& config) {
  auto parsed = Parse(config);
  if (!parsed.ok()) {
    ADD_FAILURE() << parsed.error().message;
    return {};
  }
  return std::move(parsed).value();
}
std::string ErrorOf(const json& config) {
  const auto parsed = Parse(config);
  return parsed.ok() ? "accepted" : parsed.error().message;
}

TEST(QuantizationConfig, Gptq) {
  const QuantizationConfig config = Parsed(Gptq());
  EXPECT_EQ(config.method, QuantMethod::kGptq);
  EXPECT_EQ(config.scheme.bits, 4);
  EXPECT_EQ(config.scheme.group_size, 128);
  EXPECT_EQ(config.zero_offset, 1);
  EXPECT_EQ(Parsed(With(Gptq(), {{"checkpoint_format", "gptq_v2"}})).zero_offset, 0);
  EXPECT_EQ(Parsed(With(Gptq(), {{"format", "gptq_v2"}})).zero_offset, 0);
  EXPECT_EQ(Parsed(With(Gptq(), {{"group_size", -1}})).scheme.spread, Spread::kChannel);
  EXPECT_THAT(ErrorOf(With(Gptq(), {{"bits", 3}})), HasSubstr("FILE: quantization_config.bits: found 3"));
  EXPECT_THAT(ErrorOf(With(Gptq(), {{"bits", 3}})), HasSubstr("GPTQ with 4 or 8 bits"));
  EXPECT_THAT(ErrorOf(With(Gptq(), {{"checkpoint_format", "marlin"}})), HasSubstr("gptq and gptq_v2"));
  EXPECT_THAT(ErrorOf(With(Gptq(), {{"group_size", 0}})), HasSubstr("group_size: expected -1"));
  EXPECT_EQ(ErrorOf(With(Gptq(), {{"dynamic", {{"-:.*mlp.*", json::object()}}}})), "accepted");  // only skips
  EXPECT_THAT(ErrorOf(With(Gptq(), {{"dynamic", {{"-:a", json::object()}, {"+:b", {{"bits", 8}}}}}})),
              HasSubstr("dynamic: found settings for the modules '+:b'"));
  EXPECT_THAT(ErrorOf(With(Gptq(), {{"dynamic", {{"b", {{"bits", 8}}}}}})), HasSubstr("the modules 'b'"));
  EXPECT_THAT(ErrorOf(With(Gptq(), {{"dynamic", {1}}})), HasSubstr("dynamic: expected an object"));
  EXPECT_THAT(ErrorOf(With(Gptq(), {{"bits", nullptr}})),
              HasSubstr("bits: expected an integer from 1 to 64, found null"));
}

TEST(QuantizationConfig, Awq) {
  const QuantizationConfig config = Parsed(Awq());
  EXPECT_EQ(config.method, QuantMethod::kAwq);
  EXPECT_EQ(config.scheme.group_size, 64);
  EXPECT_THAT(ErrorOf(With(Awq(), {{"version", "gemv"}})), HasSubstr("version: found \"gemv\""));
  EXPECT_THAT(ErrorOf(With(Awq(), {{"bits", 8}})), HasSubstr("AWQ with 4 bits"));
  EXPECT_THAT(ErrorOf(With(Awq(), {{"zero_point", false}})), HasSubstr("AWQ with zero points"));
  EXPECT_THAT(ErrorOf(With(Awq(), {{"modules_to_not_convert", "lm_head"}})), HasSubstr("a list of names"));
}

TEST(QuantizationConfig, Fp8) {
  const QuantizationConfig config = Parsed(Fp8());
  EXPECT_EQ(config.scheme.spread, Spread::kBlock);
  EXPECT_EQ(config.scheme.block_rows, 128);
  EXPECT_EQ(config.scheme.block_columns, 64);
  EXPECT_EQ(Parsed({{"quant_method", "fp8"}}).scheme.spread, Spread::kTensor);
  EXPECT_EQ(Parsed({{"quant_method", "fbgemm_fp8"}, {"activation_scale_ub", 1200.0}}).scheme.spread, Spread::kChannel);
  EXPECT_THAT(ErrorOf(With(Fp8(), {{"fmt", "e5m2"}})), HasSubstr("FP8 as e4m3"));
  EXPECT_THAT(ErrorOf(With(Fp8(), {{"scale_fmt", "ue8m0"}})), HasSubstr("scales in floats"));
  EXPECT_THAT(ErrorOf(With(Fp8(), {{"weight_block_size", {128}}})), HasSubstr("two extents"));
  EXPECT_THAT(ErrorOf(With(Fp8(), {{"weight_block_size", {128, 0}}})), HasSubstr("two extents"));
}

TEST(QuantizationConfig, Fp8OfGptqModel) {
  const auto with = [](const json& more) {
    return With({{"quant_method", "fp8"},
                 {"method", "fp8"},
                 {"bits", 8},
                 {"group_size", -1},
                 {"desc_act", false},
                 {"format", "float8_e4m3fn"},
                 {"checkpoint_format", "float8_e4m3fn"},
                 {"pack_dtype", "int32"},
                 {"meta", {{"quantizer", {"gptqmodel:7.7.0"}}}},
                 {"weight_scale_semantics", "inverse"}},
                more);
  };
  const auto scheme = [&](const json& more) { return Parsed(with(more)).scheme; };
  EXPECT_TRUE(scheme({{"weight_scale_method", "tensor"}}).inverse);
  EXPECT_FALSE(Parsed(Fp8()).scheme.inverse);
  EXPECT_EQ(scheme({{"weight_scale_method", "tensor"}}).spread, Spread::kTensor);
  EXPECT_EQ(scheme({{"weight_scale_method", "row"}}).spread, Spread::kChannel);
  EXPECT_EQ(scheme({{"weight_scale_method", "block"}, {"weight_block_size", {64, 32}}}).block_columns, 32);
  EXPECT_THAT(ErrorOf(with({{"weight_scale_method", "block"}})), HasSubstr("expected both for scales of blocks"));
  EXPECT_THAT(ErrorOf(with({{"weight_scale_method", "row"}, {"weight_block_size", {64, 32}}})), HasSubstr("'row'"));
  EXPECT_THAT(ErrorOf(with({{"weight_scale_method", "column"}})), HasSubstr("tensor, row and block"));
  EXPECT_THAT(ErrorOf(with({{"weight_scale_semantics", "log"}})), HasSubstr("serves inverse"));
  EXPECT_THAT(ErrorOf(with({{"format", "float8_e5m2"}})), HasSubstr("format: found \"float8_e5m2\""));
  EXPECT_THAT(ErrorOf(with({{"bits", 4}})), HasSubstr("bits: found 4"));
}

// A key that no one here knows may change every value.
TEST(QuantizationConfig, UnknownKeysAreRefusedByName) {
  const json weights = Weights(json::object());
  for (json config :
       {Gptq(), Awq(), Fp8(), Nf4(), Compressed("pack-quantized", weights), json{{"quant_method", "fbgemm_fp8"}}}) {
    EXPECT_EQ(ErrorOf(config), "accepted");
    EXPECT_EQ(ErrorOf(With(config, {{"scale_twist", nullptr}, {"a", false}, {"b", json::array()}})), "accepted");
    EXPECT_THAT(ErrorOf(With(config, {{"scale_twist", "log"}})),
                HasSubstr("quantization_config.scale_twist is \"log\": loramux does not know this key"));
    EXPECT_EQ(ErrorOf(With(config, {{"damp_percent", 0.1}, {"meta", {{"x", 1}}}})), "accepted");
  }
  EXPECT_THAT(ErrorOf(Compressed("pack-quantized", Weights({{"twist", 1}}))),
              HasSubstr("config_groups.group_0.weights.twist is 1"));
  json config = Compressed("pack-quantized", weights);
  config["config_groups"]["group_0"]["twist"] = 1;
  EXPECT_THAT(ErrorOf(config), HasSubstr("config_groups.group_0.twist is 1"));
  EXPECT_THAT(ErrorOf(With(Compressed("pack-quantized", weights), {{"moe_sparsity_config", {{"a", 1}}}})),
              HasSubstr("moe_sparsity_config"));
}

TEST(QuantizationConfig, BitsAndBytes) {
  EXPECT_EQ(Parsed(Nf4()).scheme.bits, 4);
  EXPECT_EQ(Parsed({{"load_in_8bit", true}}).scheme.bits, 8);
  EXPECT_THAT(ErrorOf(With(Nf4(), {{"load_in_8bit", true}})), HasSubstr("found both"));
  EXPECT_THAT(ErrorOf(With(Nf4(), {{"bnb_4bit_quant_type", "int4"}})), HasSubstr("nf4 and fp4"));
}

TEST(QuantizationConfig, CompressedTensors) {
  const QuantizationConfig config = Parsed(Compressed("pack-quantized", Weights({{"symmetric", false}})));
  const QuantScheme* scheme = config.SchemeOf("model.layers.1.mlp.up_proj");
  ASSERT_NE(scheme, nullptr);
  EXPECT_EQ(scheme->store, Store::kPackedIntegers);
  EXPECT_EQ(scheme->group_size, 32);
  EXPECT_FALSE(scheme->symmetric);
  EXPECT_EQ(config.SchemeOf("lm_head"), nullptr);
  EXPECT_EQ(config.SchemeOf("model.layers.0.mlp.up_proj"), nullptr);
  EXPECT_FALSE(config.static_activations);
  const json channel = Weights({{"num_bits", 8}, {"strategy", "channel"}, {"group_size", nullptr}});
  const auto store = [](const json& config) { return Parsed(config).SchemeOf("a")->store; };
  EXPECT_EQ(store(Compressed("int-quantized", channel)), Store::kIntegers);
  EXPECT_EQ(store(Compressed("int-quantized", Weights(json::object()))), Store::kIntegers);  // 4 bits in a byte
  EXPECT_THAT(ErrorOf(Compressed("int-quantized", Weights({{"num_bits", 16}}))), HasSubstr("2 to 8 bits"));
  EXPECT_EQ(store(Compressed("float-quantized", With(channel, {{"type", "float"}}))), Store::kFloat8);
  EXPECT_EQ(store(Compressed("naive-quantized", With(channel, {{"type", "float"}}))), Store::kFloat8);
}

TEST(QuantizationConfig, Descriptions) {
  EXPECT_EQ(Describe(Parsed(Gptq())), "gptq, 4 bits in groups of 128");
  EXPECT_EQ(Describe(Parsed(Fp8())), "fp8, FP8 in blocks of 128 x 64");
  EXPECT_EQ(Describe(Parsed(Nf4())), "bitsandbytes, 4 bits");
  EXPECT_EQ(Describe(Parsed(Compressed("pack-quantized", Weights(json::object())))),
            "compressed-tensors, 4 bits in groups of 32");
}

TEST(QuantizationConfig, NamesGoBeforeClasses) {
  json config = Compressed("pack-quantized", Weights(json::object()));
  config["config_groups"]["z"] = {{"targets", {"re:.*down_proj"}},
                                  {"weights", Weights({{"num_bits", 8}})},
                                  {"input_activations", {{"dynamic", false}}}};
  const QuantizationConfig parsed = Parsed(config);
  EXPECT_EQ(parsed.SchemeOf("model.layers.1.mlp.up_proj")->bits, 4);
  EXPECT_EQ(parsed.SchemeOf("model.layers.1.mlp.down_proj")->bits, 8);
  EXPECT_TRUE(parsed.static_activations);
}

TEST(QuantizationConfig, RefusesWhatCompressedTensorsMayHold) {
  const json weights = Weights(json::object());
  EXPECT_THAT(ErrorOf(Compressed("mxfp6-pack-quantized", With(weights, {{"type", "float"}}))),
              HasSubstr("format 'mxfp6-pack-quantized'"));
  EXPECT_THAT(ErrorOf(Compressed("nvfp4-pack-quantized", With(weights, {{"type", "float"}}))),
              HasSubstr("group_size: found 32, which is not supported; loramux serves 16 inputs in each group"));
  EXPECT_THAT(ErrorOf(Compressed("nvfp4-pack-quantized", With(weights, {{"type", "float"}, {"num_bits", 8}}))),
              HasSubstr("floats of 4 bits in nvfp4-pack-quantized"));
  EXPECT_THAT(ErrorOf(Compressed("mxfp8-quantized", With(weights, {{"type", "float"}, {"strategy", "tensor"}}))),
              HasSubstr("mxfp8-quantized"));
  EXPECT_THAT(ErrorOf(Compressed("pack-quantized", With(weights, {{"num_bits", 3}}))), HasSubstr("4 or 8 bits"));
  EXPECT_THAT(ErrorOf(Compressed("pack-quantized", With(weights, {{"strategy", "tensor_group"}}))),
              HasSubstr("strategy: found \"tensor_group\""));
  EXPECT_THAT(ErrorOf(Compressed("pack-quantized", With(weights, {{"group_size", nullptr}}))),
              HasSubstr("config_groups.group_0.weights.group_size: expected an integer"));
  EXPECT_THAT(ErrorOf(With(Compressed("pack-quantized", weights), {{"ignore", {"re:(?=x)"}}})),
              HasSubstr("cannot be matched in bounded time"));
  EXPECT_THAT(ErrorOf(With(Compressed("pack-quantized", weights), {{"transform_config", {{"a", 1}}}})),
              HasSubstr("transform_config"));
  EXPECT_THAT(ErrorOf(With(Compressed("pack-quantized", weights), {{"config_groups", json::object()}})),
              HasSubstr("config_groups: expected"));
  EXPECT_THAT(
      ErrorOf(With(Compressed("pack-quantized", weights), {{"sparsity_config", {{"format", "sparse-24-bitmask"}}}})),
      HasSubstr("sparsity_config.format"));
}

TEST(QuantizationConfig, ModelOptIsServedAsItsAlgorithmSays) {
  const json group = {{"targets", {"Linear"}},
                      {"weights", {{"num_bits", 4}, {"type", "float"}, {"group_size", 16}, {"dynamic", false}}}};
  const json config = {{"quant_method", "modelopt"},
                       {"quant_algo", "NVFP4"},
                       {"ignore", {"lm_head", "*router*"}},
                       {"config_groups", {{"group_0", group}}}};
  EXPECT_EQ(Describe(Parsed(config)), "modelopt, NVFP4 in groups of 16");
  EXPECT_EQ(Describe(Parsed({{"quant_method", "modelopt"}, {"quant_algo", "FP8"}})),
            "modelopt, FP8 with a scale for each matrix");
  EXPECT_THAT(ErrorOf({{"quant_method", "modelopt"}}), HasSubstr("quant_algo is missing: expected FP8"));
  EXPECT_THAT(ErrorOf(With(config, {{"quant_algo", "NVFP4_AWQ"}})), HasSubstr("quant_algo: found \"NVFP4_AWQ\""));
  EXPECT_THAT(ErrorOf(With(config, {{"quant_algo", "FP8"}})), HasSubstr("num_bits: found 4"));
  const auto with_group = [&](const json& changed) {
    return ErrorOf(With(config, {{"config_groups", {{"group_0", With(group, changed)}}}}));
  };
  EXPECT_THAT(with_group({{"pre_quant_scale", true}}), HasSubstr("group_0.pre_quant_scale is true"));
  EXPECT_THAT(with_group({{"weights", {{"num_bits", 4}}}}), HasSubstr("weights.type is missing"));
  EXPECT_THAT(with_group({{"weights", {{"num_bits", 4}, {"type", "int"}}}}), HasSubstr("type: found \"int\""));
  EXPECT_THAT(with_group({{"weights", {{"num_bits", 4}, {"type", "float"}, {"group_size", 32}}}}),
              HasSubstr("group_size: found 32"));
}

TEST(QuantizationConfig, RefusesOtherMethodsByName) {
  for (const char* method : {"aqlm", "hqq", "eetq", "quanto", "bitnet", "nvfp4", "torchao", "vptq", "higgs"}) {
    const std::string error = ErrorOf({{"quant_method", method}, {"bits", 4}});
    EXPECT_THAT(error, HasSubstr("quantization_config.quant_method: found \"" + std::string(method) + "\""));
    EXPECT_THAT(error, HasSubstr("gptq, awq, compressed-tensors"));
  }
  EXPECT_THAT(ErrorOf({{"bits", 4}}), HasSubstr("quant_method is missing"));
  EXPECT_THAT(ErrorOf(json::array({1})), HasSubstr("FILE: quantization_config: "));
}

}  // namespace
}  // namespace loramux::quantization_config_test
