// Matrices in NVFP4: floats of 4 bits, as MXFP4's, with a scale in float8_e4m3fn for each 16 inputs and one in float32
// for all. Internal to quant.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "quant/stored_matrix.h"
#include "quant/tensor_finder.h"

namespace loramux {

// How a file calls the parts of the layer NAME.
struct Nvfp4Names {
  const char* weight;  // U8 [rows, columns / 2]: of two neighbours, the first in the low half
  const char* scales;  // F8E4M3 [rows, columns / 16]
  const char* global;  // F32, one number
  bool divides;        // values are divided by the number, not multiplied
};
// As compressed-tensors and ModelOpt write them.
inline constexpr Nvfp4Names kCompressedNvfp4 = {".weight_packed", ".weight_scale", ".weight_global_scale", true};
inline constexpr Nvfp4Names kModelOptNvfp4 = {".weight", ".weight_scale", ".weight_scale_2", false};

// The matrix of the layer `name`. In memory it is kQ8, whose rounding adds a three hundredth to the error of NVFP4
// itself (make_quantised.py --errors). Errors name the tensor. The tensors outlive the matrix.
Result<std::shared_ptr<const StoredMatrix>> RequireNvfp4Matrix(TensorFinder& tensors, const Nvfp4Names& names,
                                                               const std::string& name, std::int64_t rows,
                                                               std::int64_t columns);

}  // namespace loramux
