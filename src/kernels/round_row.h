// Activations in 8 bits, for products with quantised weights.
#pragma once

#include <cstdint>

#include "tensor/weight_format.h"

namespace loramux {

// Rounds a row: in each group, scale = (largest magnitude) / 127 and code = x / scale, to nearest. `groups` is
// WeightGroups(k); codes: [groups * 32], zero beyond k; scales and sums (of a group's codes): [groups]. A group with a
// NaN or an infinity gets the scale NaN; one whose largest magnitude is below kSmallestActivation counts as zero. Every
// backend rounds so, to the bit.
inline constexpr float kSmallestActivation = 1e-30f;
void RoundRow(const float* x, std::int64_t k, std::int8_t* codes, float* scales, std::int32_t* sums);

}  // namespace loramux
