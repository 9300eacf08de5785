// The adapters whose copy in the host tier may be evicted for another one, in the order in which they go: the least
// host worth first (ReuseStatistics::HostWorth), of equal worth the one that arrived in the host tier first.
//
// The worth of an adapter may rise and fall, but only when a request begins or ends with the adapter. So the order is
// kept (a heap with positions) and updated for the adapters that have changed (ResidencyManager::TakeChanges), instead
// of a search of all adapters for each victim. A plan reads the order from its beginning (Nth) and changes nothing.
//
// Not thread-safe. A slot is an index in ResidencyManager::All. Allocates only when there are more copies, or higher
// slots, than ever before.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "base/clock.h"

namespace loramux {

// See the top of this file.
class HostVictims {
 public:
  // The copy of the adapter in the slot may be evicted (again), at this place in the order. `arrival` ascends with the
  // arrivals in the host tier and is unique. Takes logarithmic time.
  void Set(std::uint32_t slot, TimeNs worth, std::uint64_t arrival);
  // The copy may not be evicted, or is gone. Does nothing if it is not in the order. Takes logarithmic time.
  void Remove(std::uint32_t slot);

  // A copy that may be evicted.
  struct Copy {
    TimeNs worth = 0;
    std::uint64_t arrival = 0;
    std::uint32_t slot = 0;
    auto operator<=>(const Copy&) const = default;
  };
  // The copy that goes after `n` others; none if there are not so many. What was read before is kept until a change, so
  // reading the first n takes logarithmic time for each, once.
  std::optional<Copy> Nth(std::size_t n);
  std::size_t size() const { return heap_.size(); }

  // Aborts if the heap, its positions or what was read disagree.
  void CheckIntegrity() const;

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  // Puts the copy at this position of the heap.
  void Place(std::size_t position, const Copy& copy);
  // Move the copy at `position` to where it belongs.
  void Restore(std::size_t position);
  std::size_t Up(std::size_t position);
  void Down(std::size_t position);
  // Forgets what was read.
  void Changed();
  // Reads one more copy. REQUIRES: ranked_.size() < heap_.size().
  void RankNext();
  void PushFrontier(std::size_t position);
  // Order of positions for a heap with the first copy on top.
  bool Later(std::uint32_t a, std::uint32_t b) const { return heap_[b] < heap_[a]; }

  std::vector<Copy> heap_;               // the first copy is on top
  std::vector<std::uint32_t> position_;  // in heap_, by slot; kNone: not there
  std::vector<Copy> ranked_;             // the first copies, in order
  std::vector<std::uint32_t> frontier_;  // a heap of positions: copies not in ranked_ whose parent is
};

}  // namespace loramux
