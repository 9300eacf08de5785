#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <string>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/prng.h"
#include "formats/message.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

using Shape = std::vector<std::int64_t>;

std::vector<float> ToFloats(const StoredTensor& tensor) {
  std::vector<float> out(static_cast<std::size_t>(tensor.ElementCount()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = LoadAsF32(tensor.dtype, tensor.data.data(), static_cast<std::int64_t>(i));
  }
  return out;
}

// ---- finding the tensors

// Hands out the tensors of a file by name and records which ones were requested.
class TensorFinder {
 public:
  explicit TensorFinder(const TensorFile& file) : file_(file) {}

  // Returns null if there is none. Error: it has another shape, or a type that weights cannot have.
  Result<const StoredTensor*> Find(const std::string& name, const Shape& shape) {
    const StoredTensor* tensor = file_.Find(name);
    if (tensor == nullptr) return tensor;
    used_.insert(tensor);
    if (tensor->shape != shape) {
      return InvalidArgument("tensor " + Quote(name) + " has shape " + ShapeToString(tensor->shape) +
                                 ", but config.json asks for " + ShapeToString(shape),
                             name);
    }
    if (!IsWeightDType(tensor->dtype)) {
      return Unsupported(
          "tensor " + Quote(name) + " has type " + DTypeName(tensor->dtype) + "; weights must be F32, BF16 or F16",
          name);
    }
    return tensor;
  }

  Result<const StoredTensor*> Require(const std::string& name, const Shape& shape) {
    ASSIGN_OR_RETURN(const StoredTensor* tensor, Find(name, shape));
    if (tensor == nullptr) {
      return InvalidArgument(
          "tensor " + Quote(name) + " of shape " + ShapeToString(shape) + " is missing from the weights", name);
    }
    return tensor;
  }

  // Error: a tensor that was never requested, which would silently have no effect.
  Status CheckAllUsed() const {
    for (const StoredTensor& tensor : file_.tensors()) {
      if (used_.contains(&tensor) || tensor.name.ends_with("rotary_emb.inv_freq")) continue;
      return InvalidArgument("tensor " + Quote(tensor.name) + " " + ShapeToString(tensor.shape) +
                                 " is in the weights, but the model that config.json describes has no place for it",
                             tensor.name);
    }
    return Ok{};
  }

 private:
  const TensorFile& file_;
  std::unordered_set<const StoredTensor*> used_;
};

// One linear layer as stored. bias: null if it has none.
struct LinearTensors {
  const StoredTensor* weight = nullptr;
  const StoredTensor* bias = nullptr;
};

struct LayerTensors {
  LinearTensors q, k, v, o, gate, up, down;
  const StoredTensor* input_norm = nullptr;
  const StoredTensor* post_attention_norm = nullptr;
  const StoredTensor* q_norm = nullptr;  // null without qk_norm
  const StoredTensor* k_norm = nullptr;
};

struct ModelTensors {
  const StoredTensor* embedding = nullptr;  // null if tied
  const StoredTensor* lm_head = nullptr;
  const StoredTensor* final_norm = nullptr;
  std::vector<LayerTensors> layers;
};

Result<LinearTensors> FindLinear(TensorFinder& finder, const std::string& name, std::int64_t out, std::int64_t in,
                                 bool bias) {
  LinearTensors linear;
  ASSIGN_OR_RETURN(linear.weight, finder.Require(name + ".weight", {out, in}));
  if (bias) {
    ASSIGN_OR_RETURN(linear.bias, finder.Require(name + ".bias", {out}));
  }
  return linear;
}

Status FindAttention(TensorFinder& finder, const ModelConfig& c, const std::string& layer, LayerTensors& t) {
  const std::string attention = layer + "self_attn.";
  ASSIGN_OR_RETURN(t.q, FindLinear(finder, attention + "q_proj", c.QDim(), c.hidden_size, c.attention_qkv_bias));
  ASSIGN_OR_RETURN(t.k, FindLinear(finder, attention + "k_proj", c.KvDim(), c.hidden_size, c.attention_qkv_bias));
  ASSIGN_OR_RETURN(t.v, FindLinear(finder, attention + "v_proj", c.KvDim(), c.hidden_size, c.attention_qkv_bias));
  ASSIGN_OR_RETURN(t.o, FindLinear(finder, attention + "o_proj", c.hidden_size, c.QDim(), c.attention_output_bias));
  if (c.qk_norm) {
    ASSIGN_OR_RETURN(t.q_norm, finder.Require(attention + "q_norm.weight", {c.head_dim}));
    ASSIGN_OR_RETURN(t.k_norm, finder.Require(attention + "k_norm.weight", {c.head_dim}));
  }
  return Ok{};
}

Status FindMlp(TensorFinder& finder, const ModelConfig& c, const std::string& layer, LayerTensors& t) {
  const std::string mlp = layer + "mlp.";
  ASSIGN_OR_RETURN(t.gate, FindLinear(finder, mlp + "gate_proj", c.intermediate_size, c.hidden_size, c.mlp_bias));
  ASSIGN_OR_RETURN(t.up, FindLinear(finder, mlp + "up_proj", c.intermediate_size, c.hidden_size, c.mlp_bias));
  ASSIGN_OR_RETURN(t.down, FindLinear(finder, mlp + "down_proj", c.hidden_size, c.intermediate_size, c.mlp_bias));
  return Ok{};
}

Result<LayerTensors> FindLayer(TensorFinder& finder, const ModelConfig& c, std::int64_t index) {
  const std::string layer = "model.layers." + std::to_string(index) + ".";
  LayerTensors t;
  ASSIGN_OR_RETURN(t.input_norm, finder.Require(layer + "input_layernorm.weight", {c.hidden_size}));
  ASSIGN_OR_RETURN(t.post_attention_norm, finder.Require(layer + "post_attention_layernorm.weight", {c.hidden_size}));
  RETURN_IF_ERROR(FindAttention(finder, c, layer, t));
  RETURN_IF_ERROR(FindMlp(finder, c, layer, t));
  return t;
}

bool SameContent(const StoredTensor& a, const StoredTensor& b) {
  return a.dtype == b.dtype && std::ranges::equal(a.data, b.data);
}

constexpr const char* kEmbeddingName = "model.embed_tokens.weight";
constexpr const char* kLmHeadName = "lm_head.weight";

Status FindEmbeddings(TensorFinder& finder, const ModelConfig& c, ModelTensors& t) {
  const Shape shape = {c.vocab_size, c.hidden_size};
  if (!c.tie_word_embeddings) {
    ASSIGN_OR_RETURN(t.embedding, finder.Require(kEmbeddingName, shape));
    ASSIGN_OR_RETURN(t.lm_head, finder.Require(kLmHeadName, shape));
    return Ok{};
  }
  ASSIGN_OR_RETURN(t.embedding, finder.Find(kEmbeddingName, shape));
  ASSIGN_OR_RETURN(t.lm_head, finder.Find(kLmHeadName, shape));
  if (t.lm_head == nullptr && t.embedding == nullptr) {
    return InvalidArgument("the weights hold neither " + Quote(kEmbeddingName) + " nor " + Quote(kLmHeadName) +
                               " of shape " + ShapeToString(shape) + " (tied embeddings are stored as either)",
                           kEmbeddingName);
  }
  if (t.lm_head == nullptr) std::swap(t.lm_head, t.embedding);
  if (t.embedding != nullptr && SameContent(*t.embedding, *t.lm_head)) t.embedding = nullptr;
  return Ok{};
}

Result<ModelTensors> FindModelTensors(const ModelConfig& config, const TensorFile& file) {
  TensorFinder finder(file);
  ModelTensors t;
  RETURN_IF_ERROR(FindEmbeddings(finder, config, t));
  ASSIGN_OR_RETURN(t.final_norm, finder.Require("model.norm.weight", {config.hidden_size}));
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    ASSIGN_OR_RETURN(LayerTensors layer, FindLayer(finder, config, i));
    t.layers.push_back(layer);
  }
  RETURN_IF_ERROR(finder.CheckAllUsed());
  return t;
}

// ---- packing them

// Packs tensors and reports progress.
class Packer {
 public:
  Packer(const Progress& progress, const ModelTensors& tensors) : progress_(progress) {
    const auto count = [&](std::initializer_list<LinearTensors> linears) {
      for (const LinearTensors& linear : linears) total_ += SizeOf(linear.weight);
    };
    count({{tensors.embedding}, {tensors.lm_head}});
    for (const LayerTensors& t : tensors.layers) count({t.q, t.k, t.v, t.o, t.gate, t.up, t.down});
  }

  // Stacks the weights by output rows.
  PackedMatrix Matrix(std::initializer_list<LinearTensors> linears) {
    std::int64_t rows = 0;
    DType dtype = linears.begin()->weight->dtype;
    for (const LinearTensors& linear : linears) {
      rows += linear.weight->shape[0];
      if (linear.weight->dtype != dtype) dtype = DType::kF32;
    }
    PackedMatrix matrix(rows, linears.begin()->weight->shape[1], dtype);
    std::int64_t row = 0;
    for (const LinearTensors& linear : linears) {
      PackTensor(*linear.weight, row, matrix);
      row += linear.weight->shape[0];
    }
    return matrix;
  }

  // Stacks the biases; empty if there are none.
  static std::vector<float> Bias(std::initializer_list<LinearTensors> linears) {
    std::vector<float> out;
    for (const LinearTensors& linear : linears) {
      if (linear.bias == nullptr) continue;
      const std::vector<float> part = ToFloats(*linear.bias);
      out.insert(out.end(), part.begin(), part.end());
    }
    return out;
  }

 private:
  static std::int64_t SizeOf(const StoredTensor* tensor) {
    return tensor == nullptr ? 0 : static_cast<std::int64_t>(tensor->data.size());
  }

  void PackTensor(const StoredTensor& tensor, std::int64_t first_row, PackedMatrix& matrix) {
    if (tensor.dtype == matrix.dtype()) {
      matrix.PackRows(first_row, tensor.shape[0], tensor.data.data());
    } else {
      const std::vector<float> floats = ToFloats(tensor);
      matrix.PackRows(first_row, tensor.shape[0], reinterpret_cast<const std::byte*>(floats.data()));
    }
    done_ += SizeOf(&tensor);
    if (progress_) progress_(done_, total_);
  }

  const Progress& progress_;
  std::int64_t done_ = 0;
  std::int64_t total_ = 0;
};

LayerWeights PackLayer(Packer& packer, const LayerTensors& t) {
  LayerWeights w;
  w.qkv = packer.Matrix({t.q, t.k, t.v});
  w.o = packer.Matrix({t.o});
  w.gate_up = packer.Matrix({t.gate, t.up});
  w.down = packer.Matrix({t.down});
  w.qkv_bias = Packer::Bias({t.q, t.k, t.v});
  w.o_bias = Packer::Bias({t.o});
  w.gate_up_bias = Packer::Bias({t.gate, t.up});
  w.down_bias = Packer::Bias({t.down});
  w.input_norm = ToFloats(*t.input_norm);
  w.post_attention_norm = ToFloats(*t.post_attention_norm);
  if (t.q_norm != nullptr) w.q_norm = ToFloats(*t.q_norm);
  if (t.k_norm != nullptr) w.k_norm = ToFloats(*t.k_norm);
  return w;
}

std::int64_t FloatBytes(std::initializer_list<const std::vector<float>*> vectors) {
  std::int64_t total = 0;
  for (const auto* v : vectors) total += static_cast<std::int64_t>(v->size() * sizeof(float));
  return total;
}

// ---- random weights

// Fills `count` elements with int16 numbers times `scale`, each converted by `convert`.
template <typename Element, typename Convert>
void FillRandom(std::int64_t count, float scale, const Convert& convert, std::byte* out, Prng& prng) {
  for (std::int64_t i = 0; i < count; i += 4) {
    const std::uint64_t bits = prng.Next();
    Element four[4];
    for (int part = 0; part < 4; ++part) {
      four[part] = convert(static_cast<float>(static_cast<std::int16_t>(bits >> (16 * part))) * scale);
    }
    const auto rest = static_cast<std::size_t>(std::min<std::int64_t>(4, count - i));
    std::memcpy(out + static_cast<std::size_t>(i) * sizeof(Element), four, rest * sizeof(Element));
  }
}

void FillRandom(std::int64_t count, float scale, DType dtype, std::byte* out, Prng& prng) {
  if (dtype == DType::kF32)
    FillRandom<float>(
        count, scale, [](float value) { return value; }, out, prng);
  if (dtype == DType::kBF16) FillRandom<std::uint16_t>(count, scale, F32ToBF16, out, prng);
  if (dtype == DType::kF16) FillRandom<std::uint16_t>(count, scale, F32ToF16, out, prng);
}

// Uniform in +-sqrt(3 / k): a product with unit inputs has unit variance.
PackedMatrix RandomMatrix(std::int64_t n, std::int64_t k, DType dtype, Prng& prng) {
  PackedMatrix matrix(n, k, dtype);
  const float scale = std::sqrt(3.0f / static_cast<float>(k)) / 32768.0f;
  std::vector<std::byte> panel(static_cast<std::size_t>(PackedMatrix::kPanel * k) * DTypeSize(dtype));
  for (std::int64_t row = 0; row < n; row += PackedMatrix::kPanel) {
    const std::int64_t rows = std::min(PackedMatrix::kPanel, n - row);
    FillRandom(rows * k, scale, dtype, panel.data(), prng);
    matrix.PackRows(row, rows, panel.data());
  }
  return matrix;
}

std::vector<float> Zeros(bool wanted, std::int64_t n) {
  return std::vector<float>(wanted ? static_cast<std::size_t>(n) : 0, 0.0f);
}

std::vector<float> Ones(std::int64_t n) { return std::vector<float>(static_cast<std::size_t>(n), 1.0f); }

LayerWeights RandomLayer(const ModelConfig& c, DType dtype, Prng& prng) {
  LayerWeights w;
  const std::int64_t qkv = c.QDim() + 2 * c.KvDim();
  w.qkv = RandomMatrix(qkv, c.hidden_size, dtype, prng);
  w.o = RandomMatrix(c.hidden_size, c.QDim(), dtype, prng);
  w.gate_up = RandomMatrix(2 * c.intermediate_size, c.hidden_size, dtype, prng);
  w.down = RandomMatrix(c.hidden_size, c.intermediate_size, dtype, prng);
  w.qkv_bias = Zeros(c.attention_qkv_bias, qkv);
  w.o_bias = Zeros(c.attention_output_bias, c.hidden_size);
  w.gate_up_bias = Zeros(c.mlp_bias, 2 * c.intermediate_size);
  w.down_bias = Zeros(c.mlp_bias, c.hidden_size);
  w.input_norm = w.post_attention_norm = Ones(c.hidden_size);
  if (c.qk_norm) w.q_norm = w.k_norm = Ones(c.head_dim);
  return w;
}

}  // namespace

std::int64_t WeightBytes(const ModelWeights& weights) {
  std::int64_t total = static_cast<std::int64_t>(weights.embedding.bytes() + weights.lm_head.bytes()) +
                       FloatBytes({&weights.final_norm});
  for (const LayerWeights& w : weights.layers) {
    total += static_cast<std::int64_t>(w.qkv.bytes() + w.o.bytes() + w.gate_up.bytes() + w.down.bytes());
    total += FloatBytes({&w.qkv_bias, &w.o_bias, &w.gate_up_bias, &w.down_bias, &w.input_norm, &w.post_attention_norm,
                         &w.q_norm, &w.k_norm});
  }
  return total;
}

Result<ModelWeights> PackModelWeights(const ModelConfig& config, const TensorFile& file, const Progress& progress) {
  ASSIGN_OR_RETURN(const ModelTensors tensors, FindModelTensors(config, file));
  Packer packer(progress, tensors);
  ModelWeights weights;
  if (tensors.embedding != nullptr) weights.embedding = packer.Matrix({{tensors.embedding}});
  for (const LayerTensors& layer : tensors.layers) weights.layers.push_back(PackLayer(packer, layer));
  weights.final_norm = ToFloats(*tensors.final_norm);
  weights.lm_head = packer.Matrix({{tensors.lm_head}});
  return weights;
}

ModelWeights RandomModelWeights(const ModelConfig& config, DType dtype, std::uint64_t seed) {
  CHECK(IsWeightDType(dtype));
  Prng prng(seed);
  ModelWeights weights;
  if (!config.tie_word_embeddings) weights.embedding = RandomMatrix(config.vocab_size, config.hidden_size, dtype, prng);
  weights.lm_head = RandomMatrix(config.vocab_size, config.hidden_size, dtype, prng);
  for (std::int64_t i = 0; i < config.num_layers; ++i) weights.layers.push_back(RandomLayer(config, dtype, prng));
  weights.final_norm = Ones(config.hidden_size);
  return weights;
}

}  // namespace loramux
