// How fast the machine was from one moment to the next, by the steps of a running engine.
#pragma once

#include <span>
#include <vector>

#include "schedule/pace.h"
#include "schedule/performance_model.h"
#include "tools/profile/engine_session.h"

namespace loramux {

struct TimedStep {
  TimeNs begin = 0, took = 0;
  double predicted = 0;  // seconds
};
// The plain steps of a run, as `model` has them.
std::vector<TimedStep> TimedStepsOf(const EngineRun& run, const PerformanceModel& model);

// Of stretches of so much computing, and at most five times as much time, what all of their steps took together over
// what the model says of them. Long enough for some prompts and many steps that decode, so that it tells of the
// machine, not of the model's error for steps of one kind.
inline constexpr TimeNs kPaceStretch = 50 * kNsPerMs;
struct PaceStretch {
  TimeNs begin = 0, end = 0;  // its last step's
  double factor = 1;
  // variance of the factor that steps make that are each off for reasons of their own
  double chance = 0;
};
// REQUIRES: in order of time.
std::vector<PaceStretch> StretchesOf(std::span<const TimedStep> steps);

// Of runs, each behind the one before, over and over. The factors are as far from 1 as is left of their variance
// without chance: the model's error for one step or another is not the machine's. What passed without steps is taken to
// have been as what came right before it: as long a piece, or all that there is, again.
Pace PaceOf(std::span<const EngineRun> runs, const PerformanceModel& model);

}  // namespace loramux
