// Matrices in the kernels' own layout, as `loramux quantize` writes them: they are used where they are mapped.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "base/result.h"
#include "formats/safetensors.h"
#include "quant/stored_matrix.h"

namespace loramux {

// quantization_config of such a directory: {"quant_method": "loramux", "layout": kPanelLayout}. A matrix is a tensor U8
// [panels, bytes of a panel] (tensor/group_panel.h); the bytes tell the format. Other matrices are floats as usual.
inline constexpr std::string_view kPanelMethod = "loramux";
inline constexpr std::string_view kPanelLayout = "panel32-group32";

// The matrix [rows, columns] of a tensor. `owner` keeps the tensor and its file. Error: the tensor's shape is that of
// no format.
Result<std::unique_ptr<StoredMatrix>> MakePanelMatrix(const StoredTensor& tensor, std::int64_t rows,
                                                      std::int64_t columns, std::shared_ptr<const void> owner);

}  // namespace loramux
