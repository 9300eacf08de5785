#include "quant/gguf_source.h"

#include <charconv>
#include <cmath>
#include <numeric>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/message.h"
#include "formats/gguf_architecture.h"
#include "formats/gguf_config.h"
#include "formats/model_config.h"
#include "formats/model_family.h"
#include "quant/gguf_matrix.h"

namespace loramux {
namespace {

struct Names {
  std::string_view ours, gguf;
};
constexpr Names kWholeModel[] = {{"model.embed_tokens", "token_embd"},
                                 {"model.norm", "output_norm"},
                                 {"lm_head", "output"},
                                 {"model.embed_norm", "token_embd_norm"},
                                 {"model.embed_tokens_per_layer", "per_layer_token_embd"},
                                 {"model.per_layer_model_projection", "per_layer_model_proj"},
                                 {"model.per_layer_projection_norm", "per_layer_proj_norm"}};
constexpr Names kOfLayers[] = {
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"attn_sinks", "attn_sinks"},
    {"post_attention_norm", "post_attention_norm"},
    {"self_attn.qkv_proj", "attn_qkv"},
    {"per_layer_input_gate", "inp_gate"},
    {"per_layer_projection", "proj"},
    {"post_per_layer_input_norm", "post_norm"},
    {"linear_attn.in_proj_qkv", "attn_qkv"},
    {"linear_attn.in_proj_z", "attn_gate"},
    {"linear_attn.in_proj_b", "ssm_beta"},
    {"linear_attn.in_proj_a", "ssm_alpha"},
    {"linear_attn.in_proj_ba", "ssm_ba"},
    {"linear_attn.out_proj", "ssm_out"},
    {"linear_attn.norm", "ssm_norm"},
    {"mamba.in_proj", "ssm_in"},
    {"mamba.conv1d", "ssm_conv1d"},
    {"mamba.out_proj", "ssm_out"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
    {"mlp.experts.gate_proj", "ffn_gate_exps"},
    {"mlp.experts.up_proj", "ffn_up_exps"},
    {"mlp.experts.down_proj", "ffn_down_exps"},
    {"experts.gate_up_proj", "ffn_gate_up_exps"},
    {"experts.down_proj", "ffn_down_exps"},
    {"router", "ffn_gate_inp"},
    {"post_feedforward_layernorm_1", "post_ffw_norm_1"},
    {"pre_feedforward_layernorm_2", "pre_ffw_norm_2"},
    {"post_feedforward_layernorm_2", "post_ffw_norm_2"},
    {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
};
// Names in files that hold gate and up apart, and in files that hold them as one.
constexpr Names kApart[] = {{"mlp.gate_proj", "ffn_gate"}, {"mlp.up_proj", "ffn_up"}};
// A block for all tokens beside experts that has the name of one without them.
constexpr Names kBesideExperts[] = {
    {"mlp.gate_proj", "ffn_gate_shexp"}, {"mlp.up_proj", "ffn_up_shexp"}, {"mlp.down_proj", "ffn_down_shexp"}};
// What Mamba-2 has besides, by whole names.
constexpr Names kOfMamba[] = {{"mamba.A_log", "ssm_a"},
                              {"mamba.D", "ssm_d"},
                              {"mamba.dt_bias", "ssm_dt.bias"},
                              {"mamba.norm.weight", "ssm_norm.weight"}};
constexpr Names kFused[] = {{"mlp.gate_up_proj", "ffn_up"}};
constexpr std::string_view kLayers = "model.layers.";
// The norms of heads, each with a name of its own.
constexpr Names kNormsOfHeads[] = {{"q_layernorm.norms.", "q_norm"}, {"k_layernorm.norms.", "k_norm"}};

std::string_view Translated(std::string_view part, std::span<const Names> names) {
  for (const Names& name : names) {
    if (name.ours == part) return name.gguf;
  }
  return {};
}

std::string_view TranslatedNorm(std::string_view part, const NormNames& norms) {
  const std::pair<const char*, std::string_view> names[] = {{norms.attention, "attn_norm"},
                                                            {norms.attention_output, "post_attention_norm"},
                                                            {norms.mlp, "ffn_norm"},
                                                            {norms.mlp_output, "post_ffw_norm"}};
  for (const auto& [ours, gguf] : names) {
    if (ours != nullptr && part == ours) return gguf;
  }
  return {};
}

// The name in GGUF files of "model.layers.3.mlp.up_proj" + `.suffix`; empty if they have none.
std::string GgufName(std::string_view name, std::string_view suffix, const NormNames& norms, bool fused) {
  std::string whole;
  std::string_view part = name;
  if (part.starts_with(kLayers)) {
    part.remove_prefix(kLayers.size());
    const std::size_t dot = part.find('.');
    if (dot == std::string_view::npos) return {};
    whole = "blk." + std::string(part.substr(0, dot)) + ".";
    const std::string_view of_layer = part.substr(dot + 1);
    std::string_view translated = Translated(of_layer, kOfLayers);
    if (translated.empty()) translated = Translated(of_layer, fused ? std::span<const Names>(kFused) : kApart);
    if (translated.empty()) translated = TranslatedNorm(of_layer, norms);
    return translated.empty() ? std::string() : whole + std::string(translated) + std::string(suffix);
  }
  const std::string_view translated = Translated(part, kWholeModel);
  return translated.empty() ? std::string() : std::string(translated) + std::string(suffix);
}

// A matrix, and the file that it refers to.
struct OwnedMatrix {
  std::shared_ptr<const GgufFile> file;
  std::unique_ptr<StoredMatrix> matrix;
};

class GgufSource : public ModelSource {
 public:
  // `interleaved_head`: as MakeGgufMatrix, for queries and keys.
  GgufSource(GgufFile file, ModelConfig config, std::int64_t interleaved_head)
      : config_(std::move(config)),
        family_(InfoOf(config_.family)),
        file_(std::make_shared<const GgufFile>(std::move(file))),
        fused_(FusesLayers(*file_)),
        layers_(GgufLayers(*file_)),
        interleaved_head_(interleaved_head) {}

  Result<std::shared_ptr<const StoredMatrix>> FindMatrix(const std::string& name, std::int64_t rows,
                                                         std::int64_t columns) override {
    ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(NameOf(name, ".weight"), {rows, columns}));
    std::shared_ptr<const StoredMatrix> matrix;
    if (tensor == nullptr) return matrix;
    auto owner = std::make_shared<OwnedMatrix>(OwnedMatrix{file_, MakeGgufMatrix(*tensor, HeadOf(name, rows))});
    matrix = {owner, owner->matrix.get()};
    return config_.recurrent ? InOrderOfHeads(std::move(matrix), name) : matrix;
  }

  Result<std::vector<float>> RequireConv(const std::string& name, std::int64_t channels, std::int64_t width) override {
    const bool mamba = config_.recurrent->mamba;
    const std::string stored = LayerOf(name, mamba ? kMambaConv : kConv) + "ssm_conv1d.weight";
    ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(stored, {channels, width}));
    if (tensor == nullptr) return Missing(stored);
    std::vector<float> all(static_cast<std::size_t>(channels * width)), ordered;
    ReadGguf(*tensor->type, tensor->data.data(), channels * width, all.data());
    if (mamba) return all;
    for (const std::int64_t row : RowsByHead(channels, config_.recurrent->value_dim)) {
      ordered.insert(ordered.end(), all.begin() + row * width, all.begin() + (row + 1) * width);
    }
    return ordered;
  }

  Result<Stacked> FindStacked(const std::string& name, const StackedShape& shape) override {
    ASSIGN_OR_RETURN(const GgufTensor* tensor,
                     Find(NameOf(name, ".weight"), {shape.experts, shape.rows, shape.columns}));
    if (tensor == nullptr) return Stacked{};
    auto owner = std::make_shared<OwnedMatrix>(OwnedMatrix{file_, MakeGgufMatrix(*tensor, 0)});
    return Stacked{{owner, owner->matrix.get()}};
  }

  Result<std::vector<float>> RequireStackedBias(const std::string& name, const StackedShape& shape) override {
    const std::string bias = NameOf(name, ".bias");
    ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(bias, {shape.experts, shape.rows}));
    if (tensor == nullptr) return Missing(bias);
    std::vector<float> values(static_cast<std::size_t>(shape.experts * shape.rows));
    ReadGguf(*tensor->type, tensor->data.data(), shape.experts * shape.rows, values.data());
    return values;
  }

  Result<std::optional<std::vector<float>>> FindVector(const std::string& name, std::int64_t size) override {
    if (name.ends_with(kSinks))
      return FindVector(name.substr(0, name.size() - kSinks.size()) + "attn_sinks.weight", size);
    if (name.ends_with(kScale)) return Values(LayerOf(name, kScale) + "layer_output_scale.weight", size);
    if (name.ends_with(kExpertScale)) return Values(LayerOf(name, kExpertScale) + "ffn_down_exps.scale", size);
    if (name.ends_with(kRate)) return Rates(LayerOf(name, kRate) + "ssm_a", size);
    if (name.ends_with(kRouteBias)) return Values(LayerOf(name, kRouteBias) + "exp_probs_b.bias", size);
    if (name.ends_with(kTimeStep)) return OfHeads(LayerOf(name, kTimeStep) + "ssm_dt.bias", size);
    for (const Names& of_mamba : kOfMamba) {
      if (name.ends_with(of_mamba.ours)) return OfMamba(name, of_mamba, size);
    }
    for (const Names& norms : kNormsOfHeads) {
      const std::size_t at = name.find(norms.ours);
      if (at != std::string::npos) return NormOfHead(name, at, norms, size);
    }
    const std::size_t dot = name.rfind('.');
    if (dot == std::string::npos) return std::optional<std::vector<float>>();
    const std::string layer = name.substr(0, dot);
    ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(NameOf(layer, name.substr(dot)), {size}));
    if (tensor == nullptr) return std::optional<std::vector<float>>();
    std::vector<float> stored(static_cast<std::size_t>(size)), values(stored);
    ReadGguf(*tensor->type, tensor->data.data(), size, stored.data());
    const std::int64_t head = HeadOf(layer, size);
    for (std::int64_t i = 0; i < size; ++i) {
      values[static_cast<std::size_t>(i)] = stored[static_cast<std::size_t>(head == 0 ? i : InterleavedRow(i, head))];
    }
    // The files hold the sum of the weight and the offset.
    const auto offset = static_cast<float>(family_.norm_weight_offset);
    if (offset != 0 && layer.ends_with("norm") && !layer.ends_with("linear_attn.norm")) {
      for (float& value : values) value -= offset;
    }
    return std::optional(std::move(values));
  }

  bool FusesAsPublished() const override { return false; }

  Status CheckAllUsed() const override {
    for (const GgufTensor& tensor : file_->tensors()) {
      // The configuration has taken these.
      if (used_.contains(&tensor) || IsOfRope(tensor.name) || IsOfMtp(tensor.name)) continue;
      return InvalidArgument(file_->label() + ": tensor " + Quote(tensor.name) + " " + ShapeToString(tensor.shape) +
                                 " is in the file, but the model that its metadata describe has no place for it",
                             tensor.name);
    }
    return Ok{};
  }

 private:
  static constexpr std::string_view kSinks = "self_attn.sinks", kScale = "layer_scalar", kRate = "linear_attn.A_log",
                                    kTimeStep = "linear_attn.dt_bias", kConv = "linear_attn.conv1d.weight",
                                    kMambaConv = "mamba.conv1d.weight", kExpertScale = "router.per_expert_scale",
                                    kRouteBias = "mlp.gate.e_score_correction_bias";

  Error Missing(const std::string& name) const {
    return InvalidArgument(file_->label() + ": tensor " + Quote(name) + " is missing", name);
  }

  // "blk.3." of a name whose layer is 3 and whose part is `part`.
  static std::string LayerOf(std::string_view name, std::string_view part) { return NameOfPart(name, part, "", ""); }

  // Whether a tensor holds factors of the rotary embedding, which the configuration has taken.
  bool IsOfRope(std::string_view name) const {
    if (config_.family != ModelFamily::kPhi3) return name == "rope_freqs.weight";
    return name == "rope_factors_long.weight" || name == "rope_factors_short.weight";
  }

  // Whether a tensor is of the layers that predict several tokens, which follow the others.
  bool IsOfMtp(const std::string& name) const {
    if (!config_.recurrent || !name.starts_with("blk.")) return false;
    std::int64_t layer = 0;
    const auto [end, error] = std::from_chars(name.data() + 4, name.data() + name.size(), layer);
    return error == std::errc() && *end == '.' && layer >= config_.num_layers && layer < layers_;
  }

  Result<std::optional<std::vector<float>>> Values(const std::string& name, std::int64_t size) {
    return Values(name, size, {size});
  }
  Result<std::optional<std::vector<float>>> Values(const std::string& name, std::int64_t size,
                                                   const std::vector<std::int64_t>& shape) {
    ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(name, shape));
    if (tensor == nullptr) return std::optional<std::vector<float>>();
    std::vector<float> values(static_cast<std::size_t>(size));
    ReadGguf(*tensor->type, tensor->data.data(), size, values.data());
    return std::optional(std::move(values));
  }

  // A number for each head of values.
  Result<std::optional<std::vector<float>>> OfHeads(const std::string& name, std::int64_t size) {
    ASSIGN_OR_RETURN(const auto stored, Values(name, size));
    if (!stored) return stored;
    std::vector<float> ordered;
    for (const std::int64_t row : RowsByHead(size, 1)) ordered.push_back((*stored)[static_cast<std::size_t>(row)]);
    return std::optional(std::move(ordered));
  }

  // A vector of Mamba-2: a column, or the rows of the groups one after the other.
  Result<std::optional<std::vector<float>>> OfMamba(const std::string& name, const Names& names, std::int64_t size) {
    const std::string stored = LayerOf(name, names.ours) + std::string(names.gguf);
    if (names.gguf == "ssm_dt.bias") return Values(stored, size);
    const bool norm = names.gguf == "ssm_norm.weight";
    const std::int64_t columns = norm ? size / config_.recurrent->key_heads : 1;
    ASSIGN_OR_RETURN(auto values, Values(stored, size, {size / columns, columns}));
    return names.gguf == "ssm_a" ? Logarithms(stored, std::move(values)) : std::move(values);
  }

  // The logarithms of the rates, of which the file has the negative values.
  Result<std::optional<std::vector<float>>> Rates(const std::string& name, std::int64_t size) {
    ASSIGN_OR_RETURN(auto rates, OfHeads(name, size));
    return Logarithms(name, std::move(rates));
  }
  Result<std::optional<std::vector<float>>> Logarithms(const std::string& name,
                                                       std::optional<std::vector<float>> rates) const {
    if (!rates) return rates;
    for (float& rate : *rates) {
      if (!(rate <= 0)) {
        return InvalidArgument(
            file_->label() + ": tensor " + Quote(name) + ": expected numbers up to 0, found " + std::to_string(rate),
            name);
      }
      rate = std::log(-rate);
    }
    return rates;
  }

  // Where each of the last rows, which are those of the heads of values, `size` each, lies in the file: first the first
  // head of each group, and so on. The rows before them are where they are, and so are all of Qwen3-Next's.
  std::vector<std::int64_t> RowsByHead(std::int64_t rows, std::int64_t size) const {
    std::vector<std::int64_t> order(static_cast<std::size_t>(rows));
    std::iota(order.begin(), order.end(), 0);
    if (config_.family == ModelFamily::kQwen3Next) return order;
    const RecurrentConfig& r = *config_.recurrent;
    const std::int64_t of_group = r.value_heads / r.key_heads, before = rows - r.value_heads * size;
    for (std::int64_t i = before; i < rows; ++i) {
      const std::int64_t head = (i - before) / size, stored = head % of_group * r.key_heads + head / of_group;
      order[static_cast<std::size_t>(i)] = before + stored * size + (i - before) % size;
    }
    return order;
  }

  // The matrix with its heads of values in the order of the family's own checkpoints.
  Result<std::shared_ptr<const StoredMatrix>> InOrderOfHeads(std::shared_ptr<const StoredMatrix> matrix,
                                                             const std::string& name) const {
    const RecurrentConfig& r = *config_.recurrent;
    const bool in_order = r.value_heads == r.key_heads || config_.family == ModelFamily::kQwen3Next;
    if (in_order || name.find("linear_attn.") == std::string::npos) return matrix;
    const bool gate = name.ends_with("in_proj_a") || name.ends_with("in_proj_b");
    if (!name.ends_with("out_proj")) {
      return RowsOfMatrix(matrix, RowsByHead(matrix->rows(), gate ? 1 : r.value_dim));
    }
    if (IsQuantised(matrix->format()) && r.value_dim % kWeightGroup != 0) {
      return Unsupported(file_->label() + ": tensor " + Quote(matrix->name()) + " is quantised, and a head of " +
                             std::to_string(r.value_dim) + " columns is no multiple of " +
                             std::to_string(kWeightGroup) + ", which is not supported",
                         matrix->name());
    }
    return ColumnsOfMatrix(std::move(matrix), r.value_dim, RowsByHead(r.value_heads, 1));
  }

  // A row of the matrix that holds the norms of all heads. `at`: where the part of `name` begins that `norms` renames.
  Result<std::optional<std::vector<float>>> NormOfHead(const std::string& name, std::size_t at, const Names& norms,
                                                       std::int64_t size) {
    const std::int64_t heads = norms.gguf == "q_norm" ? config_.num_heads : config_.num_kv_heads;
    const std::string whole = NameOf(name.substr(0, at) + std::string(norms.gguf), ".weight");
    ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(whole, {heads, size}));
    if (tensor == nullptr) return std::optional<std::vector<float>>();
    const std::int64_t head = std::stoll(name.substr(at + norms.ours.size()));
    std::vector<float> all(static_cast<std::size_t>(heads * size));
    ReadGguf(*tensor->type, tensor->data.data(), heads * size, all.data());
    const auto first = all.begin() + head * size;
    return std::optional(std::vector<float>(first, first + size));
  }

  std::string NameOf(std::string_view name, std::string_view suffix) const {
    // llama.cpp calls Falcon's norm of the feed-forward block its first one: the only one in models with one.
    if (family_.family == ModelFamily::kFalcon && config_.block_order == BlockOrder::kParallel) {
      for (const auto& [norm, gguf] :
           {std::pair{family_.norms.attention, "attn_norm_2"}, {family_.norms.mlp, "attn_norm"}}) {
        if (name.starts_with(kLayers) && name.ends_with(norm)) return NameOfPart(name, norm, gguf, suffix);
      }
    }
    // llama.cpp has the same name for the second norm of these families as for that of others' attention's output.
    if ((family_.family == ModelFamily::kGptOss || family_.of_deltanet) && name.ends_with(family_.norms.mlp)) {
      name.remove_suffix(std::string_view(family_.norms.mlp).size());
      return GgufName(std::string(name) + "post_attention_norm", suffix, family_.norms, fused_);
    }
    const bool of_all = config_.experts && !config_.experts->beside_block;
    const bool beside = of_all && std::string_view(family_.experts.shared_block) == "mlp.";
    for (const Names& block : kBesideExperts) {
      if (beside && name.ends_with(block.ours)) return NameOfPart(name, block.ours, block.gguf, suffix);
    }
    return GgufName(name, suffix, family_.norms, fused_);
  }

  Result<const GgufTensor*> Find(const std::string& name, const std::vector<std::int64_t>& shape) {
    const GgufTensor* tensor = name.empty() ? nullptr : file_->FindTensor(name);
    if (tensor == nullptr) return tensor;
    used_.insert(tensor);
    if (tensor->shape != shape) {
      return InvalidArgument(file_->label() + ": tensor " + Quote(name) + " has shape " + ShapeToString(tensor->shape) +
                                 ", but the metadata ask for " + ShapeToString(shape),
                             name);
    }
    if (tensor->type->instead == nullptr) return tensor;
    return Unsupported(file_->label() + ": tensor " + Quote(name) + " has type " + tensor->type->name +
                           ", which is not supported; the nearest that is: " + tensor->type->instead,
                       name);
  }

  std::int64_t HeadOf(std::string_view layer, std::int64_t rows) const {
    const bool turned = layer.ends_with(".q_proj") || layer.ends_with(".k_proj");
    return turned && interleaved_head_ != 0 && rows % interleaved_head_ == 0 ? interleaved_head_ : 0;
  }

  // The name of the part `theirs` in the layer that `name` names, which ends in `part`.
  static std::string NameOfPart(std::string_view name, std::string_view part, std::string_view theirs,
                                std::string_view suffix) {
    name.remove_prefix(kLayers.size());
    name.remove_suffix(part.size());
    return "blk." + std::string(name) + std::string(theirs) + std::string(suffix);
  }

  const ModelConfig config_;
  const FamilyInfo& family_;
  const std::shared_ptr<const GgufFile> file_;
  const bool fused_;
  const std::int64_t layers_;  // as GgufLayers
  const std::int64_t interleaved_head_;
  std::unordered_set<const GgufTensor*> used_;
};

}  // namespace

Result<std::unique_ptr<ModelSource>> MakeGgufSource(GgufFile file) {
  ASSIGN_OR_RETURN(const std::string text, GgufModelConfig(file));
  ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(text, file.label() + ": metadata"));
  const std::int64_t head = HasInterleavedHeads(file) ? config.head_dim : 0;
  std::unique_ptr<ModelSource> source = std::make_unique<GgufSource>(std::move(file), std::move(config), head);
  return source;
}

Result<std::unique_ptr<ModelSource>> OpenGgufSource(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(GgufFile file, GgufFile::Open(path));
  return MakeGgufSource(std::move(file));
}

}  // namespace loramux
