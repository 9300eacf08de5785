// Options of the processor's part of a device's steps.
#pragma once

#include <cstdint>
#include <functional>

#include "base/clock.h"

namespace loramux {

// How the processor computes adapters that are in the host tier but not on the device yet.
struct AssistSetup {
  int cores = 0;  // threads beside all others; 0: the device waits for the adapters
  // Rows whose product one of them has ready by the time the device is through with the layer. A segment of L rows is
  // shared by ceil(L / this) of them.
  std::int64_t rows_per_core = 16;
  // The same from a profile: these rows times the rank (TokensPerCore). 0: not measured, rows_per_core counts.
  std::int64_t row_ranks_per_core = 0;
  TimeNs timeout = 5 * kNsPerSecond;  // until an answer counts as lost, which fails its request
  // As AssistOptions::before_answer, for tests.
  std::function<void(int worker, std::uint32_t group)> before_answer;
};

}  // namespace loramux
