// Matrices as the library compressed-tensors stores them (llm-compressor writes such models). Internal to quant.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "quant/quantization_config.h"
#include "quant/stored_matrix.h"
#include "quant/tensor_finder.h"

namespace loramux {

// The matrix of the layer `name`, as the scheme of config_groups says. Each has NAME.weight_scale and, if the scheme is
// not symmetric, NAME.weight_zero_point.
//   pack-quantized   NAME.weight_packed int32 [outputs, inputs * bits / 32], along the inputs lowest bits first, each
//                    integer plus 2^(bits - 1); NAME.weight_shape; NAME.weight_g_idx if groups are not neighbours
//   int-quantized    NAME.weight int8 [outputs, inputs]
//   float-quantized  NAME.weight float8_e4m3fn [outputs, inputs]
// Null if the file has the layer in floats, or not at all. Scales of activations count as used: products round
// activations by themselves. Errors name the tensor. The tensors outlive the matrix.
Result<std::shared_ptr<const StoredMatrix>> FindCompressedMatrix(TensorFinder& tensors,
                                                                 const QuantizationConfig& config,
                                                                 const std::string& name, std::int64_t rows,
                                                                 std::int64_t columns);

}  // namespace loramux
