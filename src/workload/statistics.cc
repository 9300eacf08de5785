#include "workload/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace loramux {

double Quantile(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return 0;
  const double rank = std::clamp(q, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(rank);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (rank - static_cast<double>(below));
}

double UpperMedian(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Summary Summarise(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {.count = static_cast<std::int64_t>(values.size()),
          .mean = sum / static_cast<double>(values.size()),
          .min = values.front(),
          .p50 = Quantile(values, 0.5),
          .p90 = Quantile(values, 0.9),
          .p99 = Quantile(values, 0.99),
          .max = values.back()};
}

std::vector<double> QuantileCurve(std::vector<double> values, int steps) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  std::vector<double> curve;
  for (int i = 0; i <= steps; ++i) curve.push_back(Quantile(values, static_cast<double>(i) / steps));
  return curve;
}

}  // namespace loramux
