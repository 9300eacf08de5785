#include <vector>

#include "kernels/reference/kernels.h"

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

}  // namespace loramux::reference
