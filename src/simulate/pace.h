// How fast a machine is from one moment to the next, where it is not always the same: neighbours on its host, heat, a power limit.
#pragma once

#include <filesystem>
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

  Pace() = default;                      // always the model's
  // REQUIRES: ascending by time; factors from kMinFactor to kMaxFactor.
  explicit Pace(std::vector<Change> changes);

  // 1 before the first change.
  double At(TimeNs now) const;

 private:
  std::vector<Change> changes_;
};

// A CSV file: a header; a time in seconds and a factor a line, in order of time. Errors name file and line.
Result<Pace> ReadPace(const std::filesystem::path& path);

}  // namespace loramux
