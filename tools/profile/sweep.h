// Measures many points on the real executor, with both LoRA variants.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/prng.h"
#include "tools/profile/fit.h"
#include "tools/profile/step_bench.h"

namespace loramux {

struct SweepOptions {
  int points = 400;
  int least_points = 64;  // are measured even if `seconds` have passed
  int rounds = 2;         // visits to each point, unless `seconds` pass before
  double seconds = 240;
  double held_out_share = 0.25;  // of the points, chosen at random
};

// Points that were measured with both variants, in the same order.
struct SweepResult {
  std::vector<StepPoint> points;
  std::vector<StepMeasurement> mbgmv, bgmv;
  std::int64_t runs = 0;  // steps that were timed
  // How far apart visits of the same point are: mean relative distance of a visit from the median of all runs, which
  // says how quiet the machine was. 0 if no point was visited twice.
  double repeat_error = 0;
};

// Each visit runs the point once to warm up, then several times, and gives their median. Of a point's visits the
// fastest counts: what else the machine does can only slow a visit down, and lasts longer than one. The visits come in
// random order, in blocks that alternate between the variants, so that a slow minute does not fall on one kind of step.
// In what is left of the time, points whose two fastest visits are more than 3 % apart are visited again. `progress`
// gets the seconds that have passed and those expected in all.
SweepResult Sweep(StepBench& bench, const SweepOptions& options, Prng& prng,
                  const std::function<void(double passed, double expected)>& progress);

}  // namespace loramux
