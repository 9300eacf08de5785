// Adapters of fused linear layers (qkv_proj, gate_up_proj) as adapters of the base model's own layers. Internal to
// formats.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "formats/adapter_config.h"
#include "formats/adapter_tensor_name.h"

namespace loramux {

// A tensor of an adapter, as that of one layer of the base model.
struct LayerTensor {
  LoraTarget target;
  const TensorEntry* tensor;
};

// Returns what `tensor`, named `name`, is to each layer of the base: lora_A is the same for all that are fused; lora_B
// and vectors have one row for each output, and are cut there. A tensor of one layer is returned as it is. Parts belong
// to `reader`. `model` may be null, and `label` names the file. Errors (tensor named): the rows are not those of the
// base's layers; without a model, they do not tell where to cut. REQUIRES: the tensor has the dimensions of its part.
Result<std::vector<LayerTensor>> TensorsOfLayers(const AdapterTensorName& name, const TensorEntry& tensor,
                                                 const ModelConfig* model, const std::string& label,
                                                 TensorReader& reader);

}  // namespace loramux
