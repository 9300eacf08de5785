// The speed of a machine over time, where it varies: other users of its host, heat, a power limit.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace loramux {

// A step function of time: the factor by which steps take longer than the performance model predicts. Immutable.
class Pace {
 public:
  // Bounds of a factor.
  static constexpr double kMinFactor = 1e-3, kMaxFactor = 1e3;

  // From time `at` to the next change, a step takes `factor` times as long as the performance model predicts.
  struct Change {
    TimeNs at = 0;
    double factor = 1;
  };

  // The factor is always 1.
  Pace() = default;
  // `period`: time after which the changes repeat; 0: the last factor stays. REQUIRES: changes ascend by time, from 0
  // up to less than `period` (if there is one); factors from kMinFactor to kMaxFactor.
  explicit Pace(std::vector<Change> changes, TimeNs period = 0);

  // The factor at time `now`; 1 before the first change.
  double At(TimeNs now) const;

  std::span<const Change> changes() const { return changes_; }
  TimeNs period() const { return period_; }

 private:
  std::vector<Change> changes_;
  TimeNs period_ = 0;
};

// Reads a CSV file: a header line, then lines of a time in seconds and a factor, in order of time. Errors name the file
// and the line.
Result<Pace> ReadPace(const std::filesystem::path& path);

}  // namespace loramux
