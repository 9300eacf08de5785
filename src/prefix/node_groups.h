// Groups of dependency tree nodes that share a key. A hash table maps the key to the youngest node of its group; a
// linked list leads from there to the oldest. Adding and removing take constant time, whatever the size of the group. A
// key is a hash of the common property, so the caller must compare the property itself.
//
// Not thread-safe. The order within a group depends on the order of additions alone. Memory: 12 bytes for each node
// index and 16 to 32 bytes for each group. Allocates only when more memory is needed than ever before.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace loramux {

// See the top of this file.
class NodeGroups {
 public:
  // No node.
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  // Adds `node` as the youngest of the group. REQUIRES: `node` is in no group.
  void Add(std::uint32_t node, std::uint32_t key);
  // REQUIRES: `node` is in a group.
  void Remove(std::uint32_t node);

  // The youngest node of the group; kNone if the group is empty.
  std::uint32_t First(std::uint32_t key) const;
  // The next older node of the group; kNone after the oldest. REQUIRES: `node` is in a group.
  std::uint32_t Next(std::uint32_t node) const { return links_[node].next; }
  std::uint32_t KeyOf(std::uint32_t node) const { return links_[node].key; }  // REQUIRES: as Next
  std::int64_t size() const { return size_; }                                 // nodes in all groups

  // Aborts if table and lists disagree.
  void CheckIntegrity() const;

 private:
  // The neighbours of a node in its group's list.
  struct Link {
    std::uint32_t key = 0, next = kNone, previous = kNone;
  };
  // Slot of the table (linear probing); at most half of the slots are used.
  struct Slot {
    std::uint32_t key = 0, first = kNone;
  };
  // Positions in the table; see Slot.
  std::size_t Home(std::uint32_t key) const { return key & (slots_.size() - 1); }
  std::size_t Following(std::size_t slot) const { return (slot + 1) & (slots_.size() - 1); }
  std::size_t SlotOf(std::uint32_t key) const;  // the key's slot, or the free slot where it belongs
  // Doubles the table.
  void Grow();
  // Removes the entry at `hole`.
  void FreeSlot(std::size_t hole);

  std::vector<Slot> slots_ = std::vector<Slot>(64);  // size: a power of two
  std::vector<Link> links_;                          // by node index
  std::size_t groups_ = 0;
  std::int64_t size_ = 0;
};

}  // namespace loramux
