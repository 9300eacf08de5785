#include "formats/adapter_form.h"

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "base/adapter_files.h"
#include "base/message.h"
#include "formats/json_fields.h"

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
constexpr std::array<Form, 4> kForms = {{
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
    {AdapterForm::kTorchtune,
     "torchtune",
     kAdapterTensorFiles[0],
     "target_modules",
     {{{".lora_a.weight", ".lora_A.weight"},
       {".lora_b.weight", ".lora_B.weight"},
       {".magnitude", ".lora_magnitude_vector"}}}},
}};

const Form& FormOf(AdapterForm form) {
  const auto* const found =
      std::find_if(kForms.begin(), kForms.end(), [form](const Form& known) { return known.form == form; });
  CHECK(found != kForms.end());
  return *found;
}

// A form's own names of modules, after "blk.N." or "layers.N.".
struct OwnModule {
  std::string_view own;
  std::string_view peft;
};
constexpr std::array<OwnModule, 8> kGgufModules = {{{"attn_q", "self_attn.q_proj"},
                                                    {"attn_k", "self_attn.k_proj"},
                                                    {"attn_v", "self_attn.v_proj"},
                                                    {"attn_output", "self_attn.o_proj"},
                                                    {"attn_qkv", "self_attn.qkv_proj"},
                                                    {"ffn_gate", "mlp.gate_proj"},
                                                    {"ffn_up", "mlp.up_proj"},
                                                    {"ffn_down", "mlp.down_proj"}}};
constexpr std::array<OwnModule, 7> kTorchtuneModules = {{{"attn.q_proj", "self_attn.q_proj"},
                                                         {"attn.k_proj", "self_attn.k_proj"},
                                                         {"attn.v_proj", "self_attn.v_proj"},
                                                         {"attn.output_proj", "self_attn.o_proj"},
                                                         {"mlp.w1", "mlp.gate_proj"},
                                                         {"mlp.w2", "mlp.down_proj"},
                                                         {"mlp.w3", "mlp.up_proj"}}};

// PEFT's name of a module of the form; the form's own where there is no other.
std::string PeftModule(AdapterForm form, std::string_view module) {
  const bool gguf = form == AdapterForm::kGguf;
  if (!gguf && form != AdapterForm::kTorchtune) return std::string(module);
  if (module == "output") return "lm_head";
  if (module == (gguf ? "token_embd" : "tok_embeddings")) return "model.embed_tokens";
  const std::string_view block = gguf ? "blk." : "layers.";
  const std::size_t dot = module.find('.', std::min(block.size(), module.size()));
  if (!module.starts_with(block) || dot == std::string_view::npos) return std::string(module);
  const auto modules = gguf ? std::span<const OwnModule>(kGgufModules) : std::span<const OwnModule>(kTorchtuneModules);
  for (const OwnModule& known : modules) {
    if (module.substr(dot + 1) != known.own) continue;
    return "model.layers." + std::string(module.substr(block.size(), dot - block.size() + 1)) + std::string(known.peft);
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

// PEFT's name of a module in torchtune's list of targets.
std::string PeftTarget(const std::string& target) {
  if (target == "output") return "lm_head";
  for (const OwnModule& known : kTorchtuneModules) {
    if (known.own.substr(known.own.find('.') + 1) == target)
      return std::string(known.peft.substr(known.peft.find('.') + 1));
  }
  return target;
}

// Whether torchtune turns the rows of queries and keys when it loads a model of the family; nullopt: not known here.
std::optional<bool> TurnsRows(ModelFamily family) {
  switch (family) {
    case ModelFamily::kLlama:
    case ModelFamily::kMistral:
      return true;
    case ModelFamily::kQwen2:
    case ModelFamily::kQwen3:
    case ModelFamily::kPhi3:
      return false;
    default:
      return std::nullopt;
  }
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

bool HasTorchtuneNames(std::span<const TensorEntry> tensors) {
  return std::ranges::any_of(tensors, [](const TensorEntry& tensor) {
    return tensor.name.ends_with(".lora_a.weight") || tensor.name.ends_with(".lora_b.weight");
  });
}

Result<bool> AsPeftFromTorchtune(const ModelConfig* model, const std::string& label, TensorReader& tensors,
                                 AdapterConfig& config) {
  config.form = AdapterForm::kTorchtune;
  for (std::string& target : config.target_modules) target = PeftTarget(target);
  bool need_base = false;
  RETURN_IF_ERROR(tensors.ChangeEach([&](TensorEntry& tensor) -> Status {
    RETURN_IF_ERROR(AsPeft(AdapterForm::kTorchtune, label, tensor));
    const std::string_view name = tensor.peft_name;
    const bool magnitude = name.ends_with(".lora_magnitude_vector");
    config.use_dora |= magnitude;
    const bool of_heads = name.find(".q_proj.") != name.npos || name.find(".k_proj.") != name.npos;
    if (!of_heads || !(magnitude || name.ends_with(".lora_B.weight"))) return Ok{};
    if (model == nullptr) {
      need_base = true;
      return Ok{};
    }
    const std::optional<bool> turns = TurnsRows(model->family);
    if (!turns) {
      return Unsupported(label + ": tensor " + Quote(tensor.name) +
                         " is named as in torchtune, whose order of the rows of " + ModelFamilyName(model->family) +
                         " is not known; save the adapter in PEFT's form");
    }
    if (*turns) OrderInterleavedRows(model->head_dim, tensor);
    return Ok{};
  }));
  RETURN_IF_ERROR(config.CompilePatterns(label));
  return need_base;
}

void OrderInterleavedRows(std::int64_t head_dim, TensorEntry& tensor) {
  const bool fits = !tensor.shape.empty() && tensor.shape.size() <= 2 && tensor.shape[0] % head_dim == 0;
  if (!fits || head_dim % 2 != 0) return;
  TensorView view{.rows = tensor.shape[0], .columns = tensor.shape.size() == 2 ? tensor.shape[1] : 1};
  if (tensor.view != nullptr) view = *tensor.view;
  const std::int64_t half = head_dim / 2;
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; row < tensor.shape[0]; ++row) {
    const std::int64_t in_head = row % head_dim;
    rows.push_back(row - in_head + in_head % half * 2 + in_head / half);
  }
  view.picked = std::make_shared<const std::vector<std::int64_t>>(std::move(rows));
  tensor.view = std::make_shared<const TensorView>(std::move(view));
}

}  // namespace loramux
