// Rates at which idle pages are used again, learned from the pages themselves.
//
// Two properties of an idle page are known: the number of its visits and its idle time. What they predict depends on
// the load: a system prompt with ten visits will be visited again, while a conversation of ten turns may be over. So
// visits, and time without visits, are counted by number of visits and by idle time. The prior is a rule that holds on
// the mean of some traces. It applies where nothing was observed and yields to observations (a Gamma prior of a Poisson
// rate).
//
// Eviction needs the return of a page for the time that it will occupy memory, not its chance of a visit right now: a
// user reads an answer before asking again. So a rate here is the highest mean rate over any period that begins now.
// This is the hit density of LHD (Beckmann, Chen and Cidon, NSDI 2018) at the best time to give the page up.
//
// Not thread-safe; reads no clock.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "base/clock.h"

namespace loramux {

// See the top of this file.
class ReuseRates {
 public:
  ReuseRates() {
    for (Learned& learned : learned_) learned.factor.fill(1);
  }
  // Prior rate, in visits a second, of a page with `frequency` visits (decaying, as of the last one) and `idle_s`
  // seconds without one. It is the number of visits over the time for which visits are remembered plus the idle time.
  // It never saturates: even after hours the more recent of two pages has the higher rate. In some loads a page with
  // one visit is hardly visited again, in others a page with many visits is; kPriorVisits is a compromise (from
  // Mooncake's traces, docs/design/cache.md).
  static double Prior(double frequency, double idle_s, double remembered_s) {
    return (kPriorVisits + frequency) / (remembered_s + idle_s);
  }
  // Seconds for which visits are remembered if all idle content is replaced every `turnover_s` seconds; none: it is
  // never replaced.
  static double Remembered(std::optional<double> turnover_s);

  // Records that a page with `frequency` visits was visited again after `idle`.
  void SawVisit(double frequency, TimeNs idle) { ++CellOf(frequency, idle).visits; }
  // Records that pages with these properties were idle for `page_seconds` in all.
  void SawIdle(double frequency, TimeNs idle, double page_seconds);
  // Recomputes the rates from the observations and from the prior with `remembered_s`. Observations lose half their
  // weight every kHalfLife. Takes some microseconds. The factors of a class of visits are computed when one is asked
  // for.
  void Learn(TimeNs now, double remembered_s);

  // The learned rate as a multiple of the prior.
  double Factor(double frequency, TimeNs idle) const { return FactorsOf(ClassOf(frequency))[AgeOf(idle)]; }

  static constexpr std::size_t kClasses = 6;  // by visits: below 1.5, 2.5, 4.5, 8.5, 16.5, and more
  // Seconds by which a page with 2^i visits may be idle for longer than one with a single visit until it is no more
  // likely to return than that one after `idle_s` seconds. Ascends with i; at most `most_s` for each doubling.
  std::array<double, kClasses> Bonuses(double idle_s, double remembered_s, double most_s) const;

 private:
  static constexpr double kPriorVisits = 0.3;
  static constexpr TimeNs kHalfLife = 600 * kNsPerSecond;
  // Weight of the prior, in visits. It is large because one request visits many pages at once.
  static constexpr double kPriorWeight = 32;
  static constexpr std::size_t kAges = 16;  // by idle time: below 0.27 s, 0.54 s, 1.1 s, ... and above 73 minutes

  // The observations of one class of visits and one class of idle time.
  struct Cell {
    double visits = 0;  // observed
    double weight = 0;  // sum of observed idle page-seconds x (kPriorVisits + frequency)
    double idle = 0;    // the same sum, each addend times its idle time in seconds
  };
  // What Learn made of one class of visits, by age.
  struct Learned {
    std::array<double, kAges> rate, prior;  // as of the last Learn
    std::array<double, kAges> factor;       // follows from these rates, unless stale
    bool stale = false;
  };
  static double Seconds(TimeNs time) { return static_cast<double>(time > 0 ? time : 0) / kNsPerSecond; }
  // The learned rates of a class as multiples of the prior, by age.
  const std::array<double, kAges>& FactorsOf(std::size_t visits) const {
    if (learned_[visits].stale) ComputeFactors(learned_[visits]);
    return learned_[visits].factor;
  }
  static void ComputeFactors(Learned& learned);
  // The idle time, at least `idle_s`, from which on a page of this class returns at a lower rate.
  double IdleUntil(std::size_t visits, double rate, double idle_s, double remembered_s) const;
  static std::size_t ClassOf(double frequency);
  static std::size_t AgeOf(TimeNs idle);
  Cell& CellOf(double frequency, TimeNs idle) { return cells_[ClassOf(frequency)][AgeOf(idle)]; }

  std::array<std::array<Cell, kAges>, kClasses> cells_;
  mutable std::array<Learned, kClasses> learned_;
  TimeNs learned_at_ = 0;
};

}  // namespace loramux
