// The machine's pace over time: how fast it ran from moment to moment, derived from the steps of a running engine.
#pragma once

#include <span>
#include <vector>

#include "costs/pace.h"
#include "costs/performance_model.h"
#include "profile/engine_session.h"

namespace loramux {

// One step: its begin, its measured and its predicted duration.
struct TimedStep {
  TimeNs begin = 0, took = 0;
  double predicted = 0;  // seconds
};
// Returns the plain steps of a run with the predictions of `model`.
std::vector<TimedStep> TimedStepsOf(const EngineRun& run, const PerformanceModel& model);

// The computing time of a stretch. A stretch covers this much computing within at most five times as much wall-clock
// time. It is long enough for some prompts and many decode steps, so that it shows the machine's pace and not the
// model's error for one kind of step.
inline constexpr TimeNs kPaceStretch = 50 * kNsPerMs;
// One stretch: the ratio of the measured to the predicted time of all its steps.
struct PaceStretch {
  TimeNs begin = 0, end = 0;  // `end` is the end of the last step
  double factor = 1;
  // Variance of `factor` that independent errors of single steps would cause by chance.
  double chance = 0;
};
// Cuts the steps into stretches. REQUIRES: in order of time.
std::vector<PaceStretch> StretchesOf(std::span<const TimedStep> steps);

// Returns the pace of the runs, concatenated and repeated without end. The factors deviate from 1 by the part of their
// variance that chance does not explain: the model's errors for single steps are not the machine's pace. A period
// without steps repeats the period of the same length before it, or everything before it if that is shorter.
Pace PaceOf(std::span<const EngineRun> runs, const PerformanceModel& model);

}  // namespace loramux
