// How fast the idle content of the device is replaced: the time in which as many pages are evicted as are idle.
//
// This is the time scale of a cache. One hour in a large cache corresponds to one second in a cache that is overwritten
// every second. The time for which visits predict further visits is a multiple of it (ReuseRates::Remembered). It is
// computed as idle pages x time over evicted pages; both sums are halved every 10 seconds. A value type; reads no
// clock.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace loramux {

// Estimates the turnover from periodic counts.
class Turnover {
 public:
  // Records that `idle_pages` have been idle since the previous call and that `evicted_pages` were evicted since the
  // start. REQUIRES: neither `evicted_pages` nor `now` decreases.
  void Saw(std::int64_t idle_pages, std::int64_t evicted_pages, TimeNs now);
  // The turnover in seconds; none if nothing was evicted for a long time.
  std::optional<double> Seconds() const;

 private:
  static constexpr double kHalfLife = 10;  // seconds
  // Most time counted between two calls: in a longer gap there was no load.
  static constexpr TimeNs kLongest = kNsPerSecond;
  static constexpr double kFewest = 1;  // evicted pages

  double page_seconds_ = 0, evicted_ = 0;
  std::int64_t evicted_before_ = 0;
  TimeNs at_ = 0;
};

}  // namespace loramux
