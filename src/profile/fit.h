// Fits a PerformanceModel to measurements with non-negative least squares, and computes the model's quality on points
// that the fit did not use.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "costs/performance_model.h"
#include "costs/performance_profile.h"

namespace loramux {

// One point: the content of a step, and the median time of its repetitions.
struct StepMeasurement {
  StepLoad load;
  double seconds = 0;
  bool held_out = false;
};

// Returns the x >= 0 that minimises |A x - b|, by the active-set method of Lawson and Hanson (1974, chapter 23). `rows`
// are the rows of A, all of one size, and `targets` is b. Columns may be linearly dependent.
std::vector<double> NonNegativeLeastSquares(std::span<const std::vector<double>> rows, std::span<const double> targets);

// Returns the coefficients of `shape` that minimise the squares of the RELATIVE errors on the points that are not held
// out: a step of 1 ms counts as much as one of 1 s. token_tile is chosen from a list of usual sizes by the smallest sum
// of squares. `experts`: of the model that was measured. Leaves the rest of the model empty.
PerformanceModel FitSteps(std::span<const StepMeasurement> points, LoraCostShape shape,
                          const PerformanceModel::Experts& experts = {});

// Sets the model's factors and after_prefill. A factor is the ratio of measured time to the time of the linear terms,
// for steps with about the same number of tokens. Disturbed steps (much slower than similar ones) hardly influence the
// shape of the table. Their time is spread over the whole table; a place with thousands of steps gets the share that it
// measured itself. So the model's total time for many steps of a kind is right. A place needs `least` points; places
// with fewer are merged with their neighbours. after_prefill and its decay are the mean extra time of the first
// kColdSteps decode steps after a prefill, if there are `least` of each. Ignores held-out points.
void FitFactors(std::span<const StepMeasurement> points, std::size_t least, PerformanceModel& model);

// Returns the quality of predictions: R2 of the seconds, and relative errors. REQUIRES: equal sizes.
FitQuality QualityOf(std::span<const double> predicted, std::span<const double> measured);

// Fits a line through (bytes, seconds) by relative errors. If time does not grow with bytes, the result is the mean
// rate. Rates are clamped to what a profile may hold. REQUIRES: not empty, all positive.
PerformanceModel::Link FitLink(std::span<const double> bytes, std::span<const double> seconds);

// Fits CaraServe's variables to decode steps: seconds = a + b x batch size + c x work. Work is batch size x largest
// rank (bgmv) or the sum of the requests' ranks (mbgmv). Each point is judged by the fit to all other points.
FitQuality CaraServeForm(std::span<const StepMeasurement> decode_points, LoraCostShape shape);

}  // namespace loramux
