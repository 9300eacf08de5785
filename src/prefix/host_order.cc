#include "prefix/host_order.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace loramux {
namespace {

// Four, so that the heap of a large tier has half as many levels, each in about one cache line.
constexpr std::size_t kHeapChildren = 4;

std::size_t HeapParent(std::size_t position) { return (position - 1) / kHeapChildren; }

}  // namespace

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
  for (; position > 0 && entry < heap_[HeapParent(position)]; position = HeapParent(position))
    Place(position, heap_[HeapParent(position)]);
  for (std::size_t child = kHeapChildren * position + 1; child < heap_.size(); child = kHeapChildren * position + 1) {
    const std::size_t end = std::min(child + kHeapChildren, heap_.size());
    for (std::size_t other = child + 1; other < end; ++other) {
      if (heap_[other] < heap_[child]) child = other;
    }
    if (!(heap_[child] < entry)) break;
    Place(position, heap_[child]);
    position = child;
  }
  Place(position, entry);
}

void HostOrder::CheckIntegrity() const {
  for (std::size_t i = 0; i < heap_.size(); ++i) {
    CHECK_EQ(position_.at(heap_[i].item), i);
    if (i > 0) CHECK(heap_[HeapParent(i)] < heap_[i]);
  }
  const auto there = [](std::uint32_t position) { return position != kNone; };
  CHECK_EQ(static_cast<std::size_t>(std::count_if(position_.begin(), position_.end(), there)), heap_.size());
}

}  // namespace loramux
