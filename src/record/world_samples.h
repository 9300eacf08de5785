// What memory and queue held over a run of unknown length, in a bounded number of samples.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/snapshot.h"
#include "record/run_result.h"

namespace loramux {

// The state that `stats` tell, as a sample at the time `at`.
WorldSample SampleOf(const EngineStats& stats, TimeNs at);

// Keeps at most kMostSamples: when it is full, every second one goes, and the gap between two doubles.
class WorldSamples {
 public:
  static constexpr std::size_t kMostSamples = 1024;

  // Whether a sample at `now` is wanted, which must not decrease.
  bool Wants(TimeNs now) const { return samples_.empty() || now >= samples_.back().at + gap_; }
  void Add(const WorldSample& sample);
  std::vector<WorldSample> Take() { return std::move(samples_); }

 private:
  std::vector<WorldSample> samples_;
  TimeNs gap_ = kNsPerMs;
};

}  // namespace loramux
