// Parses the names of tensors in an adapter file. Internal to formats.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "formats/adapter_config.h"

namespace loramux {

// The parts of a tensor's name.
struct AdapterTensorName {
  // lora_A, lora_B, or a copy of the base's matrix.
  enum class Part { kLoraA, kLoraB, kBaseCopy };
  // The module as PEFT's patterns see it: as in the file, without "base_model.model." and "base_layer".
  std::string module;
  // The module's name in a plain text model: without "language_model." too.
  std::string plain_module;
  std::int32_t layer = 0;
  LoraTarget target = LoraTarget::kQ;
  Part part = Part::kLoraA;
};

// Parses `base_model.model.MODULE[.base_layer].lora_{A,B}[.default].weight`. MODULE is
// `model.layers.N.self_attn.{q,k,v,o}_proj`, `model.layers.N.mlp.{gate,up,down}_proj` or `lm_head`, with a
// `language_model.` part before or after `model.`. Also parses `lm_head.base_layer.weight` (kBaseCopy). Error
// (kUnsupported or kInvalidArgument): any other name; the message names the tensor and what it seems to be. `label`
// names the file.
Result<AdapterTensorName> ParseAdapterTensorName(std::string_view name, std::int64_t num_layers,
                                                 const std::string& label);

}  // namespace loramux
