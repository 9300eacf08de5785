#include "prefix/host_order.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace loramux {

void HostOrder::Set(const Entry& entry) {
  if (position_.size() <= entry.item) position_.resize(entry.item + std::size_t{1}, kNone);
  std::size_t position = position_[entry.item];
  if (position == kNone) {
    position = heap_.size();
    heap_.emplace_back();
  } else if (heap_[position] == entry) {
    return;
  }
  Place(position, entry);
  Restore(position);
}

void HostOrder::Remove(std::uint32_t item) {
  if (!Has(item)) return;
  const std::size_t position = std::exchange(position_[item], kNone);
  const Entry last = heap_.back();
  heap_.pop_back();
  if (position == heap_.size()) return;
  Place(position, last);
  Restore(position);
}

void HostOrder::Place(std::size_t position, const Entry& entry) {
  heap_[position] = entry;
  position_[entry.item] = static_cast<std::uint32_t>(position);
}

void HostOrder::Restore(std::size_t position) {
  const Entry entry = heap_[position];
  for (; position > 0 && entry < heap_[(position - 1) / 2]; position = (position - 1) / 2)
    Place(position, heap_[(position - 1) / 2]);
  for (std::size_t child = 2 * position + 1; child < heap_.size(); child = 2 * position + 1) {
    if (child + 1 < heap_.size() && heap_[child + 1] < heap_[child]) ++child;
    if (!(heap_[child] < entry)) break;
    Place(position, heap_[child]);
    position = child;
  }
  Place(position, entry);
}

void HostOrder::CheckIntegrity() const {
  for (std::size_t i = 0; i < heap_.size(); ++i) {
    CHECK_EQ(position_.at(heap_[i].item), i);
    if (i > 0) CHECK(heap_[(i - 1) / 2] < heap_[i]);
  }
  const auto there = [](std::uint32_t position) { return position != kNone; };
  CHECK_EQ(static_cast<std::size_t>(std::count_if(position_.begin(), position_.end(), there)), heap_.size());
}

}  // namespace loramux
