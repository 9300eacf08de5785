#include "formats/adapter_form.h"

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <utility>

#include "base/adapter_files.h"
#include "formats/json_fields.h"
#include "formats/message.h"

namespace loramux {
namespace {

// A form, and how it ends the names of its tensors. What stands before is the module's name.
struct Suffix {
  std::string_view own;
  std::string_view peft;
  bool transposed = false;
};
struct Form {
  AdapterForm form;
  const char* tool;
  const char* tensor_file;
  const char* targets;
  std::array<Suffix, 3> suffixes;  // those that are empty are unused
};
constexpr std::array<Form, 3> kForms = {{
    {AdapterForm::kPeft, "PEFT", kAdapterTensorFiles[0], "target_modules", {}},
    {AdapterForm::kMlx,
     "mlx-lm",
     kAdapterTensorFiles[1],
     // Version 0.19 trained every layer.
     "the layers and modules of num_layers and lora_parameters.keys (mlx-lm 0.19 trained all layers whatever "
     "num_layers "
     "said: then set it to -1)",
     {{{".lora_a", ".lora_A.weight", true}, {".lora_b", ".lora_B.weight", true}, {".m", ".lora_magnitude_vector"}}}},
    {AdapterForm::kGguf,
     "llama.cpp",
     "",  // one file holds all
     "the file",
     {{{".weight.lora_a", ".lora_A.weight"}, {".weight.lora_b", ".lora_B.weight"}}}},
}};

const Form& FormOf(AdapterForm form) {
  const auto* const found =
      std::find_if(kForms.begin(), kForms.end(), [form](const Form& known) { return known.form == form; });
  CHECK(found != kForms.end());
  return *found;
}

// llama.cpp's names of modules, after "blk.N.".
struct GgufModule {
  std::string_view own;
  std::string_view peft;
};
constexpr std::array<GgufModule, 8> kGgufModules = {{{"attn_q", "self_attn.q_proj"},
                                                     {"attn_k", "self_attn.k_proj"},
                                                     {"attn_v", "self_attn.v_proj"},
                                                     {"attn_output", "self_attn.o_proj"},
                                                     {"attn_qkv", "self_attn.qkv_proj"},
                                                     {"ffn_gate", "mlp.gate_proj"},
                                                     {"ffn_up", "mlp.up_proj"},
                                                     {"ffn_down", "mlp.down_proj"}}};

// PEFT's name of a module of the form; the form's own where there is no other.
std::string PeftModule(AdapterForm form, std::string_view module) {
  if (form != AdapterForm::kGguf) return std::string(module);
  if (module == "output") return "lm_head";
  if (module == "token_embd") return "model.embed_tokens";
  constexpr std::string_view kBlock = "blk.";
  const std::size_t dot = module.rfind('.');
  if (!module.starts_with(kBlock) || dot < kBlock.size()) return std::string(module);
  for (const GgufModule& known : kGgufModules) {
    if (module.substr(dot + 1) != known.own) continue;
    return "model.layers." + std::string(module.substr(kBlock.size(), dot - kBlock.size() + 1)) +
           std::string(known.peft);
  }
  return std::string(module);
}

// The layers of a decoder layer that mlx-lm adapts if no keys are given.
constexpr std::array<const char*, 7> kLinearLayers = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                                      "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
                                                      "mlp.down_proj"};
constexpr std::int64_t kMostLayers = std::int64_t{1} << 20;

// Whether it is DoRA, which mlx-lm computes as PEFT does. Error: it is neither that nor LoRA.
Result<bool> IsMlxDora(const JsonFields& fields) {
  ASSIGN_OR_RETURN(const auto type, fields.String("fine_tune_type"));
  ASSIGN_OR_RETURN(const bool use_dora, fields.BoolOr("use_dora", false));
  if (type.value_or("") == "dora") return true;
  if (type.value_or("") == "full") {
    return Unsupported(fields.label() +
                       "fine_tune_type is \"full\": the file holds whole weights, not an adapter; "
                       "merge it by `mlx_lm.fuse --dequantize` and serve the result as a base model");
  }
  if (type && *type != "lora") return fields.Bad("fine_tune_type", "\"lora\" or \"dora\"");
  return use_dora;
}

// The layers that training changed, counted from the last. mlx-lm wrote `lora_layers` up to version 0.18.
Result<std::optional<std::int64_t>> LastLayers(const JsonFields& fields) {
  for (const char* key : {"num_layers", "lora_layers"}) {
    ASSIGN_OR_RETURN(const auto layers, fields.Int(key, -kMostLayers, kMostLayers));
    if (layers) return *layers > 0 ? layers : std::nullopt;
  }
  return std::optional<std::int64_t>();
}

// Up to version 0.13, mlx-lm multiplied by scale * alpha / rank; since then `alpha` has no effect. Versions up to 0.18
// wrote `lora_layers`, those since 0.15 `use_dora`; so some files do not tell which of the two computed them.
Status RefuseUnclearAlpha(const JsonFields& fields, const JsonFields& parameters, std::int64_t rank) {
  ASSIGN_OR_RETURN(const auto alpha, parameters.Number("alpha"));
  const bool since_0_15 = !fields.Has("lora_layers") || fields.Has("use_dora") || fields.Has("fine_tune_type");
  if (!alpha || *alpha == static_cast<double>(rank) || since_0_15) return Ok{};
  return Unsupported(parameters.label() +
                     "alpha: mlx-lm up to 0.13 multiplied by scale * alpha / rank, later versions by scale, and the "
                     "file does not say which version wrote it; remove alpha, and set scale to the factor itself");
}

}  // namespace

const char* AdapterFormName(AdapterForm form) { return FormOf(form).tool; }

const char* AdapterTensorFileName(AdapterForm form) { return FormOf(form).tensor_file; }

const char* AdapterTargetsField(AdapterForm form) { return FormOf(form).targets; }

bool IsMlxConfig(const JsonFields& fields) {
  return !fields.Has("peft_type") && (fields.Has("lora_parameters") || fields.Has("fine_tune_type"));
}

Result<AdapterConfig> ParseMlxConfig(const JsonFields& fields, const std::string& label) {
  ASSIGN_OR_RETURN(const bool dora, IsMlxDora(fields));
  const nlohmann::json* object = fields.Find("lora_parameters");
  if (object == nullptr || !object->is_object()) return fields.Bad("lora_parameters", "an object with rank and scale");
  const JsonFields parameters(*object, fields.label() + "lora_parameters.");
  AdapterConfig config;
  config.form = AdapterForm::kMlx;
  config.use_dora = dora;
  ASSIGN_OR_RETURN(config.r, parameters.RequiredInt("rank", 1, kMaxLoraRank));
  ASSIGN_OR_RETURN(config.factor, parameters.Number("scale"));
  if (!config.factor) return parameters.Missing("scale", "a number");
  RETURN_IF_ERROR(RefuseUnclearAlpha(fields, parameters, config.r));
  config.lora_alpha = *config.factor * static_cast<double>(config.r);
  std::optional<std::string> one_key;
  RETURN_IF_ERROR(ParseNames(parameters, "keys", config.target_modules, one_key));
  if (one_key) return parameters.Bad("keys", "a list of names of modules");
  if (!parameters.Has("keys")) config.target_modules.assign(kLinearLayers.begin(), kLinearLayers.end());
  ASSIGN_OR_RETURN(config.last_layers, LastLayers(fields));
  ASSIGN_OR_RETURN(auto base, fields.String("model"));
  config.base_model_name = base.value_or("");
  RETURN_IF_ERROR(config.CompilePatterns(label));
  return config;
}

Status ApplyLastLayers(std::int64_t num_layers, const std::string& label, AdapterConfig& config) {
  if (!config.last_layers || *config.last_layers >= num_layers) return Ok{};
  config.layers_to_transform.resize(static_cast<std::size_t>(*config.last_layers));
  std::iota(config.layers_to_transform.begin(), config.layers_to_transform.end(), num_layers - *config.last_layers);
  return config.CompilePatterns(label);
}

Status AsPeft(AdapterForm form, const std::string& label, TensorEntry& tensor) {
  if (form == AdapterForm::kPeft) return Ok{};
  const std::string_view name = tensor.name;
  for (const Suffix& suffix : FormOf(form).suffixes) {
    if (suffix.own.empty() || !name.ends_with(suffix.own)) continue;
    tensor.peft_name = "base_model.model." + PeftModule(form, name.substr(0, name.size() - suffix.own.size()));
    tensor.peft_name += suffix.peft;
    if (suffix.transposed && tensor.shape.size() == 2) {
      tensor.view = std::make_shared<const TensorView>(
          TensorView{.rows = tensor.shape[0], .columns = tensor.shape[1], .transposed = true});
      std::swap(tensor.shape[0], tensor.shape[1]);
    }
    return Ok{};
  }
  std::string expected;
  for (const Suffix& suffix : FormOf(form).suffixes) {
    if (!suffix.own.empty()) expected += (expected.empty() ? "MODULE" : ", MODULE") + std::string(suffix.own);
  }
  return Unsupported(label + ": tensor " + Quote(name) + " has an unknown name in an adapter of " +
                     AdapterFormName(form) + ": expected " + expected);
}

}  // namespace loramux
