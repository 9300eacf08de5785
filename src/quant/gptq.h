// Matrices as GPTQ stores them: https://arxiv.org/abs/2210.17323, as AutoGPTQ and GPTQModel write them. Internal to
// quant.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "quant/quantization_config.h"
#include "quant/stored_matrix.h"
#include "quant/tensor_finder.h"

namespace loramux {

// The matrix of the layer `name`, of `bits` b: NAME.qweight int32 [inputs * b / 32, outputs], along the inputs lowest
// bits first; NAME.qzeros int32 [groups, outputs * b / 32]; NAME.scales [groups, outputs]; and NAME.g_idx int32
// [inputs], the group of each input, if inputs are not grouped in their order. Null if there is no NAME.qweight. Errors
// name the tensor. The tensors outlive the matrix.
Result<std::shared_ptr<const StoredMatrix>> FindGptqMatrix(TensorFinder& tensors, const QuantizationConfig& config,
                                                           const std::string& name, std::int64_t rows,
                                                           std::int64_t columns);

}  // namespace loramux
