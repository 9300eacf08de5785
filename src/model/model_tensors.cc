#include "model/model_tensors.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "formats/message.h"
#include "formats/safetensors.h"

namespace loramux {
namespace {

Result<LinearTensors> FindLinear(ModelSource& source, const std::string& name, std::int64_t out, std::int64_t in,
                                 bool bias) {
  LinearTensors linear;
  ASSIGN_OR_RETURN(linear.weight, source.RequireMatrix(name, out, in));
  if (bias) {
    ASSIGN_OR_RETURN(linear.bias, source.RequireVector(name + ".bias", out));
  }
  return linear;
}

Status FindAttention(ModelSource& source, const ModelConfig& c, const std::string& layer, LayerTensors& t) {
  const std::string attention = layer + "self_attn.";
  ASSIGN_OR_RETURN(t.q, FindLinear(source, attention + "q_proj", c.QDim(), c.hidden_size, c.attention_qkv_bias));
  ASSIGN_OR_RETURN(t.k, FindLinear(source, attention + "k_proj", c.KvDim(), c.hidden_size, c.attention_qkv_bias));
  ASSIGN_OR_RETURN(t.v, FindLinear(source, attention + "v_proj", c.KvDim(), c.hidden_size, c.attention_qkv_bias));
  ASSIGN_OR_RETURN(t.o, FindLinear(source, attention + "o_proj", c.hidden_size, c.QDim(), c.attention_output_bias));
  if (c.qk_norm) {
    ASSIGN_OR_RETURN(t.q_norm, source.RequireVector(attention + "q_norm.weight", c.head_dim));
    ASSIGN_OR_RETURN(t.k_norm, source.RequireVector(attention + "k_norm.weight", c.head_dim));
  }
  return Ok{};
}

Status FindMlp(ModelSource& source, const ModelConfig& c, const std::string& layer, LayerTensors& t) {
  const std::string mlp = layer + "mlp.";
  ASSIGN_OR_RETURN(t.gate, FindLinear(source, mlp + "gate_proj", c.intermediate_size, c.hidden_size, c.mlp_bias));
  ASSIGN_OR_RETURN(t.up, FindLinear(source, mlp + "up_proj", c.intermediate_size, c.hidden_size, c.mlp_bias));
  ASSIGN_OR_RETURN(t.down, FindLinear(source, mlp + "down_proj", c.hidden_size, c.intermediate_size, c.mlp_bias));
  return Ok{};
}

Result<LayerTensors> FindLayer(ModelSource& source, const ModelConfig& c, std::int64_t index) {
  const std::string layer = "model.layers." + std::to_string(index) + ".";
  LayerTensors t;
  ASSIGN_OR_RETURN(t.input_norm, source.RequireVector(layer + "input_layernorm.weight", c.hidden_size));
  ASSIGN_OR_RETURN(t.post_attention_norm,
                   source.RequireVector(layer + "post_attention_layernorm.weight", c.hidden_size));
  RETURN_IF_ERROR(FindAttention(source, c, layer, t));
  RETURN_IF_ERROR(FindMlp(source, c, layer, t));
  return t;
}

constexpr const char* kEmbeddingName = "model.embed_tokens";
constexpr const char* kLmHeadName = "lm_head";

Status FindEmbeddings(ModelSource& source, const ModelConfig& c, ModelTensors& t) {
  std::shared_ptr<const StoredMatrix>&embedding = t.embedding.weight, &lm_head = t.lm_head.weight;
  if (!c.tie_word_embeddings) {
    ASSIGN_OR_RETURN(embedding, source.RequireMatrix(kEmbeddingName, c.vocab_size, c.hidden_size));
    ASSIGN_OR_RETURN(lm_head, source.FindMatrix(kLmHeadName, c.vocab_size, c.hidden_size));
    if (lm_head != nullptr) return Ok{};
    // Elsewhere a file without an output layer is an incomplete one.
    if (!c.without_head && !source.WithoutHead()) {
      ASSIGN_OR_RETURN(lm_head, source.RequireMatrix(kLmHeadName, c.vocab_size, c.hidden_size));
    }
    std::swap(lm_head, embedding);
    t.generates = false;
    return Ok{};
  }
  ASSIGN_OR_RETURN(embedding, source.FindMatrix(kEmbeddingName, c.vocab_size, c.hidden_size));
  ASSIGN_OR_RETURN(lm_head, source.FindMatrix(kLmHeadName, c.vocab_size, c.hidden_size));
  if (lm_head == nullptr && embedding == nullptr) {
    const std::string name = std::string(kEmbeddingName) + ".weight";
    return InvalidArgument("the weights hold neither " + Quote(name) + " nor " +
                               Quote(std::string(kLmHeadName) + ".weight") + " of shape " +
                               ShapeToString(std::vector<std::int64_t>{c.vocab_size, c.hidden_size}) +
                               " (tied embeddings are stored as either)",
                           name);
  }
  if (lm_head == nullptr) std::swap(lm_head, embedding);
  if (embedding != nullptr && SameValues(*embedding, *lm_head)) embedding = nullptr;
  return Ok{};
}

template <typename Visit>
void ForEachMatrix(const ModelTensors& tensors, const Visit& visit) {
  const auto visit_all = [&](std::initializer_list<LinearTensors> linears) {
    for (const LinearTensors& linear : linears) {
      if (linear.weight != nullptr) visit(*linear.weight);
    }
  };
  visit_all({tensors.embedding, tensors.lm_head});
  for (const LayerTensors& t : tensors.layers) visit_all({t.q, t.k, t.v, t.o, t.gate, t.up, t.down});
}

}  // namespace

Result<ModelTensors> FindModelTensors(const ModelConfig& config, ModelSource& source) {
  ModelTensors t;
  RETURN_IF_ERROR(FindEmbeddings(source, config, t));
  ASSIGN_OR_RETURN(t.final_norm, source.RequireVector("model.norm.weight", config.hidden_size));
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    ASSIGN_OR_RETURN(LayerTensors layer, FindLayer(source, config, i));
    t.layers.push_back(std::move(layer));
  }
  RETURN_IF_ERROR(source.CheckAllUsed());
  return t;
}

std::int64_t MatrixBytes(const ModelTensors& tensors) {
  std::int64_t total = 0;
  ForEachMatrix(tensors, [&](const StoredMatrix& matrix) { total += matrix.bytes(); });
  return total;
}

std::map<WeightFormat, std::int64_t> MemoryBytes(const ModelTensors& tensors) {
  std::map<WeightFormat, std::int64_t> bytes;
  ForEachMatrix(tensors, [&](const StoredMatrix& matrix) {
    const auto row = static_cast<std::int64_t>(WeightRowBytes(matrix.format(), matrix.columns()));
    bytes[matrix.format()] += matrix.rows() * row;
  });
  return bytes;
}

DType CommonDType(std::initializer_list<LinearTensors> linears) {
  const auto type = [](const LinearTensors& linear) {
    const WeightFormat format = linear.weight->format();
    return IsQuantised(format) ? DType::kBF16 : DTypeOf(format);
  };
  const DType first = type(*linears.begin());
  const bool same = std::ranges::all_of(linears, [&](const LinearTensors& linear) { return type(linear) == first; });
  return same ? first : DType::kF32;
}

std::vector<float> StackedBias(std::initializer_list<LinearTensors> linears) {
  std::vector<float> out;
  for (const LinearTensors& linear : linears) out.insert(out.end(), linear.bias.begin(), linear.bias.end());
  return out;
}

}  // namespace loramux
