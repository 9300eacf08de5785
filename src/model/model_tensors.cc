#include "model/model_tensors.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/message.h"
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
std::int64_t FusedGroups(const ModelSource& source, const ModelConfig& c) {
  return FusesByHeads(c.family) && source.FusesAsPublished() ? c.num_kv_heads : 1;
}

// The norms of heads, one after the other, with biases of zero.
Status FindNormsOfHeads(ModelSource& source, const std::string& norms, std::int64_t heads, std::int64_t head_dim,
                        NormTensors& to) {
  for (std::int64_t head = 0; head < heads; ++head) {
    const std::string name = norms + std::to_string(head) + ".weight";
    ASSIGN_OR_RETURN(const std::vector<float> weight, source.RequireVector(name, head_dim));
    to.weight.insert(to.weight.end(), weight.begin(), weight.end());
  }
  to.bias.assign(to.weight.size(), 0.0f);
  return Ok{};
}

// Finds the queries of a layer that reads another's keys and values. Its own are not used, as in transformers.
Status FindQueries(ModelSource& source, const ModelConfig& c, std::int64_t index, const std::string& attention,
                   LayerTensors& t) {
  const std::int64_t head_dim = c.HeadsOf(index).head_dim;
  ASSIGN_OR_RETURN(t.q, FindLinear(source, attention + "q_proj", c.QDim(index), c.hidden_size, c.attention_qkv_bias));
  ASSIGN_OR_RETURN(t.o,
                   FindLinear(source, attention + "o_proj", c.hidden_size, c.QDim(index), c.attention_output_bias));
  ASSIGN_OR_RETURN(t.q_norm.weight, source.RequireVector(attention + "q_norm.weight", head_dim));
  for (const char* unused : {"k_proj", "v_proj"}) {
    ASSIGN_OR_RETURN(const auto ignored, source.FindMatrix(attention + unused, c.KvDim(index), c.hidden_size));
  }
  ASSIGN_OR_RETURN(const auto ignored, source.FindVector(attention + "k_norm.weight", head_dim));
  return Ok{};
}

// What Gemma 4 has in a layer besides.
Status FindLayerInput(ModelSource& source, const ModelConfig& c, const std::string& layer, LayerTensors& t) {
  if (c.layer_scales) {
    ASSIGN_OR_RETURN(t.scale, source.RequireVector(layer + "layer_scalar", 1));
  }
  const std::int64_t size = c.layer_input_size, hidden = c.hidden_size;
  if (size == 0) return Ok{};
  ASSIGN_OR_RETURN(t.input_gate, FindLinear(source, layer + "per_layer_input_gate", size, hidden, false));
  ASSIGN_OR_RETURN(t.input_projection, FindLinear(source, layer + "per_layer_projection", hidden, size, false));
  ASSIGN_OR_RETURN(t.layer_input_norm.weight, source.RequireVector(layer + "post_per_layer_input_norm.weight", hidden));
  return Ok{};
}

// What the inputs of all layers are made of.
Status FindLayerInputs(ModelSource& source, const ModelConfig& c, ModelTensors& t) {
  const std::int64_t all = c.num_layers * c.layer_input_size;
  if (all == 0) return Ok{};
  ASSIGN_OR_RETURN(t.layer_embedding.weight, source.RequireMatrix("model.embed_tokens_per_layer", c.vocab_size, all));
  ASSIGN_OR_RETURN(t.layer_context, FindLinear(source, "model.per_layer_model_projection", all, c.hidden_size, false));
  ASSIGN_OR_RETURN(t.layer_context_norm.weight,
                   source.RequireVector("model.per_layer_projection_norm.weight", c.layer_input_size));
  return Ok{};
}

// Finds what a recurrent layer makes of its input at first.
Status FindInputs(ModelSource& source, const ModelConfig& c, const std::string& name, LayerTensors& t) {
  const RecurrentConfig& r = *c.recurrent;
  const std::int64_t hidden = c.hidden_size;
  if (r.mamba) {
    ASSIGN_OR_RETURN(t.in_all, FindLinear(source, name + "in_proj", r.InputRows(), hidden, r.input_bias));
    return Ok{};
  }
  ASSIGN_OR_RETURN(const auto all, source.FindMatrix(name + "in_proj_qkvz", r.InputRows(), hidden));
  if (all != nullptr) {
    const auto rows = RowsOfFusedStates(r, false);
    t.in_qkv.weight = RowsOfMatrix(all, rows[0]);
    t.in_z.weight = RowsOfMatrix(all, rows[1]);
  } else {
    ASSIGN_OR_RETURN(t.in_qkv, FindLinear(source, name + "in_proj_qkv", r.Channels(), hidden, false));
    ASSIGN_OR_RETURN(t.in_z, FindLinear(source, name + "in_proj_z", r.Values(), hidden, false));
  }
  ASSIGN_OR_RETURN(const auto gates, source.FindMatrix(name + "in_proj_ba", 2 * r.value_heads, hidden));
  if (gates != nullptr) {
    const auto rows = RowsOfFusedStates(r, true);
    t.in_b.weight = RowsOfMatrix(gates, rows[0]);
    t.in_a.weight = RowsOfMatrix(gates, rows[1]);
    return Ok{};
  }
  ASSIGN_OR_RETURN(t.in_b, FindLinear(source, name + "in_proj_b", r.value_heads, hidden, false));
  ASSIGN_OR_RETURN(t.in_a, FindLinear(source, name + "in_proj_a", r.value_heads, hidden, false));
  return Ok{};
}

// Finds the matrices of a recurrent layer.
Status FindRecurrent(ModelSource& source, const ModelConfig& c, const std::string& layer, LayerTensors& t) {
  const RecurrentConfig& r = *c.recurrent;
  const std::string name = layer + (r.mamba ? "mamba." : "linear_attn.");
  const std::int64_t channels = r.Channels(), hidden = c.hidden_size;
  RETURN_IF_ERROR(FindInputs(source, c, name, t));
  LinearTensors& out = r.beside_attention ? t.state_out : t.o;
  ASSIGN_OR_RETURN(out, FindLinear(source, name + "out_proj", hidden, r.Values(), r.output_bias));
  ASSIGN_OR_RETURN(const auto conv, source.RequireConv(name + "conv1d.weight", channels, r.conv_width));
  for (std::int64_t position = 0; position < r.conv_width; ++position) {
    for (std::int64_t c_at = 0; c_at < channels; ++c_at) {
      t.conv.push_back(conv[static_cast<std::size_t>(c_at * r.conv_width + position)]);
    }
  }
  ASSIGN_OR_RETURN(t.a_log, source.RequireVector(name + "A_log", r.value_heads));
  for (const float logarithm : t.a_log) t.rate.push_back(-std::exp(logarithm));
  ASSIGN_OR_RETURN(t.dt_bias, source.RequireVector(name + "dt_bias", r.value_heads));
  if (r.NormSize() > 0) {
    ASSIGN_OR_RETURN(t.state_norm, source.RequireVector(name + "norm.weight", r.NormSize()));
  }
  if (!r.mamba) return Ok{};
  ASSIGN_OR_RETURN(t.skip, source.RequireVector(name + "D", r.value_heads));
  if (!r.conv_bias) return Ok{};
  ASSIGN_OR_RETURN(t.conv_bias, source.RequireVector(name + "conv1d.bias", channels));
  return Ok{};
}

Status FindAttention(ModelSource& source, const ModelConfig& c, std::int64_t index, const std::string& layer,
                     LayerTensors& t) {
  const std::string attention = layer + "self_attn.";
  const std::int64_t q_dim = c.QDim(index), kv_dim = c.KvDim(index), q_rows = c.QProjDim(index);
  if (c.IsRecurrent(index)) RETURN_IF_ERROR(FindRecurrent(source, c, layer, t));
  if (!c.HasAttention(index)) return Ok{};
  if (c.SharesKv(index)) return FindQueries(source, c, index, attention, t);
  // What has no name of its own has that of the keys.
  const char* const values = c.ValuesAreKeys(index) ? "k_proj" : "v_proj";
  RETURN_IF_ERROR(FindParts(
      source, attention + "qkv_proj",
      {{attention + "q_proj", q_rows, &t.q}, {attention + "k_proj", kv_dim, &t.k}, {attention + values, kv_dim, &t.v}},
      FusedGroups(source, c), c.hidden_size, c.attention_qkv_bias));
  ASSIGN_OR_RETURN(t.o, FindLinear(source, attention + "o_proj", c.hidden_size, q_dim, c.attention_output_bias));
  if (c.sinks) {
    ASSIGN_OR_RETURN(t.sinks, source.RequireVector(attention + "sinks", c.num_heads));
  }
  if (c.value_norm) t.v_norm.weight.assign(static_cast<std::size_t>(c.HeadsOf(index).head_dim), 1.0f);
  if (c.qk_norm == QkNorm::kNone) return Ok{};
  if (c.qk_norm == QkNorm::kLayerOfHeads) {
    RETURN_IF_ERROR(FindNormsOfHeads(source, attention + "q_layernorm.norms.", c.num_heads, c.head_dim, t.q_norm));
    return FindNormsOfHeads(source, attention + "k_layernorm.norms.", c.num_kv_heads, c.head_dim, t.k_norm);
  }
  const bool of_heads = c.qk_norm == QkNorm::kHeads;
  const std::int64_t head_dim = c.HeadsOf(index).head_dim;
  ASSIGN_OR_RETURN(t.q_norm.weight, source.RequireVector(attention + "q_norm.weight", of_heads ? head_dim : q_dim));
  ASSIGN_OR_RETURN(t.k_norm.weight, source.RequireVector(attention + "k_norm.weight", of_heads ? head_dim : kv_dim));
  return Ok{};
}

// The layer's own block.
Status FindBlock(ModelSource& source, const ModelConfig& c, std::int64_t size, const std::string& layer,
                 const std::string& of_layer, BlockTensors& t) {
  const std::string mlp = layer + of_layer;
  if (c.gated) {
    RETURN_IF_ERROR(FindParts(source, mlp + "gate_up_proj",
                              {{mlp + "gate_proj", size, &t.gate}, {mlp + "up_proj", size, &t.up}}, 1, c.hidden_size,
                              c.mlp_bias));
  } else {
    ASSIGN_OR_RETURN(t.up, FindLinear(source, mlp + "up_proj", size, c.hidden_size, c.mlp_bias));
  }
  ASSIGN_OR_RETURN(t.down, FindLinear(source, mlp + "down_proj", c.hidden_size, size, c.mlp_bias));
  return Ok{};
}

// The names of the parts of a mixture of experts, after "model.layers.N.".
struct ExpertNames {
  const char* router;
  const char* each;  // what the number of an expert follows
  const char *gate, *up, *down;
};
constexpr ExpertNames kExpertNames[] = {
    {"mlp.gate", "mlp.experts.", ".gate_proj", ".up_proj", ".down_proj"},
    {"block_sparse_moe.gate", "block_sparse_moe.experts.", ".w1", ".w3", ".w2"},
};

// A matrix [experts * parts * rows, columns] of all experts, whose rows are those of the parts of the first expert, and
// so on. With `alternating`, the rows of an expert's parts alternate.
struct StackedExperts {
  std::shared_ptr<const StoredMatrix> matrix;
  std::vector<float> bias;  // by row, or empty
  std::int64_t parts = 1, rows = 0;
  bool alternating = false;

  LinearTensors Part(std::int64_t expert, std::int64_t part) const {
    std::vector<std::int64_t> picked(static_cast<std::size_t>(rows));
    LinearTensors linear;
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t in_expert = alternating ? i * parts + part : part * rows + i;
      const std::int64_t row = picked[static_cast<std::size_t>(i)] = expert * parts * rows + in_expert;
      if (!bias.empty()) linear.bias.push_back(bias[static_cast<std::size_t>(row)]);
    }
    linear.weight = RowsOfMatrix(matrix, std::move(picked));
    return linear;
  }
};

// Finds a matrix of all experts; null if there is none.
Result<StackedExperts> FindStacked(ModelSource& source, const ModelConfig& c, const std::string& name,
                                   std::int64_t parts, std::int64_t rows, std::int64_t columns) {
  const ModelSource::StackedShape shape = {c.experts->route.experts, parts * rows, columns,
                                           c.family == ModelFamily::kGptOss};
  StackedExperts found{.parts = parts, .rows = rows};
  ASSIGN_OR_RETURN(const ModelSource::Stacked stacked, source.FindStacked(name, shape));
  found.matrix = stacked.matrix;
  found.alternating = stacked.alternating;
  if (found.matrix == nullptr || !c.experts->biases) return found;
  ASSIGN_OR_RETURN(found.bias, source.RequireStackedBias(name, shape));
  return found;
}

// Experts in matrices of all of them: gate and up together or apart. Leaves `t` as it is if there are none.
Status FindStackedExperts(ModelSource& source, const ModelConfig& c, const std::string& layer, LayerTensors& t) {
  const std::int64_t size = c.experts->intermediate_size;
  for (const auto& [gate_up, down] : {std::pair{"mlp.experts.gate_up_proj", "mlp.experts.down_proj"},
                                      std::pair{"block_sparse_moe.input_linear", "block_sparse_moe.output_linear"},
                                      std::pair{"experts.gate_up_proj", "experts.down_proj"}}) {
    StackedExperts gates, ups;
    ASSIGN_OR_RETURN(const auto both, FindStacked(source, c, layer + gate_up, 2, size, c.hidden_size));
    if (both.matrix == nullptr) {
      ASSIGN_OR_RETURN(gates, FindStacked(source, c, layer + "mlp.experts.gate_proj", 1, size, c.hidden_size));
      ASSIGN_OR_RETURN(ups, FindStacked(source, c, layer + "mlp.experts.up_proj", 1, size, c.hidden_size));
    }
    const bool apart = (gates.matrix != nullptr || !c.gated) && ups.matrix != nullptr;
    if (both.matrix == nullptr && !apart) continue;
    ASSIGN_OR_RETURN(const auto downs, FindStacked(source, c, layer + down, 1, c.hidden_size, size));
    if (downs.matrix == nullptr) {
      return InvalidArgument("tensor " + Quote(layer + down) + " is missing from the weights", layer + down);
    }
    for (std::int64_t e = 0; e < c.experts->route.experts; ++e) {
      const bool fused = both.matrix != nullptr;
      const LinearTensors gate = fused ? both.Part(e, 0) : c.gated ? gates.Part(e, 0) : LinearTensors();
      t.experts.push_back({gate, fused ? both.Part(e, 1) : ups.Part(e, 0), downs.Part(e, 0)});
    }
    return Ok{};
  }
  return Ok{};
}

// Each expert in matrices of its own.
Status FindSplitExperts(ModelSource& source, const ModelConfig& c, const std::string& layer, const ExpertNames& names,
                        LayerTensors& t) {
  const std::int64_t size = c.experts->intermediate_size, hidden = c.hidden_size;
  const bool bias = c.experts->biases;
  for (std::int64_t e = 0; e < c.experts->route.experts; ++e) {
    const std::string expert = layer + names.each + std::to_string(e);
    BlockTensors block;
    if (c.gated) {
      ASSIGN_OR_RETURN(block.gate, FindLinear(source, expert + names.gate, size, hidden, bias));
    }
    ASSIGN_OR_RETURN(block.up, FindLinear(source, expert + names.up, size, hidden, bias));
    ASSIGN_OR_RETURN(block.down, FindLinear(source, expert + names.down, hidden, size, bias));
    t.experts.push_back(std::move(block));
  }
  return Ok{};
}

// Returns the name that it has in the files, after "model.layers.N.".
Result<std::string_view> FindRouter(ModelSource& source, const ModelConfig& c, const std::string& layer,
                                    LayerTensors& t) {
  const std::int64_t count = c.experts->route.experts;
  for (const char* name :
       {"mlp.gate", "block_sparse_moe.gate", "mlp.router", "block_sparse_moe.router.layer", "router.proj"}) {
    ASSIGN_OR_RETURN(t.router.weight, source.FindMatrix(layer + name, count, c.hidden_size));
    if (t.router.weight == nullptr) continue;
    if (!c.experts->router_bias) return std::string_view(name);
    ASSIGN_OR_RETURN(t.router.bias, source.RequireVector(layer + name + ".bias", count));
    return std::string_view(name);
  }
  ASSIGN_OR_RETURN(t.router.weight, source.RequireMatrix(layer + "mlp.gate", count, c.hidden_size));
  return std::string_view(kExpertNames[0].router);
}

// The norms of experts beside a block, and the factors of what each returns.
Status FindNormsBeside(ModelSource& source, const ModelConfig& c, const std::string& layer, LayerTensors& t) {
  const std::int64_t hidden = c.hidden_size;
  const std::string names[] = {"router.scale", "post_feedforward_layernorm_1.weight",
                               "pre_feedforward_layernorm_2.weight", "post_feedforward_layernorm_2.weight"};
  NormTensors* const norms[] = {&t.router_norm, &t.block_output_norm, &t.experts_norm, &t.experts_output_norm};
  for (std::size_t i = 0; i < std::size(names); ++i) {
    ASSIGN_OR_RETURN(norms[i]->weight, source.RequireVector(layer + names[i], hidden));
  }
  ASSIGN_OR_RETURN(t.expert_scales, source.RequireVector(layer + "router.per_expert_scale", c.experts->route.experts));
  return Ok{};
}

Status FindMlp(ModelSource& source, const ModelConfig& c, std::int64_t index, const std::string& layer,
               LayerTensors& t) {
  if (!c.Has(LayerPart::kFeedForward, index)) return Ok{};
  if (!c.HasExperts(index)) return FindBlock(source, c, c.BlockSize(index), layer, "mlp.", t);
  ASSIGN_OR_RETURN(const std::string_view router, FindRouter(source, c, layer, t));
  if (c.experts->route_bias) {
    ASSIGN_OR_RETURN(t.route_bias, source.RequireVector(layer + std::string(router) + ".e_score_correction_bias",
                                                        c.experts->route.experts));
  }
  RETURN_IF_ERROR(FindStackedExperts(source, c, layer, t));
  if (t.experts.empty()) {
    RETURN_IF_ERROR(FindSplitExperts(source, c, layer, kExpertNames[router == kExpertNames[1].router ? 1 : 0], t));
  }
  if (c.experts->beside_block) {
    RETURN_IF_ERROR(FindNormsBeside(source, c, layer, t));
    return FindBlock(source, c, c.BlockSize(index), layer, "mlp.", t);
  }
  if (c.experts->shared_size == 0) return Ok{};
  if (c.experts->shared_gate) {
    ASSIGN_OR_RETURN(t.shared_gate, FindLinear(source, layer + "mlp.shared_expert_gate", 1, c.hidden_size, false));
  }
  return FindBlock(source, c, c.experts->shared_size, layer, InfoOf(c.family).experts.shared_block, t);
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
  // A norm of the sum has the name of one of the input.
  const bool of_sum = c.norm_places == NormPlaces::kOfSum;
  RETURN_IF_ERROR(FindNorm(source, c, layer, norms.attention, of_sum ? t.attention_output_norm : t.input_norm));
  RETURN_IF_ERROR(FindNorm(source, c, layer, norms.attention_output, t.attention_output_norm));
  if (c.block_order != BlockOrder::kParallelOneNorm) {
    RETURN_IF_ERROR(FindNorm(source, c, layer, norms.mlp, of_sum ? t.mlp_output_norm : t.mlp_norm));
  }
  RETURN_IF_ERROR(FindNorm(source, c, layer, norms.mlp_output, t.mlp_output_norm));
  RETURN_IF_ERROR(FindAttention(source, c, index, layer, t));
  RETURN_IF_ERROR(FindLayerInput(source, c, layer, t));
  RETURN_IF_ERROR(FindMlp(source, c, index, layer, t));
  return t;
}

constexpr const char* kEmbeddingName = "model.embed_tokens";
constexpr const char* kLmHeadName = "lm_head";

Status FindEmbeddings(ModelSource& source, const ModelConfig& c, ModelTensors& t) {
  std::shared_ptr<const StoredMatrix>&embedding = t.embedding.weight, &lm_head = t.lm_head.weight;
  if (!c.tie_word_embeddings) {
    ASSIGN_OR_RETURN(embedding, source.RequireMatrix(kEmbeddingName, c.vocab_size, c.EmbeddingSize()));
    ASSIGN_OR_RETURN(lm_head, source.FindMatrix(kLmHeadName, c.vocab_size, c.EmbeddingSize()));
    if (lm_head != nullptr) return Ok{};
    // Elsewhere a file without an output layer is an incomplete one.
    if (!c.without_head && !source.WithoutHead()) {
      ASSIGN_OR_RETURN(lm_head, source.RequireMatrix(kLmHeadName, c.vocab_size, c.EmbeddingSize()));
    }
    std::swap(lm_head, embedding);
    t.generates = false;
    return Ok{};
  }
  ASSIGN_OR_RETURN(embedding, source.FindMatrix(kEmbeddingName, c.vocab_size, c.EmbeddingSize()));
  ASSIGN_OR_RETURN(lm_head, source.FindMatrix(kLmHeadName, c.vocab_size, c.EmbeddingSize()));
  if (lm_head == nullptr && embedding == nullptr) {
    const std::string name = std::string(kEmbeddingName) + ".weight";
    return InvalidArgument("the weights hold neither " + Quote(name) + " nor " +
                               Quote(std::string(kLmHeadName) + ".weight") + " of shape " +
                               ShapeToString(std::vector<std::int64_t>{c.vocab_size, c.EmbeddingSize()}) +
                               " (tied embeddings are stored as either)",
                           name);
  }
  if (lm_head == nullptr) std::swap(lm_head, embedding);
  if (embedding != nullptr && SameValues(*embedding, *lm_head)) embedding = nullptr;
  return Ok{};
}

// Calls visit(linear, of_layer) for those that have a weight.
template <typename Visit>
void ForEachLinear(const ModelTensors& tensors, const Visit& visit) {
  bool of_layer = false;
  const auto visit_all = [&](std::initializer_list<LinearTensors> linears) {
    for (const LinearTensors& linear : linears) {
      if (linear.weight != nullptr) visit(linear, of_layer);
    }
  };
  visit_all({tensors.embedding, tensors.positions, tensors.project_in, tensors.project_out, tensors.lm_head});
  visit_all({tensors.layer_embedding, tensors.layer_context});
  of_layer = true;
  for (const LayerTensors& t : tensors.layers) {
    visit_all({t.in_qkv, t.in_z, t.in_b, t.in_a, t.in_all, t.state_out, t.q, t.k, t.v, t.o, t.gate, t.up, t.down,
               t.router, t.shared_gate, t.input_gate, t.input_projection});
    for (const BlockTensors& expert : t.experts) visit_all({expert.gate, expert.up, expert.down});
  }
}

// Calls visit(matrix, of_layer).
template <typename Visit>
void ForEachMatrix(const ModelTensors& tensors, const Visit& visit) {
  ForEachLinear(tensors, [&](const LinearTensors& linear, bool of_layer) { visit(*linear.weight, of_layer); });
}

}  // namespace

Result<ModelTensors> FindModelTensors(const ModelConfig& config, ModelSource& source) {
  ModelTensors t;
  RETURN_IF_ERROR(FindEmbeddings(source, config, t));
  RETURN_IF_ERROR(FindNorm(source, config, "model.", config.final_norm ? "norm" : nullptr, t.final_norm));
  RETURN_IF_ERROR(FindNorm(source, config, "model.", config.embedding_norm ? "embed_norm" : nullptr, t.embedding_norm));
  RETURN_IF_ERROR(FindLayerInputs(source, config, t));
  if (config.embedding_size != 0) {
    const std::int64_t width = config.embedding_size, hidden = config.hidden_size;
    ASSIGN_OR_RETURN(t.project_in.weight, source.RequireMatrix("model.project_in", hidden, width));
    ASSIGN_OR_RETURN(t.project_out.weight, source.RequireMatrix("model.project_out", width, hidden));
  }
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

std::int64_t ParameterCount(const ModelConfig& config, const ModelTensors& tensors) {
  std::int64_t count = 0;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (config.ValuesAreKeys(layer) && !config.SharesKv(layer)) count -= config.KvDim(layer) * config.hidden_size;
  }
  ForEachLinear(tensors, [&](const LinearTensors& linear, bool) {
    count += linear.weight->rows() * linear.weight->columns() + static_cast<std::int64_t>(linear.bias.size());
  });
  const auto add = [&](std::initializer_list<const std::vector<float>*> vectors) {
    for (const std::vector<float>* vector : vectors) count += static_cast<std::int64_t>(vector->size());
  };
  const auto add_norms = [&](std::initializer_list<const NormTensors*> norms) {
    for (const NormTensors* norm : norms) add({&norm->weight, &norm->bias});
  };
  add_norms({&tensors.final_norm, &tensors.embedding_norm, &tensors.layer_context_norm});
  for (const LayerTensors& t : tensors.layers) {
    add_norms({&t.input_norm, &t.attention_output_norm, &t.mlp_norm, &t.mlp_output_norm, &t.q_norm, &t.k_norm,
               &t.layer_input_norm, &t.router_norm, &t.block_output_norm, &t.experts_norm, &t.experts_output_norm});
    add({&t.sinks, &t.expert_scales, &t.scale, &t.conv, &t.conv_bias, &t.rate, &t.dt_bias, &t.skip, &t.state_norm,
         &t.route_bias});
  }
  return count;
}

std::int64_t MatrixBytes(const ModelTensors& tensors) {
  std::int64_t total = 0;
  ForEachMatrix(tensors, [&](const StoredMatrix& matrix, bool) { total += matrix.bytes(); });
  return total;
}

std::map<WeightFormat, std::int64_t> MemoryBytes(const ModelTensors& tensors) {
  std::map<WeightFormat, std::int64_t> bytes;
  ForEachMatrix(tensors, [&](const StoredMatrix& matrix, bool) {
    const auto row = static_cast<std::int64_t>(WeightRowBytes(matrix.format(), matrix.columns()));
    bytes[matrix.format()] += matrix.rows() * row;
  });
  return bytes;
}

std::int64_t CopiedBytes(const ModelTensors& tensors, std::optional<WeightFormat> layers,
                         std::optional<WeightFormat> others) {
  std::int64_t bytes = 0;
  ForEachMatrix(tensors, [&](const StoredMatrix& matrix, bool of_layer) {
    const WeightFormat format = (of_layer ? layers : others).value_or(matrix.format());
    if (format == matrix.format() && !matrix.Panels().empty()) return;
    bytes += matrix.rows() * static_cast<std::int64_t>(WeightRowBytes(format, matrix.columns()));
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
