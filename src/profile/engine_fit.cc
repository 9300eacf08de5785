#include "profile/engine_fit.h"

#include <algorithm>

#include "base/check.h"
#include "base/prng.h"
#include "profile/fit.h"
#include "profile/pace_fit.h"
#include "workload/statistics.h"

namespace loramux {
namespace {

constexpr std::size_t kStepsAFactor = 30;
constexpr double kHeldOutShare = 0.25;

double Seconds(TimeNs time) { return static_cast<double>(time) / kNsPerSecond; }

// Returns the median time until the engine sees a request, over requests that found the engine idle and asleep.
double SubmitLatency(std::span<const EngineRun> runs) {
  std::vector<double> waits;
  for (const EngineRun& run : runs) {
    TimeNs busy_until = 0;
    for (const ServedRequest& request : run.requests) {
      if (request.sent > busy_until) waits.push_back(Seconds(std::max<TimeNs>(0, request.seen - request.sent)));
      busy_until = std::max(busy_until, request.last_token);
    }
  }
  return UpperMedian(std::move(waits));
}

// Returns the mean time between steps of a busy engine. Uses only gaps before steps with decoding sequences: other gaps
// may include idle time. The mean is right because a delay of the engine's thread delays all sequences.
double BetweenSteps(std::span<const EngineRun> runs) {
  double sum = 0, count = 0;
  for (const EngineRun& run : runs) {
    for (const ObservedStep& step : run.steps) {
      if (step.gap < 0 || step.load.decode_sequences == 0) continue;
      sum += Seconds(step.gap);
      ++count;
    }
  }
  return count > 0 ? sum / count : 0;
}

std::vector<StepMeasurement> PointsOf(std::span<const EngineRun> runs) {
  std::vector<StepMeasurement> points;
  Prng prng(1);
  for (const EngineRun& run : runs) {
    for (const ObservedStep& step : run.steps) {
      if (!step.plain || step.seconds_ns <= 0) continue;
      points.push_back(
          {.load = step.load, .seconds = Seconds(step.seconds_ns), .held_out = prng.NextDouble() < kHeldOutShare});
    }
  }
  return points;
}

template <typename Predict>
FitQuality HeldOutQuality(const std::vector<StepMeasurement>& points, Predict predict) {
  std::vector<double> predicted, measured;
  for (const StepMeasurement& point : points) {
    if (!point.held_out) continue;
    predicted.push_back(predict(point.load));
    measured.push_back(point.seconds);
  }
  return QualityOf(predicted, measured);
}

// Limits the factors to what a profile may hold.
void Clamp(PerformanceModel& model) {
  for (const FactorTable table : kFactorTables) {
    std::vector<StepFactor>& factors = model.*table;
    for (StepFactor& at : factors) at.factor = std::clamp(at.factor, kMinFactor, kMaxFactor);
    if (factors.size() > kMaxFactors) factors.resize(kMaxFactors);
  }
}

}  // namespace

void FitEngine(std::span<const EngineRun> runs, LoraCostShape shape, PerformanceProfile& profile) {
  FittedModel& fitted = shape == LoraCostShape::kBgmv ? profile.bgmv : profile.mbgmv;
  PerformanceModel& model = fitted.model;
  const std::vector<StepMeasurement> points = PointsOf(runs);
  FitFactors(points, kStepsAFactor, model);
  Clamp(model);
  fitted.engine = HeldOutQuality(points, [&](const StepLoad& load) { return model.SecondsOf(load); });
  fitted.engine_linear = HeldOutQuality(points, [&](const StepLoad& load) { return model.LinearSecondsOf(load); });
  profile.pace = PaceOf(runs, model);
  profile.between_steps = BetweenSteps(runs);
  profile.submit_latency = SubmitLatency(runs);
  for (PerformanceModel* one : {&profile.mbgmv.model, &profile.bgmv.model}) {
    one->between_steps = profile.between_steps;
    one->submit_latency = profile.submit_latency;
  }
}

}  // namespace loramux
