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
  // In mixtures of experts; empty if the adapter changes none. routers: [num_layers, 2]: router, gate of the shared
  // expert; experts: [num_layers, experts that it may change, 3]: gate, up, down.
  std::vector<LoraWeights> routers, experts;
  std::int64_t experts_of_layer = 0;
  // What few models have; empty if the adapter changes none: [num_layers, kRareTargets], from kInQkv on.
  static constexpr int kRareTargets =
      static_cast<int>(LoraTarget::kProjectOut) - static_cast<int>(LoraTarget::kInQkv) + 1;
  std::vector<LoraWeights> rare;
  OwnRows embedding, output;  // rows that it brings in place of the base's
  EmbeddingLora embedding_lora;
  // [NormIndex of the final norm + 1] weights of norms that it brings, null: the base's; or empty.
  std::vector<const float*> norms;

  // Whether it changes hidden states before the first layer.
  bool ChangesEmbedding() const { return embedding.count > 0 || embedding_lora.weights.rank > 0; }
  // What it does to a layer's target, or to that of an expert; null: nothing. REQUIRES: not kEmbedding.
  const LoraWeights* Find(std::int64_t layer, LoraTarget target, std::int64_t num_layers) const {
    if (IsRare(target)) return rare.empty() ? nullptr : &rare[RareIndex(layer, target)];
    if (!IsOfRouting(target)) return &modules[Index(layer, target, num_layers)];
    return routers.empty() ? nullptr : &routers[RouterIndex(layer, target)];
  }
  static std::size_t RouterIndex(std::int64_t layer, LoraTarget target) {
    return static_cast<std::size_t>(2 * layer + (target == LoraTarget::kSharedGate ? 1 : 0));
  }
  static bool IsRare(LoraTarget target) { return target >= LoraTarget::kInQkv; }
  static std::size_t RareIndex(std::int64_t layer, LoraTarget target) {
    return static_cast<std::size_t>(kRareTargets * layer + static_cast<int>(target) -
                                    static_cast<int>(LoraTarget::kInQkv));
  }
  const LoraWeights* OfExpert(std::int64_t layer, std::int64_t expert, LoraTarget target) const {
    if (expert >= experts_of_layer) return nullptr;
    return &experts[ExpertIndex(layer, expert, target)];
  }
  // Empties it, with room for `of_layer` experts of each layer, for routers and for rare targets; the place of a module
  // that is not of the embedding. `expert` -1: none.
  void Clear(std::int64_t num_layers, std::int64_t of_layer, bool of_routers, bool of_rare = false) {
    modules.assign(Index(0, LoraTarget::kLmHead, num_layers) + 1, LoraWeights{});
    routers.assign(of_routers ? static_cast<std::size_t>(2 * num_layers) : 0, LoraWeights{});
    rare.assign(of_rare ? static_cast<std::size_t>(kRareTargets * num_layers) : 0, LoraWeights{});
    experts.assign(static_cast<std::size_t>(num_layers * of_layer * 3), LoraWeights{});
    experts_of_layer = of_layer;
    embedding_lora = {};
  }
  LoraWeights& PlaceOf(std::int64_t layer, LoraTarget target, std::int32_t expert, std::int64_t num_layers) {
    if (expert >= 0) return experts[ExpertIndex(layer, expert, target)];
    if (IsOfRouting(target)) return routers[RouterIndex(layer, target)];
    if (IsRare(target)) return rare[RareIndex(layer, target)];
    return modules[Index(layer, target, num_layers)];
  }
  std::size_t ExpertIndex(std::int64_t layer, std::int64_t expert, LoraTarget target) const {
    const int part = static_cast<int>(target) - static_cast<int>(LoraTarget::kGate);
    return static_cast<std::size_t>((layer * experts_of_layer + expert) * 3 + part);
  }
  // The index in `modules` of a layer's target. REQUIRES: one of the first eight.
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
