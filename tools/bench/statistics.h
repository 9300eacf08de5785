// Percentiles, as every table and plot of a report uses them.
#pragma once

#include <cstdint>
#include <vector>

namespace loramux::load {

struct Summary {
  std::int64_t count = 0;
  double mean = 0, min = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;  // all 0 if count is 0
};

// Quantile q of [0, 1] by linear interpolation between the closest ranks (numpy's default); 0 for no values.
// REQUIRES: `sorted` ascends.
double Quantile(const std::vector<double>& sorted, double q);

Summary Summarise(std::vector<double> values);

// The quantiles 0, 1/steps, ..., 1: what a plot of the cumulative distribution needs. Empty for no values.
std::vector<double> QuantileCurve(std::vector<double> values, int steps);

}  // namespace loramux::load
