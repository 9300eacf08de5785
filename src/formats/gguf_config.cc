#include "formats/gguf_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/message.h"
#include "formats/gguf_architecture.h"
#include "formats/model_family.h"

namespace loramux {
namespace {

using nlohmann::json;
using namespace gguf_key;  // NOLINT: as in the table of architectures

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

// Keys of the architecture that the configuration below uses, or that change nothing.
constexpr std::string_view kKnownKeys[] = {
    "attention.causal",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.sliding_window",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "expert_count",
    "expert_used_count",
    "feed_forward_length",
    "pooling_type",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "tensor_data_layout",
    "vocab_size",
};

Status RequireModel(const GgufFile& file) {
  ASSIGN_OR_RETURN(const auto type, file.Text("general.type"));
  if (!type || *type == "model") return Ok{};
  return Unsupported(file.label() + ": expected a model, found general.type " + Quote(*type) +
                         (*type == "adapter" ? "; name a base model, and this file by --lora-modules NAME=FILE" : ""),
                     "general.type");
}

// Builds the configuration of one file.
class ConfigBuilder {
 public:
  ConfigBuilder(const GgufFile& file, const GgufArchitecture& architecture)
      : file_(file),
        architecture_(architecture),
        family_(*FindFamilyByType(architecture.model_type)),
        prefix_(std::string(architecture.name) + ".") {}

  Result<json> Build() {
    RETURN_IF_ERROR(RefuseUnknown());
    config_ = {{"architectures", {architecture_.class_name}}, {"model_type", architecture_.model_type}};
    RETURN_IF_ERROR(AddExtents());
    RETURN_IF_ERROR(Is("gemma4") ? AddGemma4() : AddHeads());
    RETURN_IF_ERROR(AddBlocks());
    RETURN_IF_ERROR(AddRecurrent());
    RETURN_IF_ERROR(AddWindows());
    RETURN_IF_ERROR(AddExperts());
    RETURN_IF_ERROR(Is("gemma4") ? AddRopesOfGemma4() : AddRope());
    RETURN_IF_ERROR(AddScales());
    RETURN_IF_ERROR(AddTokens());
    AddWhatTensorsSay();
    return std::move(config_);
  }

 private:
  bool Uses(std::string_view key) const {
    return std::ranges::find(architecture_.keys, key) != architecture_.keys.end();
  }

  Status RefuseUnknown() const {
    for (const std::string& key : file_.keys()) {
      if (!key.starts_with(prefix_)) continue;
      const std::string_view rest = std::string_view(key).substr(prefix_.size());
      const bool known = rest == kParallel || rest == kTurns;
      if (known || std::ranges::find(kKnownKeys, rest) != std::end(kKnownKeys)) continue;
      if (rest == kRmsEpsilon && (!Uses(kLayerEpsilon) || IsNemotron())) continue;
      if (Uses(rest)) continue;
      return Unsupported(file_.label() + ": metadata " + Quote(key) + " = " + DescribeGguf(*file_.Find(key)) +
                             " may change what the model computes, and loramux does not know it",
                         key);
    }
    for (const auto& [name, neutral] :
         {std::pair{"attention.causal", true}, std::pair{kParallel.data(), false}, std::pair{kTurns.data(), true}}) {
      if (name == kTurns && !family_.multipliers) continue;  // it has a meaning for Granite alone
      ASSIGN_OR_RETURN(const auto value, file_.Bool(prefix_ + name));
      if (!value || *value == neutral || Uses(name)) continue;
      return Unsupported(file_.label() + ": metadata " + Quote(prefix_ + name) + " = " + (*value ? "true" : "false") +
                             " is not supported",
                         prefix_ + name);
    }
    return Ok{};
  }

  // What llama.cpp does with the router's weights is in its program, not in the file.
  Status AddExperts() {
    ASSIGN_OR_RETURN(const auto experts, file_.Int(prefix_ + "expert_count", 0, kMost));
    if (family_.experts.may_be_none) RETURN_IF_ERROR(AddSharedBlock(experts.value_or(0)));
    if (experts.value_or(0) == 0) return Ok{};
    if (Is("gemma4")) {
      config_["enable_moe_block"] = true;
      config_["num_experts"] = *experts;
      ASSIGN_OR_RETURN(config_["top_k_experts"], Required("expert_used_count"));
      ASSIGN_OR_RETURN(config_["moe_intermediate_size"], Required(kExpertSize));
      return Ok{};
    }
    if (Is("llama")) {
      config_["architectures"] = {"MixtralForCausalLM"};
      config_["model_type"] = "mixtral";
    }
    config_["num_experts"] = *experts;
    ASSIGN_OR_RETURN(config_["num_experts_per_tok"], Required("expert_used_count"));
    config_["norm_topk_prob"] = Is("qwen3moe") || Is("qwen3next");
    if (family_.experts.sigmoid) RETURN_IF_ERROR(AddRouter());
    ASSIGN_OR_RETURN(const auto size, file_.Int(prefix_ + std::string(kExpertSize), 1, kMost));
    if (size) config_[Is("gpt-oss") ? "intermediate_size" : "moe_intermediate_size"] = *size;
    ASSIGN_OR_RETURN(const auto shared, file_.Int(prefix_ + std::string(kSharedSize), 1, kMost));
    if (shared) config_[family_.experts.shared] = *shared;
    return Ok{};
  }

  Status AddRouter() {
    config_["n_routed_experts"] = config_["num_experts"];
    config_.erase("num_experts");
    ASSIGN_OR_RETURN(const auto normed, file_.Bool(prefix_ + "expert_weights_norm"));
    config_["norm_topk_prob"] = normed.value_or(false);
    RETURN_IF_ERROR(AddNumber("expert_weights_scale", "routed_scaling_factor"));
    for (const auto& [key, name] :
         {std::pair{"expert_group_count", "n_group"}, {"expert_group_used_count", "topk_group"}}) {
      ASSIGN_OR_RETURN(const auto count, file_.Int(prefix_ + key, 1, kMost));
      if (count) config_[name] = *count;
    }
    return Ok{};
  }

  // Granite 4's block for all tokens, which is its only one without experts: then feed_forward_length is its size too.
  Status AddSharedBlock(std::int64_t experts) {
    const std::string key = prefix_ + std::string(kSharedSize);
    config_["num_local_experts"] = experts;
    ASSIGN_OR_RETURN(const auto shared, file_.Int(key, 0, kMost));
    const std::int64_t size = config_[family_.fields.intermediate];
    config_["shared_intermediate_size"] = shared.value_or(0) > 0 ? *shared : size;
    if (experts > 0 && shared.value_or(0) == 0)
      return file_.Bad(key, "an integer above 0, the size of the block beside the experts");
    if (experts == 0 && shared.value_or(0) > 0 && *shared != size)
      return file_.Bad(key, "that of feed_forward_length, " + std::to_string(size) + ", in a model without experts");
    return Ok{};
  }

  Result<std::int64_t> Required(std::string_view name, std::int64_t most = kMost) const {
    const std::string key = prefix_ + std::string(name);
    ASSIGN_OR_RETURN(const auto value, file_.Int(key, 1, most));
    if (!value) return file_.Bad(key, "an integer above 0");
    return *value;
  }

  Status AddExtents() {
    ASSIGN_OR_RETURN(config_["hidden_size"], Required("embedding_length"));
    ASSIGN_OR_RETURN(config_["num_hidden_layers"], Required("block_count", kMostGgufLayers));
    // Nemotron-H has it by layer; in Qwen 3.5's mixture, it is that of experts.
    const bool of_experts = std::string_view(family_.fields.intermediate) == family_.experts.intermediate;
    if (!Is("gemma4") && !IsNemotron() && (!of_experts || family_.experts.default_intermediate == 0)) {
      ASSIGN_OR_RETURN(config_[family_.fields.intermediate], Required("feed_forward_length"));
    }
    // Layers that predict several tokens come last, and nothing here asks them.
    ASSIGN_OR_RETURN(const auto mtp, file_.Int(prefix_ + std::string(kMtpLayers), 0, kMost));
    const std::int64_t layers = config_["num_hidden_layers"];
    if (mtp.value_or(0) >= layers) return file_.Bad(prefix_ + std::string(kMtpLayers), "fewer than block_count");
    config_["num_hidden_layers"] = layers - mtp.value_or(0);
    ASSIGN_OR_RETURN(config_["max_position_embeddings"], Required("context_length"));
    const GgufTensor* embedding = file_.FindTensor("token_embd.weight");
    if (embedding == nullptr || embedding->shape.size() != 2) {
      return InvalidArgument(file_.label() + ": expected a matrix 'token_embd.weight' among the tensors, found none",
                             "token_embd.weight");
    }
    config_["vocab_size"] = embedding->shape[0];
    const bool rms =
        !Uses(kLayerEpsilon) || (IsNemotron() && file_.Find(prefix_ + std::string(kRmsEpsilon)) != nullptr);
    const std::string key = prefix_ + std::string(rms ? kRmsEpsilon : kLayerEpsilon);
    ASSIGN_OR_RETURN(const auto epsilon, file_.Number(key));
    if (!epsilon) return file_.Bad(key, "a number");
    config_[family_.fields.norm_eps] = *epsilon;
    return Ok{};
  }

  Status AddHeads() {
    ASSIGN_OR_RETURN(const std::int64_t heads, Required("attention.head_count"));
    config_["num_attention_heads"] = heads;
    if (family_.of_mamba) {
      RETURN_IF_ERROR(IsNemotron() ? AddLayersOfNemotron() : AddHeadsOfGranite4());
    } else {
      ASSIGN_OR_RETURN(const auto kv_heads, file_.Int(prefix_ + "attention.head_count_kv", 1, kMost));
      config_["num_key_value_heads"] = kv_heads.value_or(heads);
    }
    ASSIGN_OR_RETURN(const auto key_length, file_.Int(prefix_ + "attention.key_length", 1, kMost));
    head_dim_ = key_length.value_or(config_["hidden_size"].get<std::int64_t>() / heads);
    if (head_dim_ == 0) return file_.Bad(prefix_ + "attention.head_count", "at most embedding_length heads");
    config_["head_dim"] = head_dim_;
    ASSIGN_OR_RETURN(const auto value_length, file_.Int(prefix_ + "attention.value_length", 1, kMost));
    if (value_length && *value_length != head_dim_) {
      return Unsupported(file_.label() + ": " + prefix_ + "attention.value_length " + std::to_string(*value_length) +
                             " differs from the length of keys, " + std::to_string(head_dim_) +
                             ", which is not supported",
                         prefix_ + "attention.value_length");
    }
    return Ok{};
  }

  bool IsNemotron() const { return family_.family == ModelFamily::kNemotronH; }

  // What each layer is, as its tensors say: the metadata have heads and widths of 0 where it is none. Layers that
  // predict several tokens come last and are left out.
  Status AddLayersOfNemotron() {
    ASSIGN_OR_RETURN(const std::vector<std::int64_t> kv_heads, ByLayer("attention.head_count_kv", 0));
    ASSIGN_OR_RETURN(const std::vector<std::int64_t> widths, ByLayer("feed_forward_length", 0));
    json types = json::array();
    std::int64_t heads = 0, width = 1;
    for (std::size_t layer = 0; layer < kv_heads.size(); ++layer) {
      const auto has = [&](const char* tensor) {
        return file_.FindTensor("blk." + std::to_string(layer) + "." + tensor + ".weight") != nullptr;
      };
      const bool attention = has("attn_q"), moe = has("ffn_gate_inp"), mlp = has("ffn_up") && !moe;
      types.push_back(attention ? "full_attention" : moe ? "moe" : mlp ? "mlp" : "linear_attention");
      if (attention != (kv_heads[layer] > 0) || (attention && heads > 0 && heads != kv_heads[layer]))
        return file_.Bad(prefix_ + "attention.head_count_kv", "one number in all layers of attention, 0 in others");
      if ((mlp && widths[layer] == 0) || (mlp && width > 1 && width != widths[layer]))
        return file_.Bad(prefix_ + "feed_forward_length", "one number above 0 in all layers with such a block");
      if (attention) heads = kv_heads[layer];
      if (mlp) width = widths[layer];
    }
    config_["layer_types"] = std::move(types);
    config_["num_key_value_heads"] = heads == 0 ? config_["num_attention_heads"].get<std::int64_t>() : heads;
    config_["intermediate_size"] = width;
    return Ok{};
  }

  // Layers without heads of keys are recurrent.
  Status AddHeadsOfGranite4() {
    ASSIGN_OR_RETURN(const std::vector<std::int64_t> kv_heads, ByLayer("attention.head_count_kv", 0));
    const std::int64_t most = *std::ranges::max_element(kv_heads);
    if (most == 0) {
      return file_.Bad(prefix_ + "attention.head_count_kv",
                       "above 0 in one layer at least; llama.cpp's converter finds no layer of attention in a "
                       "configuration as transformers 5 saves it: name the layers mamba and attention before");
    }
    json types = json::array();
    for (const std::int64_t of_layer : kv_heads) {
      if (of_layer != 0 && of_layer != most) {
        return file_.Bad(prefix_ + "attention.head_count_kv", "0, or one number in all other layers");
      }
      types.push_back(of_layer == 0 ? "linear_attention" : "full_attention");
    }
    config_["layer_types"] = std::move(types);
    config_["num_key_value_heads"] = most;
    return Ok{};
  }

  // The numbers of a key that has one for each layer, or one for all.
  Result<std::vector<std::int64_t>> ByLayer(const std::string& name, std::int64_t least = 1) const {
    const std::string key = prefix_ + name;
    const auto layers = config_["num_hidden_layers"].get<std::size_t>();
    const GgufValue* const value = file_.Find(key);
    if (value == nullptr || !std::holds_alternative<GgufArray>(*value)) {
      ASSIGN_OR_RETURN(const std::int64_t all, Required(name.c_str()));
      return std::vector<std::int64_t>(layers, all);
    }
    ASSIGN_OR_RETURN(const auto list, file_.Array(key, GgufArray::Element::kNumber));
    if (!list || list->size() != layers) {
      return file_.Bad(key, "an integer for each of " + std::to_string(layers) + " layers");
    }
    std::vector<std::int64_t> numbers;
    for (const double number : list->Numbers()) {
      const bool fits = number >= static_cast<double>(least) && number <= static_cast<double>(kMost);
      if (!fits || number != std::floor(number)) {
        return file_.Bad(key, least == 0 ? "integers from 0 on" : "integers above 0");
      }
      numbers.push_back(static_cast<std::int64_t>(number));
    }
    return numbers;
  }

  // Error: the two lengths of heads under these keys differ.
  Result<std::int64_t> LengthOfHeads(const char* keys, const char* values) const {
    ASSIGN_OR_RETURN(const std::int64_t length, Required(keys));
    ASSIGN_OR_RETURN(const std::int64_t other, Required(values));
    if (length == other) return length;
    return file_.Bad(prefix_ + values, "as many as in " + std::string(keys) + ", " + std::to_string(length));
  }

  // The heads of layers with and without a window, and the layers that read the keys and values of others.
  Status AddGemma4() {
    ASSIGN_OR_RETURN(config_["num_attention_heads"], Required("attention.head_count"));
    ASSIGN_OR_RETURN(full_head_dim_, LengthOfHeads("attention.key_length", "attention.value_length"));
    ASSIGN_OR_RETURN(head_dim_, LengthOfHeads("attention.key_length_swa", "attention.value_length_swa"));
    ASSIGN_OR_RETURN(const std::vector<std::int64_t> kv_heads, ByLayer("attention.head_count_kv"));
    ASSIGN_OR_RETURN(config_["sliding_window"], Required("attention.sliding_window"));
    const std::string pattern_key = prefix_ + std::string(kWindowPattern);
    ASSIGN_OR_RETURN(const auto pattern, file_.Array(pattern_key, GgufArray::Element::kNumber));
    if (!pattern || pattern->size() != kv_heads.size() || pattern->Numbers().back() != 0) {
      return file_.Bad(pattern_key, "an array with an element for each layer, false for the last one");
    }
    const std::vector<double> slides = pattern->Numbers();
    config_["head_dim"] = head_dim_;
    config_["num_key_value_heads"] = kv_heads.back();
    std::int64_t full = 0;  // the first layer without a window
    json heads = json::object();
    for (std::size_t layer = kv_heads.size(); layer-- > 0;) {
      const bool window = slides[layer] != 0;
      if (window) config_["num_key_value_heads"] = kv_heads[layer];
      if (!window) full = static_cast<std::int64_t>(layer);
      heads[std::to_string(layer)] = {{"head_dim", window ? head_dim_ : full_head_dim_},
                                      {"num_key_value_heads", kv_heads[layer]}};
    }
    config_["per_layer_config"] = std::move(heads);
    config_["attention_k_eq_v"] = file_.FindTensor("blk." + std::to_string(full) + ".attn_v.weight") == nullptr;
    ASSIGN_OR_RETURN(const auto inputs, file_.Int(prefix_ + "embedding_length_per_layer_input", 0, kMost));
    config_["hidden_size_per_layer_input"] = inputs.value_or(0);
    config_["vocab_size_per_layer_input"] = config_["vocab_size"];
    return AddSharing();
  }

  // Layers that share have a feed-forward block of the usual width, or of twice as much.
  Status AddSharing() {
    const auto layers = config_["num_hidden_layers"].get<std::int64_t>();
    ASSIGN_OR_RETURN(const auto shared, file_.Int(prefix_ + "attention.shared_kv_layers", 0, layers - 1));
    config_["num_kv_shared_layers"] = shared.value_or(0);
    ASSIGN_OR_RETURN(const std::vector<std::int64_t> widths, ByLayer("feed_forward_length"));
    const std::int64_t width = widths.front();
    const bool wide = widths.back() != width;
    config_["intermediate_size"] = width;
    config_["use_double_wide_mlp"] = wide;
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      const bool of_shared = layer >= layers - shared.value_or(0);
      if (widths[static_cast<std::size_t>(layer)] == (wide && of_shared ? 2 * width : width)) continue;
      return Unsupported(file_.label() + ": metadata " + Quote(prefix_ + "feed_forward_length") + ": layer " +
                             std::to_string(layer) + " has " + std::to_string(widths[static_cast<std::size_t>(layer)]) +
                             ", which is not supported: expected " + std::to_string(width) +
                             " in all layers, or twice as many in those of shared_kv_layers",
                         prefix_ + "feed_forward_length");
    }
    return Ok{};
  }

  // The sizes of recurrent layers: of Mamba-2, groups for heads of keys, and heads for those of values.
  struct States {
    std::int64_t width = 0, key_heads = 0, key_dim = 0, value_heads = 0, values = 0;
  };
  Result<States> ReadStates() const {
    States states;
    ASSIGN_OR_RETURN(states.width, Required("ssm.conv_kernel"));
    ASSIGN_OR_RETURN(states.key_heads, Required("ssm.group_count"));
    ASSIGN_OR_RETURN(states.key_dim, Required("ssm.state_size"));
    ASSIGN_OR_RETURN(states.value_heads, Required("ssm.time_step_rank"));
    ASSIGN_OR_RETURN(states.values, Required("ssm.inner_size"));
    if (states.values % states.value_heads != 0)
      return file_.Bad(prefix_ + "ssm.inner_size", "a multiple of ssm.time_step_rank");
    if (states.value_heads % states.key_heads != 0)
      return file_.Bad(prefix_ + "ssm.time_step_rank", "a multiple of ssm.group_count");
    return states;
  }

  Status AddMambaOfNemotron() {
    ASSIGN_OR_RETURN(const States states, ReadStates());
    config_["conv_kernel"] = states.width;
    config_["n_groups"] = states.key_heads;
    config_["ssm_state_size"] = states.key_dim;
    config_["mamba_num_heads"] = states.value_heads;
    config_["mamba_head_dim"] = states.values / states.value_heads;
    config_["use_conv_bias"] = HasTensorsNamed(".ssm_conv1d.bias");
    config_["use_bias"] = HasTensorsNamed(".ssm_in.bias");
    ASSIGN_OR_RETURN(const auto turns, file_.Bool(prefix_ + std::string(kTurns)));
    if (!turns.value_or(false)) return Ok{};
    return file_.Bad(prefix_ + std::string(kTurns), "false: attention does not turn queries and keys");
  }

  Status AddMamba() {
    if (IsNemotron()) return AddMambaOfNemotron();
    // Whether the layers of attention turn what they compare.
    ASSIGN_OR_RETURN(const auto turns, file_.Bool(prefix_ + std::string(kTurns)));
    config_["position_embedding_type"] = turns.value_or(true) ? "rope" : "nope";
    const bool has_mamba =
        std::ranges::find(config_["layer_types"], "linear_attention") != config_["layer_types"].end();
    if (!has_mamba) return Ok{};
    ASSIGN_OR_RETURN(const States states, ReadStates());
    const std::int64_t hidden = config_["hidden_size"];
    if (states.values % hidden != 0) return file_.Bad(prefix_ + "ssm.inner_size", "a multiple of embedding_length");
    config_["mamba_d_conv"] = states.width;
    config_["mamba_n_groups"] = states.key_heads;
    config_["mamba_d_state"] = states.key_dim;
    config_["mamba_n_heads"] = states.value_heads;
    config_["mamba_d_head"] = states.values / states.value_heads;
    config_["mamba_expand"] = states.values / hidden;
    config_["mamba_conv_bias"] = HasTensorsNamed(".ssm_conv1d.bias");
    return Ok{};
  }

  bool HasTensorsNamed(std::string_view end) const {
    return std::ranges::any_of(file_.tensors(), [&](const GgufTensor& tensor) { return tensor.name.ends_with(end); });
  }

  // Gated DeltaNet or Mamba-2, and which layers have it.
  Status AddRecurrent() {
    if (family_.of_mamba) return AddMamba();
    if (!family_.of_deltanet) return Ok{};
    ASSIGN_OR_RETURN(const States states, ReadStates());
    config_["linear_conv_kernel_dim"] = states.width;
    config_["linear_num_key_heads"] = states.key_heads;
    config_["linear_key_head_dim"] = states.key_dim;
    config_["linear_num_value_heads"] = states.value_heads;
    config_["linear_value_head_dim"] = states.values / states.value_heads;
    ASSIGN_OR_RETURN(const auto interval, file_.Int(prefix_ + "full_attention_interval", 1, kMost));
    config_["full_attention_interval"] = interval.value_or(4);
    const std::string key = prefix_ + "attention.recurrent_layers";
    ASSIGN_OR_RETURN(const auto list, file_.Array(key, GgufArray::Element::kNumber));
    if (!list) return Ok{};
    const auto layers = config_["num_hidden_layers"].get<std::size_t>();
    ASSIGN_OR_RETURN(const std::int64_t with_mtp, Required("block_count"));
    if (list->size() != static_cast<std::size_t>(with_mtp)) {
      return file_.Bad(key, "an array with an element for each layer");
    }
    json types = json::array();
    const std::vector<double> recurrent = list->Numbers();
    for (std::size_t layer = 0; layer < layers; ++layer) {
      types.push_back(recurrent[layer] != 0 ? "linear_attention" : "full_attention");
    }
    config_["layer_types"] = std::move(types);
    return Ok{};
  }

  bool Is(std::string_view architecture) const { return architecture == architecture_.name; }

  // How attention and feed-forward block follow each other.
  Status AddBlocks() {
    if (Is("falcon")) {
      config_["num_kv_heads"] = config_["num_key_value_heads"];
      config_["new_decoder_architecture"] = true;  // the one with num_kv_heads; that of 7B has one of them and one norm
      config_["num_ln_in_parallel_attn"] = file_.FindTensor("blk.0.attn_norm_2.weight") != nullptr ? 2 : 1;
    }
    if (!Uses(kParallel)) return Ok{};
    const std::string key = prefix_ + std::string(kParallel);
    ASSIGN_OR_RETURN(const auto parallel, file_.Bool(key));
    if (!parallel) return file_.Bad(key, "true or false");
    config_["use_parallel_residual"] = *parallel;
    if (!Is("stablelm")) return Ok{};
    // llama.cpp asks the norm instead, and its converter writes true for configurations that do not say it.
    const bool second_norm = file_.FindTensor("blk.0.ffn_norm.weight") != nullptr;
    if (!second_norm && !*parallel) {
      return InvalidArgument(
          file_.label() + ": metadata " + Quote(key) + " = false needs a tensor 'blk.0.ffn_norm.weight', found none",
          key);
    }
    config_["use_parallel_residual"] = !second_norm;
    config_["qk_layernorm"] = file_.FindTensor("blk.0.attn_q_norm.weight") != nullptr;
    return Ok{};
  }

  Status AddWindows() {
    ASSIGN_OR_RETURN(const auto window, file_.Int(prefix_ + "attention.sliding_window", 0, kMost));
    ASSIGN_OR_RETURN(const auto pattern,
                     file_.Array(prefix_ + std::string(kWindowPattern), GgufArray::Element::kNumber));
    if (window.value_or(0) == 0) {
      config_["sliding_window"] = nullptr;
      // Without a window no layer has one, whatever the pattern of the family is.
      if (family_.windows == WindowRule::kButEachNth) config_["layer_types"] = TypesOfLayers({});
      return Ok{};
    }
    if (Is("llama")) {  // a Mistral: its files have the architecture of Llama
      config_["architectures"] = {"MistralForCausalLM"};
      config_["model_type"] = "mistral";
    } else if (Is("olmo2")) {
      config_["architectures"] = {"Olmo3ForCausalLM"};
      config_["model_type"] = "olmo3";
    } else if (family_.windows == WindowRule::kFrom || family_.windows == WindowRule::kAllIfUsed) {
      config_["use_sliding_window"] = true;
      config_["max_window_layers"] = 0;
    }
    if (family_.windows == WindowRule::kNever && !Is("llama") && !Is("olmo2")) {
      return Unsupported(file_.label() + ": metadata " + Quote(prefix_ + "attention.sliding_window") + " = " +
                             std::to_string(*window) + " is not supported for " + std::string(architecture_.name),
                         prefix_ + "attention.sliding_window");
    }
    config_["sliding_window"] = *window;
    if (!pattern) return Ok{};
    const std::vector<double> slides = pattern->Numbers();
    if (slides.size() != config_["num_hidden_layers"].get<std::size_t>()) {
      return file_.Bad(prefix_ + std::string(kWindowPattern), "an array with an element for each layer");
    }
    config_["layer_types"] = TypesOfLayers(slides);
    return Ok{};
  }

  json TypesOfLayers(const std::vector<double>& slides) const {
    json types = json::array();
    for (std::size_t layer = 0; layer < config_["num_hidden_layers"].get<std::size_t>(); ++layer) {
      const bool window = layer < slides.size() && slides[layer] != 0;
      types.push_back(window ? "sliding_attention" : "full_attention");
    }
    return types;
  }

  Status AddNumber(const char* key, const char* name) {
    ASSIGN_OR_RETURN(const auto number, file_.Number(prefix_ + key));
    if (number) config_[name] = *number;
    return Ok{};
  }

  // What multiplies and caps. The scale of Gemma's attention is in no key: its programs know it by the number of
  // layers.
  Status AddScales() {
    if (Is("gemma2") || Is("gemma3")) {
      const std::int64_t by_heads = Is("gemma2") ? 46 : 62;  // the layers of the models of 27B
      const std::int64_t hidden = config_["hidden_size"], heads = config_["num_attention_heads"];
      config_["query_pre_attn_scalar"] = config_["num_hidden_layers"] == by_heads ? hidden / heads : head_dim_;
    }
    RETURN_IF_ERROR(AddNumber("attn_logit_softcapping", "attn_logit_softcapping"));
    RETURN_IF_ERROR(AddNumber("final_logit_softcapping", "final_logit_softcapping"));
    RETURN_IF_ERROR(AddNumber("attention.scale", "attention_multiplier"));
    RETURN_IF_ERROR(AddNumber("embedding_scale", "embedding_multiplier"));
    RETURN_IF_ERROR(AddNumber("residual_scale", "residual_multiplier"));
    RETURN_IF_ERROR(AddNumber("logit_scale", "logits_scaling"));
    if (family_.multipliers && !config_.contains("attention_multiplier")) {
      config_["attention_multiplier"] = 1 / std::sqrt(static_cast<double>(head_dim_));
    }
    return Ok{};
  }

  Status AddRope() {
    if (family_.ropes == RopeRule::kNever) return Ok{};
    ASSIGN_OR_RETURN(const auto theta, file_.Number(prefix_ + "rope.freq_base"));
    theta_ = theta.value_or(10000.0);
    config_["rope_theta"] = theta_;
    if (Is("gemma3")) config_["rope_local_base_freq"] = 10000.0;
    if (Is("olmo2") || Is("exaone4")) config_["rope_local_base_freq"] = theta_;
    RETURN_IF_ERROR(AddNumber("rope.freq_base_swa", "rope_local_base_freq"));
    ASSIGN_OR_RETURN(const auto turned, file_.Int(prefix_ + "rope.dimension_count", 1, kMost));
    // Without the key, all of a head turns in llama.cpp.
    if (family_.partial_rotary) config_["partial_rotary_factor"] = 1.0;
    if (turned && *turned != head_dim_) {
      // Less than one element more, so that no rounding makes it one fewer.
      const double more = *turned < head_dim_ ? 0.5 : 0;
      config_["partial_rotary_factor"] = (static_cast<double>(*turned) + more) / static_cast<double>(head_dim_);
    }
    ASSIGN_OR_RETURN(const auto type, file_.Text(prefix_ + "rope.scaling.type"));
    ASSIGN_OR_RETURN(auto factor, file_.Number(prefix_ + "rope.scaling.factor"));
    ASSIGN_OR_RETURN(const auto old_factor, file_.Number(prefix_ + "rope.scale_linear"));
    if (!factor) factor = old_factor;
    const std::string name = type.value_or(factor && *factor != 1 ? "linear" : "none");
    if (name != "none" && !(name == "linear" && factor.value_or(1) == 1)) {
      json& scaling = config_["rope_scaling"] = {{"rope_type", name}, {"factor", factor.value_or(1)}};
      ASSIGN_OR_RETURN(const auto original, file_.Int(prefix_ + "rope.scaling.original_context_length", 1, kMost));
      if (original) scaling["original_max_position_embeddings"] = *original;
      for (const auto& [key, ours] : {std::pair{"rope.scaling.yarn_beta_fast", "beta_fast"},
                                      std::pair{"rope.scaling.yarn_beta_slow", "beta_slow"},
                                      std::pair{"rope.scaling.yarn_attn_factor", "attention_factor"},
                                      std::pair{"rope.scaling.yarn_log_multiplier", "mscale_all_dim"}}) {
        ASSIGN_OR_RETURN(const auto beta, file_.Number(prefix_ + key));
        if (beta) scaling[ours] = *beta;
      }
      if (scaling.contains("mscale_all_dim")) scaling["mscale"] = 1.0;  // the other of the two is in llama.cpp
    }
    RETURN_IF_ERROR(AddTemperature());
    RETURN_IF_ERROR(CheckSections());
    // Its limits are not rounded: what llama.cpp computes with rounds them.
    if (Is("gpt-oss") && name == "yarn") config_["rope_scaling"]["truncate"] = false;
    if (Is("phi3")) return AddLongRope();
    return AddRopeFactors(name);
  }

  // Two embeddings: that of full layers turns the first pairs of a head, and the others so slowly that they stay.
  Status AddRopesOfGemma4() {
    for (const auto& [key, length] :
         {std::pair{"rope.dimension_count", full_head_dim_}, std::pair{"rope.dimension_count_swa", head_dim_}}) {
      ASSIGN_OR_RETURN(const auto turned, file_.Int(prefix_ + key, 1, kMost));
      if (turned.value_or(length) != length) return file_.Bad(prefix_ + key, "the length of a head");
    }
    ASSIGN_OR_RETURN(const auto scaling, file_.Text(prefix_ + "rope.scaling.type"));
    for (const char* key : {"rope.scaling.type", "rope.scaling.factor", "rope.scale_linear"}) {
      if (file_.Find(prefix_ + key) == nullptr || (key == std::string_view("rope.scaling.type") && scaling == "none"))
        continue;
      return Unsupported(file_.label() + ": metadata " + Quote(prefix_ + key) + " = " +
                             DescribeGguf(*file_.Find(prefix_ + key)) + " is not supported for gemma4",
                         prefix_ + key);
    }
    const GgufTensor* const tensor = file_.FindTensor("rope_freqs.weight");
    if (tensor == nullptr) {
      return InvalidArgument(file_.label() + ": expected a tensor 'rope_freqs.weight', found none",
                             "rope_freqs.weight");
    }
    const std::int64_t pairs = full_head_dim_ / 2;
    ASSIGN_OR_RETURN(const json list, FactorsOf(*tensor, pairs));
    const auto factors = list.get<std::vector<float>>();
    const auto stays = std::ranges::find_if(factors, [](float factor) { return factor != 1; });
    if (!std::all_of(stays, factors.end(), [](float factor) { return factor >= 1e29f; })) {
      return Unsupported(file_.label() +
                             ": tensor 'rope_freqs.weight' has other factors than 1, and after them 1e30, " +
                             "which is not supported",
                         tensor->name);
    }
    const auto turning = static_cast<std::int64_t>(stays - factors.begin());
    const double share =
        turning == pairs ? 1.0 : (static_cast<double>(turning) + 0.5) * 2 / static_cast<double>(full_head_dim_);
    ASSIGN_OR_RETURN(const auto theta, file_.Number(prefix_ + "rope.freq_base"));
    ASSIGN_OR_RETURN(const auto local_theta, file_.Number(prefix_ + std::string(kLocalTheta)));
    theta_ = theta.value_or(10000.0);
    config_["rope_parameters"] = {
        {"full_attention", {{"rope_type", "proportional"}, {"partial_rotary_factor", share}, {"rope_theta", theta_}}},
        {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", local_theta.value_or(theta_)}}}};
    return Ok{};
  }

  // Queries that grow with the position: a Ministral 3.
  Status AddTemperature() {
    ASSIGN_OR_RETURN(const auto beta, file_.Number(prefix_ + std::string(kTemperature)));
    if (beta.value_or(0) == 0) return Ok{};
    config_["architectures"] = {"Ministral3ForCausalLM"};
    config_["model_type"] = "ministral3";
    json& scaling = config_["rope_scaling"];
    if (scaling.is_null()) scaling = {{"rope_type", "default"}};
    scaling["llama_4_scaling_beta"] = *beta;
    ASSIGN_OR_RETURN(const auto original, file_.Int(prefix_ + "rope.scaling.original_context_length", 1, kMost));
    if (original) scaling["original_max_position_embeddings"] = *original;
    return Ok{};
  }

  // How many pairs of a head turn by each of the three positions of an image, which are one in a text. By a fourth,
  // which is 0 in a text, none may turn.
  Status CheckSections() const {
    const std::string key = prefix_ + std::string(kSections);
    ASSIGN_OR_RETURN(const auto sections, file_.Array(key, GgufArray::Element::kNumber));
    if (!sections) return Ok{};
    const std::vector<double> pairs = sections->Numbers();
    if (pairs.size() == 4 && pairs[3] == 0) return Ok{};
    return file_.Bad(key, "an array of four numbers, the last of them 0");
  }

  Result<json> FactorsOf(const GgufTensor& tensor, std::int64_t count) const {
    if (tensor.type->id != 0 || tensor.shape != std::vector<std::int64_t>{count}) {
      return InvalidArgument(file_.label() + ": tensor " + Quote(tensor.name) + ": expected F32 [" +
                                 std::to_string(count) + "], found " + tensor.type->name + " " +
                                 ShapeToString(tensor.shape),
                             tensor.name);
    }
    std::vector<float> factors(static_cast<std::size_t>(count));
    std::copy(tensor.data.begin(), tensor.data.end(), reinterpret_cast<std::byte*>(factors.data()));
    return json(factors);
  }

  // Two tensors of factors, for short and for long texts.
  Status AddLongRope() {
    const GgufTensor* const long_ones = file_.FindTensor("rope_factors_long.weight");
    const GgufTensor* const short_ones = file_.FindTensor("rope_factors_short.weight");
    if (long_ones == nullptr && short_ones == nullptr) return Ok{};
    if (long_ones == nullptr || short_ones == nullptr) {
      return InvalidArgument(file_.label() +
                                 ": expected both 'rope_factors_long.weight' and "
                                 "'rope_factors_short.weight', found one",
                             "rope_factors_long.weight");
    }
    ASSIGN_OR_RETURN(const auto turned, file_.Int(prefix_ + "rope.dimension_count", 1, kMost));
    json scaling = {{"rope_type", "longrope"}, {"factor", 1.0}};
    ASSIGN_OR_RETURN(scaling["long_factor"], FactorsOf(*long_ones, turned.value_or(head_dim_) / 2));
    ASSIGN_OR_RETURN(scaling["short_factor"], FactorsOf(*short_ones, turned.value_or(head_dim_) / 2));
    ASSIGN_OR_RETURN(const std::int64_t original, Required("rope.scaling.original_context_length"));
    scaling["original_max_position_embeddings"] = original;
    ASSIGN_OR_RETURN(const auto attention, file_.Number(prefix_ + "rope.scaling.attn_factor"));
    if (attention) scaling["attention_factor"] = *attention;
    config_["rope_scaling"] = std::move(scaling);
    return Ok{};
  }

  // The tensor of factors by which the wavelengths grow. Llama 3's come from four numbers, of which the metadata have
  // none: they are found again, and every factor is checked.
  Status AddRopeFactors(const std::string& scaling) {
    const GgufTensor* tensor = file_.FindTensor("rope_freqs.weight");
    if (tensor == nullptr) return Ok{};
    ASSIGN_OR_RETURN(const json list, FactorsOf(*tensor, head_dim_ / 2));
    const auto factors = list.get<std::vector<float>>();
    const float most = *std::max_element(factors.begin(), factors.end());
    if (scaling == "none") {
      if (std::all_of(factors.begin(), factors.end(), [](float f) { return f == 1; })) return Ok{};
      for (std::int64_t original = 1024; original <= 262144; original *= 2) {
        if (!AreLlama3(factors, most, original)) continue;
        config_["rope_scaling"] = {{"rope_type", "llama3"},
                                   {"factor", most},
                                   {"low_freq_factor", 1.0},
                                   {"high_freq_factor", 4.0},
                                   {"original_max_position_embeddings", original}};
        return Ok{};
      }
    }
    return Unsupported(file_.label() +
                           ": tensor 'rope_freqs.weight' has other factors than Llama 3's, which is not "
                           "supported",
                       tensor->name);
  }

  bool AreLlama3(const std::vector<float>& factors, double factor, std::int64_t original) const {
    for (std::size_t i = 0; i < factors.size(); ++i) {
      const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(head_dim_);
      const double wavelength = 2 * 3.14159265358979323846 * std::pow(theta_, exponent);
      const double turns = static_cast<double>(original) / wavelength;
      double expected = 1;
      if (turns < 1) {
        expected = factor;
      } else if (turns <= 4) {
        const double smooth = (turns - 1) / 3;
        expected = 1 / ((1 - smooth) / factor + smooth);
      }
      if (!(std::fabs(static_cast<double>(factors[i]) - expected) <= 1e-4 * expected)) return false;
    }
    return true;
  }

  Status AddTokens() {
    for (const auto& [key, name] : {std::pair{"tokenizer.ggml.bos_token_id", "bos_token_id"},
                                    std::pair{"tokenizer.ggml.eos_token_id", "eos_token_id"}}) {
      ASSIGN_OR_RETURN(const auto id, file_.Int(key, 0, kMost));
      config_[name] = id ? json(*id) : json();
    }
    ASSIGN_OR_RETURN(const auto name, file_.Text("general.name"));
    if (name) {
      std::string joined = *name;
      std::replace(joined.begin(), joined.end(), ' ', '-');
      config_["_name_or_path"] = joined;
    }
    return Ok{};
  }

  void AddWhatTensorsSay() {
    config_["tie_word_embeddings"] = file_.FindTensor("output.weight") == nullptr;
    // llama.cpp knows none of Falcon.
    config_[family_.fields.bias] =
        !Is("falcon") && (HasTensorsNamed(".attn_q.bias") || HasTensorsNamed(".attn_qkv.bias"));
    config_["mlp_bias"] = IsNemotron() ? HasTensorsNamed(".ffn_up.bias") || HasTensorsNamed(".ffn_up_shexp.bias")
                                       : file_.FindTensor("blk.0.ffn_gate.bias") != nullptr;
  }

  const GgufFile& file_;
  const GgufArchitecture architecture_;
  const FamilyInfo& family_;
  const std::string prefix_;
  json config_;
  std::int64_t head_dim_ = 0, full_head_dim_ = 0;  // the latter of Gemma 4's layers without a window
  double theta_ = 0;
};

}  // namespace

Result<std::string> GgufModelConfig(const GgufFile& file) {
  RETURN_IF_ERROR(RequireModel(file));
  ASSIGN_OR_RETURN(const GgufArchitecture architecture, RequireGgufArchitecture(file));
  ASSIGN_OR_RETURN(const json config, ConfigBuilder(file, architecture).Build());
  return config.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace loramux
