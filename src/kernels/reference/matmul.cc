#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/matmul.h"
#include "kernels/round_row.h"

namespace loramux::reference {

namespace {

// A row of x, rounded.
struct RoundedRow {
  std::vector<std::int8_t> codes;
  std::vector<float> scales;
  std::vector<std::int32_t> sums;

  RoundedRow(const float* x, std::int64_t k)
      : codes(static_cast<std::size_t>(WeightGroups(k) * kWeightGroup)),
        scales(static_cast<std::size_t>(WeightGroups(k))),
        sums(scales.size()) {
    RoundRow(x, k, codes.data(), scales.data(), sums.data());
  }
};

float GroupDot(const RoundedRow& x, const PackedMatrix& w, std::int64_t output) {
  const std::int64_t panel = output / PackedMatrix::kPanel;
  float sum = 0;
  for (std::int64_t g = 0; g < WeightGroups(w.k()); ++g) {
    const OutputGroup group = ReadGroup(w.format(panel), w.panel(panel), output % PackedMatrix::kPanel, g);
    const std::int8_t* codes = x.codes.data() + g * kWeightGroup;
    std::int32_t dot = 0;
    for (std::int64_t t = 0; t < kWeightGroup; ++t) dot += (group.codes[t] - group.zero) * codes[t];
    const auto at = static_cast<std::size_t>(g);
    const float minimum = group.minimum * static_cast<float>(x.sums[at]);
    sum = std::fma(x.scales[at], std::fma(group.scale, static_cast<float>(dot), minimum), sum);
  }
  return sum;
}

void GroupMatMul(const KernelContext& context, const MatMulArguments& a) {
  context.pool->Run(a.rows, [&](std::int64_t i, int) {
    const RoundedRow row(a.x[i], a.w.k());
    for (std::int64_t j = 0; j < a.w.n(); ++j) {
      const float sum = GroupDot(row, a.w, j);
      a.y[i][j] = a.bias == nullptr ? sum : sum + a.bias[j];
    }
  });
}

}  // namespace

void MatMul(const KernelContext& context, const MatMulArguments& a) {
  if (a.w.quantised()) return GroupMatMul(context, a);
  context.pool->Run(a.w.panels(), [&](std::int64_t panel, int) {
    std::vector<float> row(static_cast<std::size_t>(a.w.k()));
    const std::int64_t begin = panel * PackedMatrix::kPanel;
    const std::int64_t end = std::min(begin + PackedMatrix::kPanel, a.w.n());
    for (std::int64_t j = begin; j < end; ++j) {
      a.w.UnpackRow(j, row.data());
      for (std::int64_t i = 0; i < a.rows; ++i) {
        float sum = 0;
        for (std::int64_t t = 0; t < a.w.k(); ++t) sum += a.x[i][t] * row[static_cast<std::size_t>(t)];
        a.y[i][j] = a.bias == nullptr ? sum : sum + a.bias[j];
      }
    }
  });
}

}  // namespace loramux::reference
