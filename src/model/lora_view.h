// An adapter as the forward pass sees it.
#pragma once

#include <vector>

#include "formats/adapter_config.h"
#include "kernels/lora.h"
#include "kernels/own_rows.h"

namespace loramux {

// Weights of one device-resident adapter, by layer and target. Built once when it becomes resident (rows point into its
// pages); immutable while any step reads it.
struct LoraView {
  // [num_layers * 7 + 1]: layer-major q, k, v, o, gate, up, down; the last is lm_head. Rank 0 for unchanged layers.
  std::vector<LoraWeights> modules;
  OwnRows embedding, output;  // that it brings in place of the base's
  EmbeddingLora embedding_lora;
  // [NormIndex of the final norm + 1] weights of norms that it brings, null: the base's; or empty.
  std::vector<const float*> norms;

  // Whether it changes hidden states before the first layer.
  bool ChangesEmbedding() const { return embedding.count > 0 || embedding_lora.weights.rank > 0; }
  // The index in `modules` of a layer's target. REQUIRES: not kEmbedding.
  static std::size_t Index(std::int64_t layer, LoraTarget target, std::int64_t num_layers) {
    return target == LoraTarget::kLmHead ? static_cast<std::size_t>(num_layers * 7)
                                         : static_cast<std::size_t>(layer * 7 + static_cast<int>(target));
  }
  // The index in `norms` of a layer's norm, or of the final one.
  static std::size_t NormIndex(std::int64_t layer, OwnKind norm, std::int64_t num_layers) {
    constexpr std::int64_t kOfLayer = 6;
    if (norm == OwnKind::kFinalNorm) return static_cast<std::size_t>(num_layers * kOfLayer);
    std::int64_t place = static_cast<int>(norm) - static_cast<int>(OwnKind::kInputNorm);
    if (norm == OwnKind::kAttentionOutputNorm) place = kOfLayer - 2;
    if (norm == OwnKind::kMlpOutputNorm) place = kOfLayer - 1;
    return static_cast<std::size_t>(layer * kOfLayer + place);
  }
  // The weights of a norm that it brings; null: the base's.
  const float* Norm(std::size_t index) const { return norms.empty() ? nullptr : norms[index]; }
};

}  // namespace loramux
