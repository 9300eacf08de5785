// The ratio of two systems measured in pairs, one directly after the other, robust against changes of the machine.
#pragma once

#include <cstdint>
#include <vector>

namespace loramux {

// Statistics of the ratios ours / theirs of pairs: the median, and an interval between two of the ratios that contains
// the true median with a probability of at least `kConfidence`. Uses order statistics: the only assumption about the
// noise is that pairs are independent.
struct PairedRatio {
  static constexpr double kConfidence = 0.9;
  double median = 1, low = 1, high = 1;
  double confidence = 0;  // that of the interval; below kConfidence with fewer than 5 pairs, where it spans all ratios
};

// REQUIRES: `ours` and `theirs` have equal length and positive values. Without pairs: 1, with confidence 0.
PairedRatio RatioOfPairs(const std::vector<double>& ours, const std::vector<double>& theirs);

}  // namespace loramux
