#include "server/metrics/recent_ends.h"

#include <utility>

namespace loramux {

void RecentEnds::Watch(bool on) {
  const std::lock_guard lock(mutex_);
  watched_.store(on, std::memory_order_relaxed);
  kept_ = {};
}

void RecentEnds::Add(const SequenceEnd& end) {
  if (!watched_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  if (kept_.ends.size() < kMostKept) {
    kept_.ends.push_back(end);
  } else {
    ++kept_.left_out;
  }
}

RecentEnds::Taken RecentEnds::Take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(kept_, {});
}

}  // namespace loramux
