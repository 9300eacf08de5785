// Matrices as AWQ stores them: https://arxiv.org/abs/2306.00978, as AutoAWQ's version GEMM writes them. Internal to
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

// The matrix of the layer `name`: NAME.qweight int32 [inputs, outputs / 8], the outputs of a word in the order 0, 2, 4,
// 6, 1, 3, 5, 7, lowest bits first; NAME.qzeros int32 [groups, outputs / 8] likewise; NAME.scales [groups, outputs].
// Null if there is no NAME.qweight. Errors name the tensor. The tensors outlive the matrix.
Result<std::shared_ptr<const StoredMatrix>> FindAwqMatrix(TensorFinder& tensors, const QuantizationConfig& config,
                                                          const std::string& name, std::int64_t rows,
                                                          std::int64_t columns);

}  // namespace loramux
