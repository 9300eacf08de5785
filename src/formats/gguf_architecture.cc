#include "formats/gguf_architecture.h"

#include <algorithm>
#include <string>

#include "base/message.h"

namespace loramux {
namespace {

using namespace gguf_key;  // NOLINT: the rows below are lists of them

constexpr GgufArchitecture kArchitectures[] = {
    {"llama", "llama", "LlamaForCausalLM", true},
    {"qwen2", "qwen2", "Qwen2ForCausalLM", false},
    {"qwen3", "qwen3", "Qwen3ForCausalLM", false},
    {"qwen2vl", "qwen2", "Qwen2ForCausalLM", false, {kSections}},
    // The other key is of the layers that see images.
    {"qwen3vl", "qwen3", "Qwen3ForCausalLM", false, {kSections, "n_deepstack_layers"}},
    {"mistral3", "mistral", "MistralForCausalLM", true, {kTemperature, "rope.scaling.yarn_log_multiplier"}},
    {"gemma2", "gemma2", "Gemma2ForCausalLM", false, {"attn_logit_softcapping", "final_logit_softcapping"}},
    {"gemma3", "gemma3_text", "Gemma3ForCausalLM", false, {"final_logit_softcapping", kLocalTheta, kWindowPattern}},
    {"gemma4",
     "gemma4_text",
     "Gemma4ForCausalLM",
     false,
     {"final_logit_softcapping", kLocalTheta, kWindowPattern, kExpertSize, "attention.shared_kv_layers",
      "attention.key_length_swa", "attention.value_length_swa", "embedding_length_per_layer_input",
      "rope.dimension_count_swa"},
     false,
     /*adapters=*/false},
    {"qwen35",
     "qwen3_5_text",
     "Qwen3_5ForCausalLM",
     false,
     {kSections, kMtpLayers, "ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank",
      "ssm.inner_size", "attention.recurrent_layers", "full_attention_interval"},
     false,
     /*adapters=*/false},
    {"qwen35moe",
     "qwen3_5_moe_text",
     "Qwen3_5MoeForCausalLM",
     false,
     {kSections, kMtpLayers, "ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank",
      "ssm.inner_size", "attention.recurrent_layers", "full_attention_interval", kExpertSize, kSharedSize},
     false,
     /*adapters=*/false},
    {"qwen3next",
     "qwen3_next",
     "Qwen3NextForCausalLM",
     false,
     {kMtpLayers, "ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size",
      "attention.recurrent_layers", "full_attention_interval", kExpertSize, kSharedSize},
     false,
     /*adapters=*/false},
    {"nemotron_h",
     "nemotron_h",
     "NemotronHForCausalLM",
     true,
     {kTurns, kLayerEpsilon, "ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank",
      "ssm.inner_size", "expert_group_count", "expert_group_used_count"},
     false,
     /*adapters=*/false},
    {"nemotron_h_moe",
     "nemotron_h",
     "NemotronHForCausalLM",
     true,
     {kTurns, kLayerEpsilon, "ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank",
      "ssm.inner_size", "expert_group_count", "expert_group_used_count", kExpertSize, kSharedSize,
      "expert_shared_count", "expert_weights_norm", "expert_weights_scale", kMtpLayers},
     false,
     /*adapters=*/false},
    {"granite", "granite", "GraniteForCausalLM", true, {kScales[0], kScales[1], kScales[2], kScales[3]}},
    {"olmo2", "olmo2", "Olmo2ForCausalLM", false, {kLocalTheta, kWindowPattern}},
    {"smollm3", "smollm3", "SmolLM3ForCausalLM", true},
    {"exaone4", "exaone4", "Exaone4ForCausalLM", false, {kLocalTheta, kWindowPattern}},
    {"qwen2moe", "qwen2_moe", "Qwen2MoeForCausalLM", false, {kExpertSize, kSharedSize}},
    {"qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM", false, {kExpertSize}},
    {"olmoe", "olmoe", "OlmoeForCausalLM", false},
    {"granitemoe", "granitemoe", "GraniteMoeForCausalLM", true, {kScales[0], kScales[1], kScales[2], kScales[3]}},
    {"granitehybrid",
     "granitemoehybrid",
     "GraniteMoeHybridForCausalLM",
     true,
     {kScales[0], kScales[1], kScales[2], kScales[3], kTurns, kSharedSize, "ssm.conv_kernel", "ssm.state_size",
      "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size"},
     false,
     /*adapters=*/false},
    {"gpt-oss", "gpt_oss", "GptOssForCausalLM", false, {kExpertSize}},
    {"phi3", "phi3", "Phi3ForCausalLM", false, {"rope.scaling.attn_factor"}, /*fuses=*/true},
    {"glm4", "glm4", "Glm4ForCausalLM", false, {}, /*fuses=*/true},
    {"stablelm", "stablelm", "StableLmForCausalLM", false, {kLayerEpsilon, kParallel}},
    {"gptneox", "gpt_neox", "GPTNeoXForCausalLM", false, {kLayerEpsilon, kParallel}, false, /*adapters=*/false},
    {"falcon", "falcon", "FalconForCausalLM", false, {kLayerEpsilon}, false, /*adapters=*/false},
    {"bloom", "bloom", "BloomForCausalLM", false, {kLayerEpsilon}, false, /*adapters=*/false},
};

}  // namespace

std::optional<GgufArchitecture> FindGgufArchitecture(const GgufFile& file) {
  const auto name = file.Text("general.architecture");
  if (!name.ok() || !*name) return std::nullopt;
  const auto named = [](std::string_view wanted) {
    return std::ranges::find(kArchitectures, wanted, &GgufArchitecture::name);
  };
  const GgufArchitecture* const known = named(**name);
  if (known == std::end(kArchitectures)) return std::nullopt;
  const bool granite = **name == "granite" || **name == "granitemoe";
  if (!granite || file.Find(**name + "." + std::string(gguf_key::kSharedSize)) == nullptr) return *known;
  GgufArchitecture granite4 = *named("granitehybrid");
  granite4.name = known->name;
  return granite4;
}

Result<GgufArchitecture> RequireGgufArchitecture(const GgufFile& file) {
  if (const auto found = FindGgufArchitecture(file)) return *found;
  ASSIGN_OR_RETURN(const auto name, file.Text("general.architecture"));
  if (name && *name == "falcon-h1") {
    return Unsupported(file.label() +
                           ": general.architecture 'falcon-h1' is not supported: the file holds weights times the "
                           "model's multipliers and does not say what these are, so that no adapter fits; give the "
                           "model in safetensors",
                       "general.architecture");
  }
  std::string served;
  for (const GgufArchitecture& known : kArchitectures) served += (served.empty() ? "" : ", ") + std::string(known.name);
  return Unsupported(file.label() + ": general.architecture " + (name ? Quote(*name) : "is missing and") +
                         " is not supported; loramux serves " + served + " of GGUF files",
                     "general.architecture");
}

Result<bool> GgufHeadsAreInterleaved(const GgufFile& file) {
  ASSIGN_OR_RETURN(const GgufArchitecture architecture, RequireGgufArchitecture(file));
  if (architecture.adapters) return architecture.interleaved;
  return Unsupported(file.label() + ": adapters of general.architecture " + Quote(architecture.name) +
                         " are not read from GGUF files; give the adapter as PEFT saved it",
                     "general.architecture");
}

bool HasInterleavedHeads(const GgufFile& file) {
  const auto architecture = FindGgufArchitecture(file);
  return architecture && architecture->interleaved;
}

bool FusesLayers(const GgufFile& file) {
  const auto architecture = FindGgufArchitecture(file);
  return architecture && architecture->fuses;
}

std::int64_t GgufLayers(const GgufFile& file) {
  const auto architecture = FindGgufArchitecture(file);
  if (!architecture) return 0;
  const auto layers = file.Int(std::string(architecture->name) + ".block_count", 1, kMostGgufLayers);
  return layers.ok() ? layers->value_or(0) : 0;
}

}  // namespace loramux
