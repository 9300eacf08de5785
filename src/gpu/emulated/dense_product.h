// The emulated device's dense product.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/device.h"

namespace loramux::gpu {

// Outputs that are computed together.
inline constexpr std::int64_t kDenseOutputs = 32;

// The rows of x as f32, contiguous. `product` has host addresses.
std::vector<float> WidenRows(const DenseProduct& product);
// Computes the outputs [first, first + kDenseOutputs), or fewer at the end, of all rows. An output's sum has an order
// that depends on k alone. `x` is WidenRows(product).
void MultiplyOutputs(const DenseProduct& product, const float* x, std::int64_t first);

}  // namespace loramux::gpu
