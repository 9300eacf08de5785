// What an adapter can change by LoRA.
#pragma once

#include <cstdint>

namespace loramux {

// The linear layers that an adapter can change, and the embedding. Both kLmHead and kEmbedding belong to no layer
// (layer index 0 is used). The embedding's row of a token is as a linear layer's product with a vector that is 1 at the
// token and 0 elsewhere: its input is the vocabulary.
// kGate, kUp and kDown are those of a layer's own feed-forward block, or of one expert; kRouter is the product that
// chooses experts, and kSharedGate that of a shared expert's gate. kInQkv to kOut are those of recurrent layers, kInAll
// Mamba-2's one in place of the four before.
// kInputGate and kInputProjection make what a layer adds of its own input, and kLayerContext makes those inputs.
// kProjectIn and kProjectOut stand between a narrow embedding and the hidden states. The last three belong to no layer
// either.
enum class LoraTarget : std::uint8_t {
  kQ,
  kK,
  kV,
  kO,
  kGate,
  kUp,
  kDown,
  kLmHead,
  kEmbedding,
  kRouter,
  kSharedGate,
  kInQkv,
  kInZ,
  kInB,
  kInA,
  kInAll,
  kOut,
  kInputGate,
  kInputProjection,
  kLayerContext,
  kProjectIn,
  kProjectOut
};
constexpr bool IsOfStates(LoraTarget target) { return target >= LoraTarget::kInQkv && target <= LoraTarget::kOut; }
constexpr bool IsOfRouting(LoraTarget target) {
  return target == LoraTarget::kRouter || target == LoraTarget::kSharedGate;
}
// Whether it is of neither attention, a feed-forward block nor a vocabulary.
constexpr bool IsBesideBlocks(LoraTarget target) { return target >= LoraTarget::kInputGate; }
inline constexpr int kNumLoraTargets = 8;  // linear layers that every model has: those before kEmbedding
// The name in PEFT: "q_proj", ..., "down_proj", "lm_head", "embed_tokens", "gate", ...
const char* LoraTargetName(LoraTarget target);

}  // namespace loramux
