// Matrices as bitsandbytes stores them: https://arxiv.org/abs/2305.14314 (4 bits), https://arxiv.org/abs/2208.07339 (8
// bits). Internal to quant.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "quant/quantization_config.h"
#include "quant/stored_matrix.h"
#include "quant/tensor_finder.h"

namespace loramux {

// The matrix of the layer `name`.
//   4 bits  NAME.weight: bytes of two codes, the first in the upper half, in row order without padding; a value is
//           NAME.weight.quant_map[code] times the scale of its block, NAME.weight.absmax, which may be quantised itself
//           (nested_absmax, nested_quant_map); NAME.weight.quant_state.bitsandbytes__nf4 holds the sizes as JSON
//   8 bits  NAME.weight int8 [outputs, inputs]; a value is weight * NAME.SCB[output] / 127
// Null if the file has the layer in floats, or not at all. Errors name the tensor. The tensors outlive the matrix.
Result<std::shared_ptr<const StoredMatrix>> FindBitsAndBytesMatrix(TensorFinder& tensors,
                                                                   const QuantizationConfig& config,
                                                                   const std::string& name, std::int64_t rows,
                                                                   std::int64_t columns);

}  // namespace loramux
