#include "lab/experiments/paired_ratio.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "workload/statistics.h"

namespace loramux {
namespace {

// The probability that the median is outside the interval from the (k + 1)th least to the (k + 1)th largest of n: at
// most k of n fair coins show heads, or tails.
double Outside(std::size_t n, std::size_t k) {
  double choose = 1, sum = 0;
  for (std::size_t i = 0; i <= k; ++i) {
    sum += choose;
    choose = choose * static_cast<double>(n - i) / static_cast<double>(i + 1);
  }
  return 2 * std::ldexp(sum, -static_cast<int>(n));
}

}  // namespace

PairedRatio RatioOfPairs(const std::vector<double>& ours, const std::vector<double>& theirs) {
  CHECK(ours.size() == theirs.size());
  if (ours.empty()) return {};
  std::vector<double> ratios;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    CHECK(ours[i] > 0 && theirs[i] > 0);
    ratios.push_back(ours[i] / theirs[i]);
  }
  std::sort(ratios.begin(), ratios.end());
  const std::size_t n = ratios.size();
  std::size_t k = 0;
  while (2 * (k + 1) < n && Outside(n, k + 1) <= 1 - PairedRatio::kConfidence) ++k;
  return {.median = Quantile(ratios, 0.5),
          .low = ratios[k],
          .high = ratios[n - 1 - k],
          .confidence = std::max(0.0, 1 - Outside(n, k))};
}

}  // namespace loramux
