// Quantised rows of a weight matrix, in a form that every quantiser writes and every layout reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensor/weight_format.h"

namespace loramux {

// Rows of integers in groups of kWeightGroup: value = scale * code + minimum. The last group of a row is filled with
// codes of any value if `columns` is not a multiple of the group. In kQ8 the minimum is -128 * scale, so zero has the
// code 128; kMx4 has the codes of kQ8 here that stand for its own. kF8: value = scale * the float that a code is.
struct GroupedRows {
  WeightFormat format = WeightFormat::kQ8;
  std::int64_t rows = 0, columns = 0;
  std::vector<std::uint8_t> codes;      // [rows, groups * kWeightGroup]; kQ4: 0 to 15
  std::vector<float> scales, minimums;  // [rows, groups]; finite

  GroupedRows() = default;
  // All zero. REQUIRES: IsQuantised(format); rows, columns > 0.
  GroupedRows(WeightFormat format, std::int64_t rows, std::int64_t columns);

  std::int64_t groups() const { return WeightGroups(columns); }
  std::uint8_t* CodesOf(std::int64_t row) { return codes.data() + row * groups() * kWeightGroup; }
  const std::uint8_t* CodesOf(std::int64_t row) const { return codes.data() + row * groups() * kWeightGroup; }
  float* ScalesOf(std::int64_t row) { return scales.data() + row * groups(); }
  const float* ScalesOf(std::int64_t row) const { return scales.data() + row * groups(); }
  float* MinimumsOf(std::int64_t row) { return minimums.data() + row * groups(); }
  const float* MinimumsOf(std::int64_t row) const { return minimums.data() + row * groups(); }

  // Adds the rows of another one of the same format and columns.
  void Append(const GroupedRows& other);
  // The values of a row, `columns` floats.
  void ReadRow(std::int64_t row, float* out) const;
};

}  // namespace loramux
