#include "base/clock.h"

#include <chrono>

#include "base/check.h"

namespace loramux {

TimeNs OsClock::Now() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::int64_t OsClock::UnixSeconds() const {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void VirtualClock::AdvanceTo(TimeNs time) {
  CHECK_GE(time, now_);
  now_ = time;
}

}  // namespace loramux
