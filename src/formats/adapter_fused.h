// Adapters of fused linear layers (qkv_proj, gate_up_proj) as adapters of the base model's own layers. Internal to
// formats.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "formats/adapter_config.h"
#include "formats/adapter_tensor_name.h"

namespace loramux {

// A tensor of an adapter, as that of one layer of the base model, or of one expert.
struct LayerTensor {
  LoraTarget target;
  const TensorEntry* tensor;
  std::int32_t expert = -1;
  // The parameter that a tensor of all experts changes: "gate_up_proj" or "down_proj".
  const char* parameter = nullptr;
  bool exchanged = false;  // lora_A is what the file calls lora_B, and the other way round
};

// Returns what `tensor`, named `name`, is to each layer of the base: lora_A is the same for all that are fused; lora_B
// and vectors have one row for each output, and are cut there. A tensor of one layer is returned as it is. Parts belong
// to `reader`. `model` may be null, and `label` names the file. Errors (tensor named): the rows are not those of the
// base's layers; without a model, they do not tell where to cut. REQUIRES: the tensor has the dimensions of its part.
//
// For all experts (PEFT's target_parameters), A [experts * rank, in] has the rows of one expert after the other's, and
// B [out, rank * experts] the columns of all experts of one rank after those of the rank before. Outputs of gate and up
// lie as in the base model's parameter: one after the other, or alternating (gpt-oss). Before PEFT 0.19, A had the
// outputs, and B the inputs. Stacked, A is [experts, rank, in] and B [experts, out, rank]; one of [1, ...] is that of
// every expert, and the same tensor for all of them (Tinker shares the outer side: A of gate and up, B of down).
Result<std::vector<LayerTensor>> TensorsOfLayers(const AdapterTensorName& name, const TensorEntry& tensor,
                                                 const AdapterConfig& config, const ModelConfig* model,
                                                 const std::string& label, TensorReader& reader);

}  // namespace loramux
