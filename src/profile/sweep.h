// Measures many points on the real executor, with both LoRA kernel variants.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/prng.h"
#include "base/result.h"
#include "profile/fit.h"
#include "profile/step_bench.h"

namespace loramux {

// Settings of a sweep.
struct SweepOptions {
  int points = 400;
  int least_points = 64;  // measured even if `seconds` have passed
  int rounds = 2;         // visits to each point, unless `seconds` pass before
  double seconds = 240;
  double held_out_share = 0.25;  // share of the points, chosen at random
};

// Points measured with both variants, in the same order.
struct SweepResult {
  std::vector<StepPoint> points;
  std::vector<StepMeasurement> mbgmv, bgmv;
  std::int64_t runs = 0;  // number of timed steps
  // The mean relative distance of a visit from the median of all runs of its point. It shows how quiet the machine was.
  // 0 if no point was visited twice.
  double repeat_error = 0;
};

// Measures the points. Each visit runs the point once to warm up and then several times, and yields the median. The
// fastest visit of a point counts: other load on the machine can only slow a visit down, and lasts longer than one
// visit. The order of the visits is random, in blocks that alternate between the variants, so that a slow minute does
// not affect one kind of step only. The remaining time goes to points with two fastest visits more than 3 % apart.
// Where the variants do not differ, each point is measured once for both. `progress` receives the seconds that have
// passed and those expected in total. Errors: those of the bench.
Result<SweepResult> Sweep(StepBench& bench, const SweepOptions& options, Prng& prng,
                          const std::function<void(double passed, double expected)>& progress);

}  // namespace loramux
