// How often a page that nobody uses will be used again, learned from the pages themselves.
//
// What is known of an idle page is how often it was visited, and how long nobody has used it. What that says of its
// next visit differs from load to load: a system prompt that was visited ten times will be again, a conversation of ten
// turns may be over. So visits, and the time without one, are counted by number of visits and idle time. A rule of
// thumb that is right on the mean of some traces is the prior: it holds where nothing was seen, and gives way to what
// is (a Gamma prior of a Poisson rate).
//
// Eviction asks not for the chance of a visit now but for what a page returns for the time that it will take memory:
// who has got his answer reads it first, then asks again. So a rate is the mean over the time ahead for which that is
// highest: the hit density of LHD (Beckmann, Chen and Cidon, NSDI 2018), for the best time to give up.
// Not thread-safe; reads no clock.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "base/clock.h"

namespace loramux {

class ReuseRates {
 public:
  // Visits a second of what was visited `frequency` times (decaying, as of the last one) and has not been for `idle_s`:
  // the number over the time in which visits are remembered and that since the last one. It never saturates: after
  // hours too the more recent of two is worth more. What has been visited once will hardly be again in some loads, and
  // what many times in others: kPriorVisits is between (from Mooncake's traces, docs/design/cache.md).
  static double Prior(double frequency, double idle_s, double remembered_s) {
    return (kPriorVisits + frequency) / (remembered_s + idle_s);
  }
  // For how long, in seconds, where all that is idle is replaced in `turnover_s`, or never.
  static double Remembered(std::optional<double> turnover_s);

  // A page that had been visited `frequency` times was visited again after `idle`.
  void SawVisit(double frequency, TimeNs idle) { ++CellOf(frequency, idle).visits; }
  // Pages like this one were idle for so many page-seconds.
  void SawIdle(double frequency, TimeNs idle, double page_seconds);
  // Makes rates of what was seen, over the prior with that time, and forgets half of it in each kHalfLife. Some
  // microseconds.
  void Learn(TimeNs now, double remembered_s);

  // What was learned: so many times the prior is the rate.
  double Factor(double frequency, TimeNs idle) const { return CellOf(frequency, idle).factor; }

 private:
  static constexpr double kPriorVisits = 0.3;
  static constexpr TimeNs kHalfLife = 600 * kNsPerSecond;
  // What is believed before anything was seen weighs as much as so many visits. A request visits many pages at once.
  static constexpr double kPriorWeight = 32;
  static constexpr std::size_t kClasses = 6;  // of visits: below 1.5, 2.5, 4.5, 8.5, 16.5, and more
  static constexpr std::size_t kAges = 16;    // of idle time: below 0.27 s, 0.54, 1.1, ... and more than 73 minutes

  struct Cell {
    double visits = 0;  // seen
    double weight = 0;  // of the seconds that pages were seen idle, each (kPriorVisits + frequency) times
    double idle = 0;    // the same times the idle time in seconds
    double factor = 1;
  };
  static double Seconds(TimeNs time) { return static_cast<double>(time > 0 ? time : 0) / kNsPerSecond; }
  static double BestMean(const std::array<double, kAges>& rate, const std::array<double, kAges>& seconds,
                         std::size_t from);
  static std::size_t ClassOf(double frequency);
  static std::size_t AgeOf(TimeNs idle);
  Cell& CellOf(double frequency, TimeNs idle) { return cells_[ClassOf(frequency)][AgeOf(idle)]; }
  const Cell& CellOf(double frequency, TimeNs idle) const { return cells_[ClassOf(frequency)][AgeOf(idle)]; }

  std::array<std::array<Cell, kAges>, kClasses> cells_;
  TimeNs learned_at_ = 0;
};

}  // namespace loramux
