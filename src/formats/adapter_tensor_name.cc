#include "formats/adapter_tensor_name.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/message.h"

namespace loramux {
namespace {

constexpr std::string_view kRoot = "base_model.model.";
constexpr std::string_view kCompiled = "_orig_mod.";  // torch.compile's wrapper

struct TargetName {
  std::string_view name;  // after "model.layers.N."
  LoraTarget target;
  FusedLayers fused = FusedLayers::kNone;
};
constexpr std::array<TargetName, 27> kLayerTargets = {{
    {"self_attn.q_proj", LoraTarget::kQ},
    {"self_attn.k_proj", LoraTarget::kK},
    {"self_attn.v_proj", LoraTarget::kV},
    {"self_attn.o_proj", LoraTarget::kO},
    {"mlp.gate_proj", LoraTarget::kGate},
    {"mlp.up_proj", LoraTarget::kUp},
    {"mlp.down_proj", LoraTarget::kDown},
    {"mlp.shared_expert.gate_proj", LoraTarget::kGate},
    {"mlp.shared_expert.up_proj", LoraTarget::kUp},
    {"mlp.shared_expert.down_proj", LoraTarget::kDown},
    {"attn.q_proj", LoraTarget::kQ},  // gpt-oss as Tinker saves it
    {"attn.k_proj", LoraTarget::kK},
    {"attn.v_proj", LoraTarget::kV},
    {"attn.o_proj", LoraTarget::kO},
    {"linear_attn.in_proj_qkv", LoraTarget::kInQkv},
    {"linear_attn.in_proj_z", LoraTarget::kInZ},
    {"linear_attn.in_proj_b", LoraTarget::kInB},
    {"linear_attn.in_proj_a", LoraTarget::kInA},
    {"linear_attn.in_proj_qkvz", LoraTarget::kInQkv, FusedLayers::kStates},
    {"linear_attn.in_proj_ba", LoraTarget::kInB, FusedLayers::kStateGates},
    {"linear_attn.out_proj", LoraTarget::kOut},
    {"mamba.in_proj", LoraTarget::kInAll},
    {"mamba.out_proj", LoraTarget::kOut},
    {"per_layer_input_gate", LoraTarget::kInputGate},
    {"per_layer_projection", LoraTarget::kInputProjection},
    {"self_attn.qkv_proj", LoraTarget::kQ, FusedLayers::kQkv},
    {"mlp.gate_up_proj", LoraTarget::kGate, FusedLayers::kGateUp},
}};

// After "model.".
constexpr std::array<TargetName, 3> kModelTargets = {{
    {"per_layer_model_projection", LoraTarget::kLayerContext},
    {"project_in", LoraTarget::kProjectIn},
    {"project_out", LoraTarget::kProjectOut},
}};

// Parts of a name that mean something that loramux refuses by name.
struct RefusedPart {
  std::string_view part;
  const char* what;
  const char* advice = "";
};
constexpr const char* kOtherHead =
    "of a classification head other than one matrix (a bias, as of token classification, LoRA, or further layers)";
constexpr const char* kServedHead =
    "; heads of one matrix without a bias are, as those of transformers' LlamaForSequenceClassification";
constexpr std::array<RefusedPart, 7> kRefusedParts = {{
    {".adapter.linear_", "LoRA under Megatron's names, whose rows lie in an order of its own",
     "; export it as PEFT has it, by NeMo or by Megatron Bridge's export_adapter_ckpt"},
    {"lora_embedding_", "LoRA on an embedding other than embed_tokens"},
    {"embed_tokens.lora_", "LoRA on embed_tokens, written like that of a linear layer",
     "; Tinker's cookbook writes the LoRA of the output layer so if the embeddings are tied: give the adapter as "
     "Tinker "
     "saved it, with unembed_tokens"},
    {".score.", kOtherHead, kServedHead},
    {".classifier.", kOtherHead, kServedHead},
    {".modules_to_save.",
     "a fully trained module (modules_to_save) other than embed_tokens, lm_head, norms and classification heads",
     "; merge the adapter into the base model"},
    {".bias", "a bias of a module that is no linear layer of the model"},
}};
constexpr std::array<std::string_view, 5> kOtherTowers = {"visual.", "vision_", "multi_modal_projector.", "audio_",
                                                          "mm_projector."};

bool ConsumePrefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Whether the module has this name, whatever stands before it.
bool IsOrEndsWith(std::string_view module, std::string_view name) {
  return module == name || (module.ends_with(name) && module[module.size() - name.size() - 1] == '.');
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
    return Unsupported(tensor + " is " + refused.what + ", which is not supported" + refused.advice);
  }
  if (name.ends_with(".weight") && name.find("lora_") == std::string_view::npos) {
    return Unsupported(tensor + " is the whole weight of a module (modules_to_save): only those of embed_tokens, " +
                       "lm_head, norms and classification heads (score, classifier) are supported; merge the adapter "
                       "into the base model");
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

struct NormName {
  std::string_view name;  // after "model.layers.N.", or after "model."
  OwnKind kind;
};
constexpr std::array<NormName, 3> kNormsOfAll = {{
    {"self_attn.q_norm", OwnKind::kQNorm},
    {"self_attn.k_norm", OwnKind::kKNorm},
    {"norm", OwnKind::kFinalNorm},
}};

// Those of the layers' two blocks; a name is empty where the family has none.
std::array<NormName, 4> NormsOfBlocks(const NormNames& norms) {
  const auto name = [](const char* of) { return of == nullptr ? std::string_view() : std::string_view(of); };
  return {{{name(norms.attention), OwnKind::kInputNorm},
           {name(norms.attention_output), OwnKind::kAttentionOutputNorm},
           {name(norms.mlp), OwnKind::kMlpNorm},
           {name(norms.mlp_output), OwnKind::kMlpOutputNorm}}};
}

// The norm of this name, of a layer or of the model; nullopt: none.
std::optional<OwnKind> FindNorm(std::string_view rest, bool of_layer, const NormNames& norms) {
  const auto of_blocks = NormsOfBlocks(norms);
  for (const std::span<const NormName> list :
       {std::span<const NormName>(kNormsOfAll), std::span<const NormName>(of_blocks)}) {
    const auto norm = std::ranges::find(list, rest, &NormName::name);
    if (norm == list.end() || rest.empty()) continue;
    return (norm->kind == OwnKind::kFinalNorm) == of_layer ? std::nullopt : std::optional(norm->kind);
  }
  return std::nullopt;
}

// Whether the family has a norm of this name among those of the blocks.
bool HasNorm(const NormNames& norms, std::string_view name) {
  return std::ranges::any_of(NormsOfBlocks(norms), [&](const NormName& norm) { return norm.name == name; });
}

bool MayBringWeight(std::string_view module) {
  const auto ends_so = [&](std::string_view name) { return !name.empty() && IsOrEndsWith(module, name); };
  if (IsHeadName(module) || ends_so("lm_head") || ends_so("embed_tokens")) return true;
  if (std::ranges::any_of(kNormsOfAll, ends_so, &NormName::name)) return true;
  for (const FamilyNames& names : AllFamilyNames()) {
    const bool rms = InfoOf(names.family).norm_kind == NormKind::kRms;
    if (rms && ends_so(names.norm.substr(names.norm.rfind('.') + 1))) return true;
  }
  return std::ranges::any_of(AllFamilies(), [&](const FamilyInfo& family) {
    return std::ranges::any_of(NormsOfBlocks(family.norms), ends_so, &NormName::name);
  });
}

// Removes the suffix of a weight of the embedding, of the output layer, of a norm or of a head.
std::optional<AdapterTensorName::Part> ConsumeWeight(std::string_view& text) {
  using Part = AdapterTensorName::Part;
  struct Suffix {
    std::string_view text;
    Part part;
  };
  constexpr std::array<Suffix, 8> kSuffixes = {{
      {".token_adapter.trainable_tokens_delta", Part::kTokenRows},
      {".token_adapter.trainable_tokens_delta.default", Part::kTokenRows},
      {".token_adapter.base_layer.weight", Part::kBaseWeight},
      {".base_layer.weight", Part::kBaseWeight},
      {".original_module.weight", Part::kBaseWeight},
      {".modules_to_save.weight", Part::kWeightAgain},
      {".modules_to_save.default.weight", Part::kWeightAgain},
      {".weight", Part::kWeight},
  }};
  for (const Suffix& suffix : kSuffixes) {
    std::string_view module = text;
    if (!ConsumeSuffix(module, suffix.text)) continue;
    if (!MayBringWeight(module)) continue;
    text = module;
    return suffix.part;
  }
  return std::nullopt;
}

// Removes the suffix of LoRA on an embedding, if it is that of the tokens.
bool ConsumeEmbedding(std::string_view& text, const std::string& suffix) {
  std::string_view module = text;
  if (!ConsumeSuffix(module, suffix)) return false;
  while (ConsumeSuffix(module, ".base_layer")) {
  }
  if (!IsOrEndsWith(module, "embed_tokens")) return false;
  text = module;
  return true;
}

// Removes the part suffix from the end of the name and returns the part.
std::optional<AdapterTensorName::Part> ConsumePart(std::string_view& text) {
  using Part = AdapterTensorName::Part;
  for (const std::string infix : {"", ".default"}) {
    if (ConsumeSuffix(text, ".lora_A" + infix + ".weight")) return Part::kLoraA;
    if (ConsumeSuffix(text, ".lora_B" + infix + ".weight")) return Part::kLoraB;
    if (ConsumeSuffix(text, ".lora_B" + infix + ".bias")) return Part::kLoraBBias;
    if (ConsumeSuffix(text, ".lora_magnitude_vector" + infix + ".weight")) return Part::kMagnitude;
    if (ConsumeSuffix(text, ".lora_magnitude_vector" + infix)) return Part::kMagnitude;
    if (ConsumeEmbedding(text, ".lora_embedding_A" + infix)) return Part::kLoraA;
    if (ConsumeEmbedding(text, ".lora_embedding_B" + infix)) return Part::kLoraB;
  }
  if (ConsumeSuffix(text, ".lora_velora_embed")) return Part::kTraining;
  if (ConsumeSuffix(text, ".bias")) return Part::kBias;
  return ConsumeWeight(text);
}

// The name without the parts that wrappers of the language model add.
std::string WithoutWrappers(std::string_view module) {
  std::string plain(module);
  for (std::size_t at = plain.find(kCompiled); at != std::string::npos; at = plain.find(kCompiled, at)) {
    plain.erase(at, kCompiled.size());
  }
  std::string_view rest = plain;
  if (ConsumePrefix(rest, "language_model.")) return std::string(rest);
  if (ConsumePrefix(rest, "model.language_model.")) return "model." + std::string(rest);
  return plain;
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

bool IsWeight(AdapterTensorName::Part part) {
  return part >= AdapterTensorName::Part::kWeight && part <= AdapterTensorName::Part::kTokenRows;
}

// Whether it is a part of a mixture of experts.
bool ParseExperts(std::string_view rest, AdapterTensorName& result) {
  constexpr std::string_view kRouters[] = {
      "mlp.gate",   "mlp.router", "block_sparse_moe.gate", "block_sparse_moe.router", "block_sparse_moe.router.layer",
      "router.proj"};
  if (std::ranges::find(kRouters, rest) != std::end(kRouters)) {
    result.target = LoraTarget::kRouter;
    return true;
  }
  if (rest == "mlp.shared_expert_gate") {
    result.target = LoraTarget::kSharedGate;
    return true;
  }
  if (!ConsumePrefix(rest, "mlp.experts") && !ConsumePrefix(rest, "block_sparse_moe.experts") &&
      !ConsumePrefix(rest, "experts")) {
    return false;
  }
  if (rest.empty()) return result.of_all_experts = true;
  constexpr std::int32_t kMostExperts = 1 << 16;
  if (!ConsumePrefix(rest, ".")) return false;
  const auto expert = ConsumeLayer(rest, kMostExperts);
  constexpr TargetName kParts[] = {{"gate_proj", LoraTarget::kGate}, {"up_proj", LoraTarget::kUp},
                                   {"down_proj", LoraTarget::kDown}, {"w1", LoraTarget::kGate},
                                   {"w3", LoraTarget::kUp},          {"w2", LoraTarget::kDown}};
  const auto* const part = std::ranges::find(kParts, rest, &TargetName::name);
  if (part == std::end(kParts)) return false;
  result.target = part->target;
  if (expert) {
    result.expert = *expert;
  } else {
    result.of_all_experts = result.stacked = true;
  }
  return true;
}

const TargetName* FindTarget(std::span<const TargetName> targets, std::string_view rest) {
  const auto found = std::ranges::find(targets, rest, &TargetName::name);
  return found == targets.end() ? nullptr : &*found;
}

// Whether it is the output layer, a head, the embedding, the final norm or another module outside the layers. `plain`:
// the name of the module without wrappers.
bool ParseOutsideLayers(std::string_view name, std::string_view plain, const NormNames& norms,
                        AdapterTensorName& result) {
  const bool weight = IsWeight(result.part);
  std::string_view rest = plain;
  ConsumePrefix(rest, "model.");
  if (plain == "lm_head" || rest == "unembed_tokens") {
    result.plain_module = "lm_head";
    result.target = LoraTarget::kLmHead;
    if (weight) result.own = OwnKind::kOutput;
    return true;
  }
  if (weight && IsHeadName(plain)) {
    result.plain_module = plain;
    return result.head = true;
  }
  const bool of_embedding = name.find(".lora_embedding_") != std::string_view::npos;
  if (rest == "embed_tokens" && (weight || of_embedding || result.part == AdapterTensorName::Part::kMagnitude)) {
    result.plain_module = "model.embed_tokens";
    result.target = LoraTarget::kEmbedding;
    if (weight) result.own = OwnKind::kEmbedding;
    return true;
  }
  if (weight && FindNorm(rest, false, norms)) {
    result.plain_module = "model.norm";
    result.own = OwnKind::kFinalNorm;
    return true;
  }
  const TargetName* const target = FindTarget(kModelTargets, rest);
  if (target == nullptr || weight) return false;
  result.plain_module = "model." + std::string(rest);
  result.target = target->target;
  return true;
}

}  // namespace

const NormNames& GuessNormNames(std::span<const TensorEntry> tensors) {
  const auto has_all = [&](const FamilyInfo& family) {
    return std::ranges::all_of(tensors, [&](const TensorEntry& tensor) {
      return std::ranges::all_of(AllFamilies(), [&](const FamilyInfo& other) {
        return std::ranges::all_of(NormsOfBlocks(other.norms), [&](const NormName& norm) {
          const bool named =
              !norm.name.empty() && tensor.name.find("." + std::string(norm.name) + ".") != std::string::npos;
          return !named || HasNorm(family.norms, norm.name);
        });
      });
    });
  };
  const auto found = std::ranges::find_if(AllFamilies(), has_all);
  return found == AllFamilies().end() ? AllFamilies().front().norms : found->norms;
}

const FamilyNames* GuessFamilyNames(std::span<const TensorEntry> tensors) {
  for (const FamilyNames& names : AllFamilyNames()) {
    const auto is_theirs = [&](const TensorEntry& tensor) {
      std::string_view module = tensor.name;
      if (!ConsumePrefix(module, kRoot)) return false;
      return OurName(names, module) != module;
    };
    if (std::ranges::any_of(tensors, is_theirs)) return &names;
  }
  return nullptr;
}

Result<AdapterTensorName> ParseAdapterTensorName(std::string_view name, std::int64_t num_layers, const NormNames& norms,
                                                 const std::string& label, const FamilyNames* names) {
  AdapterTensorName result;
  std::string_view module = name;
  if (!ConsumePrefix(module, kRoot)) return Refuse(name, label);
  const auto part = ConsumePart(module);
  if (!part) return Refuse(name, label);
  result.part = *part;
  while (ConsumeSuffix(module, ".base_layer")) result.inner = true;
  result.module = module;

  std::string plain = WithoutWrappers(module);
  if (names != nullptr) plain = OurName(*names, plain);
  std::string_view rest = plain;
  ConsumePrefix(rest, "model.");
  if (ParseOutsideLayers(name, plain, norms, result)) return result;
  if (!ConsumePrefix(rest, "layers.")) return Refuse(name, label);
  result.plain_module = "model.layers." + std::string(rest);
  const auto layer = ConsumeLayer(rest, num_layers);
  if (!layer) {
    return InvalidArgument(label + ": tensor " + Quote(name) + ": expected a layer from 0 to " +
                           std::to_string(num_layers - 1) + ", which the base model has");
  }
  if (IsWeight(result.part)) {
    result.own = FindNorm(rest, true, norms);
    if (!result.own) return Refuse(name, label);
    result.layer = *layer;
    return result;
  }
  result.layer = *layer;
  if (ParseExperts(rest, result)) return result;
  const TargetName* target = FindTarget(kLayerTargets, rest);
  if (target == nullptr) return Refuse(name, label);
  result.target = target->target;
  result.fused = target->fused;
  return result;
}

}  // namespace loramux
