#include "formats/model_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "base/message.h"
#include "formats/experts_config.h"
#include "formats/file.h"
#include "formats/generation_defaults.h"
#include "formats/json_fields.h"
#include "formats/model_family.h"
#include "formats/model_files.h"
#include "formats/recurrent_fields.h"
#include "formats/rope_config.h"

namespace loramux {
namespace {

// These bounds keep later products below 2^63: layers * 2 * KvDim * 64 positions * 4 bytes is at most 2^43.
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 24;
constexpr std::int64_t kMaxLayers = 1024;

Error UnknownArchitecture(const JsonFields& fields, const std::string& what) {
  return Unsupported(fields.label() + what + " is not supported; loramux serves " + SupportedArchitectures());
}

// The class of the same family without an output layer: "Qwen3Model".
std::string WithoutHead(const FamilyInfo& info) {
  const std::string_view name = info.architecture;
  return std::string(name.substr(0, name.find("ForCausalLM"))) + "Model";
}

// Finds the family by `architectures`, else by `model_type`; if both are given they must agree. Sets
// config.without_head.
Result<const FamilyInfo*> FindFamily(const JsonFields& fields, ModelConfig& config) {
  ASSIGN_OR_RETURN(const auto model_type, fields.String("model_type"));
  const FamilyInfo* const by_type = model_type ? FindFamilyByType(*model_type) : nullptr;
  const nlohmann::json* architectures = fields.Find("architectures");
  if (architectures == nullptr || (architectures->is_array() && architectures->empty())) {
    if (!model_type) return fields.Missing("architectures", "a list with one of " + SupportedArchitectures());
    if (by_type == nullptr) return UnknownArchitecture(fields, "model_type " + Quote(*model_type));
    return by_type;
  }
  if (!architectures->is_array() || !architectures->front().is_string()) {
    return fields.Bad("architectures", "a list with one of " + SupportedArchitectures());
  }
  const auto& name = architectures->front().get_ref<const std::string&>();
  const auto found = std::ranges::find_if(
      AllFamilies(), [&](const FamilyInfo& info) { return name == info.architecture || name == WithoutHead(info); });
  if (found == AllFamilies().end()) return UnknownArchitecture(fields, "the architecture " + Quote(name));
  if (model_type && by_type != &*found) {
    return InvalidArgument(fields.label() + "model_type " + Quote(*model_type) + " contradicts the architecture " +
                           Quote(name));
  }
  config.without_head = name != found->architecture;
  return &*found;
}

// mlx-lm names its quantisation twice, and gives it no quant_method.
Status RefuseMlx(const JsonFields& fields) {
  for (const char* key : {"quantization", "quantization_config"}) {
    const nlohmann::json* value = fields.Find(key);
    if (value == nullptr || !value->is_object() || value->contains("quant_method")) continue;
    if (!value->contains("group_size") || !value->contains("bits")) continue;
    return Unsupported(
        fields.label() + key +
        " has group_size and bits but no quant_method: the weights are quantised by mlx-lm, which loramux "
        "does not read; use the model in floats, or write it by `mlx_lm.convert --dequantize`");
  }
  return Ok{};
}

const char* NameOf(Activation activation) {
  constexpr const char* kNames[] = {"silu", "gelu_pytorch_tanh", "gelu", "relu", "silu", "relu2"};
  return kNames[static_cast<std::size_t>(activation)];
}

// The names of transformers for the functions, of the tanh form of GELU both.
bool IsActivation(std::string_view name, Activation activation) {
  // gpt-oss calls its own function so.
  const bool silu = activation == Activation::kSilu || activation == Activation::kClampedSwiglu;
  if (silu) return name == "silu" || name == "swish";
  if (activation == Activation::kGeluTanh) return name == "gelu_pytorch_tanh" || name == "gelu_fast";
  return name == NameOf(activation);
}

// The same of options that single families have.
Status RefuseOfFamily(const JsonFields& fields, const FamilyInfo& family) {
  const auto refuse = [&](const char* key, bool wanted, bool fallback) -> Status {
    ASSIGN_OR_RETURN(const bool value, fields.BoolOr(key, fallback));
    if (value == wanted) return Ok{};
    return Unsupported(fields.label() + key + " " + (value ? "true" : "false") + " is not supported");
  };
  // Which of its layers then have a window is in layer_types alone.
  if (family.family == ModelFamily::kQwen2Moe && !fields.Has("layer_types")) {
    return refuse("use_sliding_window", false, false);
  }
  const nlohmann::json* const clip = fields.Find("clip_qkv");
  if (clip != nullptr) {
    return Unsupported(fields.label() + "clip_qkv " + Describe(*clip) + " is not supported, only null");
  }
  if (family.of_deltanet) return refuse("attn_output_gate", true, true);
  if (family.family == ModelFamily::kNemotronH) {
    ASSIGN_OR_RETURN(const auto activation, fields.String("mamba_hidden_act"));
    if (activation && !IsActivation(*activation, Activation::kSilu)) {
      return Unsupported(fields.label() + "mamba_hidden_act " + Quote(*activation) + " is not supported, only silu");
    }
    const nlohmann::json* const latent = fields.Find("moe_latent_size");
    if (latent != nullptr) {
      return Unsupported(fields.label() + "moe_latent_size " + Describe(*latent) +
                         " is not supported: experts take inputs of hidden_size, only null");
    }
  }
  if (family.family == ModelFamily::kBloom) return refuse("apply_residual_connection_post_layernorm", false, false);
  return family.family == ModelFamily::kOpt ? refuse("layer_norm_elementwise_affine", true, true) : Ok{};
}

// Refuses options that change the computation in ways that the forward pass does not implement.
Status RefuseUnsupported(const JsonFields& fields, const FamilyInfo& family) {
  const char* const key = family.fields.activation;
  ASSIGN_OR_RETURN(const auto activation, fields.String(key));
  if (activation && !IsActivation(*activation, family.activation)) {
    return Unsupported(fields.label() + key + " " + Quote(*activation) + " is not supported, only " +
                       NameOf(family.activation));
  }
  RETURN_IF_ERROR(RefuseOfFamily(fields, family));
  const nlohmann::json* both_ways = fields.Find("use_bidirectional_attention");
  // Gemma 4's images alone see both ways.
  const bool of_images = family.of_gemma4 && both_ways != nullptr && *both_ways == "vision";
  if (both_ways != nullptr && !IsOff(*both_ways) && !of_images) {
    return Unsupported(fields.label() + "use_bidirectional_attention " + Describe(*both_ways) +
                       " is not supported: attention is causal");
  }
  ASSIGN_OR_RETURN(const bool use_mrope, fields.BoolOr("use_mrope", false));
  if (use_mrope) return Unsupported(fields.label() + "use_mrope (multimodal rotary embedding) is not supported");
  return Ok{};
}

// `fallback` 0: there must be one.
Result<std::int64_t> ReadExtent(const JsonFields& fields, const char* key, std::int64_t fallback) {
  return fallback == 0 ? fields.RequiredInt(key, 1, kMaxExtent) : fields.IntOr(key, 1, kMaxExtent, fallback);
}

Status ParseHeadDim(const JsonFields& fields, const FamilyInfo& family, ModelConfig& config) {
  if (config.num_heads % config.num_kv_heads != 0) {
    return InvalidArgument(fields.label() + "num_key_value_heads " + std::to_string(config.num_kv_heads) +
                           " does not divide num_attention_heads " + std::to_string(config.num_heads));
  }
  ASSIGN_OR_RETURN(config.head_dim, fields.IntOr("head_dim", 1, kMaxExtent, family.head_dim));
  if (config.head_dim == 0) {
    if (config.hidden_size % config.num_heads != 0) {
      return InvalidArgument(fields.label() + "num_attention_heads " + std::to_string(config.num_heads) +
                             " does not divide hidden_size " + std::to_string(config.hidden_size) +
                             " and head_dim is not given");
    }
    config.head_dim = config.hidden_size / config.num_heads;
  }
  if (config.head_dim % 2 != 0) {
    return InvalidArgument(fields.label() + "head_dim: expected an even number (rotary embeddings turn pairs), found " +
                           std::to_string(config.head_dim));
  }
  if (config.QDim() > kMaxExtent) {
    return InvalidArgument(fields.label() + "num_attention_heads * head_dim: expected at most " +
                           WithSeparators(kMaxExtent) + ", found " +
                           WithSeparators(static_cast<std::uint64_t>(config.QDim())));
  }
  return Ok{};
}

// The layer that a key of `per_layer_config` names, with zeros before the number; nullopt: none.
std::optional<std::size_t> LayerOfKey(std::string_view name, std::int64_t num_layers) {
  std::size_t layer = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  const bool whole = error == std::errc() && end == name.data() + name.size();
  return whole && layer < static_cast<std::size_t>(num_layers) ? std::optional(layer) : std::nullopt;
}

// `per_layer_config` as transformers 5 saves it: {"05": {"head_dim": .., "num_key_value_heads": ..}}. Changes those
// of `heads`, which are by layer.
Status ParseHeadsByLayer(const JsonFields& fields, const nlohmann::json& all, std::vector<HeadShape>& heads) {
  if (!all.is_object()) return fields.Bad("per_layer_config", "an object");
  for (const auto& [name, value] : all.items()) {
    const std::string label = fields.label() + "per_layer_config." + Printable(name);
    const auto layer = LayerOfKey(name, static_cast<std::int64_t>(heads.size()));
    if (!layer || !value.is_object()) {
      return InvalidArgument(label + ": expected an object for a layer below num_hidden_layers = " +
                             std::to_string(heads.size()) + ", found " + Describe(value));
    }
    for (const auto& [key, ignored] : value.items()) {
      if (key == "head_dim" || key == "num_key_value_heads") continue;
      return Unsupported(label + "." + Printable(key) + " is not supported, only head_dim and num_key_value_heads");
    }
    const JsonFields own(value, label + ".");
    HeadShape& to = heads[*layer];
    ASSIGN_OR_RETURN(to.head_dim, own.IntOr("head_dim", 1, kMaxExtent, to.head_dim));
    ASSIGN_OR_RETURN(to.num_kv_heads, own.IntOr("num_key_value_heads", 1, kMaxExtent, to.num_kv_heads));
  }
  return Ok{};
}

// Gives layers with and without a window their heads: the pages are made for the larger ones.
Status TakeHeadsOfKinds(const JsonFields& fields, const HeadShape& slides, const HeadShape& full, ModelConfig& config) {
  const auto elements = [](const HeadShape& heads) { return heads.num_kv_heads * heads.head_dim; };
  config.other_slide = elements(full) > elements(slides);
  const HeadShape& larger = config.other_slide ? full : slides;
  const HeadShape& other = config.other_slide ? slides : full;
  const bool divides = config.num_heads % full.num_kv_heads == 0 && full.head_dim % 2 == 0;
  const bool fits = other.num_kv_heads <= larger.num_kv_heads && config.num_heads * full.head_dim <= kMaxExtent;
  if (!divides || !fits) {
    const auto text = [](const HeadShape& heads) {
      return std::to_string(heads.num_kv_heads) + " heads of keys of " + std::to_string(heads.head_dim) + " elements";
    };
    return Unsupported(fields.label() + "global_head_dim, per_layer_config: full layers have " + text(full) +
                       " and others " + text(slides) + ": expected divisors of num_attention_heads " +
                       std::to_string(config.num_heads) + ", even sizes, and that the kind with more elements has " +
                       "at least as many heads");
  }
  config.num_kv_heads = larger.num_kv_heads;
  config.head_dim = larger.head_dim;
  config.other_heads = other;
  return Ok{};
}

// The heads of Gemma 4's full layers. Those of layers with a window are already there, and so are the windows.
Status ParseFullHeads(const JsonFields& fields, ModelConfig& config) {
  ASSIGN_OR_RETURN(config.keys_are_values, fields.BoolOr("attention_k_eq_v", false));
  const HeadShape usual = {config.num_kv_heads, config.head_dim};
  HeadShape full = usual;
  ASSIGN_OR_RETURN(full.head_dim, fields.IntOr("global_head_dim", 1, kMaxExtent, 512));
  ASSIGN_OR_RETURN(const auto kv_heads, fields.Int("num_global_key_value_heads", 1, kMaxExtent));
  if (config.keys_are_values) full.num_kv_heads = kv_heads.value_or(usual.num_kv_heads);
  const auto slides = [&](std::size_t layer) { return config.sliding_window[layer] != 0; };
  std::vector<HeadShape> heads(config.sliding_window.size(), usual);
  const nlohmann::json* const by_layer = fields.Find("per_layer_config");
  for (std::size_t layer = 0; layer < heads.size(); ++layer) {
    if (by_layer == nullptr && !slides(layer)) heads[layer] = full;
  }
  if (by_layer != nullptr) RETURN_IF_ERROR(ParseHeadsByLayer(fields, *by_layer, heads));
  for (std::size_t layer = 0; layer < heads.size(); ++layer) {
    if (heads[layer] == (slides(layer) ? usual : heads.back())) continue;
    return Unsupported(fields.label() + "per_layer_config: layer " + std::to_string(layer) +
                       " has other heads than other layers of its kind, which is not supported");
  }
  return TakeHeadsOfKinds(fields, usual, heads.back(), config);
}

// Which of Gemma 4's layers read the keys and values of others.
Status ParseSharing(const JsonFields& fields, ModelConfig& config) {
  ASSIGN_OR_RETURN(config.shared_kv_layers, fields.IntOr("num_kv_shared_layers", 0, config.num_layers - 1, 0));
  ASSIGN_OR_RETURN(config.shared_are_wide, fields.BoolOr("use_double_wide_mlp", false));
  if (config.shared_kv_layers == 0) config.shared_are_wide = false;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    bool found = !config.SharesKv(layer);
    for (std::int64_t other = 0; !config.SharesKv(other); ++other) {
      found |= config.Slides(other) == config.Slides(layer);
    }
    if (found) continue;
    return InvalidArgument(fields.label() + "num_kv_shared_layers " + std::to_string(config.shared_kv_layers) +
                           ": no layer before has keys and values for layer " + std::to_string(layer));
  }
  return Ok{};
}

// num_kv_heads counts in the newer architecture alone.
Result<std::int64_t> FalconKvHeads(const JsonFields& fields, std::int64_t num_heads) {
  ASSIGN_OR_RETURN(const bool newer, fields.BoolOr("new_decoder_architecture", false));
  if (newer) return fields.IntOr("num_kv_heads", 1, kMaxExtent, num_heads);
  ASSIGN_OR_RETURN(const bool one, fields.BoolOr("multi_query", true));
  return one ? std::int64_t{1} : num_heads;
}

Status ParseHeads(const JsonFields& fields, const FamilyInfo& family, ModelConfig& config) {
  ASSIGN_OR_RETURN(config.num_heads, ReadExtent(fields, "num_attention_heads", family.num_heads));
  if (family.family == ModelFamily::kFalcon) {
    ASSIGN_OR_RETURN(config.num_kv_heads, FalconKvHeads(fields, config.num_heads));
    return ParseHeadDim(fields, family, config);
  }
  const bool equal_heads = family.num_kv_heads == 0 || fields.IsExplicitNull("num_key_value_heads");
  ASSIGN_OR_RETURN(config.num_kv_heads, fields.IntOr("num_key_value_heads", 1, kMaxExtent,
                                                     equal_heads ? config.num_heads : family.num_kv_heads));
  return ParseHeadDim(fields, family, config);
}

Status ParseBiases(const JsonFields& fields, const FamilyInfo& family, ModelConfig& config) {
  ASSIGN_OR_RETURN(const bool biased, fields.BoolOr(family.fields.bias, family.attention_bias));
  const BiasRule rule = family.biases;
  const bool asked = biased && rule != BiasRule::kNone;
  config.attention_qkv_bias = asked || rule == BiasRule::kAlwaysQkv;
  config.attention_output_bias = asked && rule != BiasRule::kQkv && rule != BiasRule::kAlwaysQkv;
  config.mlp_bias = rule == BiasRule::kMlpAlways || (asked && rule == BiasRule::kAllOrNone);
  if (!family.mlp_bias) return Ok{};
  ASSIGN_OR_RETURN(config.mlp_bias, fields.BoolOr("mlp_bias", false));
  return Ok{};
}

// The window of the layers that have one; 0 if no layer has one.
Result<std::int64_t> ParseWindow(const JsonFields& fields, const FamilyInfo& family) {
  if (family.windows == WindowRule::kNever || fields.IsExplicitNull("sliding_window")) return std::int64_t{0};
  if (family.windows == WindowRule::kFrom || family.windows == WindowRule::kAllIfUsed) {
    ASSIGN_OR_RETURN(const bool use, fields.BoolOr("use_sliding_window", false));
    if (!use) return std::int64_t{0};  // sliding_window is then ignored
  }
  return fields.IntOr("sliding_window", 1, kMaxExtent, family.sliding_window);
}

// How often a layer without a window comes. A number, or letters: "LLLG".
Result<std::int64_t> ParsePattern(const JsonFields& fields, const FamilyInfo& family) {
  const bool old = fields.Has("sliding_window_pattern");
  const char* const key = old ? "sliding_window_pattern" : "_sliding_window_pattern";
  const nlohmann::json* value = fields.Find(key);
  if (value == nullptr || !value->is_string()) return fields.IntOr(key, 1, kMaxExtent, family.window_pattern);
  const auto& letters = value->get_ref<const std::string&>();
  const auto size = static_cast<std::int64_t>(letters.size());
  if (size > 0 && letters == std::string(letters.size() - 1, 'L') + "G") return size;
  return fields.Bad(key, "a number, or letters L that end in one G");
}

// `layer_types` as saved by transformers 5 decides, except for Mistral; it must not contradict the other fields.
Status ApplyLayerTypes(const JsonFields& fields, const FamilyInfo& family, std::int64_t window, ModelConfig& config) {
  const nlohmann::json* types = fields.Find("layer_types");
  if (types == nullptr || family.of_deltanet || family.of_mamba) return Ok{};  // ParseRecurrent reads it
  if (!types->is_array() || static_cast<std::int64_t>(types->size()) != config.num_layers) {
    return fields.Bad("layer_types", "a list of num_hidden_layers = " + std::to_string(config.num_layers) + " names");
  }
  const bool decides = family.windows == WindowRule::kFrom || family.windows == WindowRule::kButEachNth;
  for (std::size_t layer = 0; layer < types->size(); ++layer) {
    const nlohmann::json& type = (*types)[layer];
    const bool sliding = type == "sliding_attention";
    const std::string where = fields.label() + "layer_types[" + std::to_string(layer) + "]: ";
    if (!sliding && type != "full_attention") {
      return Unsupported(where + Describe(type) + " is not supported, only full_attention and sliding_attention");
    }
    if (sliding && window == 0) {
      return InvalidArgument(where + "sliding_attention, but the configuration gives no sliding_window in use");
    }
    if (!decides && sliding != (config.sliding_window[layer] != 0)) {
      return Unsupported(where + Describe(type) +
                         " contradicts sliding_window: layers that differ are not supported for " +
                         ModelFamilyName(config.family));
    }
    config.sliding_window[layer] = sliding ? window : 0;
  }
  return Ok{};
}

Status ParseSlidingWindows(const JsonFields& fields, const FamilyInfo& family, ModelConfig& config) {
  ASSIGN_OR_RETURN(const std::int64_t window, ParseWindow(fields, family));
  std::int64_t first = 0, pattern = 0;  // the first layer with a window; each pattern-th has none
  if (window != 0 && family.windows == WindowRule::kFrom) {
    ASSIGN_OR_RETURN(first, fields.IntOr("max_window_layers", 0, kMaxExtent, 28));
  }
  if (family.of_gemma4) {
    pattern = family.window_pattern;
  } else if (family.windows == WindowRule::kButEachNth) {
    ASSIGN_OR_RETURN(pattern, ParsePattern(fields, family));
  }
  config.sliding_window.assign(static_cast<std::size_t>(config.num_layers), 0);
  for (std::int64_t layer = first; layer < config.num_layers; ++layer) {
    if (pattern > 0 && (layer + 1) % pattern == 0) continue;
    config.sliding_window[static_cast<std::size_t>(layer)] = window;
  }
  RETURN_IF_ERROR(ApplyLayerTypes(fields, family, window, config));
  if (!family.of_gemma4) return Ok{};
  config.sliding_window.back() = 0;  // whatever layer_types says
  RETURN_IF_ERROR(ParseFullHeads(fields, config));
  return ParseSharing(fields, config);
}

// A number above 0 that multiplies.
Status ReadFactor(const JsonFields& fields, const char* key, double& out) {
  ASSIGN_OR_RETURN(const auto number, fields.Number(key));
  if (number && *number <= 0) return fields.Bad(key, "a number above 0");
  out = number.value_or(out);
  return Ok{};
}

// The root of the embedding's width, rounded to the type of the weights, as transformers has it.
double EmbeddingScale(const ModelConfig& config, std::int64_t width) {
  const double root = std::sqrt(static_cast<double>(width));
  const int bits = config.dtype == "bfloat16" ? 8 : config.dtype == "float16" ? 11 : 24;  // significant bits
  int exponent = 0;
  std::frexp(root, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(root, bits - exponent)), exponent - bits);
}

Result<BlockOrder> ParseBlockOrder(const JsonFields& fields, const FamilyInfo& family) {
  if (family.family == ModelFamily::kFalcon) {
    ASSIGN_OR_RETURN(const bool newer, fields.BoolOr("new_decoder_architecture", false));
    ASSIGN_OR_RETURN(const std::int64_t norms, fields.IntOr("num_ln_in_parallel_attn", 1, 2, newer ? 2 : 1));
    ASSIGN_OR_RETURN(const bool parallel, fields.BoolOr("parallel_attn", true));
    if (!newer && !parallel) return BlockOrder::kSequential;
    return newer && norms == 2 ? BlockOrder::kParallel : BlockOrder::kParallelOneNorm;
  }
  if (family.family != ModelFamily::kStableLm && family.family != ModelFamily::kGptNeoX) return BlockOrder::kSequential;
  const bool neox = family.family == ModelFamily::kGptNeoX;
  ASSIGN_OR_RETURN(const bool parallel, fields.BoolOr("use_parallel_residual", neox));
  if (!parallel) return BlockOrder::kSequential;
  return neox ? BlockOrder::kParallel : BlockOrder::kParallelOneNorm;
}

// A list of `count` numbers above 0; missing or null: all 1.
Status ReadFactors(const JsonFields& fields, const char* key, std::size_t count, const auto& out) {
  const nlohmann::json* const list = fields.Find(key);
  if (list == nullptr) return Ok{};
  const std::string expected = "a list of " + std::to_string(count) + " numbers above 0";
  if (!list->is_array() || list->size() != count) return fields.Bad(key, expected);
  for (std::size_t i = 0; i < count; ++i) {
    const auto number = FiniteNumber((*list)[i]);
    if (!number || *number <= 0) return fields.Bad(key, expected);
    *out[i] = *number;
  }
  return Ok{};
}

// Falcon-H1's multipliers. That of keys is one of the products of queries and keys.
Status ParseScalesOfFalcon(const JsonFields& fields, ModelConfig& config) {
  BlockScales& scales = config.block_scales;
  double of_keys = 1;
  for (const auto& [key, out] : {std::pair{"embedding_multiplier", &config.embedding_scale},
                                 {"lm_head_multiplier", &config.logit_scale},
                                 {"key_multiplier", &of_keys},
                                 {"attention_in_multiplier", &scales.attention_in},
                                 {"attention_out_multiplier", &scales.attention_out},
                                 {"ssm_in_multiplier", &scales.states_in},
                                 {"ssm_out_multiplier", &scales.states_out}}) {
    RETURN_IF_ERROR(ReadFactor(fields, key, *out));
  }
  if (of_keys != 1) config.attention_scale = of_keys / std::sqrt(static_cast<double>(config.head_dim));
  RETURN_IF_ERROR(ReadFactors(fields, "mlp_multipliers", 2, std::array{&scales.gate, &scales.down}));
  // The file has them as in_proj has its rows: z, x, B, C, dt.
  auto& states = scales.states;
  return ReadFactors(fields, "ssm_multipliers", states.size(),
                     std::array{&states[0], &states[1], &states[2], &states[3], &states[4]});
}

// What single families do besides.
Status ParseOfFamily(const JsonFields& fields, const FamilyInfo& family, ModelConfig& config) {
  if (family.family == ModelFamily::kStableLm) {
    ASSIGN_OR_RETURN(const bool normed, fields.BoolOr("qk_layernorm", false));
    if (normed) config.qk_norm = QkNorm::kLayerOfHeads;
  }
  if (family.family == ModelFamily::kFalconH1) return ParseScalesOfFalcon(fields, config);
  if (family.of_gemma4) {
    config.attention_scale = 1;
    config.value_norm = config.layer_scales = true;
    RETURN_IF_ERROR(ReadFactor(fields, "final_logit_softcapping", config.logit_soft_cap));
    ASSIGN_OR_RETURN(config.layer_input_size, fields.IntOr("hidden_size_per_layer_input", 0, 1 << 14, 256));
    config.layer_input_scale = EmbeddingScale(config, config.layer_input_size);
    ASSIGN_OR_RETURN(const std::int64_t tokens,
                     fields.IntOr("vocab_size_per_layer_input", 1, kMaxExtent, family.vocab_size));
    if (config.layer_input_size > 0 && tokens != config.vocab_size) {
      return Unsupported(fields.label() + "vocab_size_per_layer_input " + std::to_string(tokens) +
                         " is not supported, only vocab_size " + std::to_string(config.vocab_size));
    }
  }
  if (family.family != ModelFamily::kOpt) return Ok{};
  ASSIGN_OR_RETURN(const bool before, fields.BoolOr("do_layer_norm_before", true));
  ASSIGN_OR_RETURN(const bool removed, fields.BoolOr("_remove_final_layer_norm", false));
  if (!before) config.norm_places = NormPlaces::kOfSum;
  config.final_norm = before && !removed;
  ASSIGN_OR_RETURN(const std::int64_t width, fields.IntOr("word_embed_proj_dim", 1, kMaxExtent, config.hidden_size));
  if (width != config.hidden_size) config.embedding_size = width;
  return Ok{};
}

// What the family does between its products, from its row and the fields that it reads.
Status ParseOperations(const JsonFields& fields, const FamilyInfo& family, ModelConfig& config) {
  config.norm_kind = family.norm_kind;
  config.gated = family.gated;
  if (family.learned_positions) config.position_rows_before = 2;
  ASSIGN_OR_RETURN(config.block_order, ParseBlockOrder(fields, family));
  const bool before = family.norms.attention != nullptr, after = family.norms.attention_output != nullptr;
  config.norm_places = before && after ? NormPlaces::kBoth : before ? NormPlaces::kBefore : NormPlaces::kAfter;
  config.norm_weight_offset = family.norm_weight_offset;
  config.qk_norm = family.qk_norm;
  config.activation = family.activation;
  config.sinks = family.sinks;
  config.embedding_norm = family.embedding_norm;
  RETURN_IF_ERROR(ParseOfFamily(fields, family, config));
  if (config.activation == Activation::kClampedSwiglu) {
    config.swiglu_alpha = 1.702;
    config.swiglu_limit = 7;
    RETURN_IF_ERROR(ReadFactor(fields, "swiglu_alpha", config.swiglu_alpha));
    RETURN_IF_ERROR(ReadFactor(fields, "swiglu_limit", config.swiglu_limit));
  }
  if (family.scales_embedding) config.embedding_scale = EmbeddingScale(config, config.hidden_size);
  if (family.query_scalar) {
    double scalar = 256;
    RETURN_IF_ERROR(ReadFactor(fields, "query_pre_attn_scalar", scalar));
    config.attention_scale = 1 / std::sqrt(scalar);
    const bool capped = family.family == ModelFamily::kGemma2;  // by default
    if (capped && !fields.IsExplicitNull("attn_logit_softcapping")) config.attention_soft_cap = 50;
    if (capped && !fields.IsExplicitNull("final_logit_softcapping")) config.logit_soft_cap = 30;
    RETURN_IF_ERROR(ReadFactor(fields, "attn_logit_softcapping", config.attention_soft_cap));
    RETURN_IF_ERROR(ReadFactor(fields, "final_logit_softcapping", config.logit_soft_cap));
  }
  if (!family.multipliers) return Ok{};
  double divisor = 1;
  config.attention_scale = 1;
  RETURN_IF_ERROR(ReadFactor(fields, "embedding_multiplier", config.embedding_scale));
  RETURN_IF_ERROR(ReadFactor(fields, "residual_multiplier", config.residual_scale));
  RETURN_IF_ERROR(ReadFactor(fields, "attention_multiplier", config.attention_scale));
  RETURN_IF_ERROR(ReadFactor(fields, "logits_scaling", divisor));
  config.logit_scale = 1 / divisor;
  return Ok{};
}

Status ParseTokens(const JsonFields& fields, const FamilyInfo& family, ModelConfig& config) {
  if (family.eos >= 0 && !fields.IsExplicitNull("eos_token_id") && family.eos < config.vocab_size) {
    config.eos_token_ids = {static_cast<TokenId>(family.eos)};
  }
  RETURN_IF_ERROR(ReadEosTokens(fields, config.vocab_size, config.eos_token_ids));
  const bool bos_by_default =
      family.bos >= 0 && !fields.IsExplicitNull("bos_token_id") && family.bos < config.vocab_size;
  ASSIGN_OR_RETURN(const std::int64_t bos,
                   fields.IntOr("bos_token_id", 0, config.vocab_size - 1, bos_by_default ? family.bos : -1));
  config.bos_token_id = static_cast<TokenId>(bos);
  return Ok{};
}

// As vLLM reads them.
Status ParseMatryoshka(const JsonFields& fields, ModelConfig& config) {
  ASSIGN_OR_RETURN(const bool any, fields.BoolOr("is_matryoshka", false));
  if (any) config.matryoshka.emplace();
  const nlohmann::json* list = fields.Find("matryoshka_dimensions");
  if (list == nullptr) return Ok{};
  const std::string expected =
      "an array of lengths from 1 to hidden_size (" + std::to_string(config.EmbeddingSize()) + ")";
  if (!list->is_array() || list->empty()) return fields.Bad("matryoshka_dimensions", expected);
  config.matryoshka.emplace();
  for (const nlohmann::json& item : *list) {
    const auto length = IntegerIn(item, 1, config.EmbeddingSize());
    if (!length) return fields.Bad("matryoshka_dimensions", expected);
    config.matryoshka->push_back(*length);
  }
  return Ok{};
}

Status ParseExtents(const JsonFields& fields, const FamilyInfo& family, ModelConfig& config) {
  ASSIGN_OR_RETURN(config.hidden_size, fields.RequiredInt("hidden_size", 1, kMaxExtent));
  ASSIGN_OR_RETURN(config.num_layers, fields.RequiredInt("num_hidden_layers", 1, kMaxLayers));
  // Four times the hidden size by default, in Bloom always.
  const bool fourfold = family.family == ModelFamily::kFalcon || family.family == ModelFamily::kBloom;
  const bool of_experts = std::string_view(family.fields.intermediate) == family.experts.intermediate;
  const std::int64_t by_default = of_experts ? family.experts.default_intermediate : 0;
  ASSIGN_OR_RETURN(config.intermediate_size,
                   ReadExtent(fields, family.fields.intermediate, fourfold ? 4 * config.hidden_size : by_default));
  ASSIGN_OR_RETURN(config.vocab_size, ReadExtent(fields, "vocab_size", family.vocab_size));
  ASSIGN_OR_RETURN(config.max_position, fields.IntOr("max_position_embeddings", 1, kMaxExtent, family.max_position));
  ASSIGN_OR_RETURN(const auto eps, fields.Number(family.fields.norm_eps));
  if (eps && (*eps <= 0 || *eps > 1)) return fields.Bad(family.fields.norm_eps, "a number above 0 and at most 1");
  config.norm_eps = eps.value_or(family.norm_eps);
  return ParseHeads(fields, family, config);
}

// Replaces the configuration of a model of text and images by that of its text part, with what stands outside of it.
Status TakeTextPart(nlohmann::json& object, std::string& label) {
  const JsonFields fields(object, label);
  const nlohmann::json* architectures = fields.Find("architectures");
  const bool named = architectures != nullptr && architectures->is_array() && !architectures->empty() &&
                     architectures->front().is_string();
  ASSIGN_OR_RETURN(const auto model_type, fields.String("model_type"));
  const Wrapper* const wrapper =
      FindWrapper(named ? architectures->front().get<std::string>() : "", model_type.value_or(""));
  if (wrapper == nullptr) return Ok{};
  // Older files of Qwen 2.5 VL have the text part's fields beside the others.
  const nlohmann::json* const inner = fields.Find("text_config");
  if (inner != nullptr && !inner->is_object()) return fields.Bad("text_config", "an object");
  nlohmann::json part = inner == nullptr ? object : *inner;
  for (const char* key : {"tie_word_embeddings", "eos_token_id", "bos_token_id", "dtype", "torch_dtype",
                          "quantization_config", "compression_config"}) {
    if (fields.Has(key)) part[key] = *fields.Find(key);
  }
  part.erase("architectures");
  if (inner == nullptr || !part.contains("model_type")) part["model_type"] = wrapper->text;
  if (inner != nullptr) label += "text_config.";
  object = std::move(part);
  return Ok{};
}

bool IsOfNemotronH(const nlohmann::json& object) {
  const auto type = object.find("model_type");
  if (type != object.end() && !type->is_null()) return *type == "nemotron_h";
  const auto classes = object.find("architectures");
  return classes != object.end() && classes->is_array() && !classes->empty() &&
         (*classes)[0] == InfoOf(ModelFamily::kNemotronH).architecture;
}

// Gives Nemotron-H's layers the names of their types: NVIDIA's files have a letter for each. Their list says how many
// there are. Older names of other fields win, as in transformers.
void TakeLayerTypes(nlohmann::json& object) {
  if (!IsOfNemotronH(object)) return;
  for (const auto& [older, name] : {std::pair{"mamba_n_groups", "n_groups"},
                                    {"mamba_d_conv", "conv_kernel"},
                                    {"mamba_expand", "expand"},
                                    {"mamba_conv_bias", "use_conv_bias"},
                                    {"mamba_dt_limit", "time_step_limit"}}) {
    const auto found = object.find(older);
    if (found != object.end() && !found->is_null()) object[name] = nlohmann::json(*found);
  }
  for (const char* key : {"layer_types", "layers_block_type"}) {
    const auto list = object.find(key);
    if (list != object.end() && list->is_array()) object["layer_types"] = nlohmann::json(*list);
  }
  const auto pattern = object.find("hybrid_override_pattern"), own = object.find("layer_types");
  const bool has_types = own != object.end() && !own->is_null();
  if (!has_types && pattern != object.end() && pattern->is_string()) {
    nlohmann::json types = nlohmann::json::array();
    for (const char letter : std::string(pattern->get_ref<const std::string&>())) {
      const std::string named(1, letter);
      types.push_back(letter == 'M'   ? "linear_attention"
                      : letter == '*' ? "full_attention"
                      : letter == '-' ? "mlp"
                      : letter == 'E' ? "moe"
                                      : named);
    }
    object["layer_types"] = std::move(types);
  }
  const auto types = object.find("layer_types");
  if (types != object.end() && types->is_array()) object["num_hidden_layers"] = types->size();
}

// Gives the fields of Bloom's files the names that other families have.
void TakeUsualNames(nlohmann::json& object) {
  TakeLayerTypes(object);
  const auto type = object.find("model_type");
  if (type == object.end() || *type != "bloom") return;
  for (const auto& [theirs, usual] :
       {std::pair{"n_embed", "hidden_size"}, {"n_layer", "num_hidden_layers"}, {"n_head", "num_attention_heads"}}) {
    const auto found = object.find(theirs);
    if (found != object.end() && !found->is_null()) object[usual] = *found;
  }
  // How far they were trained; nothing in them ends there.
  const auto length = object.find("seq_length");
  if (length != object.end()) object["max_position_embeddings"] = *length;
}

// ALiBi, of which the rows of families and Falcon's files say whether a model has it.
Status ParseAlibi(const JsonFields& fields, const FamilyInfo& family, ModelConfig& config) {
  config.alibi = family.alibi;
  if (family.family != ModelFamily::kFalcon) return Ok{};
  ASSIGN_OR_RETURN(const bool alibi, fields.BoolOr("alibi", false));
  if (alibi) config.alibi = Alibi::kBf16;
  return Ok{};
}

}  // namespace

std::int64_t ModelConfig::MostPositions() const {
  if (rope.scaling != RopeConfig::Scaling::kDynamic || rope.factor <= 1) return max_position;
  return static_cast<std::int64_t>(std::min(static_cast<double>(max_position) * rope.factor, double{kMaxExtent}));
}

Result<ModelConfig> ParseModelConfig(std::string_view json, const std::string& label) {
  ASSIGN_OR_RETURN(nlohmann::json object, ParseJsonObject(WithoutInfinity(json), label));
  std::string inner = label + ": ";
  RETURN_IF_ERROR(TakeTextPart(object, inner));
  TakeUsualNames(object);
  const JsonFields fields(object, inner);
  ModelConfig config;
  ASSIGN_OR_RETURN(const FamilyInfo* family, FindFamily(fields, config));
  config.family = family->family;
  RETURN_IF_ERROR(RefuseUnsupported(fields, *family));
  RETURN_IF_ERROR(RefuseMlx(fields));
  ASSIGN_OR_RETURN(const auto dtype, fields.String("dtype"));
  ASSIGN_OR_RETURN(const auto torch_dtype, fields.String("torch_dtype"));
  config.dtype = dtype ? *dtype : torch_dtype.value_or("");
  RETURN_IF_ERROR(ParseExtents(fields, *family, config));
  RETURN_IF_ERROR(ParseExperts(fields, *family, config));
  RETURN_IF_ERROR(ParseRecurrent(fields, *family, config));
  RETURN_IF_ERROR(ParseBiases(fields, *family, config));
  RETURN_IF_ERROR(ParseSlidingWindows(fields, *family, config));
  RETURN_IF_ERROR(ParseAlibi(fields, *family, config));
  RETURN_IF_ERROR(ParseRopes(fields, *family, config));
  RETURN_IF_ERROR(ParseOperations(fields, *family, config));
  RETURN_IF_ERROR(ParseTokens(fields, *family, config));
  RETURN_IF_ERROR(ParseMatryoshka(fields, config));
  ASSIGN_OR_RETURN(config.tie_word_embeddings, fields.BoolOr("tie_word_embeddings", family->tied));
  // compression_config: the older name, by compressed-tensors.
  for (const char* key : {"compression_config", "quantization_config"}) {
    const nlohmann::json* quantization = fields.Find(key);
    if (quantization != nullptr && !IsOff(*quantization)) config.quantization = quantization->dump();
  }
  return config;
}

Result<ModelConfig> LoadModelConfig(const std::filesystem::path& directory) {
  const std::filesystem::path config_path = directory / "config.json";
  ASSIGN_OR_RETURN(const std::string text, ReadModelFile(config_path, kMaxJsonFileBytes));
  ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(text, config_path.string()));
  const std::filesystem::path generation_path = directory / "generation_config.json";
  auto generation = ReadModelFile(generation_path, kMaxJsonFileBytes);
  if (!generation.ok()) {
    if (generation.error().code == ErrorCode::kNotFound) return config;
    return std::move(generation).error();
  }
  ASSIGN_OR_RETURN(const nlohmann::json object, ParseJsonObject(*generation, generation_path.string()));
  const JsonFields fields(object, generation_path.string() + ": ");
  RETURN_IF_ERROR(ReadEosTokens(fields, config.vocab_size, config.eos_token_ids));
  return config;
}

}  // namespace loramux
