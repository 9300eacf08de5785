#include "formats/adapter_tensor_name.h"

#include <array>
#include <charconv>

#include "formats/message.h"

namespace loramux {
namespace {

constexpr std::string_view kRoot = "base_model.model.";

struct TargetName {
  std::string_view name;  // after "model.layers.N."
  LoraTarget target;
};
constexpr std::array<TargetName, 7> kLayerTargets = {{
    {"self_attn.q_proj", LoraTarget::kQ},
    {"self_attn.k_proj", LoraTarget::kK},
    {"self_attn.v_proj", LoraTarget::kV},
    {"self_attn.o_proj", LoraTarget::kO},
    {"mlp.gate_proj", LoraTarget::kGate},
    {"mlp.up_proj", LoraTarget::kUp},
    {"mlp.down_proj", LoraTarget::kDown},
}};

// Parts of a name that mean something that loramux refuses by name.
struct RefusedPart {
  std::string_view part;
  const char* what;
};
constexpr std::array<RefusedPart, 9> kRefusedParts = {{
    {"lora_embedding_", "LoRA on an embedding (lora_embedding_A/B)"},
    {"lora_magnitude_vector", "a DoRA magnitude (use_dora)"},
    {".lora_B.bias", "a bias on lora_B (lora_bias)"},
    {".lora_B.default.bias", "a bias on lora_B (lora_bias)"},
    {".modules_to_save.", "a fully trained module (modules_to_save)"},
    {"trainable_tokens_", "retrained token embeddings (trainable_token_indices)"},
    {"embed_tokens.weight", "a copy of the embedding (saved when it was trained or resized)"},
    {"lm_head.weight", "a copy of the output layer (saved when it was trained or resized)"},
    {".bias", "a trained bias (bias other than none)"},
}};
constexpr std::array<std::string_view, 5> kOtherTowers = {"visual.", "vision_", "multi_modal_projector.", "audio_",
                                                          "mm_projector."};

bool ConsumePrefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool ConsumeSuffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

Error Refuse(std::string_view name, const std::string& label) {
  const std::string tensor = label + ": tensor " + Quote(name);
  for (const RefusedPart& refused : kRefusedParts) {
    if (name.find(refused.part) == std::string_view::npos) continue;
    return Unsupported(tensor + " is " + refused.what + ", which is not supported");
  }
  for (const std::string_view tower : kOtherTowers) {
    if (name.find(tower) == std::string_view::npos) continue;
    return Unsupported(tensor + " belongs to a part outside the language model, which is not supported");
  }
  return InvalidArgument(
      tensor + " has an unknown name: expected " + std::string(kRoot) +
      "MODULE.lora_A.weight or .lora_B.weight, where MODULE is model.layers.N.self_attn.{q,k,v,o}_proj, "
      "model.layers.N.mlp.{gate,up,down}_proj or lm_head");
}

// Removes the part suffix from the end of the name and returns the part.
std::optional<AdapterTensorName::Part> ConsumePart(std::string_view& text) {
  for (const std::string_view infix : {"", ".default"}) {
    if (ConsumeSuffix(text, ".lora_A" + std::string(infix) + ".weight")) return AdapterTensorName::Part::kLoraA;
    if (ConsumeSuffix(text, ".lora_B" + std::string(infix) + ".weight")) return AdapterTensorName::Part::kLoraB;
  }
  if (text.ends_with("lm_head.base_layer.weight") && ConsumeSuffix(text, ".weight")) {
    return AdapterTensorName::Part::kBaseCopy;
  }
  return std::nullopt;
}

// Removes `N.` from the start, where N is written as PEFT writes it. Nullopt: no number, or not a layer of the model.
std::optional<std::int32_t> ConsumeLayer(std::string_view& text, std::int64_t num_layers) {
  const std::size_t dot = text.find('.');
  if (dot == std::string_view::npos || dot == 0 || (text[0] == '0' && dot > 1)) return std::nullopt;
  std::int32_t layer = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + dot, layer);
  if (error != std::errc() || end != text.data() + dot || layer < 0 || layer >= num_layers) return std::nullopt;
  text.remove_prefix(dot + 1);
  return layer;
}

const TargetName* FindLayerTarget(std::string_view rest) {
  for (const TargetName& target : kLayerTargets) {
    if (rest == target.name) return &target;
  }
  return nullptr;
}

}  // namespace

Result<AdapterTensorName> ParseAdapterTensorName(std::string_view name, std::int64_t num_layers,
                                                 const std::string& label) {
  AdapterTensorName result;
  std::string_view module = name;
  if (!ConsumePrefix(module, kRoot)) return Refuse(name, label);
  const auto part = ConsumePart(module);
  if (!part) return Refuse(name, label);
  result.part = *part;
  while (ConsumeSuffix(module, ".base_layer")) {
  }
  result.module = module;

  std::string_view rest = module;
  ConsumePrefix(rest, "language_model.");
  if (rest == "lm_head") {
    result.plain_module = rest;
    result.target = LoraTarget::kLmHead;
    return result;
  }
  if (!ConsumePrefix(rest, "model.")) return Refuse(name, label);
  ConsumePrefix(rest, "language_model.");
  if (!ConsumePrefix(rest, "layers.")) return Refuse(name, label);
  const std::string in_layers = "model.layers." + std::string(rest);
  const auto layer = ConsumeLayer(rest, num_layers);
  if (!layer) {
    return InvalidArgument(label + ": tensor " + Quote(name) + ": expected a layer from 0 to " +
                           std::to_string(num_layers - 1) + ", which the base model has");
  }
  const TargetName* target = FindLayerTarget(rest);
  if (target == nullptr) return Refuse(name, label);
  result.plain_module = in_layers;
  result.layer = *layer;
  result.target = target->target;
  return result;
}

}  // namespace loramux
