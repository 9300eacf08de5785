// The order in which a full host tier drops pages of keys and values: the least host worth first (ReuseStatistics).
// Only copies of device pages and leaves of the host part can be dropped, and no page in transfer.
//
// A worth never falls and does not change with time alone. So a heap keeps the order: an entry whose worth has risen
// since is pushed again when it comes to the top. A node has one entry at most, so that the heap stays small. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "cache/tree_nodes.h"

namespace loramux {

// See the top of this file.
class HostDropOrder {
 public:
  // Does not own the nodes; writes their `in_drop_order`.
  explicit HostDropOrder(TreeNodes* nodes) : nodes_(nodes) {}

  // Call when the page of a node may have become droppable. `host_pages`: pages in the host tier, which bound the
  // memory of the heap.
  void Offer(std::uint32_t index, std::int64_t host_pages);
  // The least worth of a droppable page; the largest TimeNs if there is none.
  TimeNs LeastWorth();
  // Removes the page of least worth from the order and returns its node. REQUIRES: there is a droppable page.
  std::uint32_t Take();

 private:
  // An entry of the heap; outdated if the node or its worth has changed.
  struct Entry {
    TimeNs worth = 0;
    std::int32_t depth = 0;
    NodeId node;
    // Order for a heap with the least worth on top. Nodes of a path are used at the same time, and the beginning is
    // used at least as often as the end. Of equal worth the deeper node is dropped first, because nothing can stay
    // without the nodes above it.
    bool operator<(const Entry& other) const {
      if (worth != other.worth) return worth > other.worth;
      return depth != other.depth ? depth < other.depth : node.index > other.node.index;
    }
  };
  void Push(std::uint32_t index);
  // Removes the first entry.
  void Pop();
  bool IsDroppable(NodeId node) const;
  // Brings the droppable page of least worth to the top. False: there is none.
  bool FindNext();

  TreeNodes* nodes_;
  std::vector<Entry> heap_;
};

}  // namespace loramux
