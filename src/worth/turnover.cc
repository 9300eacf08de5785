#include "worth/turnover.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace loramux {

void Turnover::Saw(std::int64_t idle_pages, std::int64_t evicted_pages, TimeNs now) {
  CHECK_GE(evicted_pages, evicted_before_);
  const double seconds = static_cast<double>(std::clamp<TimeNs>(now - at_, 0, kLongest)) / kNsPerSecond;
  const double left = std::exp2(-seconds / kHalfLife);
  page_seconds_ = page_seconds_ * left + static_cast<double>(idle_pages) * seconds;
  evicted_ = evicted_ * left + static_cast<double>(evicted_pages - evicted_before_);
  evicted_before_ = evicted_pages;
  at_ = now;
}

std::optional<double> Turnover::Seconds() const {
  if (evicted_ < kFewest) return std::nullopt;
  return page_seconds_ / evicted_;
}

}  // namespace loramux
