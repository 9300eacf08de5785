// For tests: waits for what other threads bring about.
#pragma once

#include <chrono>
#include <thread>

#include "base/clock.h"

namespace loramux {

// The limit of every wait. It is generous, so that no test fails because its machine is slow or busy.
inline constexpr TimeNs kTestPatience = 120 * kNsPerSecond;

// Asks `condition` about every millisecond until it is true. Returns false after kTestPatience.
template <typename Condition>
bool WaitUntil(Condition condition) {
  const OsClock clock;
  const TimeNs limit = clock.Now() + kTestPatience;
  while (!condition()) {
    if (clock.Now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace loramux
