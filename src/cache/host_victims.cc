#include "cache/host_victims.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace loramux {

void HostVictims::Set(std::uint32_t slot, TimeNs worth, std::uint64_t arrival) {
  const Copy copy{worth, arrival, slot};
  if (position_.size() <= slot) position_.resize(slot + std::size_t{1}, kNone);
  std::size_t position = position_[slot];
  if (position == kNone) {
    position = heap_.size();
    heap_.emplace_back();
    ranked_.reserve(heap_.capacity());
    frontier_.reserve(heap_.capacity());
  } else if (heap_[position] == copy) {
    return;
  }
  Changed();
  Place(position, copy);
  Restore(position);
}

void HostVictims::Remove(std::uint32_t slot) {
  if (slot >= position_.size() || position_[slot] == kNone) return;
  Changed();
  const std::size_t position = std::exchange(position_[slot], kNone);
  const Copy last = heap_.back();
  heap_.pop_back();
  if (position == heap_.size()) return;
  Place(position, last);
  Restore(position);
}

std::optional<HostVictims::Copy> HostVictims::Nth(std::size_t n) {
  if (n >= heap_.size()) return std::nullopt;
  while (ranked_.size() <= n) RankNext();
  return ranked_[n];
}

void HostVictims::Changed() {
  ranked_.clear();
  frontier_.clear();
}

// The next copy is the top, or a child of one that was read.
void HostVictims::RankNext() {
  if (ranked_.empty()) frontier_.push_back(0);
  std::pop_heap(frontier_.begin(), frontier_.end(), [this](auto a, auto b) { return Later(a, b); });
  const std::size_t next = frontier_.back();
  frontier_.pop_back();
  ranked_.push_back(heap_[next]);
  PushFrontier(2 * next + 1);
  PushFrontier(2 * next + 2);
}

void HostVictims::PushFrontier(std::size_t position) {
  if (position >= heap_.size()) return;
  frontier_.push_back(static_cast<std::uint32_t>(position));
  std::push_heap(frontier_.begin(), frontier_.end(), [this](auto a, auto b) { return Later(a, b); });
}

void HostVictims::Place(std::size_t position, const Copy& copy) {
  heap_[position] = copy;
  position_[copy.slot] = static_cast<std::uint32_t>(position);
}

void HostVictims::Restore(std::size_t position) { Down(Up(position)); }

std::size_t HostVictims::Up(std::size_t position) {
  const Copy copy = heap_[position];
  for (; position > 0 && copy < heap_[(position - 1) / 2]; position = (position - 1) / 2)
    Place(position, heap_[(position - 1) / 2]);
  Place(position, copy);
  return position;
}

void HostVictims::Down(std::size_t position) {
  const Copy copy = heap_[position];
  for (std::size_t child = 2 * position + 1; child < heap_.size(); child = 2 * position + 1) {
    if (child + 1 < heap_.size() && heap_[child + 1] < heap_[child]) ++child;
    if (!(heap_[child] < copy)) break;
    Place(position, heap_[child]);
    position = child;
  }
  Place(position, copy);
}

void HostVictims::CheckIntegrity() const {
  for (std::size_t i = 0; i < heap_.size(); ++i) {
    CHECK_EQ(position_.at(heap_[i].slot), i);
    if (i > 0) CHECK(heap_[(i - 1) / 2] < heap_[i]);
  }
  const auto there = [](std::uint32_t position) { return position != kNone; };
  CHECK_EQ(static_cast<std::size_t>(std::count_if(position_.begin(), position_.end(), there)), heap_.size());
  CHECK(std::is_sorted(ranked_.begin(), ranked_.end()));
}

}  // namespace loramux
