#include "formats/adapter_config.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "formats/adapter_patterns.h"
#include "formats/test_files.h"

namespace loramux::adapter_config_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using testing::HasSubstr;

constexpr const char* kQ0 = "model.layers.0.self_attn.q_proj";

ordered_json Plain() {
  return {{"peft_type", "LORA"}, {"r", 4}, {"lora_alpha", 8}, {"target_modules", {"q_proj"}}, {"bias", "none"}};
}

ordered_json With(ordered_json config, const ordered_json& changes) {
  config.update(changes);
  return config;
}

AdapterConfig Parsed(const ordered_json& config) {
  const auto result = ParseAdapterConfig(config.dump(), "adapter_config.json");
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result.ok() ? *result : AdapterConfig();
}

std::string ErrorOf(const ordered_json& config) {
  const auto result = ParseAdapterConfig(config.dump(), "adapter_config.json");
  return result.ok() ? "accepted" : result.error().message;
}

TEST(AdapterConfigTest, RankAndScale) {
  const AdapterConfig config = Parsed(Plain());
  EXPECT_EQ(config.RankOf(kQ0), 4);
  EXPECT_EQ(config.ScaleOf(kQ0), 2.0);
  EXPECT_DOUBLE_EQ(Parsed(With(Plain(), {{"use_rslora", true}})).ScaleOf(kQ0), 4.0);
  EXPECT_DOUBLE_EQ(Parsed(With(Plain(), {{"lora_alpha", 2.5}})).ScaleOf(kQ0), 0.625);
}

TEST(AdapterConfigTest, TheFirstPatternInFileOrderCounts) {
  const AdapterConfig config = Parsed(With(
      Plain(), {{"rank_pattern",
                 {{"z_proj", 1}, {"^model.layers.1.self_attn.q_proj", 16}, {"layers\\.1\\..*", 9}, {"q_proj", 25}}},
                {"alpha_pattern", {{"self_attn\\.(q|v)_proj", 50}, {"proj", 7}}},
                {"use_rslora", true}}));
  EXPECT_EQ(config.RankOf("model.layers.1.self_attn.q_proj"), 16);
  EXPECT_EQ(config.RankOf("model.layers.1.self_attn.k_proj"), 9);
  EXPECT_EQ(config.RankOf("model.layers.0.self_attn.q_proj"), 25);
  EXPECT_EQ(config.RankOf("model.layers.0.self_attn.xq_proj"), 4);  // a key matches only at the start or after a dot
  EXPECT_EQ(config.RankOf("model.layers.11.self_attn.k_proj"), 4);
  EXPECT_DOUBLE_EQ(config.ScaleOf("model.layers.0.self_attn.q_proj"), 10.0);  // 50 / sqrt(25)
  EXPECT_DOUBLE_EQ(config.ScaleOf("model.layers.0.self_attn.k_proj"), 4.0);   // "proj" alone is no whole component
}

TEST(AdapterConfigTest, TargetsAsPeftDoes) {
  const AdapterConfig suffix = Parsed(Plain());
  EXPECT_TRUE(suffix.Targets(kQ0));
  EXPECT_FALSE(suffix.Targets("model.layers.0.self_attn.k_proj"));
  EXPECT_FALSE(suffix.Targets("model.layers.0.self_attn.xq_proj"));
  const AdapterConfig regex = Parsed(With(Plain(), {{"target_modules", ".*\\.(q|v)_proj"}}));
  EXPECT_TRUE(regex.Targets(kQ0));
  EXPECT_FALSE(regex.Targets("model.layers.0.self_attn.q_proj.x"));  // a full match is needed
  const AdapterConfig all = Parsed(With(Plain(), {{"target_modules", "All-Linear"}}));
  EXPECT_TRUE(all.all_linear);
  EXPECT_TRUE(all.Targets(kQ0));
  EXPECT_FALSE(all.Targets("lm_head"));
  EXPECT_TRUE(Parsed(With(Plain(), {{"target_modules", nullptr}})).Targets("anything"));
  EXPECT_FALSE(Parsed(With(Plain(), {{"target_modules", nlohmann::ordered_json::array()}}))
                   .Targets(kQ0));  // PEFT adapts no module
  const AdapterConfig excluded = Parsed(With(Plain(), {{"exclude_modules", {"layers.0.self_attn.q_proj"}}}));
  EXPECT_FALSE(excluded.Targets(kQ0));
  EXPECT_TRUE(excluded.Targets("model.layers.1.self_attn.q_proj"));
  EXPECT_FALSE(Parsed(With(Plain(), {{"exclude_modules", ".*0.*"}})).Targets(kQ0));
  for (const ordered_json& pattern : {ordered_json(nullptr), ordered_json("layers"), ordered_json({"h", "layers"})}) {
    const AdapterConfig layers = Parsed(With(Plain(), {{"layers_to_transform", {1, 2}}, {"layers_pattern", pattern}}));
    EXPECT_FALSE(layers.Targets(kQ0));
    EXPECT_TRUE(layers.Targets("model.layers.2.self_attn.q_proj"));
  }
  EXPECT_TRUE(Parsed(With(Plain(), {{"layers_to_transform", 0}})).Targets(kQ0));
}

TEST(AdapterConfigTest, PatternsBeyondBoundedTime) {
  // As a rank or scale such a pattern would decide something, so it is refused. As a target it is only a cross-check,
  // which is skipped.
  EXPECT_THAT(ErrorOf(With(Plain(), {{"rank_pattern", {{"(?=q)q_proj", 8}}}})),
              HasSubstr("rank_pattern: the pattern '(?=q)q_proj'"));
  EXPECT_THAT(ErrorOf(With(Plain(), {{"alpha_pattern", {{"(a)\\1", 8}}}})), HasSubstr("alpha_pattern"));
  EXPECT_TRUE(Parsed(With(Plain(), {{"target_modules", "^(?!.*visual).*q_proj$"}})).Targets(kQ0));
  // A malformed pattern is an error in every field.
  EXPECT_THAT(ErrorOf(With(Plain(), {{"target_modules", "(q_proj"}})), HasSubstr("is not a regular expression"));
  EXPECT_THAT(ErrorOf(With(Plain(), {{"rank_pattern", {{"[", 8}}}})), HasSubstr("is not a regular expression"));
}

// An engine that backtracks would take longer than the universe is old: the test ends, which is all that it asks.
TEST(AdapterConfigTest, AnEvilPatternIsFast) {
  const AdapterConfig config = Parsed(With(Plain(), {{"rank_pattern", {{"(((a*)*)*)*b|(.*.*.*.*.*)*c", 8}}}}));
  EXPECT_EQ(config.RankOf(std::string(20'000, 'a')), 4);
}

ordered_json Keys(int count, const std::string& before, const std::string& after) {
  ordered_json keys = ordered_json::object();
  for (int i = 0; i < count; ++i) keys[before + std::to_string(i) + after] = 8;
  return keys;
}

// The limits are on sizes, which decide how much time and memory an adapter can cost.
TEST(AdapterConfigTest, PatternsAreBounded) {
  for (const char* field : {"rank_pattern", "alpha_pattern"}) {
    const auto error = [&](const ordered_json& keys) { return ErrorOf(With(Plain(), {{field, keys}})); };
    EXPECT_EQ(error(Keys(4096, "layers.", ".q_proj")), "accepted");
    EXPECT_THAT(error(Keys(4097, "layers.", ".q_proj")), HasSubstr("at most 4,096 patterns, found 4,097"));
    EXPECT_EQ(error(Keys(512, "layers\\.", "\\.[qv]_proj")), "accepted");
    EXPECT_THAT(error(Keys(513, "layers\\.", "\\.[qv]_proj")), HasSubstr("at most 512 regular expressions"));
    EXPECT_THAT(error({{std::string(1025, 'a'), 8}}), HasSubstr("at most 1,024 bytes in a pattern, found 1,025"));
    EXPECT_THAT(error(Keys(64, "[" + std::string(600, 'a') + "]", "")),
                HasSubstr("at most 32,768 bytes of regular expressions"));
    EXPECT_THAT(error(Keys(1000, "\\pL{50}", "")), HasSubstr("none of Python's escapes"));
    EXPECT_THAT(error(Keys(1000, "[^.]{999}", "")), HasSubstr("bounded time"));  // a program that is too large
    EXPECT_THAT(error(Keys(500, "[^.]{60}", "")), HasSubstr("at most 32,768 instructions"));
  }
  EXPECT_THAT(ErrorOf(With(Plain(), {{"target_modules", "\\pL{50}"}})), HasSubstr("none of Python's escapes"));
  EXPECT_THAT(ErrorOf(With(Plain(), {{"target_modules", "(a|b){3}" + std::string(32768, 'c')}})),
              HasSubstr("at most 32,768 bytes of regular expressions"));
  EXPECT_THAT(ErrorOf(With(Plain(), {{"target_modules", std::vector<std::string>(8193)}})),
              HasSubstr("at most 8,192 names"));
}

TEST(AdapterConfigTest, MatchingIsBoundedByTheNames) {
  const AdapterConfig config = Parsed(With(Plain(), {{"rank_pattern", Keys(20, "(.?){100}", "")}}));
  EXPECT_TRUE(config.patterns->CheckWork(1'000, "FILE").ok());
  const Status status = config.patterns->CheckWork(1'000'000, "FILE");
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("at most 100,000,000 steps"));
}

TEST(AdapterConfigTest, PlainKeysMatchAsExpressions) {
  const AdapterConfig config =
      Parsed(With(Plain(), {{"rank_pattern", {{"layers.1.q", 1}, {"layers\\.2.q", 2}, {"_proj", 3}, {"", 5}}}}));
  EXPECT_EQ(config.RankOf("layers.1.q"), 1);
  EXPECT_EQ(config.RankOf("model.layers.1.q"), 1);
  EXPECT_EQ(config.RankOf("model.layersX1Xq"), 1);  // a dot is any character
  EXPECT_EQ(config.RankOf("model.layers.2Xq"), 2);
  EXPECT_EQ(config.RankOf("model.layersX2.q"), 4);  // an escaped dot is a dot
  EXPECT_EQ(config.RankOf("model.layers.11.q"), 4);
  EXPECT_EQ(config.RankOf("q_proj"), 4);
  EXPECT_EQ(config.RankOf("q._proj"), 3);
  EXPECT_EQ(config.RankOf("q."), 5);
}

// Quadratic work would take more than an hour.
TEST(AdapterConfigTest, ManyObjectsTakeLinearTime) {
  std::string json = Plain().dump();
  json.back() = ',';
  json += "\"unknown\":[{}";
  while (json.size() < std::size_t{6} << 20) json += ",{}";
  json += R"(,{"rank_pattern":{"x":1}}],"rank_pattern":{"b":1,"a":2},"y":{"rank_pattern":{"c":1}}})";
  const auto config = ParseAdapterConfig(json, "FILE");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->rank_pattern, (std::vector<std::pair<std::string, std::int64_t>>{{"b", 1}, {"a", 2}}));
}

TEST(AdapterConfigTest, ManyPatternsAreEachFound) {
  ordered_json patterns = ordered_json::object();
  for (int layer = 0; layer < 80; ++layer) {
    for (const char* module : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                               "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      patterns["model.layers." + std::to_string(layer) + "." + module] = 1 + layer;
    }
  }
  const AdapterConfig config = Parsed(With(Plain(), {{"rank_pattern", patterns}, {"alpha_pattern", patterns}}));
  for (const auto& [name, rank] : patterns.items()) {
    EXPECT_EQ(config.RankOf(name), rank.get<int>());
    EXPECT_EQ(config.ScaleOf(name), 1.0);
  }
}

TEST(AdapterConfigTest, ReadsInvocationTokens) {
  const auto with = [](ordered_json value) { return With(Plain(), {{"alora_invocation_tokens", std::move(value)}}); };
  const ordered_json with_dora = With(Plain(), {{"use_dora", true}});
  EXPECT_TRUE(Parsed(with(nullptr)).invocation_tokens.empty());
  EXPECT_THAT(Parsed(with({7, 0, 2147483647})).invocation_tokens, testing::ElementsAre(7, 0, 2147483647));
  EXPECT_TRUE(Parsed(with(ordered_json::array())).invocation_tokens.empty());
  for (const char* text : {"[-1]", "[2147483648]", "[\"x\"]", "[1.5]", "[[1]]", "3", "\"a\""}) {
    const ordered_json bad = ordered_json::parse(text);
    EXPECT_THAT(ErrorOf(with(bad)), HasSubstr("alora_invocation_tokens: expected 1 to 4096 token ids")) << bad;
  }
  EXPECT_THAT(ErrorOf(With(with_dora, {{"alora_invocation_tokens", {1}}})), HasSubstr("beside use_dora"));
}

TEST(AdapterConfigTest, RefusesByName) {
  for (const char* key : {"use_qalora", "fan_in_fan_out"}) {
    EXPECT_THAT(ErrorOf(With(Plain(), {{key, true}})), HasSubstr(std::string(key) + " is true: not supported")) << key;
    EXPECT_EQ(ErrorOf(With(Plain(), {{key, false}})), "accepted") << key;
    EXPECT_EQ(ErrorOf(With(Plain(), {{key, nullptr}})), "accepted") << key;
  }
  for (const char* key : {"layer_replication"}) {
    EXPECT_THAT(ErrorOf(With(Plain(), {{key, {"x"}}})), HasSubstr(std::string(key) + " is [\"x\"]")) << key;
    EXPECT_EQ(ErrorOf(With(Plain(), {{key, ordered_json::array()}})), "accepted") << key;
    EXPECT_EQ(ErrorOf(With(Plain(), {{key, nullptr}})), "accepted") << key;
  }
  for (const char* key : {"use_bdlora", "arrow_config", "kasa_config", "monteclora_config"}) {
    EXPECT_THAT(ErrorOf(With(Plain(), {{key, {{"x", 1}}}})), HasSubstr(key)) << key;
  }
  for (const char* key : {"megatron_config", "eva_config", "corda_config", "loftq_config", "velora_config"}) {
    EXPECT_EQ(ErrorOf(With(Plain(), {{key, {{"x", 1}}}})), "accepted")
        << key;  // affects only initialization or training
  }
  for (const char* bias : {"none", "all", "lora_only"}) {
    EXPECT_EQ(ErrorOf(With(Plain(), {{"bias", bias}})), "accepted") << bias;  // the tensors tell whether there is one
  }
  EXPECT_THAT(ErrorOf(With(Plain(), {{"peft_type", "IA3"}})), HasSubstr("peft_type 'IA3'"));
  EXPECT_THAT(ErrorOf(With(Plain(), {{"peft_type", "LOHA"}})), HasSubstr("convert_to_lora"));
  EXPECT_THAT(ErrorOf(With(Plain(), {{"peft_type", 3}})), HasSubstr("peft_type"));
}

TEST(AdapterConfigTest, RefusesInitializationsThatChangedTheBase) {
  for (const char* name : {"pissa", "pissa_niter_4", "olora", "corda", "loftq", "something_new"}) {
    EXPECT_THAT(ErrorOf(With(Plain(), {{"init_lora_weights", name}})), HasSubstr("init_lora_weights")) << name;
  }
  for (const ordered_json& value :
       {ordered_json(true), ordered_json(false), ordered_json(nullptr), ordered_json("gaussian"), ordered_json("eva"),
        ordered_json("orthogonal"), ordered_json("lora_ga")}) {
    EXPECT_EQ(ErrorOf(With(Plain(), {{"init_lora_weights", value}})), "accepted") << value;
  }
}

TEST(AdapterConfigTest, RefusesBadNumbers) {
  for (const ordered_json& value : {ordered_json(0), ordered_json(-2), ordered_json(4097), ordered_json(4.0),
                                    ordered_json("4"), ordered_json(nullptr), ordered_json(~0ull)}) {
    EXPECT_THAT(ErrorOf(With(Plain(), {{"r", value}})), HasSubstr("r: expected a rank from 1 to 4096")) << value;
    EXPECT_THAT(ErrorOf(With(Plain(), {{"rank_pattern", {{"q_proj", value}}}})), HasSubstr("rank_pattern['q_proj']"))
        << value;
  }
  for (const ordered_json& value : {ordered_json("8"), ordered_json(nullptr), ordered_json(true), ordered_json({8})}) {
    EXPECT_THAT(ErrorOf(With(Plain(), {{"lora_alpha", value}})), HasSubstr("lora_alpha: expected a finite number"))
        << value;
    EXPECT_THAT(ErrorOf(With(Plain(), {{"alpha_pattern", {{"q_proj", value}}}})), HasSubstr("alpha_pattern['q_proj']"))
        << value;
  }
  EXPECT_THAT(ErrorOf(With(Plain(), {{"rank_pattern", {1}}})), HasSubstr("rank_pattern: expected an object"));
  EXPECT_THAT(ErrorOf(With(Plain(), {{"target_modules", 7}})), HasSubstr("target_modules"));
  EXPECT_THAT(ErrorOf(With(Plain(), {{"target_modules", {7}}})), HasSubstr("target_modules"));
  EXPECT_THAT(ErrorOf(With(Plain(), {{"layers_to_transform", {-1}}})), HasSubstr("layers_to_transform"));
}

TEST(AdapterConfigTest, EqualKeysCountAsInPython) {
  const auto config = ParseAdapterConfig(R"({"peft_type":"LORA","r":2,"r":4,"lora_alpha":4,"rank_pattern":{"x":1},)"
                                         R"("rank_pattern":{"q_proj":7,"k":2,"q_proj":8}})",
                                         "c");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->r, 4);
  ASSERT_EQ(config->rank_pattern.size(), 2u);
  EXPECT_EQ(config->rank_pattern[0], (std::pair<std::string, std::int64_t>("q_proj", 8)));
}

// --------------------------------------------------------------------------------------------------- OpenAdapter

ModelConfig SmallModel() {
  ModelConfig model;
  model.hidden_size = 8;
  model.num_layers = 2;
  model.num_heads = 2;
  model.num_kv_heads = 1;
  model.head_dim = 6;
  model.intermediate_size = 10;
  model.vocab_size = 20;
  return model;
}

class OpenAdapterTest : public testing::Test {
 protected:
  Result<AdapterFile> Open(const std::vector<TensorSpec>& tensors,
                           const ordered_json& config = Targeting("all-linear")) {
    folder_.Write("adapter_config.json", config.dump());
    folder_.Write("adapter_model.safetensors", ZeroTensors(tensors));
    return OpenAdapter(folder_.path(), SmallModel());
  }
  std::string OpenError(const std::vector<TensorSpec>& tensors) {
    const auto adapter = Open(tensors);
    return adapter.ok() ? "accepted" : adapter.error().message;
  }
  static ordered_json Targeting(const ordered_json& targets) { return With(Plain(), {{"target_modules", targets}}); }
  static std::vector<TensorSpec> Pair(const std::string& module, std::int64_t in, std::int64_t out) {
    return {{"base_model.model." + module + ".lora_A.weight", "F32", {4, in}},
            {"base_model.model." + module + ".lora_B.weight", "BF16", {out, 4}}};
  }
  static std::vector<TensorSpec> Join(std::vector<TensorSpec> a, const std::vector<TensorSpec>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  TempFolder folder_;
};

TEST_F(OpenAdapterTest, SortsModulesByLayerAndTargetWithTheHeadLast) {
  const auto tensors =
      Join(Join(Pair("lm_head", 8, 20), Pair("model.layers.1.mlp.down_proj", 10, 8)),
           Join(Pair("model.layers.0.self_attn.o_proj", 12, 8), Pair("model.layers.0.self_attn.k_proj", 8, 6)));
  auto opened = Open(tensors, Targeting({"lm_head", "down_proj", "o_proj", "k_proj"}));
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const AdapterFile adapter = std::move(opened).value();
  ASSERT_EQ(adapter.modules.size(), 4u);
  EXPECT_EQ(adapter.modules[0].target, LoraTarget::kK);
  EXPECT_EQ(adapter.modules[1].target, LoraTarget::kO);
  EXPECT_EQ(adapter.modules[2].target, LoraTarget::kDown);
  EXPECT_EQ(adapter.modules[2].layer, 1);
  EXPECT_EQ(adapter.modules[3].target, LoraTarget::kLmHead);
  EXPECT_EQ(adapter.modules[3].layer, 0);
  EXPECT_EQ(adapter.modules[0].a->dtype, DType::kF32);
  EXPECT_EQ(adapter.modules[0].b->dtype, DType::kBF16);
  EXPECT_EQ(adapter.max_rank, 4);
}

TEST_F(OpenAdapterTest, ChecksTheConfigurationAgainstTheTensors) {
  const auto q = Pair("model.layers.0.self_attn.q_proj", 8, 12);
  EXPECT_TRUE(Open(q, Targeting({"q_proj", "v_proj"})).ok());  // v_proj has no tensors and adds nothing
  EXPECT_THAT(Open(q, Targeting({"v_proj"})).error().message, HasSubstr("is not among target_modules"));
  EXPECT_THAT(Open(Pair("lm_head", 8, 20)).error().message, HasSubstr("is not among target_modules"));
  EXPECT_THAT(Open(q, With(Targeting("all-linear"), {{"lora_alpha", 1e300}})).error().message,
              HasSubstr("does not fit a float"));
  EXPECT_THAT(Open(q, With(Targeting("all-linear"), {{"r", 5}})).error().message, HasSubstr("expected rank 5"));
}

TEST_F(OpenAdapterTest, TakesMagnitudesAndBiasesOfOutputs) {
  const auto q = Pair("model.layers.0.self_attn.q_proj", 8, 12);
  const std::string name = "base_model.model.model.layers.0.self_attn.q_proj.";
  const auto with = [&](const std::string& tensor, std::int64_t out) {
    return Join(q, {{name + tensor, "F32", {out}}});
  };
  const auto dora = With(Targeting("all-linear"), {{"use_dora", true}});
  const auto lora_bias = With(Targeting("all-linear"), {{"lora_bias", true}});
  const auto plain = Open(q);
  ASSERT_TRUE(plain.ok());
  EXPECT_FALSE(plain->modules[0].has_vectors());
  for (const char* tensor :
       {"lora_magnitude_vector", "lora_magnitude_vector.weight", "lora_magnitude_vector.default.weight"}) {
    const auto adapter = Open(with(tensor, 12), dora);
    ASSERT_TRUE(adapter.ok()) << adapter.error().message;
    EXPECT_NE(adapter->modules[0].magnitude, nullptr);
    EXPECT_TRUE(adapter->modules[0].has_vectors());
    EXPECT_NE(adapter->digest, plain->digest);
  }
  EXPECT_NE(Open(with("lora_B.default.bias", 12), lora_bias)->modules[0].b_bias, nullptr);
  EXPECT_THAT(Open(with("lora_magnitude_vector", 11), dora).error().message, HasSubstr("expected [12]"));
  EXPECT_THAT(Open(with("lora_magnitude_vector", 12)).error().message, HasSubstr("expected use_dora true"));
  EXPECT_THAT(Open(q, dora).error().message, HasSubstr("use_dora is true in adapter_config.json, but the file lacks"));
  EXPECT_THAT(Open(with("lora_B.bias", 12)).error().message, HasSubstr("expected lora_bias true"));
  EXPECT_THAT(Open(q, lora_bias).error().message, HasSubstr("lora_bias is true"));
  EXPECT_THAT(Open(with("base_layer.bias", 12)).error().message, HasSubstr("the base model's layer has no bias"));
  const std::string other = "base_model.model.model.layers.1.self_attn.q_proj.lora_magnitude_vector";
  EXPECT_THAT(Open(Join(with("lora_magnitude_vector", 12), {{other, "F32", {12}}}), dora).error().message,
              HasSubstr("a magnitude without lora_A"));
}

TEST_F(OpenAdapterTest, RefusesTensorsByName) {
  const auto q = Pair("model.layers.0.self_attn.q_proj", 8, 12);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"base_model.model.model.embed_positions.lora_embedding_A", "LoRA on an embedding other"},
      {"base_model.model.model.layers.0.self_attn.q_proj.lora_B.bias", "expected one dimension"},
      {"base_model.model.model.norm.bias", "no linear layer"},
      {"base_model.model.lm_head.modules_to_save.weight", "modules_to_save"},
      {"base_model.model.model.embed_tokens.lora_A.weight", "give the adapter as Tinker saved it"},
      {"base_model.model.model.unembed_tokens.weight", "the whole weight of a module"},
      {"base_model.model.model.layers.0.self_attn.k_proj.weight", "the whole weight of a module (modules_to_save)"},
      {"base_model.model.score.modules_to_save.weight", "modules_to_save"},
      {"base_model.model.visual.blocks.0.attn.q_proj.lora_A.weight", "outside the language model"},
      {"base_model.model.model.layers.00.self_attn.q_proj.lora_A.weight", "expected a layer from 0 to 1"},
      {"base_model.model.model.layers.+1.self_attn.q_proj.lora_A.weight", "expected a layer from 0 to 1"},
      {"base_model.model.model.layers..self_attn.q_proj.lora_A.weight", "expected a layer from 0 to 1"},
      {"base_model.model.model.layers.1.self_attn.q_proj.lora_A.other.weight", "has an unknown name"},
      {"model.layers.1.self_attn.q_proj.lora_A.weight", "has an unknown name"},
      {"", "has an unknown name"},
  };
  for (const auto& [name, why] : cases) {
    const std::string message = OpenError(Join(q, {{name, "F32", {4, 8}}}));
    EXPECT_THAT(message, HasSubstr(why)) << name;
    EXPECT_THAT(message, HasSubstr("'" + name + "'"));
  }
}

TEST_F(OpenAdapterTest, TakesCopiesOfTheBaseAside) {
  const std::string root = "base_model.model.";
  for (const char* name : {"lm_head.base_layer.weight", "lm_head.weight", "language_model.lm_head.weight"}) {
    const auto adapter = Open(Join(Pair("lm_head", 8, 20), {{root + name, "F32", {20, 8}}}), Targeting({"lm_head"}));
    ASSERT_TRUE(adapter.ok()) << adapter.error().message;
    ASSERT_NE(adapter->lm_head_base_copy, nullptr) << name;
    EXPECT_EQ(adapter->embedding_base_copy, nullptr);
    EXPECT_EQ(adapter->modules.size(), 1u);
  }
  const auto q = Pair("model.layers.0.self_attn.q_proj", 8, 12);
  for (const char* name :
       {"model.embed_tokens.weight", "embed_tokens.weight", "model.embed_tokens.base_layer.weight"}) {
    const auto adapter = Open(Join(q, {{root + name, "BF16", {20, 8}}}));
    ASSERT_TRUE(adapter.ok()) << adapter.error().message;
    ASSERT_NE(adapter->embedding_base_copy, nullptr) << name;
    EXPECT_EQ(adapter->lm_head_base_copy, nullptr);
  }
  const TensorSpec copy = {root + "lm_head.weight", "F32", {20, 8}};
  EXPECT_THAT(OpenError({copy}), HasSubstr("expected lora_A and lora_B tensors, found none"));
  EXPECT_THAT(OpenError(Join(q, {copy, {root + "lm_head.base_layer.weight", "F32", {20, 8}}})),
              HasSubstr("holds it twice"));
  EXPECT_THAT(OpenError(Join(q, {{copy.name, "F32", {20, 9}}})), HasSubstr("[20, 8], found [20, 9]"));
  const std::string resized = OpenError(Join(q, {{copy.name, "F32", {28, 8}}}));
  EXPECT_THAT(resized, HasSubstr("[20, 8], found [28, 8]: the vocabulary was resized"));
}

TEST(AdapterConfigTest, ReadsWhatTheAdapterHasOfItsOwn) {
  const AdapterConfig config = Parsed(With(
      Plain(),
      {{"modules_to_save", {"lm_head", "norm"}}, {"trainable_token_indices", {7, 3}}, {"ensure_weight_tying", true}}));
  EXPECT_EQ(*config.SavedAs("language_model.lm_head"), "lm_head");
  EXPECT_EQ(*config.SavedAs("model.layers.0.self_attn.q_norm"), "norm");  // PEFT asks for the end of the name alone
  EXPECT_EQ(config.SavedAs("model.embed_tokens"), nullptr);
  EXPECT_EQ(*config.TrainedTokens("model.embed_tokens"), (std::vector<TokenId>{7, 3}));
  EXPECT_EQ(config.TrainedTokens("lm_head"), nullptr);
  EXPECT_TRUE(config.ensure_weight_tying);
  const AdapterConfig both =
      Parsed(With(Plain(), {{"trainable_token_indices", {{"lm_head", {1}}, {"embed_tokens", {0, 2}}}}}));
  EXPECT_EQ(*both.TrainedTokens("lm_head"), std::vector<TokenId>{1});
  const std::vector<std::pair<ordered_json, std::string>> bad = {
      {{{"trainable_token_indices", {1, 2, 1}}}, "expected distinct token ids for 'embed_tokens', found 1 twice"},
      {{{"trainable_token_indices", {-1}}}, "found -1"},
      {{{"trainable_token_indices", {1.5}}}, "found 1.5"},
      {{{"trainable_token_indices", {1LL << 31}}}, "found 2147483648"},
      {{{"trainable_token_indices", "all"}}, "trainable_token_indices: expected a list"},
      {{{"trainable_token_indices", {{"lm_head", 3}}}}, "for 'lm_head', found 3"},
      {{{"modules_to_save", "norm"}}, "modules_to_save"},
      {{{"modules_to_save", {1}}}, "modules_to_save"},
      {{{"trainable_token_indices", {1}}, {"alora_invocation_tokens", {5}}}, "beside trainable_token_indices"},
      {{{"modules_to_save", {"lm_head"}}, {"alora_invocation_tokens", {5}}}, "beside modules_to_save"},
  };
  for (const auto& [changes, why] : bad) EXPECT_THAT(ErrorOf(With(Plain(), changes)), HasSubstr(why)) << changes;
}

// The base here has 20 tokens and a hidden size of 8; its embeddings are not tied.
TEST_F(OpenAdapterTest, TakesOwnRowsOfEmbeddingAndOutput) {
  const auto q = Pair("model.layers.0.self_attn.q_proj", 8, 12);
  const std::string embed = "base_model.model.model.embed_tokens.", head = "base_model.model.lm_head.";
  const std::string delta = "token_adapter.trainable_tokens_delta";
  const auto tokens = [](const ordered_json& indices) { return With(Plain(), {{"trainable_token_indices", indices}}); };
  const auto saved = [](const ordered_json& names) { return With(Plain(), {{"modules_to_save", names}}); };
  const auto rows = Open(Join(q, {{embed + delta, "F32", {3, 8}}}), tokens({19, 0, 4}));
  ASSERT_TRUE(rows.ok()) << rows.error().message;
  ASSERT_EQ(rows->own.size(), 1u);
  EXPECT_EQ(rows->own[0].kind, OwnKind::kEmbedding);
  EXPECT_EQ(rows->own[0].rows[0].token, 0);
  EXPECT_EQ(rows->own[0].rows[0].row, 1);
  EXPECT_EQ(rows->own[0].rows[2].token, 19);
  EXPECT_NE(rows->digest, Open(q)->digest);
  EXPECT_NE(rows->digest, Open(Join(q, {{embed + delta, "F32", {3, 8}}}), tokens({18, 0, 4}))->digest);
  EXPECT_EQ(rows->digest, Open(Join(q, {{embed + delta + ".default", "F32", {3, 8}}}), tokens({19, 0, 4}))->digest);

  for (const char* name : {"weight", "modules_to_save.weight", "modules_to_save.default.weight"}) {
    const auto whole = Open(Join(q, {{head + name, "F32", {20, 8}}}), saved({"lm_head"}));
    ASSERT_TRUE(whole.ok()) << whole.error().message;
    ASSERT_EQ(whole->own.size(), 1u);
    EXPECT_TRUE(whole->own[0].whole);
    EXPECT_EQ(whole->own[0].rows.size(), 20u);
    EXPECT_EQ(whole->lm_head_base_copy, nullptr);
  }
  const auto copied = Open(Join(q, {{head + "weight", "F32", {20, 8}},
                                    {head + "modules_to_save.weight", "F32", {20, 8}},
                                    {head + "original_module.weight", "F32", {20, 8}}}),
                           saved({"lm_head"}));
  ASSERT_TRUE(copied.ok()) << copied.error().message;
  EXPECT_EQ(copied->own_copies.size(), 1u);
  EXPECT_NE(copied->lm_head_base_copy, nullptr);
}

// PEFT names both heads in modules_to_save for SEQ_CLS; older versions name none.
TEST_F(OpenAdapterTest, TakesAHeadForClasses) {
  const auto q = Pair("model.layers.0.self_attn.q_proj", 8, 12);
  const std::string root = "base_model.model.";
  const ordered_json both = With(Plain(), {{"task_type", "SEQ_CLS"}, {"modules_to_save", {"classifier", "score"}}});
  const ordered_json unsaid = With(Plain(), {{"task_type", "SEQ_CLS"}, {"modules_to_save", nullptr}});
  const auto open = [&](const std::string& name, const ordered_json& config) {
    return Open(Join(q, {{root + name, "BF16", {3, 8}}}), config);
  };
  const auto score = open("score.weight", both);
  ASSERT_TRUE(score.ok()) << score.error().message;
  ASSERT_TRUE(score->head);
  EXPECT_EQ(score->head->module, "score");
  EXPECT_EQ(score->head->classes(), 3);
  EXPECT_EQ(score->head->weights.size(), 3u * 8 * 2);
  EXPECT_TRUE(score->own.empty());
  EXPECT_EQ(score->head->LabelOf(2), "LABEL_2");
  EXPECT_NE(score->digest, Open(q)->digest);
  for (const auto& [name, config] :
       {std::pair("score.weight", unsaid),
        {"score.modules_to_save.weight", both},
        {"score.modules_to_save.default.weight", With(Plain(), {{"modules_to_save", {"score"}}})},
        {"classifier.weight", both}}) {
    const auto other = open(name, config);
    ASSERT_TRUE(other.ok()) << other.error().message;
    EXPECT_EQ(other->digest, score->digest) << name;
    EXPECT_EQ(other->head->module, std::string(name).substr(0, std::string(name).find('.')));
  }
  const auto with_copy =
      Open(Join(q, {{root + "score.weight", "BF16", {3, 8}}, {root + "score.original_module.weight", "BF16", {3, 8}}}),
           both);
  ASSERT_TRUE(with_copy.ok()) << with_copy.error().message;
  EXPECT_EQ(with_copy->digest, score->digest);
  EXPECT_THAT(open("layers.0.score.weight", both).error().message, HasSubstr("classification head"));
  const auto large = Open(Join(q, {{root + "score.weight", "F16", {4097, 8}}}), both);
  ASSERT_FALSE(large.ok());
  EXPECT_THAT(large.error().message, HasSubstr("with 1 to 4096 classes, found [4097, 8]"));
}

TEST_F(OpenAdapterTest, LabelsOfAHeadAreThoseOfItsConfig) {
  const auto q = Pair("model.layers.0.self_attn.q_proj", 8, 12);
  const auto tensors = Join(q, {{"base_model.model.score.weight", "F32", {2, 8}}});
  const ordered_json config = With(Plain(), {{"task_type", "SEQ_CLS"}});
  folder_.Write("config.json", R"({"id2label":{"0":"bad","1":"good"},"problem_type":"multi_label_classification"})");
  const auto adapter = Open(tensors, config);
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  EXPECT_EQ(adapter->head->LabelOf(1), "good");
  EXPECT_EQ(adapter->head->task, ClassTask::kAnyOf);
  folder_.Write("config.json", R"({"architectures":["LlamaForSequenceClassification"],"problem_type":"regression"})");
  EXPECT_EQ(Open(tensors, config)->head->task, ClassTask::kRegression);
  for (const char* json : {R"({"id2label":{"0":"a"}})", R"({"id2label":{"0":"a","1":2}})", R"({"id2label":["a","b"]})",
                           R"({"problem_type":"x"})", R"({"problem_type":3})", "[]", "{"}) {
    folder_.Write("config.json", json);
    const auto refused = Open(tensors, config);
    ASSERT_FALSE(refused.ok()) << json;
    EXPECT_THAT(refused.error().message, HasSubstr("config.json"));
    EXPECT_TRUE(Open(q).ok()) << "without a head the file says nothing";
  }
}

TEST_F(OpenAdapterTest, TakesOwnNorms) {
  const auto q = Pair("model.layers.0.self_attn.q_proj", 8, 12);
  const std::string root = "base_model.model.model.";
  const auto saved = [](const ordered_json& names) { return With(Plain(), {{"modules_to_save", names}}); };
  const auto norms = Open(Join(q, {{root + "norm.weight", "F32", {8}},
                                   {root + "layers.1.post_attention_layernorm.weight", "BF16", {8}},
                                   {root + "layers.1.input_layernorm.modules_to_save.weight", "F32", {8}},
                                   {root + "layers.0.input_layernorm.weight", "F32", {8}}}),
                          saved({"norm"}));
  ASSERT_TRUE(norms.ok()) << norms.error().message;
  ASSERT_EQ(norms->own.size(), 4u);
  EXPECT_EQ(norms->own[0].kind, OwnKind::kInputNorm);
  EXPECT_EQ(norms->own[0].layer, 0);
  EXPECT_EQ(norms->own[1].layer, 1);
  EXPECT_EQ(norms->own[2].kind, OwnKind::kMlpNorm);
  EXPECT_EQ(norms->own[3].kind, OwnKind::kFinalNorm);
  EXPECT_EQ(norms->own[3].rows.size(), 1u);
  const auto error = [&](const std::string& name, const std::vector<std::int64_t>& shape, const ordered_json& config) {
    const auto adapter = Open(Join(q, {{root + name, "F32", shape}}), config);
    return adapter.ok() ? std::string("accepted") : adapter.error().message;
  };
  EXPECT_THAT(error("norm.weight", {8}, Plain()), HasSubstr("modules_to_save does not name it"));
  EXPECT_THAT(error("norm.weight", {9}, saved({"norm"})), HasSubstr("expected [8] as the base model's, found [9]"));
  EXPECT_THAT(error("norm.weight", {1, 8}, saved({"norm"})), HasSubstr("expected one dimension"));
  EXPECT_THAT(error("layers.0.norm.weight", {8}, saved({"norm"})), HasSubstr("whole weight of a module"));
  EXPECT_THAT(error("layers.2.input_layernorm.weight", {8}, saved({"norm"})),
              HasSubstr("expected a layer from 0 to 1"));
  EXPECT_THAT(error("layers.0.self_attn.k_norm.weight", {6}, saved({"k_norm"})), HasSubstr("does not have"));
  const auto twice =
      Open(Join(q, {{root + "norm.weight", "F32", {8}}, {root + "norm.modules_to_save.weight", "F32", {8}}}),
           saved({"norm"}));
  ASSERT_FALSE(twice.ok());
  EXPECT_THAT(twice.error().message, HasSubstr("holds it twice"));
}

TEST_F(OpenAdapterTest, RefusesOwnRowsThatDoNotFit) {
  const auto q = Pair("model.layers.0.self_attn.q_proj", 8, 12);
  const std::string embed = "base_model.model.model.embed_tokens.", head = "base_model.model.lm_head.";
  const std::string delta = "token_adapter.trainable_tokens_delta";
  const auto tokens = [](const ordered_json& indices) { return With(Plain(), {{"trainable_token_indices", indices}}); };
  const auto saved = [](const ordered_json& names) { return With(Plain(), {{"modules_to_save", names}}); };
  struct Bad {
    std::vector<TensorSpec> tensors;
    ordered_json config;
    std::string why;
  };
  const auto head_lora = Pair("lm_head", 8, 20);
  const auto with_head = [](ordered_json config) { return With(config, {{"target_modules", {"q_proj", "lm_head"}}}); };
  const std::vector<Bad> cases = {
      {{{embed + delta, "F32", {1, 8}}}, tokens({20}), "expected tokens from 0 to 19"},
      {{{embed + delta, "F32", {2, 8}}}, tokens({1}), "expected [1, 8], a row for each token"},
      {{{embed + delta, "F32", {1, 9}}}, tokens({1}), "expected [1, 8]"},
      {{{embed + delta, "F32", {8}}}, tokens({1}), "expected two dimensions"},
      {{{embed + delta, "F32", {1, 8}}}, Plain(), "trainable_token_indices does not name embed_tokens"},
      {{}, tokens({1}), "trainable_token_indices names embed_tokens, but the file lacks"},
      {{{embed + delta, "F32", {1, 8}}}, tokens({{"embed_tokens", {1}}, {"lm_head", {1}}}), "names lm_head, but"},
      {{{embed + delta, "F32", {1, 8}}}, tokens({{"wte", {1}}}), "names 'wte', expected embed_tokens or lm_head"},
      {{}, saved({"lm_head"}), "modules_to_save names 'lm_head', but the file lacks"},
      {{{head + "weight", "F32", {20, 8}}}, saved({"lm_head", "score"}), "modules_to_save names 'score'"},
      {{{head + "weight", "F32", {24, 8}}}, saved({"lm_head"}), "the vocabulary was resized"},
      {{{head + "modules_to_save.weight", "F32", {20, 8}}}, Plain(), "modules_to_save does not name it"},
      {{{head + "weight", "F32", {20, 8}}, {"base_model.model.model.lm_head.weight", "F32", {20, 8}}},
       saved({"lm_head"}),
       ""},
      {{{head + "weight", "F32", {20, 8}}, {head + delta, "F32", {1, 8}}},
       With(saved({"lm_head"}), {{"trainable_token_indices", {{"lm_head", {1}}}}}),
       "PEFT cannot compute with both"},
      {Join(head_lora, {{head + "weight", "F32", {20, 8}}}), with_head(saved({"lm_head"})), "has LoRA beside it"},
      {Join(head_lora, {{head + delta, "F32", {1, 8}}}), with_head(tokens({{"lm_head", {1}}})), "has LoRA beside it"},
  };
  for (const Bad& bad : cases) {
    const auto adapter = Open(Join(q, bad.tensors), bad.config);
    ASSERT_FALSE(adapter.ok()) << bad.why;
    EXPECT_THAT(adapter.error().message, HasSubstr(bad.why));
  }
}

// What trainers call the same module, with the same content.
TEST_F(OpenAdapterTest, KnowsTheNamesOfOtherTrainers) {
  const auto digest = [&](const std::string& module, std::int64_t in, std::int64_t out, const ordered_json& targets) {
    const auto adapter = Open(Pair(module, in, out), Targeting(targets));
    return adapter.ok() ? adapter->digest : adapter.error().message;
  };
  const std::string layer = digest("model.layers.1.self_attn.q_proj", 8, 12, {"q_proj"});
  for (const char* name : {"layers.1.self_attn.q_proj", "_orig_mod.model.layers.1.self_attn.q_proj",
                           "model.layers.1._orig_mod.self_attn.q_proj", "_orig_mod.layers.1.self_attn.q_proj",
                           "language_model.layers.1.self_attn.q_proj"}) {
    EXPECT_EQ(digest(name, 8, 12, {"q_proj"}), layer) << name;
  }
  EXPECT_EQ(digest("layers.1.self_attn.q_proj", 8, 12, "all-linear"), layer);
  const std::string head = digest("lm_head", 8, 20, {"lm_head"});
  EXPECT_EQ(digest("model.unembed_tokens", 8, 20, "all-linear"), head);  // Tinker
  EXPECT_THAT(OpenError(Join(Pair("model.unembed_tokens", 8, 20), Pair("lm_head", 8, 20))),
              HasSubstr("holds its module twice"));
}

TEST_F(OpenAdapterTest, LeavesOutWhatOnlyTrainingUses) {
  const auto q = Pair("model.layers.0.self_attn.q_proj", 8, 12);
  const auto velora =
      Open(Join(q, {{"base_model.model.model.layers.0.self_attn.q_proj.lora_velora_embed", "F32", {1}}}));
  ASSERT_TRUE(velora.ok()) << velora.error().message;
  EXPECT_EQ(velora->digest, Open(q)->digest);
}

TEST_F(OpenAdapterTest, ReadsSeveralFilesByTheirIndex) {
  const auto q = Pair("model.layers.0.self_attn.q_proj", 8, 12), k = Pair("model.layers.1.self_attn.k_proj", 8, 6);
  const std::string digest = Open(Join(q, k))->digest;
  fs::remove(folder_.path() / "adapter_model.safetensors");
  folder_.Write("adapter_model-00001-of-00002.safetensors", ZeroTensors({q[0], k[0]}));
  folder_.Write("adapter_model-00002-of-00002.safetensors", ZeroTensors({q[1], k[1]}));
  const auto index = [&](const std::string& second) {
    ordered_json map;
    for (const auto* pair : {&q, &k}) {
      map[pair->at(0).name] = "adapter_model-00001-of-00002.safetensors";
      map[pair->at(1).name] = second;
    }
    folder_.Write("adapter_model.safetensors.index.json", ordered_json({{"weight_map", map}}).dump());
    const auto adapter = OpenAdapter(folder_.path(), SmallModel());
    return adapter.ok() ? adapter->digest : adapter.error().message;
  };
  EXPECT_EQ(index("adapter_model-00002-of-00002.safetensors"), digest);
  EXPECT_THAT(index("adapter_model-00003.safetensors"),
              HasSubstr("names 'adapter_model-00003.safetensors', which is missing"));
  EXPECT_THAT(index("../x.safetensors"), HasSubstr("a safetensors file beside the index"));
  EXPECT_THAT(index("adapter_model-00001-of-00002.safetensors"), HasSubstr("lora_A without its lora_B"));
  folder_.Write("adapter_model.safetensors.index.json", "{}");
  EXPECT_THAT(OpenAdapter(folder_.path(), SmallModel()).error().message, HasSubstr("weight_map: expected an object"));
  folder_.Write("adapter_model-00002-of-00002.safetensors", ZeroTensors({q[1], k[1], q[0]}));
  EXPECT_THAT(index("adapter_model-00002-of-00002.safetensors"), HasSubstr("holds its module twice"));
}

TEST_F(OpenAdapterTest, SaysWhatElseAFolderHolds) {
  const auto error = [&](const std::vector<std::string>& files) {
    const TempFolder folder;
    for (const std::string& file : files) {
      fs::create_directories((folder.path() / file).parent_path());
      folder.Write(file, file.ends_with("adapter_config.json") && file.size() < 20 ? Plain().dump() : "{}");
    }
    return OpenAdapter(folder.path(), SmallModel()).error().message;
  };
  EXPECT_THAT(error({}), HasSubstr("an adapter directory of PEFT holds adapter_config.json"));
  EXPECT_THAT(error({"adapter_config.json", "adapter_model-00001-of-00002.safetensors"}), HasSubstr("several files"));
  EXPECT_THAT(error({"adapters.safetensors"}), HasSubstr("is of mlx-lm"));
  EXPECT_THAT(error({"adapters.npz"}), HasSubstr("mx.save_safetensors"));
  EXPECT_THAT(error({"lora.gguf"}), HasSubstr("lora.gguf: the magic number: the file ends"));
  EXPECT_THAT(error({"a.gguf", "b.gguf"}), HasSubstr("2 GGUF files: name one of them"));
  EXPECT_THAT(error({"config.json"}), HasSubstr("a whole model"));
  EXPECT_THAT(error({"checkpoint-5/adapter_config.json", "checkpoint-10/adapter_config.json"}),
              HasSubstr("such as checkpoint-10, the last"));
  EXPECT_THAT(error({"a/adapter_config.json", "b/adapter_config.json", "c/x"}),
              HasSubstr("('a', 'b'): give one of them, or all by --adapter-dir"));
  EXPECT_THAT(OpenAdapter(folder_.Write("x.gguf", "GGUF"), SmallModel()).error().message,
              HasSubstr("the version: the file ends at byte 4"));
}

TEST_F(OpenAdapterTest, TheDigestNamesTheContent) {
  const auto q = Pair("model.layers.0.self_attn.q_proj", 8, 12);
  const std::string digest = Open(q)->digest;
  EXPECT_EQ(Open(q)->digest, digest);
  EXPECT_EQ(Open({q[1], q[0]})->digest, digest);  // the order in the file does not matter
  EXPECT_EQ(Open(q, With(Targeting({"q_proj"}), {{"lora_dropout", 0.5}}))->digest, digest);
  EXPECT_NE(Open(q, With(Targeting({"q_proj"}), {{"lora_alpha", 9}}))->digest, digest);
  EXPECT_NE(Open(Pair("model.layers.1.self_attn.q_proj", 8, 12))->digest, digest);
  std::string bytes = ZeroTensors(q);
  bytes.back() = 1;
  folder_.Write("adapter_config.json", Targeting("all-linear").dump());
  folder_.Write("adapter_model.safetensors", bytes);
  EXPECT_NE(OpenAdapter(folder_.path(), SmallModel())->digest, digest);
}

// XXH3 mixes each eight bytes with known ones. Where their low halves are equal, the product is zero, and only the sum
// of the high halves counts: two adapters with other weights, and the same XXH3.
TEST_F(OpenAdapterTest, TheDigestCannotBeForgedAsXxh3Can) {
  const auto q = Pair("model.layers.0.self_attn.q_proj", 8, 12);
  const auto write = [&](std::uint32_t first_high, std::uint32_t second_high) {
    std::string bytes = ZeroTensors(q);
    char* weights = bytes.data() + bytes.size() - (4 * 8 * 4 + 12 * 4 * 2);  // lora_A begins a block of 64 bytes
    const std::uint32_t forged[2][2] = {{0x2c81017c, first_high}, {0xe96dd4de, second_high}};
    for (std::size_t i = 0; i < 2; ++i) std::memcpy(weights + 64 * i, forged[i], sizeof(forged[i]));
    folder_.Write("adapter_config.json", Targeting("all-linear").dump());
    folder_.Write("adapter_model.safetensors", bytes);
    return OpenAdapter(folder_.path(), SmallModel());
  };
  const auto one = write(0x3f800000, 0x3f800000), other = write(0x3f800001, 0x3f7fffff);
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_EQ(*OldAdapterDigest(*one), *OldAdapterDigest(*other));
  EXPECT_NE(one->digest, other->digest);
  EXPECT_EQ(one->digest.size(), 64u);
}

// Journals of older versions hold digests of this kind.
TEST_F(OpenAdapterTest, TheOldDigestIsWhatItWas) {
  const auto adapter = Open(Pair("model.layers.0.self_attn.q_proj", 8, 12));
  ASSERT_TRUE(adapter.ok());
  EXPECT_EQ(*OldAdapterDigest(*adapter), "53c0dfa69bc3e18692c1d18b5b83607a");
  EXPECT_TRUE(IsOldAdapterDigest(*OldAdapterDigest(*adapter)));
  EXPECT_FALSE(IsOldAdapterDigest(adapter->digest));
}

TEST_F(OpenAdapterTest, PathsThatHoldNoAdapter) {
  EXPECT_EQ(OpenAdapter(folder_.path() / "none", SmallModel()).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(OpenAdapter(folder_.path(), SmallModel()).error().code, ErrorCode::kInvalidArgument);
  const fs::path file = folder_.Write("file", "x");
  EXPECT_THAT(OpenAdapter(file, SmallModel()).error().message, HasSubstr("expected an adapter directory"));
  folder_.Write("adapter_config.json", Plain().dump());
  fs::create_directory(folder_.path() / "adapter_model.safetensors");
  EXPECT_THAT(OpenAdapter(folder_.path(), SmallModel()).error().message, HasSubstr("found a directory"));
}

TEST_F(OpenAdapterTest, TheHeaderIsBoundedByTheModel) {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i <= 192; ++i) tensors.push_back({"t" + std::to_string(i), "F32", {1, 1}});
  EXPECT_THAT(OpenError(tensors), HasSubstr("at most 192 tensors, found more"));  // 3 x 64
  tensors.pop_back();
  EXPECT_THAT(OpenError(tensors), HasSubstr("'t0' has an unknown name"));
  const std::string header = "{" + std::string(1'200'000, ' ') + "}";
  folder_.Write("adapter_model.safetensors", SafetensorsBytes(header, ""));
  EXPECT_THAT(OpenAdapter(folder_.path(), SmallModel()).error().message,
              HasSubstr("expected a header of at most 1,146,880 bytes"));
  EXPECT_THAT(OpenAdapterWithoutBase(folder_.path()).error().message, HasSubstr("found none"));
  folder_.Write("adapter_config.json", std::string((1 << 20) + 1, ' '));
  EXPECT_THAT(OpenAdapter(folder_.path(), SmallModel()).error().message, HasSubstr("at most 1,048,576 bytes"));
}

TEST_F(OpenAdapterTest, WithoutABaseExtentsAndHolesAreBounded) {
  folder_.Write("adapter_config.json", With(Targeting("all-linear"), {{"r", 8}}).dump());
  const auto error_of = [&](std::uint64_t in) {  // a sparse file
    const std::uint64_t a = 8 * in * 2;
    const std::uint64_t all = a + 128;
    const std::string shapes = std::to_string(in) + R"(],"data_offsets":[0,)" + std::to_string(a);
    const std::string module = R"("base_model.model.model.layers.0.self_attn.q_proj.lora_)";
    const std::string header = "{" + module + R"(A.weight":{"dtype":"BF16","shape":[8,)" + shapes + "]}," + module +
                               R"(B.weight":{"dtype":"BF16","shape":[8,8],"data_offsets":[)" + std::to_string(a) + "," +
                               std::to_string(all) + "]}}";
    const fs::path path = folder_.Write("adapter_model.safetensors", SafetensorsBytes(header, ""));
    fs::resize_file(path, fs::file_size(path) + all);
    const auto adapter = OpenAdapterWithoutBase(folder_.path());
    return adapter.ok() ? "accepted" : adapter.error().message;
  };
  EXPECT_EQ(error_of(8), "accepted");
  EXPECT_THAT(error_of(std::uint64_t{1} << 24 | 1), HasSubstr("extents of at most 16,777,216"));
  EXPECT_THAT(error_of(std::uint64_t{1} << 35), HasSubstr("the file is sparse"));
}

TEST_F(OpenAdapterTest, RefusesWeightsThatAreNotFinite) {
  const std::string bytes = ZeroTensors(Pair("model.layers.0.self_attn.q_proj", 8, 12));  // 128 bytes f32, 96 bf16
  const std::size_t data = bytes.size() - 128 - 96;
  folder_.Write("adapter_config.json", Targeting("all-linear").dump());
  const auto error_with = [&](std::size_t at, const std::string& value) {
    folder_.Write("adapter_model.safetensors", std::string(bytes).replace(data + at, value.size(), value));
    const auto adapter = OpenAdapter(folder_.path(), SmallModel());
    return adapter.ok() ? "accepted" : adapter.error().message;
  };
  EXPECT_EQ(error_with(0, std::string("\xff\xff\x7f\x7f", 4)), "accepted");  // the largest f32
  const std::string infinity("\x00\x00\x80\xff", 4);
  EXPECT_THAT(error_with(4 * 9, infinity), HasSubstr("q_proj.lora_A.weight': expected finite weights, found NaN or "
                                                     "infinity at [1, 1]"));
  EXPECT_THAT(error_with(4 * 9, infinity), HasSubstr(folder_.path().string()));  // names the adapter
  EXPECT_THAT(error_with(128 + 94, std::string("\xc0\x7f", 2)), HasSubstr("lora_B.weight': expected finite weights, "
                                                                          "found NaN or infinity at [11, 3]"));
}

// --------------------------------------------------------------------------------------------------- real adapters

class RealAdapterTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(folder_)) GTEST_SKIP() << "no real adapters beside this checkout (" << folder_ << ")";
  }
  static ModelConfig Shapes(std::int64_t hidden, std::int64_t layers, std::int64_t heads, std::int64_t kv_heads,
                            std::int64_t ffn, std::int64_t vocab) {
    ModelConfig model;
    model.hidden_size = hidden;
    model.num_layers = layers;
    model.num_heads = heads;
    model.num_kv_heads = kv_heads;
    model.head_dim = hidden / heads;
    model.intermediate_size = ffn;
    model.vocab_size = vocab;
    return model;
  }
  const fs::path folder_ = fs::path(LORAMUX_SOURCE_DIR) / ".." / "shared" / "data" / "adapters";
};

TEST_F(RealAdapterTest, OpensAdaptersOfPublishedModels) {
  const ModelConfig tinyllama = Shapes(2048, 22, 32, 4, 5632, 32000);
  const ModelConfig qwen = Shapes(2048, 36, 16, 2, 11008, 151936);
  std::set<std::string> digests;
  for (const auto& [name, model] : std::vector<std::pair<std::string, ModelConfig>>{{"tinyllama_emotion", tinyllama},
                                                                                    {"tinyllama_keywords", tinyllama},
                                                                                    {"tinyllama_therapist", tinyllama},
                                                                                    {"qwen25_3b_law", qwen}}) {
    const auto adapter = OpenAdapter(folder_ / name, model);
    ASSERT_TRUE(adapter.ok()) << adapter.error().message;
    EXPECT_EQ(adapter->modules.size(), static_cast<std::size_t>(2 * model.num_layers));
    for (const LoraModule& module : adapter->modules) {
      EXPECT_EQ(module.rank, 4);
      EXPECT_EQ(module.scale, 2.0f);
    }
    digests.insert(adapter->digest);
  }
  EXPECT_EQ(digests.size(), 4u);
  EXPECT_THAT(OpenAdapter(folder_ / "qwen25_3b_law", tinyllama).error().message,
              HasSubstr("expected a layer from 0 to 21"));
}

TEST_F(RealAdapterTest, NamesTheTruncatedFile) {
  const auto adapter = OpenAdapter(folder_ / "truncated_qwen25vl", Shapes(3584, 28, 28, 4, 18944, 152064));
  ASSERT_FALSE(adapter.ok());
  EXPECT_THAT(adapter.error().message,
              HasSubstr("adapter_model.safetensors: the header promises 161,480,704 bytes of data but the file holds "
                        "203,776: the file is truncated"));
}

TEST_F(RealAdapterTest, JudgesEveryConfigurationOfTheSurvey) {
  std::ifstream in(folder_ / "adapter_configs_survey.json");
  const ordered_json survey = ordered_json::parse(in);
  ASSERT_EQ(survey.size(), 40u);
  int refused = 0;
  for (const ordered_json& entry : survey) {
    ordered_json config = entry;  // the survey shortens three names and keeps the others
    config.update({{"peft_type", "LORA"}, {"lora_alpha", entry["alpha"]}, {"lora_dropout", entry["dropout"]}});
    const auto parsed = ParseAdapterConfig(config.dump(), entry["repo"]);
    const bool transposed = entry["fan_in_fan_out"] == true;
    ASSERT_EQ(parsed.ok(), !transposed) << entry;
    if (parsed.ok()) {
      EXPECT_EQ(parsed->RankOf(kQ0), entry["r"].get<std::int64_t>());
      EXPECT_EQ(parsed->target_modules_regex.has_value(), entry["target_modules"].is_string());
      EXPECT_EQ(parsed->modules_to_save.empty(), entry["modules_to_save"].is_null());
      continue;
    }
    ++refused;
    EXPECT_THAT(parsed.error().message, HasSubstr("fan_in_fan_out"));
  }
  EXPECT_EQ(refused, 3);
}

}  // namespace
}  // namespace loramux::adapter_config_test
