#include <cmath>
#include <vector>

#include "kernels/reference/kernels.h"
#include "kernels/round_row.h"

namespace loramux::reference {

void MatMul(const KernelContext& context, const float* x, std::int64_t x_stride, std::int64_t m, const PackedMatrix& w,
            const float* bias, float* y, std::int64_t y_stride) {
  context.pool->Run(w.panels(), [&](std::int64_t panel, int) {
    std::vector<float> row(static_cast<std::size_t>(w.k()));
    const std::int64_t begin = panel * PackedMatrix::kPanel;
    const std::int64_t end = std::min(begin + PackedMatrix::kPanel, w.n());
    for (std::int64_t j = begin; j < end; ++j) {
      w.UnpackRow(j, row.data());
      for (std::int64_t i = 0; i < m; ++i) {
        float sum = 0;
        for (std::int64_t t = 0; t < w.k(); ++t) sum += x[i * x_stride + t] * row[static_cast<std::size_t>(t)];
        y[i * y_stride + j] = bias == nullptr ? sum : sum + bias[j];
      }
    }
  });
}

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

}  // namespace

void GroupMatMul(const KernelContext& context, const float* x, std::int64_t x_stride, std::int64_t m,
                 const PackedMatrix& w, const float* bias, float* y, std::int64_t y_stride) {
  context.pool->Run(m, [&](std::int64_t i, int) {
    const RoundedRow row(x + i * x_stride, w.k());
    for (std::int64_t j = 0; j < w.n(); ++j) {
      const float sum = GroupDot(row, w, j);
      y[i * y_stride + j] = bias == nullptr ? sum : sum + bias[j];
    }
  });
}

}  // namespace loramux::reference
