// An order in which items leave the host tier: the least host worth first (ReuseStatistics::HostWorth), of equal worth
// the lowest tie. There is one of adapters and one of pages of history.
//
// A heap with positions, so that an item whose worth has changed needs no search. Not thread-safe. Allocates only when
// there are more items, or higher numbers, than ever before.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/clock.h"

namespace loramux {

// See the top of this file. An item is a slot in ResidencyManager::All, or the index of a node.
class HostOrder {
 public:
  // An item's place in the order. Ties are unique.
  struct Entry {
    TimeNs worth = 0;
    std::uint64_t tie = 0;
    std::uint32_t item = 0;
    auto operator<=>(const Entry&) const = default;
  };
  // Puts the item into the order, or moves it there to another place. Takes logarithmic time.
  void Set(const Entry& entry);
  // Takes the item out. Does nothing if it is not in the order. Takes logarithmic time.
  void Remove(std::uint32_t item);

  bool Has(std::uint32_t item) const { return item < position_.size() && position_[item] != kNone; }
  // The item that goes first; null: there is none. Valid until the next change.
  const Entry* First() const { return heap_.empty() ? nullptr : heap_.data(); }
  std::size_t size() const { return heap_.size(); }

  // Aborts if the heap and its positions disagree.
  void CheckIntegrity() const;

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  // Puts the entry at this position of the heap.
  void Place(std::size_t position, const Entry& entry);
  // Moves the entry at `position` to where it belongs.
  void Restore(std::size_t position);

  std::vector<Entry> heap_;              // the first one is on top
  std::vector<std::uint32_t> position_;  // in heap_, by item; kNone: not there
};

}  // namespace loramux
