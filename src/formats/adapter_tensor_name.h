// Parses the names of tensors in an adapter file. Internal to formats.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "formats/adapter_config.h"
#include "formats/model_family.h"

namespace loramux {

// Linear layers of the base model that some checkpoints hold as one: their rows one after the other.
// kStates and kStateGates: Qwen3-Next's in_proj_qkvz and in_proj_ba (RowsOfFusedStates).
enum class FusedLayers : std::uint8_t { kNone, kQkv, kGateUp, kStates, kStateGates };

// The parts of a tensor's name.
struct AdapterTensorName {
  // lora_A, lora_B, DoRA's magnitude, lora_B's bias, the layer's bias; the module's weight (once more: as PEFT saves it
  // beside itself), the base model's weight, rows of trained tokens; or a tensor that only training uses.
  enum class Part {
    kLoraA,
    kLoraB,
    kMagnitude,
    kLoraBBias,
    kBias,
    kWeight,
    kWeightAgain,
    kBaseWeight,
    kTokenRows,
    kTraining
  };
  // The module as PEFT's patterns see it: as in the file, without "base_model.model." and "base_layer".
  std::string module;
  // The module's name in a plain text model: without "language_model." and "_orig_mod." too.
  std::string plain_module;
  std::int32_t layer = 0;
  // The layer of the base model; of a module that fuses several, the first of them, and `fused` says which.
  LoraTarget target = LoraTarget::kQ;
  FusedLayers fused = FusedLayers::kNone;
  Part part = Part::kLoraA;
  std::optional<OwnKind> own;  // what a whole weight replaces: the embedding, the output layer or a norm
  bool head = false;           // the weight belongs to a classification head
  // In a mixture of experts: which expert; or all experts of a layer, in one tensor. Such a tensor is `inner` if it
  // belongs to a wrapper within another one, which is named `base_layer`.
  std::int32_t expert = -1;
  bool of_all_experts = false, inner = false;
  bool stacked = false;  // a tensor of all experts for `target` alone: a matrix for each expert, or one that all share
};

// Parses `base_model.model.MODULE[.base_layer].lora_{A,B}[.default].weight`, `MODULE.lora_magnitude_vector`,
// `MODULE.lora_B.bias` and `MODULE[.base_layer].bias`, and of `model.embed_tokens` `lora_embedding_{A,B}[.default]` and
// the magnitude. MODULE is
// `model.layers.N.self_attn.{q,k,v,o}_proj`, `model.layers.N.mlp.{gate,up,down}_proj`, these fused as
// `self_attn.qkv_proj` and `mlp.gate_up_proj`, parts of experts (`mlp.experts.M.{gate,up,down}_proj`,
// `block_sparse_moe.experts.M.w{1,3,2}`), of all experts (`mlp.experts`, or `mlp.experts.w1` as Tinker has it) and of
// routers (`mlp.gate`), `lm_head`, or
// `model.unembed_tokens`, as Tinker calls it, or what few families have: `model.layers.N.per_layer_input_gate`,
// `model.layers.N.per_layer_projection`, `model.per_layer_model_projection`, `model.project_in`, `model.project_out`.
// There may be a `language_model.` part before or after `model.`, no `model.` where the adapter was trained on a model
// without an output layer (AutoModel), and `_orig_mod.` anywhere, which torch.compile adds. Of `lm_head` and
// `model.embed_tokens` also parses `.weight`, `.modules_to_save.weight`,
// `.token_adapter.trainable_tokens_delta`, and
// `.weight` after `.base_layer`, `.token_adapter.base_layer` and `.original_module`; of norms and of the heads `score`
// and `classifier`, `.weight`; and VeLoRA's `MODULE.lora_velora_embed`, which acts on gradients alone. Error
// (kUnsupported or kInvalidArgument): any other name; the message names the tensor and what it seems to be. `label`
// names the file.
// `norms`: the names of norms in the base model; `names`: those of other modules, null: as Llama's.
Result<AdapterTensorName> ParseAdapterTensorName(std::string_view name, std::int64_t num_layers, const NormNames& norms,
                                                 const std::string& label, const FamilyNames* names = nullptr);

// The names of norms of the first family that has all the norms in these tensors' names. For files whose base model is
// not known.
const NormNames& GuessNormNames(std::span<const TensorEntry> tensors);
// The names of the other modules, guessed in the same way; null: as Llama's.
const FamilyNames* GuessFamilyNames(std::span<const TensorEntry> tensors);

// Whether it is a head for classes, as the models of transformers for sequence classification name it. PEFT adds both
// names to modules_to_save for the task type SEQ_CLS; a model has one of them.
inline bool IsHeadName(std::string_view module) { return module == "score" || module == "classifier"; }

}  // namespace loramux
