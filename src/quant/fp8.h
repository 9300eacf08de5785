// Matrices of float8_e4m3fn with scales: https://arxiv.org/abs/2209.05433. Internal to quant.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "quant/quantization_config.h"
#include "quant/stored_matrix.h"
#include "quant/tensor_finder.h"

namespace loramux {

// The matrix NAME.weight of the layer `name`, whose scales NAME.<scales> have the spread of `scheme`. Errors name the
// tensor. The tensors outlive the matrix.
Result<std::shared_ptr<const StoredMatrix>> RequireFp8Matrix(TensorFinder& tensors, const QuantScheme& scheme,
                                                             const std::string& name, const std::string& scales,
                                                             std::int64_t rows, std::int64_t columns);

// The same for quant_method fp8 and fbgemm_fp8, whose scales are called weight_scale or weight_scale_inv. Null if the
// file has the layer in floats, or not at all. Scales of activations count as used: products round activations by
// themselves.
Result<std::shared_ptr<const StoredMatrix>> FindFp8Matrix(TensorFinder& tensors, const QuantizationConfig& config,
                                                          const std::string& name, std::int64_t rows,
                                                          std::int64_t columns);

}  // namespace loramux
