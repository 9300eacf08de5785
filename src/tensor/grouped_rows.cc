#include "tensor/grouped_rows.h"

#include "base/check.h"
#include "tensor/half_float.h"

namespace loramux {

GroupedRows::GroupedRows(WeightFormat f, std::int64_t r, std::int64_t c) : format(f), rows(r), columns(c) {
  CHECK(IsQuantised(format));
  CHECK_GT(rows, 0);
  CHECK_GT(columns, 0);
  const auto count = static_cast<std::size_t>(rows * groups());
  const int zero = IsCentred(format) ? kQ8Zero : 0;
  codes.assign(count * kWeightGroup, static_cast<std::uint8_t>(zero));
  scales.assign(count, 0.0f);
  minimums.assign(count, 0.0f);
}

void GroupedRows::Append(const GroupedRows& other) {
  CHECK(other.format == format);
  CHECK_EQ(other.columns, columns);
  rows += other.rows;
  codes.insert(codes.end(), other.codes.begin(), other.codes.end());
  scales.insert(scales.end(), other.scales.begin(), other.scales.end());
  minimums.insert(minimums.end(), other.minimums.begin(), other.minimums.end());
}

void GroupedRows::ReadRow(std::int64_t row, float* out) const {
  const std::uint8_t* code = CodesOf(row);
  const float *scale = ScalesOf(row), *minimum = MinimumsOf(row);
  if (format == WeightFormat::kF8) {
    for (std::int64_t t = 0; t < columns; ++t) out[t] = scale[t / kWeightGroup] * F8E4M3ToF32(code[t]);
    return;
  }
  const bool symmetric = IsCentred(format);
  for (std::int64_t t = 0; t < columns; ++t) {
    const std::int64_t group = t / kWeightGroup;
    out[t] = symmetric ? scale[group] * static_cast<float>(static_cast<int>(code[t]) - kQ8Zero)
                       : scale[group] * static_cast<float>(code[t]) + minimum[group];
  }
}

}  // namespace loramux
