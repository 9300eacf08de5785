// The source of weights in a format in which quantised models are published. Internal to quant.
#pragma once

#include <memory>

#include "formats/safetensors.h"
#include "quant/model_source.h"
#include "quant/quantization_config.h"

namespace loramux {

// Some or all matrices of `file` are in the format that `config` says; what the file holds decides for each. Norms,
// biases and other matrices are floats.
std::unique_ptr<ModelSource> MakePublishedSource(std::shared_ptr<const TensorFile> file, QuantizationConfig config);

}  // namespace loramux
