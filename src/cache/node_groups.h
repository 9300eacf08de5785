// Nodes of the dependency tree in groups that have a key in common: a hash table from the key to the youngest of the
// group, and a list through the others, from the youngest to the oldest. To add and to remove takes constant time
// however large the group is. The key is a hash of what the group shall have in common: whoever looks compares that
// itself.
//
// Not thread-safe. The order within a group depends on the order of additions alone. Memory: 12 bytes a node index, and
// 16 to 32 a group; allocates only where more is needed than ever before.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace loramux {

class NodeGroups {
 public:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  // REQUIRES: `node` is in no group.
  void Add(std::uint32_t node, std::uint32_t key);
  // REQUIRES: `node` is in a group.
  void Remove(std::uint32_t node);

  // Of the group, the youngest; kNone: there is none.
  std::uint32_t First(std::uint32_t key) const;
  // The next older one; kNone after the oldest. REQUIRES: `node` is in a group.
  std::uint32_t Next(std::uint32_t node) const { return links_[node].next; }
  std::uint32_t KeyOf(std::uint32_t node) const { return links_[node].key; }  // REQUIRES: as Next
  std::int64_t size() const { return size_; }                                 // nodes in groups

  // Aborts if table and lists disagree.
  void CheckIntegrity() const;

 private:
  struct Link {
    std::uint32_t key = 0, next = kNone, previous = kNone;
  };
  // Linear probing; at most half of the slots are taken.
  struct Slot {
    std::uint32_t key = 0, first = kNone;
  };
  std::size_t Home(std::uint32_t key) const { return key & (slots_.size() - 1); }
  std::size_t Following(std::size_t slot) const { return (slot + 1) & (slots_.size() - 1); }
  std::size_t SlotOf(std::uint32_t key) const;  // the key's, or the free one where it would be
  void Grow();
  void FreeSlot(std::size_t hole);

  std::vector<Slot> slots_ = std::vector<Slot>(64);  // a power of two
  std::vector<Link> links_;                          // by node index
  std::size_t groups_ = 0;
  std::int64_t size_ = 0;
};

}  // namespace loramux
