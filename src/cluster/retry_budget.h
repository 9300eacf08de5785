// How many retries a router may send: a share of the requests of the last seconds, so that a fleet in trouble does not
// get several times its load.
#pragma once

#include <array>
#include <cstdint>

#include "base/clock.h"

namespace loramux {

// Not thread-safe.
class RetryBudget {
 public:
  // Allows `share` retries per request, and kAlways in each window whatever the requests, for routers with few.
  explicit RetryBudget(double share) : share_(share) {}

  void CountRequest(TimeNs now);
  // Takes one retry. False: the budget is used up.
  bool Take(TimeNs now);

  static constexpr std::int64_t kAlways = 3;
  static constexpr TimeNs kWindow = 10 * kNsPerSecond;

 private:
  static constexpr std::size_t kSlots = 10;
  struct Slot {
    std::int64_t requests = 0, retries = 0;
  };
  // Empties the slots that left the window, and returns the one of `now`.
  Slot& SlotOf(TimeNs now);

  double share_;
  std::array<Slot, kSlots> slots_;
  std::int64_t newest_ = 0;  // number of the newest slot since time 0
};

}  // namespace loramux
