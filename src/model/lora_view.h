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

  // The index in `modules` of a layer's target.
  static std::size_t Index(std::int64_t layer, LoraTarget target, std::int64_t num_layers) {
    return target == LoraTarget::kLmHead ? static_cast<std::size_t>(num_layers * 7)
                                         : static_cast<std::size_t>(layer * 7 + static_cast<int>(target));
  }
};

}  // namespace loramux
