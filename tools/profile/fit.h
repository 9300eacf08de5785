// From measurements to a PerformanceModel: non-negative least squares, and how good it is on points that it has not
// seen.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schedule/performance_model.h"
#include "schedule/performance_profile.h"

namespace loramux {

// One point: what a step computed, and the median of its repetitions.
struct StepMeasurement {
  StepLoad load;
  double seconds = 0;
  bool held_out = false;
};

// The x >= 0 that minimises |A x - b|, by Lawson and Hanson's active sets (1974, chapter 23). `rows` are A's, all of
// one size; columns may be linearly dependent.
std::vector<double> NonNegativeLeastSquares(std::span<const std::vector<double>> rows, std::span<const double> targets);

// The coefficients of `shape` that minimise the squares of the RELATIVE errors on the points that are not held out: a
// step of 1 ms counts as much as one of 1 s. token_tile is the one of a list of usual sizes that leaves the smallest
// squares. The rest of the model is left empty.
PerformanceModel FitSteps(std::span<const StepMeasurement> points, LoraCostShape shape);

// Fills in the model's factors and after_prefill: for steps of about the same number of tokens, what they took together
// over what the linear terms say of them together. Steps that something disturbed hardly shape the table; the time that
// they took is spread over all of it, and over a place as far as that has thousands of steps, so that the model's time
// of many steps of a kind is right. A place of the table needs `least` points; fewer share one with their neighbours.
// after_prefill and its decay are what the first kColdSteps decode steps after a prompt take on top, on average, if
// there are `least` of each. Held-out points are not looked at.
void FitFactors(std::span<const StepMeasurement> points, std::size_t least, PerformanceModel& model);

// Of some predictions against what was measured: R2 of the seconds, and relative errors. REQUIRES: equal sizes.
FitQuality QualityOf(std::span<const double> predicted, std::span<const double> measured);

// A line through (bytes, seconds), by relative errors. Where time does not grow with bytes, the mean rate. A rate is
// one that a profile may hold. REQUIRES: not empty, all positive.
PerformanceModel::Link FitLink(std::span<const double> bytes, std::span<const double> seconds);

// CaraServe's own variables on decode steps: seconds = a + b x batch size + c x work, where work is batch size x
// largest rank (bgmv) or the sum of the requests' ranks (mbgmv). Each point is judged by the fit to all others.
FitQuality CaraServeForm(std::span<const StepMeasurement> decode_points, LoraCostShape shape);

}  // namespace loramux
