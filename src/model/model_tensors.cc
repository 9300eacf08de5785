#include "model/model_tensors.h"

#include <algorithm>
#include <string>
#include <utility>

#include "formats/message.h"
#include "model/tensor_finder.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

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
  const TensorFinder::Shape shape = {c.vocab_size, c.hidden_size};
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

}  // namespace

Result<ModelTensors> FindModelTensors(const ModelConfig& config, const TensorFile& file) {
  TensorFinder finder(file);
  ModelTensors t;
  RETURN_IF_ERROR(FindEmbeddings(finder, config, t));
  ASSIGN_OR_RETURN(t.final_norm, finder.Require("model.norm.weight", {config.hidden_size}));
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    ASSIGN_OR_RETURN(LayerTensors layer, FindLayer(finder, config, i));
    t.layers.push_back(layer);
  }
  RETURN_IF_ERROR(finder.CheckAllUsed(/*ignored=*/"rotary_emb.inv_freq"));
  return t;
}

std::int64_t MatrixBytes(const ModelTensors& tensors) {
  std::int64_t total = 0;
  const auto count = [&](std::initializer_list<LinearTensors> linears) {
    for (const LinearTensors& linear : linears) {
      if (linear.weight != nullptr) total += static_cast<std::int64_t>(linear.weight->data.size());
    }
  };
  count({{tensors.embedding}, {tensors.lm_head}});
  for (const LayerTensors& t : tensors.layers) count({t.q, t.k, t.v, t.o, t.gate, t.up, t.down});
  return total;
}

DType CommonDType(std::initializer_list<LinearTensors> linears) {
  const DType first = linears.begin()->weight->dtype;
  const bool same =
      std::ranges::all_of(linears, [&](const LinearTensors& linear) { return linear.weight->dtype == first; });
  return same ? first : DType::kF32;
}

std::vector<float> ToFloats(const StoredTensor& tensor) {
  std::vector<float> out(static_cast<std::size_t>(tensor.ElementCount()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = LoadAsF32(tensor.dtype, tensor.data.data(), static_cast<std::int64_t>(i));
  }
  return out;
}

std::vector<float> StackedBias(std::initializer_list<LinearTensors> linears) {
  std::vector<float> out;
  for (const LinearTensors& linear : linears) {
    if (linear.bias == nullptr) continue;
    const std::vector<float> part = ToFloats(*linear.bias);
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

}  // namespace loramux
