// How fast what nobody uses is replaced on the device: the time in which as many pages are evicted as are idle.
//
// An hour of a large cache is as long, to it, as a second of one that is overwritten in a second: how long visits tell
// of others to come is a part of this time (ReuseRates::Remembered). Of idle pages x time over evicted pages, both
// halved every few seconds. A value; reads no clock.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace loramux {

class Turnover {
 public:
  // `idle_pages` have been idle since the call before, and `evicted_pages` (since the start) does not decrease.
  // REQUIRES: `now` does not decrease.
  void Saw(std::int64_t idle_pages, std::int64_t evicted_pages, TimeNs now);
  // Seconds; none: nothing was evicted for a long time.
  std::optional<double> Seconds() const;

 private:
  static constexpr double kHalfLife = 10;           // seconds
  static constexpr TimeNs kLongest = kNsPerSecond;  // between two calls: longer, nobody asked for anything
  static constexpr double kFewest = 1;              // page

  double page_seconds_ = 0, evicted_ = 0;
  std::int64_t evicted_before_ = 0;
  TimeNs at_ = 0;
};

}  // namespace loramux
