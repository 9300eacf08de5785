// From floats to integers.
#pragma once

#include <cstdint>

#include "tensor/grouped_rows.h"
#include "tensor/weight_format.h"

namespace loramux {

// Quantises rows of floats [rows, columns] to kQ8 or kQ4, each group by itself. kQ8: scale = largest magnitude / 127,
// rounded to float16 before the codes are chosen. kQ4: scale and minimum that minimise the squared error, each value
// weighted by its square plus the mean square of the group: large weights matter more. They are rounded to float16, and
// the codes chosen for the rounded ones. Deterministic. A group with values that are not finite, or beyond what
// float16 scales reach, becomes NaN.
// REQUIRES: IsQuantised(format); rows, columns > 0.
GroupedRows Quantise(WeightFormat format, const float* values, std::int64_t rows, std::int64_t columns);

}  // namespace loramux
