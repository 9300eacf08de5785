// How fast a machine is from one moment to the next, where it is not always the same: neighbours on its host, heat, a
// power limit.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace loramux {

class Pace {
 public:
  static constexpr double kMinFactor = 1e-3, kMaxFactor = 1e3;

  // From `at` on, until the next change, a step takes `factor` times what the performance model says.
  struct Change {
    TimeNs at = 0;
    double factor = 1;
  };

  Pace() = default;  // always the model's
  // `period`: after so long it begins anew; 0: the last factor stays.
  // REQUIRES: ascending by time, from 0 on, before `period`; factors from kMinFactor to kMaxFactor.
  explicit Pace(std::vector<Change> changes, TimeNs period = 0);

  // 1 before the first change.
  double At(TimeNs now) const;

  std::span<const Change> changes() const { return changes_; }
  TimeNs period() const { return period_; }

 private:
  std::vector<Change> changes_;
  TimeNs period_ = 0;
};

// A CSV file: a header; a time in seconds and a factor a line, in order of time. Errors name file and line.
Result<Pace> ReadPace(const std::filesystem::path& path);

}  // namespace loramux
