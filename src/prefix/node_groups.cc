#include "prefix/node_groups.h"

#include "base/check.h"

namespace loramux {

std::size_t NodeGroups::SlotOf(std::uint32_t key) const {
  std::size_t at = Home(key);
  while (slots_[at].first != kNone && slots_[at].key != key) at = Following(at);
  return at;
}

std::uint32_t NodeGroups::First(std::uint32_t key) const { return slots_[SlotOf(key)].first; }

void NodeGroups::Add(std::uint32_t node, std::uint32_t key) {
  if (links_.size() <= node) links_.resize(static_cast<std::size_t>(node) + 1);
  std::size_t at = SlotOf(key);
  if (slots_[at].first == kNone) {
    if (2 * (groups_ + 1) > slots_.size()) {
      Grow();
      at = SlotOf(key);
    }
    ++groups_;
  } else {
    links_[slots_[at].first].previous = node;
  }
  links_[node] = {.key = key, .next = slots_[at].first};
  slots_[at] = {key, node};
  ++size_;
}

void NodeGroups::Remove(std::uint32_t node) {
  const Link link = links_[node];
  if (link.next != kNone) links_[link.next].previous = link.previous;
  --size_;
  if (link.previous != kNone) {
    links_[link.previous].next = link.next;
    return;
  }
  const std::size_t at = SlotOf(link.key);
  CHECK_EQ(slots_[at].first, node);
  slots_[at].first = link.next;
  if (link.next == kNone) FreeSlot(at);
}

// Moves following entries into the hole where their home slot allows it, so a search may stop at the first free slot.
void NodeGroups::FreeSlot(std::size_t hole) {
  --groups_;
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = Following(hole); slots_[at].first != kNone; at = Following(at)) {
    const std::size_t from_home = (at - Home(slots_[at].key)) & mask, from_hole = (at - hole) & mask;
    if (from_home < from_hole) continue;
    slots_[hole] = slots_[at];
    hole = at;
  }
  slots_[hole] = Slot{};
}

void NodeGroups::Grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.first != kNone) slots_[SlotOf(slot.key)] = slot;
  }
}

void NodeGroups::CheckIntegrity() const {
  std::size_t groups = 0;
  std::int64_t nodes = 0;
  for (const Slot& slot : slots_) {
    if (slot.first == kNone) continue;
    ++groups;
    CHECK_EQ(First(slot.key), slot.first);
    std::uint32_t previous = kNone;
    for (std::uint32_t at = slot.first; at != kNone; previous = at, at = links_[at].next) {
      CHECK_EQ(links_[at].key, slot.key);
      CHECK_EQ(links_[at].previous, previous);
      ++nodes;
    }
  }
  CHECK_EQ(groups, groups_);
  CHECK_EQ(nodes, size_);
}

}  // namespace loramux
