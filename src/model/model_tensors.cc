#include "model/model_tensors.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "formats/message.h"
#include "formats/model_family.h"
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

// A layer that a checkpoint may hold together with others, their rows one after the other.
struct PartOfFused {
  std::string name;
  std::int64_t rows = 0;
  LinearTensors* to = nullptr;
};

// Finds the layers under their own names or, if the model has `fused`, in that, in `groups` of heads.
Status FindParts(ModelSource& source, const std::string& fused, std::initializer_list<PartOfFused> parts,
                 std::int64_t groups, std::int64_t in, bool bias) {
  std::vector<std::int64_t> sizes;
  for (const PartOfFused& part : parts) sizes.push_back(part.rows);
  const std::int64_t rows = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  ASSIGN_OR_RETURN(const std::shared_ptr<const StoredMatrix> whole, source.FindMatrix(fused, rows, in));
  std::vector<float> all_bias;
  if (whole != nullptr && bias) {
    ASSIGN_OR_RETURN(all_bias, source.RequireVector(fused + ".bias", rows));
  }
  const auto rows_of = RowsOfFused(sizes, groups);
  auto picked = rows_of.begin();
  for (const PartOfFused& part : parts) {
    if (whole == nullptr) {
      ASSIGN_OR_RETURN(*part.to, FindLinear(source, part.name, part.rows, in, bias));
      continue;
    }
    if (bias) {
      for (const std::int64_t row : *picked) part.to->bias.push_back(all_bias[static_cast<std::size_t>(row)]);
    }
    part.to->weight = RowsOfMatrix(whole, *picked++);
  }
  return Ok{};
}

// The groups of heads of a fused layer; 1: all queries, then all keys, then all values.
std::int64_t FusedGroups(const ModelConfig& c) { return FusesByHeads(c.family) ? c.num_kv_heads : 1; }

Status FindAttention(ModelSource& source, const ModelConfig& c, const std::string& layer, LayerTensors& t) {
  const std::string attention = layer + "self_attn.";
  RETURN_IF_ERROR(FindParts(source, attention + "qkv_proj",
                            {{attention + "q_proj", c.QDim(), &t.q},
                             {attention + "k_proj", c.KvDim(), &t.k},
                             {attention + "v_proj", c.KvDim(), &t.v}},
                            FusedGroups(c), c.hidden_size, c.attention_qkv_bias));
  ASSIGN_OR_RETURN(t.o, FindLinear(source, attention + "o_proj", c.hidden_size, c.QDim(), c.attention_output_bias));
  if (c.qk_norm == QkNorm::kNone) return Ok{};
  const bool of_heads = c.qk_norm == QkNorm::kHeads;
  ASSIGN_OR_RETURN(t.q_norm.weight,
                   source.RequireVector(attention + "q_norm.weight", of_heads ? c.head_dim : c.QDim()));
  ASSIGN_OR_RETURN(t.k_norm.weight,
                   source.RequireVector(attention + "k_norm.weight", of_heads ? c.head_dim : c.KvDim()));
  return Ok{};
}

Status FindMlp(ModelSource& source, const ModelConfig& c, const std::string& layer, LayerTensors& t) {
  const std::string mlp = layer + "mlp.";
  if (c.gated) {
    RETURN_IF_ERROR(
        FindParts(source, mlp + "gate_up_proj",
                  {{mlp + "gate_proj", c.intermediate_size, &t.gate}, {mlp + "up_proj", c.intermediate_size, &t.up}}, 1,
                  c.hidden_size, c.mlp_bias));
  } else {
    ASSIGN_OR_RETURN(t.up, FindLinear(source, mlp + "up_proj", c.intermediate_size, c.hidden_size, c.mlp_bias));
  }
  ASSIGN_OR_RETURN(t.down, FindLinear(source, mlp + "down_proj", c.hidden_size, c.intermediate_size, c.mlp_bias));
  return Ok{};
}

// `name` null: the family has no such norm.
Status FindNorm(ModelSource& source, const ModelConfig& c, const std::string& layer, const char* name,
                NormTensors& to) {
  if (name == nullptr) return Ok{};
  ASSIGN_OR_RETURN(to.weight, source.RequireVector(layer + name + ".weight", c.hidden_size));
  if (c.norm_kind == NormKind::kRms) return Ok{};
  ASSIGN_OR_RETURN(to.bias, source.RequireVector(layer + name + ".bias", c.hidden_size));
  return Ok{};
}

Result<LayerTensors> FindLayer(ModelSource& source, const ModelConfig& c, std::int64_t index) {
  const std::string layer = "model.layers." + std::to_string(index) + ".";
  LayerTensors t;
  const NormNames& norms = InfoOf(c.family).norms;
  RETURN_IF_ERROR(FindNorm(source, c, layer, norms.attention, t.input_norm));
  RETURN_IF_ERROR(FindNorm(source, c, layer, norms.attention_output, t.attention_output_norm));
  if (c.block_order != BlockOrder::kParallelOneNorm) {
    RETURN_IF_ERROR(FindNorm(source, c, layer, norms.mlp, t.mlp_norm));
  }
  RETURN_IF_ERROR(FindNorm(source, c, layer, norms.mlp_output, t.mlp_output_norm));
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
  visit_all({tensors.embedding, tensors.positions, tensors.lm_head});
  for (const LayerTensors& t : tensors.layers) visit_all({t.q, t.k, t.v, t.o, t.gate, t.up, t.down});
}

}  // namespace

Result<ModelTensors> FindModelTensors(const ModelConfig& config, ModelSource& source) {
  ModelTensors t;
  RETURN_IF_ERROR(FindEmbeddings(source, config, t));
  RETURN_IF_ERROR(FindNorm(source, config, "model.", "norm", t.final_norm));
  if (config.position_rows_before) {
    const std::int64_t rows = config.max_position + *config.position_rows_before;
    ASSIGN_OR_RETURN(t.positions.weight, source.RequireMatrix("model.embed_positions", rows, config.hidden_size));
  }
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
