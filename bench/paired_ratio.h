// Two systems measured in pairs, one right after the other: what the ratio of their figures is, whatever else the
// machine did.
#pragma once

#include <cstdint>
#include <vector>

namespace loramux {

// Of the ratios ours / theirs of pairs: their median, and two of them that the true median lies between with a
// probability of at least `kConfidence` (order statistics: no assumption about the noise but that pairs are
// independent).
struct PairedRatio {
  static constexpr double kConfidence = 0.9;
  double median = 1, low = 1, high = 1;
  double confidence = 0;  // of the interval; below kConfidence with fewer than 5 pairs: then it spans all ratios
};

// REQUIRES: `ours` and `theirs` are equally long, all positive. Without pairs: 1, with confidence 0.
PairedRatio RatioOfPairs(const std::vector<double>& ours, const std::vector<double>& theirs);

}  // namespace loramux
