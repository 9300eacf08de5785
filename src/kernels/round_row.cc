#include "kernels/round_row.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace loramux {

void RoundRow(const float* x, std::int64_t k, std::int8_t* codes, float* scales, std::int32_t* sums) {
  for (std::int64_t first = 0; first < k; first += kWeightGroup, codes += kWeightGroup, ++scales, ++sums) {
    const std::int64_t count = std::min(kWeightGroup, k - first);
    bool finite = true;
    float largest = 0;
    for (std::int64_t t = 0; t < count; ++t) {
      finite = finite && std::isfinite(x[first + t]);
      largest = std::max(largest, std::fabs(x[first + t]));
    }
    std::fill_n(codes, kWeightGroup, std::int8_t{0});
    *scales = finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    *sums = 0;
    if (!finite || largest < kSmallestActivation) continue;
    const float inverse = 127.0f / largest;
    for (std::int64_t t = 0; t < count; ++t) {
      codes[t] = static_cast<std::int8_t>(std::nearbyint(x[first + t] * inverse));
      *sums += codes[t];
    }
    *scales = largest / 127.0f;
  }
}

}  // namespace loramux
