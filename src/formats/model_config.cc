#include "formats/model_config.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "formats/file.h"
#include "formats/generation_defaults.h"
#include "formats/json_fields.h"
#include "formats/message.h"
#include "formats/model_files.h"

namespace loramux {
namespace {

// These bounds keep later products below 2^63: layers * 2 * KvDim * 64 positions * 4 bytes is at most 2^43.
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 24;
constexpr std::int64_t kMaxLayers = 1024;

// The defaults of a family's class in transformers.
struct FamilyInfo {
  ModelFamily family;
  const char* name;  // model_type
  const char* architecture;
  std::int64_t max_position;
  std::int64_t num_kv_heads;    // 0: as many as heads
  std::int64_t head_dim;        // 0: hidden_size / num_attention_heads
  std::int64_t sliding_window;  // 0: the family has none
  std::int64_t bos, eos;        // -1: none
};
constexpr std::array<FamilyInfo, 4> kFamilies = {{
    {ModelFamily::kLlama, "llama", "LlamaForCausalLM", 2048, 0, 0, 0, 1, 2},
    {ModelFamily::kMistral, "mistral", "MistralForCausalLM", 131072, 8, 0, 4096, 1, 2},
    {ModelFamily::kQwen2, "qwen2", "Qwen2ForCausalLM", 32768, 32, 0, 4096, -1, -1},
    {ModelFamily::kQwen3, "qwen3", "Qwen3ForCausalLM", 32768, 32, 128, 4096, -1, -1},
}};

const FamilyInfo& Info(ModelFamily family) {
  const auto found =
      std::find_if(kFamilies.begin(), kFamilies.end(), [&](const FamilyInfo& info) { return info.family == family; });
  CHECK(found != kFamilies.end());
  return *found;
}

std::string SupportedArchitectures() {
  std::string list;
  for (const FamilyInfo& info : kFamilies) list += (list.empty() ? "" : ", ") + std::string(info.architecture);
  return list;
}

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
  const auto by_type =
      std::find_if(kFamilies.begin(), kFamilies.end(), [&](const FamilyInfo& info) { return model_type == info.name; });
  const nlohmann::json* architectures = fields.Find("architectures");
  if (architectures == nullptr || (architectures->is_array() && architectures->empty())) {
    if (!model_type) return fields.Missing("architectures", "a list with one of " + SupportedArchitectures());
    if (by_type == kFamilies.end()) return UnknownArchitecture(fields, "model_type " + Quote(*model_type));
    return &*by_type;
  }
  if (!architectures->is_array() || !architectures->front().is_string()) {
    return fields.Bad("architectures", "a list with one of " + SupportedArchitectures());
  }
  const auto& name = architectures->front().get_ref<const std::string&>();
  const auto found = std::find_if(kFamilies.begin(), kFamilies.end(), [&](const FamilyInfo& info) {
    return name == info.architecture || name == WithoutHead(info);
  });
  if (found == kFamilies.end()) return UnknownArchitecture(fields, "the architecture " + Quote(name));
  if (model_type && by_type != found) {
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

// Refuses options that change the computation in ways that the forward pass does not implement.
Status RefuseUnsupported(const JsonFields& fields) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    const nlohmann::json* experts = fields.Find(key);
    if (experts == nullptr || *experts == 0) continue;
    return Unsupported(fields.label() + key + " is " + Describe(*experts) + ": mixtures of experts are not supported");
  }
  ASSIGN_OR_RETURN(const auto activation, fields.String("hidden_act"));
  if (activation && *activation != "silu" && *activation != "swish") {
    return Unsupported(fields.label() + "hidden_act " + Quote(*activation) + " is not supported, only silu");
  }
  ASSIGN_OR_RETURN(const bool use_mrope, fields.BoolOr("use_mrope", false));
  if (use_mrope) return Unsupported(fields.label() + "use_mrope (multimodal rotary embedding) is not supported");
  return Ok{};
}

Status RequirePositive(const JsonFields& fields, const char* key, const std::optional<double>& number, double& out) {
  if (!number) return Ok{};
  if (*number <= 0) return fields.Bad(key, "a number above 0");
  out = *number;
  return Ok{};
}

Status RequiredPositive(const JsonFields& fields, const char* key, double& out) {
  ASSIGN_OR_RETURN(const auto number, fields.Number(key));
  if (!number) return fields.Missing(key, "a number above 0");
  return RequirePositive(fields, key, number, out);
}

Status CheckFullRotation(const JsonFields& fields) {
  ASSIGN_OR_RETURN(const auto factor, fields.Number("partial_rotary_factor"));
  if (!factor || *factor == 1.0) return Ok{};
  return Unsupported(fields.label() + "partial_rotary_factor " + Describe(*fields.Find("partial_rotary_factor")) +
                     " is not supported, only 1");
}

Status ParseLlama3Rope(const JsonFields& top, const JsonFields& scaling, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  RETURN_IF_ERROR(RequiredPositive(scaling, "low_freq_factor", rope.low_freq_factor));
  RETURN_IF_ERROR(RequiredPositive(scaling, "high_freq_factor", rope.high_freq_factor));
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    return scaling.Bad("high_freq_factor", "a number above low_freq_factor");
  }
  // As in transformers: the top-level field wins; without any, the trained length is used.
  const bool at_top = top.Has("original_max_position_embeddings");
  ASSIGN_OR_RETURN(
      rope.original_max_position,
      (at_top ? top : scaling).IntOr("original_max_position_embeddings", 1, kMaxExtent, config.max_position));
  return Ok{};
}

Status ParseScaling(const JsonFields& top, const JsonFields& scaling, ModelConfig& config) {
  ASSIGN_OR_RETURN(const auto new_name, scaling.String("rope_type"));
  ASSIGN_OR_RETURN(const auto old_name, scaling.String("type"));
  const std::string type = new_name ? *new_name : old_name.value_or("default");
  RopeConfig& rope = config.rope;
  if (type == "default") return Ok{};
  if (type == "linear") {
    rope.scaling = RopeConfig::Scaling::kLinear;
  } else if (type == "dynamic") {
    if (config.head_dim == 2) return Unsupported(scaling.label() + "rope_type 'dynamic' needs a head_dim above 2");
    rope.scaling = RopeConfig::Scaling::kDynamic;
    // transformers scales from max_position_embeddings and uses no other original length for this type.
    rope.original_max_position = config.max_position;
  } else if (type == "llama3") {
    rope.scaling = RopeConfig::Scaling::kLlama3;
    RETURN_IF_ERROR(ParseLlama3Rope(top, scaling, config));
  } else {
    const bool planned = type == "yarn" || type == "longrope" || type == "su";
    return Unsupported(scaling.label() + "rope_type " + Quote(type) +
                       " is not supported; loramux knows default, linear, dynamic and llama3" +
                       (planned ? "; yarn and longrope are planned, with the model families that use them" : ""));
  }
  return RequiredPositive(scaling, "factor", rope.factor);
}

// Parses rope_scaling (transformers 4) or rope_parameters (transformers 5), which also contains rope_theta.
Status ParseRope(const JsonFields& top, ModelConfig& config) {
  ASSIGN_OR_RETURN(const auto top_theta, top.Number("rope_theta"));
  RETURN_IF_ERROR(RequirePositive(top, "rope_theta", top_theta, config.rope.theta));
  RETURN_IF_ERROR(CheckFullRotation(top));
  const nlohmann::json* old_scaling = top.Find("rope_scaling");
  const char* key = old_scaling != nullptr && !IsOff(*old_scaling) ? "rope_scaling" : "rope_parameters";
  const nlohmann::json* value = top.Find(key);
  if (value == nullptr) return Ok{};
  if (!value->is_object()) return top.Bad(key, "an object or null");
  for (const auto& [name, member] : value->items()) {
    if (!member.is_object()) continue;
    return Unsupported(top.label() + key + "." + Printable(name) +
                       ": rotary embeddings that differ between layers are not supported");
  }
  const JsonFields scaling(*value, top.label() + key + ".");
  ASSIGN_OR_RETURN(const auto theta, scaling.Number("rope_theta"));
  RETURN_IF_ERROR(RequirePositive(scaling, "rope_theta", theta, config.rope.theta));
  RETURN_IF_ERROR(CheckFullRotation(scaling));
  return ParseScaling(top, scaling, config);
}

Status ParseHeads(const JsonFields& fields, const FamilyInfo& family, ModelConfig& config) {
  ASSIGN_OR_RETURN(config.num_heads, fields.RequiredInt("num_attention_heads", 1, kMaxExtent));
  const bool equal_heads = family.num_kv_heads == 0 || fields.IsExplicitNull("num_key_value_heads");
  ASSIGN_OR_RETURN(config.num_kv_heads, fields.IntOr("num_key_value_heads", 1, kMaxExtent,
                                                     equal_heads ? config.num_heads : family.num_kv_heads));
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

Status ParseBiases(const JsonFields& fields, ModelConfig& config) {
  const bool configurable = config.family == ModelFamily::kLlama || config.family == ModelFamily::kQwen3;
  if (configurable) {
    ASSIGN_OR_RETURN(config.attention_qkv_bias, fields.BoolOr("attention_bias", false));
    config.attention_output_bias = config.attention_qkv_bias;
  }
  if (config.family == ModelFamily::kQwen2) config.attention_qkv_bias = true;
  if (config.family == ModelFamily::kLlama) {
    ASSIGN_OR_RETURN(config.mlp_bias, fields.BoolOr("mlp_bias", false));
  }
  config.qk_norm = config.family == ModelFamily::kQwen3;
  return Ok{};
}

// The window of the layers that have one; 0 if no layer has one.
Result<std::int64_t> ParseWindow(const JsonFields& fields, const FamilyInfo& family) {
  if (family.sliding_window == 0 || fields.IsExplicitNull("sliding_window")) return std::int64_t{0};
  if (family.family != ModelFamily::kMistral) {
    ASSIGN_OR_RETURN(const bool use, fields.BoolOr("use_sliding_window", false));
    if (!use) return std::int64_t{0};  // sliding_window is then ignored
  }
  return fields.IntOr("sliding_window", 1, kMaxExtent, family.sliding_window);
}

// `layer_types` as saved by transformers 5 decides for the Qwen families; it must not contradict the other fields.
Status ApplyLayerTypes(const JsonFields& fields, std::int64_t window, ModelConfig& config) {
  const nlohmann::json* types = fields.Find("layer_types");
  if (types == nullptr) return Ok{};
  if (!types->is_array() || static_cast<std::int64_t>(types->size()) != config.num_layers) {
    return fields.Bad("layer_types", "a list of num_hidden_layers = " + std::to_string(config.num_layers) + " names");
  }
  const bool decides = config.family == ModelFamily::kQwen2 || config.family == ModelFamily::kQwen3;
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
  std::int64_t first = 0;  // the first layer with a window
  if (window != 0 && family.family != ModelFamily::kMistral) {
    ASSIGN_OR_RETURN(first, fields.IntOr("max_window_layers", 0, kMaxExtent, 28));
  }
  config.sliding_window.assign(static_cast<std::size_t>(config.num_layers), 0);
  for (std::int64_t layer = first; layer < config.num_layers; ++layer) {
    config.sliding_window[static_cast<std::size_t>(layer)] = window;
  }
  return ApplyLayerTypes(fields, window, config);
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
  const std::string expected = "an array of lengths from 1 to hidden_size (" + std::to_string(config.hidden_size) + ")";
  if (!list->is_array() || list->empty()) return fields.Bad("matryoshka_dimensions", expected);
  config.matryoshka.emplace();
  for (const nlohmann::json& item : *list) {
    const auto length = IntegerIn(item, 1, config.hidden_size);
    if (!length) return fields.Bad("matryoshka_dimensions", expected);
    config.matryoshka->push_back(*length);
  }
  return Ok{};
}

Status ParseExtents(const JsonFields& fields, const FamilyInfo& family, ModelConfig& config) {
  ASSIGN_OR_RETURN(config.hidden_size, fields.RequiredInt("hidden_size", 1, kMaxExtent));
  ASSIGN_OR_RETURN(config.num_layers, fields.RequiredInt("num_hidden_layers", 1, kMaxLayers));
  ASSIGN_OR_RETURN(config.intermediate_size, fields.RequiredInt("intermediate_size", 1, kMaxExtent));
  ASSIGN_OR_RETURN(config.vocab_size, fields.RequiredInt("vocab_size", 1, kMaxExtent));
  ASSIGN_OR_RETURN(config.max_position, fields.IntOr("max_position_embeddings", 1, kMaxExtent, family.max_position));
  ASSIGN_OR_RETURN(const auto eps, fields.Number("rms_norm_eps"));
  if (eps && (*eps <= 0 || *eps > 1)) return fields.Bad("rms_norm_eps", "a number above 0 and at most 1");
  config.rms_norm_eps = eps.value_or(1e-6);
  return ParseHeads(fields, family, config);
}

}  // namespace

const char* ModelFamilyName(ModelFamily family) { return Info(family).name; }

std::int64_t ModelConfig::MostPositions() const {
  if (rope.scaling != RopeConfig::Scaling::kDynamic || rope.factor <= 1) return max_position;
  return static_cast<std::int64_t>(std::min(static_cast<double>(max_position) * rope.factor, double{kMaxExtent}));
}

Result<ModelConfig> ParseModelConfig(std::string_view json, const std::string& label) {
  ASSIGN_OR_RETURN(const nlohmann::json object, ParseJsonObject(json, label));
  const JsonFields fields(object, label + ": ");
  ModelConfig config;
  ASSIGN_OR_RETURN(const FamilyInfo* family, FindFamily(fields, config));
  config.family = family->family;
  RETURN_IF_ERROR(RefuseUnsupported(fields));
  RETURN_IF_ERROR(RefuseMlx(fields));
  RETURN_IF_ERROR(ParseExtents(fields, *family, config));
  RETURN_IF_ERROR(ParseRope(fields, config));
  RETURN_IF_ERROR(ParseBiases(fields, config));
  RETURN_IF_ERROR(ParseSlidingWindows(fields, *family, config));
  RETURN_IF_ERROR(ParseTokens(fields, *family, config));
  RETURN_IF_ERROR(ParseMatryoshka(fields, config));
  ASSIGN_OR_RETURN(config.tie_word_embeddings, fields.BoolOr("tie_word_embeddings", false));
  ASSIGN_OR_RETURN(const auto dtype, fields.String("dtype"));
  ASSIGN_OR_RETURN(const auto torch_dtype, fields.String("torch_dtype"));
  // compression_config: the older name, by compressed-tensors.
  for (const char* key : {"compression_config", "quantization_config"}) {
    const nlohmann::json* quantization = fields.Find(key);
    if (quantization != nullptr && !IsOff(*quantization)) config.quantization = quantization->dump();
  }
  config.dtype = dtype ? *dtype : torch_dtype.value_or("");
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
