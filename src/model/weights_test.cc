#include "model/weights.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/prng.h"
#include "tensor/half_float.h"

namespace loramux::weights_test {
namespace {

namespace fs = std::filesystem;
using Shape = std::vector<std::int64_t>;

ModelConfig SmallConfig() {
  ModelConfig config;
  config.hidden_size = 6;
  config.num_layers = 2;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 4;
  config.intermediate_size = 10;
  config.vocab_size = 7;
  config.max_position = 64;
  config.sliding_window = {0, 0};
  return config;
}

// A model directory under construction: tensors of small multiples of 1/8, which every type holds exactly.
class ModelFiles {
 public:
  explicit ModelFiles(const ModelConfig& config, DType dtype = DType::kF32) {
    const std::int64_t hidden = config.hidden_size, ffn = config.intermediate_size;
    Add("model.embed_tokens.weight", {config.vocab_size, hidden}, dtype);
    Add("lm_head.weight", {config.vocab_size, hidden}, dtype);
    Add("model.norm.weight", {hidden}, dtype);
    for (std::int64_t i = 0; i < config.num_layers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      Add(layer + "input_layernorm.weight", {hidden}, dtype);
      Add(layer + "post_attention_layernorm.weight", {hidden}, dtype);
      AddLinear(layer + "self_attn.q_proj", config.QDim(), hidden, config.attention_qkv_bias, dtype);
      AddLinear(layer + "self_attn.k_proj", config.KvDim(), hidden, config.attention_qkv_bias, dtype);
      AddLinear(layer + "self_attn.v_proj", config.KvDim(), hidden, config.attention_qkv_bias, dtype);
      AddLinear(layer + "self_attn.o_proj", hidden, config.QDim(), config.attention_output_bias, dtype);
      AddLinear(layer + "mlp.gate_proj", ffn, hidden, config.mlp_bias, dtype);
      AddLinear(layer + "mlp.up_proj", ffn, hidden, config.mlp_bias, dtype);
      AddLinear(layer + "mlp.down_proj", hidden, ffn, config.mlp_bias, dtype);
      if (config.qk_norm == QkNorm::kNone) continue;
      Add(layer + "self_attn.q_norm.weight", {config.head_dim}, dtype);
      Add(layer + "self_attn.k_norm.weight", {config.head_dim}, dtype);
    }
  }

  void Add(const std::string& name, const Shape& shape, DType dtype) {
    Tensor& tensor = tensors_[name] = {shape, dtype, {}};
    std::int64_t count = 1;
    for (std::int64_t extent : shape) count *= extent;
    for (std::int64_t i = 0; i < count; ++i) {
      tensor.values.push_back((static_cast<float>(prng_.NextBelow(64)) - 32.0f) / 8.0f);
    }
  }
  void Remove(const std::string& name) { tensors_.erase(name); }
  // Renames as if the model had been saved without its output layer.
  void DropInnerPrefix() {
    std::map<std::string, Tensor> bare;
    for (auto& [name, tensor] : tensors_) {
      bare[name.starts_with("model.") ? name.substr(std::strlen("model.")) : name] = std::move(tensor);
    }
    tensors_ = std::move(bare);
  }
  void Copy(const std::string& from, const std::string& to) { tensors_[to] = tensors_.at(from); }
  const std::vector<float>& Values(const std::string& name) const { return tensors_.at(name).values; }

  TensorFile Write() const {
    const fs::path directory = fs::path(testing::TempDir()) / "weights_test";
    fs::create_directories(directory);
    const fs::path path = directory / (std::to_string(reinterpret_cast<std::uintptr_t>(this)) + ".safetensors");
    nlohmann::json header;
    std::string data;
    for (const auto& [name, tensor] : tensors_) {
      const std::size_t begin = data.size();
      data.resize(begin + tensor.values.size() * DTypeSize(tensor.dtype));
      for (std::size_t i = 0; i < tensor.values.size(); ++i) Store(tensor, i, data.data() + begin);
      header[name] = {
          {"dtype", DTypeName(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
    }
    const std::string text = header.dump();
    const std::uint64_t length = text.size();
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), sizeof length);
    out << text << data;
    out.close();
    auto file = TensorFile::Open(path);
    fs::remove(path);  // it stays mapped
    CHECK(file.ok());
    return std::move(file).value();
  }

 private:
  struct Tensor {
    Shape shape;
    DType dtype;
    std::vector<float> values;
  };

  void AddLinear(const std::string& name, std::int64_t out, std::int64_t in, bool bias, DType dtype) {
    Add(name + ".weight", {out, in}, dtype);
    if (bias) Add(name + ".bias", {out}, dtype);
  }

  static void Store(const Tensor& tensor, std::size_t i, char* data) {
    auto* bytes = reinterpret_cast<std::byte*>(data);
    if (IsWeightDType(tensor.dtype)) {
      StoreFromF32(tensor.dtype, bytes, static_cast<std::int64_t>(i), tensor.values[i]);
    } else {
      std::memset(bytes + i * DTypeSize(tensor.dtype), 0, DTypeSize(tensor.dtype));
    }
  }

  std::map<std::string, Tensor> tensors_;
  Prng prng_{11};
};

Result<ModelWeights> PackFile(const ModelConfig& config, const TensorFile& file, const Progress& progress = nullptr) {
  return PackModelWeights(config, *MakeFloatSource(file), {}, progress);
}

ModelWeights Pack(const ModelConfig& config, const ModelFiles& files) {
  auto weights = PackFile(config, files.Write());
  if (!weights.ok()) ADD_FAILURE() << weights.error().message;
  return std::move(weights).value();
}

Error PackError(const ModelConfig& config, const ModelFiles& files) {
  auto weights = PackFile(config, files.Write());
  if (weights.ok()) {
    ADD_FAILURE() << "packed";
    return {};
  }
  return weights.error();
}

std::vector<float> Unpack(const PackedMatrix& matrix, std::int64_t first_row, std::int64_t rows) {
  std::vector<float> out(static_cast<std::size_t>(rows * matrix.k()));
  for (std::int64_t i = 0; i < rows; ++i) matrix.UnpackRow(first_row + i, out.data() + i * matrix.k());
  return out;
}

std::vector<float> Unpack(const PackedMatrix& matrix) { return Unpack(matrix, 0, matrix.n()); }

TEST(PackModelWeights, EveryTensorIsInItsPlaceInEveryType) {
  const ModelConfig config = SmallConfig();
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const ModelFiles files(config, dtype);
    const ModelWeights weights = Pack(config, files);
    EXPECT_EQ(weights.lm_head.dtype(), dtype);
    EXPECT_EQ(Unpack(weights.embedding), files.Values("model.embed_tokens.weight"));
    EXPECT_EQ(Unpack(weights.lm_head), files.Values("lm_head.weight"));
    EXPECT_EQ(weights.final_norm.weight, files.Values("model.norm.weight"));
    ASSERT_EQ(weights.layers.size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) {
      const LayerWeights& w = weights.layers[i];
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      EXPECT_EQ(w.qkv.dtype(), dtype);
      EXPECT_EQ(Unpack(w.qkv, 0, 8), files.Values(layer + "self_attn.q_proj.weight"));
      EXPECT_EQ(Unpack(w.qkv, 8, 4), files.Values(layer + "self_attn.k_proj.weight"));
      EXPECT_EQ(Unpack(w.qkv, 12, 4), files.Values(layer + "self_attn.v_proj.weight"));
      EXPECT_EQ(Unpack(w.o), files.Values(layer + "self_attn.o_proj.weight"));
      EXPECT_EQ(Unpack(w.gate_up, 0, 10), files.Values(layer + "mlp.gate_proj.weight"));
      EXPECT_EQ(Unpack(w.gate_up, 10, 10), files.Values(layer + "mlp.up_proj.weight"));
      EXPECT_EQ(Unpack(w.down), files.Values(layer + "mlp.down_proj.weight"));
      EXPECT_EQ(w.input_norm.weight, files.Values(layer + "input_layernorm.weight"));
      EXPECT_EQ(w.mlp_norm.weight, files.Values(layer + "post_attention_layernorm.weight"));
      EXPECT_TRUE(w.qkv_bias.empty() && w.o_bias.empty() && w.gate_up_bias.empty() && w.down_bias.empty());
      EXPECT_TRUE(w.q_norm.weight.empty() && w.k_norm.weight.empty());
    }
  }
}

// As transformers saves them from AutoModel.
TEST(PackModelWeights, ModelsWithoutAnOutputLayer) {
  ModelConfig config = SmallConfig();
  ModelFiles bare(config);
  bare.DropInnerPrefix();
  const ModelWeights with_head = Pack(config, bare);
  EXPECT_TRUE(with_head.generates);
  EXPECT_EQ(Unpack(with_head.lm_head), bare.Values("lm_head.weight"));
  EXPECT_EQ(Unpack(with_head.layers[1].down), bare.Values("layers.1.mlp.down_proj.weight"));
  bare.Remove("lm_head.weight");
  const ModelWeights without = Pack(config, bare);
  EXPECT_FALSE(without.generates);
  EXPECT_EQ(Unpack(without.EmbeddingRows()), bare.Values("embed_tokens.weight"));

  ModelFiles nested(config);
  nested.Remove("lm_head.weight");
  EXPECT_EQ(PackError(config, nested).param, "lm_head.weight");  // an incomplete file
  config.without_head = true;
  EXPECT_FALSE(Pack(config, nested).generates);
  config.tie_word_embeddings = true;
  EXPECT_TRUE(Pack(config, nested).generates);
}

TEST(PackModelWeights, BiasesAndHeadNorms) {
  ModelConfig config = SmallConfig();
  config.attention_qkv_bias = config.attention_output_bias = config.mlp_bias = true;
  config.qk_norm = QkNorm::kHeads;
  const ModelFiles files(config, DType::kBF16);
  const LayerWeights w = std::move(Pack(config, files).layers[1]);
  const auto stacked = [&](std::initializer_list<const char*> names) {
    std::vector<float> all;
    for (const char* name : names) {
      const auto& values = files.Values(std::string("model.layers.1.") + name);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  EXPECT_EQ(w.qkv_bias, stacked({"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"}));
  EXPECT_EQ(w.o_bias, stacked({"self_attn.o_proj.bias"}));
  EXPECT_EQ(w.gate_up_bias, stacked({"mlp.gate_proj.bias", "mlp.up_proj.bias"}));
  EXPECT_EQ(w.down_bias, stacked({"mlp.down_proj.bias"}));
  EXPECT_EQ(w.q_norm.weight, stacked({"self_attn.q_norm.weight"}));
  EXPECT_EQ(w.k_norm.weight, stacked({"self_attn.k_norm.weight"}));
}

TEST(PackModelWeights, MatricesOfMixedTypesBecomeF32) {
  const ModelConfig config = SmallConfig();
  ModelFiles files(config, DType::kBF16);
  files.Add("model.layers.0.self_attn.k_proj.weight", {4, 6}, DType::kF16);
  const LayerWeights w = std::move(Pack(config, files).layers[0]);
  EXPECT_EQ(w.qkv.dtype(), DType::kF32);
  EXPECT_EQ(Unpack(w.qkv, 0, 8), files.Values("model.layers.0.self_attn.q_proj.weight"));
  EXPECT_EQ(Unpack(w.qkv, 8, 4), files.Values("model.layers.0.self_attn.k_proj.weight"));
  EXPECT_EQ(w.o.dtype(), DType::kBF16);
}

TEST(PackModelWeights, BeyondTheMemoryIsRefusedWithWhatWouldFit) {
  const ModelConfig config = SmallConfig();
  ModelFiles files(config, DType::kBF16);
  const TensorFile file = files.Write();
  const std::int64_t needed = WeightBytes(Pack(config, files));
  const auto packed = [&](const WeightOptions& options) {
    return PackModelWeights(config, *MakeFloatSource(file), options, nullptr);
  };
  EXPECT_TRUE(packed({.memory = needed}).ok());  // norms are in it too
  const auto refused = packed({.memory = 100});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(refused.error().message.find("this machine has 100 B of memory"), std::string::npos);
  EXPECT_NE(refused.error().message.find("--weights q4"), std::string::npos);
}

TEST(PackModelWeights, TiedEmbeddingsInEveryLayout) {
  ModelConfig config = SmallConfig();
  config.tie_word_embeddings = true;
  const auto expect_tied = [&](const ModelFiles& files, const char* name) {
    const ModelWeights weights = Pack(config, files);
    EXPECT_EQ(weights.embedding.n(), 0);
    EXPECT_EQ(&weights.EmbeddingRows(), &weights.lm_head);
    EXPECT_EQ(Unpack(weights.lm_head), files.Values(name));
  };
  ModelFiles files(config);
  files.Remove("lm_head.weight");
  expect_tied(files, "model.embed_tokens.weight");
  files.Copy("model.embed_tokens.weight", "lm_head.weight");
  expect_tied(files, "model.embed_tokens.weight");
  files.Remove("model.embed_tokens.weight");
  expect_tied(files, "lm_head.weight");
  files.Remove("lm_head.weight");
  const Error error = PackError(config, files);
  EXPECT_NE(error.message.find("model.embed_tokens.weight"), std::string::npos) << error.message;
  EXPECT_NE(error.message.find("lm_head.weight"), std::string::npos) << error.message;
}

TEST(PackModelWeights, TiedEmbeddingsStoredWithDifferentValuesAreNotTied) {
  ModelConfig config = SmallConfig();
  config.tie_word_embeddings = true;
  const ModelFiles files(config);
  const ModelWeights weights = Pack(config, files);
  EXPECT_EQ(Unpack(weights.EmbeddingRows()), files.Values("model.embed_tokens.weight"));
  EXPECT_EQ(Unpack(weights.lm_head), files.Values("lm_head.weight"));
}

TEST(PackModelWeights, MissingTensorIsNamed) {
  const ModelConfig config = SmallConfig();
  for (const char* name : {"lm_head.weight", "model.embed_tokens.weight", "model.norm.weight",
                           "model.layers.1.mlp.up_proj.weight", "model.layers.0.input_layernorm.weight"}) {
    ModelFiles files(config);
    files.Remove(name);
    const Error error = PackError(config, files);
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.param, name);
    EXPECT_NE(error.message.find(name), std::string::npos) << error.message;
  }
}

TEST(PackModelWeights, UnusedTensorIsRefusedByName) {
  const ModelConfig config = SmallConfig();
  for (const char* name : {"model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias",
                           "model.layers.0.self_attn.q_norm.weight", "score.weight"}) {
    ModelFiles files(config);
    files.Add(name, {4}, DType::kF32);
    const Error error = PackError(config, files);
    EXPECT_EQ(error.param, name);
    EXPECT_NE(error.message.find(name), std::string::npos) << error.message;
  }
}

TEST(PackModelWeights, RotaryBuffersOfOldCheckpointsAreIgnored) {
  const ModelConfig config = SmallConfig();
  ModelFiles files(config);
  files.Add("model.layers.0.self_attn.rotary_emb.inv_freq", {2}, DType::kF32);
  files.Add("model.rotary_emb.inv_freq", {2}, DType::kF32);
  Pack(config, files);
}

TEST(PackModelWeights, MisshapenTensorIsNamedWithBothShapes) {
  const ModelConfig config = SmallConfig();
  ModelFiles files(config);
  files.Add("model.layers.1.mlp.down_proj.weight", {10, 6}, DType::kF32);
  const Error error = PackError(config, files);
  EXPECT_EQ(error.param, "model.layers.1.mlp.down_proj.weight");
  EXPECT_NE(error.message.find("[10, 6]"), std::string::npos) << error.message;
  EXPECT_NE(error.message.find("[6, 10]"), std::string::npos) << error.message;
}

TEST(PackModelWeights, MistypedTensorIsNamedWithItsType) {
  const ModelConfig config = SmallConfig();
  ModelFiles files(config);
  files.Add("model.layers.1.mlp.down_proj.weight", {6, 10}, DType::kI8);
  const Error error = PackError(config, files);
  EXPECT_EQ(error.code, ErrorCode::kUnsupported);
  EXPECT_NE(error.message.find("I8"), std::string::npos) << error.message;
}

TEST(PackModelWeights, ProgressReachesTheTotal) {
  const ModelConfig config = SmallConfig();
  const ModelFiles files(config);
  std::int64_t last = 0, total = 0;
  const auto progress = [&](std::int64_t done, std::int64_t of) {
    EXPECT_GT(done, last);
    last = done;
    total = of;
  };
  ASSERT_TRUE(PackFile(config, files.Write(), progress).ok());
  EXPECT_EQ(last, total);
  EXPECT_GT(total, 0);
}

// A real small model with its tied matrix stored as lm_head.weight alone.
TEST(PackModelWeights, RealModelWithHeadOnly) {
  const fs::path directory = fs::path(LORAMUX_SOURCE_DIR) / ".." / "shared" / "data" / "models" / "story656k";
  if (!fs::exists(directory)) GTEST_SKIP() << directory << " is not here";
  const auto config = LoadModelConfig(directory);
  ASSERT_TRUE(config.ok()) << config.error().message;
  const auto file = TensorFile::OpenModelDirectory(directory);
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto weights = PackFile(config.value(), file.value());
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  EXPECT_EQ(weights.value().embedding.n(), 0);
  EXPECT_EQ(weights.value().lm_head.n(), 2048);
}

TEST(RandomModelWeights, FitTheConfigurationAndFollowTheSeed) {
  ModelConfig config = SmallConfig();
  config.attention_qkv_bias = true;
  config.qk_norm = QkNorm::kHeads;
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const ModelWeights weights = RandomModelWeights(config, dtype, 3);
    EXPECT_EQ(weights.layers[0].qkv.n(), 16);
    EXPECT_EQ(weights.layers[0].qkv_bias.size(), 16u);
    EXPECT_EQ(weights.layers[1].k_norm.weight.size(), 4u);
    EXPECT_EQ(weights.lm_head.dtype(), dtype);
    EXPECT_EQ(Unpack(weights.lm_head), Unpack(RandomModelWeights(config, dtype, 3).lm_head));
    EXPECT_NE(Unpack(weights.lm_head), Unpack(RandomModelWeights(config, dtype, 4).lm_head));
    EXPECT_NE(Unpack(weights.layers[0].o), Unpack(weights.layers[1].o));
    EXPECT_GT(WeightBytes(weights), 0);
  }
  config.tie_word_embeddings = true;
  EXPECT_EQ(RandomModelWeights(config, DType::kF32, 3).embedding.n(), 0);
}

}  // namespace
}  // namespace loramux::weights_test
