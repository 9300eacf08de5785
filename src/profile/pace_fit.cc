#include "profile/pace_fit.h"

#include <algorithm>
#include <cmath>

#include "costs/performance_profile.h"

namespace loramux {
namespace {

// factor over the usual time of similar steps, above which a step counts as disturbed
constexpr double kDisturbed = 1.5;
constexpr TimeNs kLongestStretch = 5 * kPaceStretch;

double Seconds(TimeNs time) { return static_cast<double>(time) / static_cast<double>(kNsPerSecond); }

// Consecutive stretches without gaps.
class Tape {
 public:
  // Appends a stretch; its times are on the tape's clock. Fills a longer gap before it by repetition.
  void Add(const PaceStretch& stretch) {
    if (stretch.begin > end_ + kPaceStretch) RepeatUntil(stretch.begin);
    changes_.push_back({stretch.begin, stretch.factor});
    end_ = stretch.end;
  }
  // Extends the tape to `until` by repeating its end: as long a piece as the gap, or the whole tape.
  void RepeatUntil(TimeNs until) {
    const TimeNs ago = std::min(until - end_, end_);
    if (changes_.empty() || ago <= 0) return;
    for (TimeNs at = end_; at < until && changes_.size() <= kMaxPaceChanges; at += ago)
      Copy(at - ago, at, std::min(ago, until - at));
    end_ = until;
  }
  TimeNs end() const { return end_; }
  Pace Take() && {
    const auto fits = [&] { return changes_.size() <= kMaxPaceChanges && end_ <= kMaxPacePeriod; };
    // the limits of the profile file
    for (; !changes_.empty() && !fits(); changes_.pop_back()) end_ = changes_.back().at;
    return changes_.empty() ? Pace() : Pace(std::move(changes_), end_);
  }

 private:
  // Copies [from, from + length) to `to`. REQUIRES: `to` is the end of the tape.
  void Copy(TimeNs from, TimeNs to, TimeNs length) {
    const std::size_t size = changes_.size();
    const auto after = std::upper_bound(changes_.begin(), changes_.end(), from,
                                        [](TimeNs at, const Pace::Change& b) { return at < b.at; });
    auto next = static_cast<std::size_t>(after - changes_.begin());
    changes_.push_back({to, next > 0 ? changes_[next - 1].factor : 1});
    for (; next < size && changes_[next].at < from + length; ++next) {
      changes_.push_back({to + (changes_[next].at - from), changes_[next].factor});
    }
  }

  std::vector<Pace::Change> changes_;
  TimeNs end_ = 0;
};

// Returns the share of the factors' deviation from 1 that chance does not explain: a ratio of standard deviations, not
// of variances.
double ShareOfTheMachine(std::span<const PaceStretch> stretches) {
  double chance = 0, squares = 0;
  for (const PaceStretch& stretch : stretches) {
    chance += stretch.chance;
    squares += (stretch.factor - 1) * (stretch.factor - 1);
  }
  return squares > chance ? std::sqrt(1 - chance / squares) : 0;
}

}  // namespace

std::vector<TimedStep> TimedStepsOf(const EngineRun& run, const PerformanceModel& model) {
  std::vector<TimedStep> steps;
  for (const ObservedStep& step : run.steps) {
    if (step.plain) steps.push_back({step.begin, step.seconds_ns, model.SecondsOf(step.load)});
  }
  return steps;
}

std::vector<PaceStretch> StretchesOf(std::span<const TimedStep> steps) {
  std::vector<PaceStretch> stretches;
  for (std::size_t i = 0; i < steps.size();) {
    PaceStretch stretch{.begin = steps[i].begin};
    const std::size_t first = i;
    TimeNs took = 0;
    double predicted = 0;
    for (; i < steps.size() && took < kPaceStretch && steps[i].begin <= stretch.begin + kLongestStretch; ++i) {
      predicted += steps[i].predicted;
      took += steps[i].took;
      stretch.end = steps[i].begin + steps[i].took;
    }
    stretch.factor = std::clamp(Seconds(took) / predicted, Pace::kMinFactor, Pace::kMaxFactor);
    for (const TimedStep& step : steps.subspan(first, i - first)) {
      const double measured = Seconds(step.took), usual = stretch.factor * step.predicted;
      if (measured > kDisturbed * usual) continue;  // a disturbance, which belongs to the machine's pace
      stretch.chance += (measured - usual) * (measured - usual) / (predicted * predicted);
    }
    const auto count = static_cast<double>(i - first);
    // Correct for the use of the stretch's own mean. For a single step chance and pace cannot be told apart.
    stretch.chance = count > 1 ? stretch.chance * count / (count - 1) : (stretch.factor - 1) * (stretch.factor - 1);
    stretches.push_back(stretch);
  }
  return stretches;
}

Pace PaceOf(std::span<const EngineRun> runs, const PerformanceModel& model) {
  Tape tape;
  for (const EngineRun& run : runs) {
    const TimeNs offset = tape.end();
    const std::vector<PaceStretch> stretches = StretchesOf(TimedStepsOf(run, model));
    const double share = ShareOfTheMachine(stretches);
    for (const PaceStretch& stretch : stretches) {
      tape.Add(
          {.begin = offset + stretch.begin, .end = offset + stretch.end, .factor = 1 + share * (stretch.factor - 1)});
    }
    tape.RepeatUntil(offset + run.end);
  }
  return std::move(tape).Take();
}

}  // namespace loramux
