// Percentiles for the tables and plots of reports.
#pragma once

#include <cstdint>
#include <vector>

namespace loramux {

// Statistics of a set of values.
struct Summary {
  std::int64_t count = 0;
  double mean = 0, min = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;  // all 0 if count is 0
};

// Returns the quantile q in [0, 1] by linear interpolation between the closest ranks (numpy's default); 0 without
// values. REQUIRES: `sorted` ascends.
double Quantile(const std::vector<double>& sorted, double q);

// Returns the middle value; of an even number of values the upper of the two in the middle. 0 without values.
double UpperMedian(std::vector<double> values);

// Returns the statistics of the values.
Summary Summarise(std::vector<double> values);

// Returns the quantiles 0, 1/steps, ..., 1, for a plot of the cumulative distribution. Empty without values.
std::vector<double> QuantileCurve(std::vector<double> values, int steps);

}  // namespace loramux
