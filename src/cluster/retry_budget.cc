#include "cluster/retry_budget.h"

#include <algorithm>

namespace loramux {

RetryBudget::Slot& RetryBudget::SlotOf(TimeNs now) {
  const std::int64_t number = now / (kWindow / static_cast<TimeNs>(kSlots));
  const auto slots = static_cast<std::int64_t>(kSlots);
  for (std::int64_t n = std::max(newest_ + 1, number - slots + 1); n <= number; ++n) {
    slots_[static_cast<std::size_t>(n) % kSlots] = {};
  }
  newest_ = std::max(newest_, number);
  return slots_[static_cast<std::size_t>(newest_) % kSlots];
}

void RetryBudget::CountRequest(TimeNs now) { ++SlotOf(now).requests; }

bool RetryBudget::Take(TimeNs now) {
  Slot& slot = SlotOf(now);
  std::int64_t requests = 0, retries = 0;
  for (const Slot& each : slots_) {
    requests += each.requests;
    retries += each.retries;
  }
  const double allowed = static_cast<double>(kAlways) + share_ * static_cast<double>(requests);
  if (static_cast<double>(retries + 1) > allowed) return false;
  ++slot.retries;
  return true;
}

}  // namespace loramux
