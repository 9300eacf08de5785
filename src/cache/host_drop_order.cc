#include "cache/host_drop_order.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace loramux {

void HostDropOrder::Offer(std::uint32_t index, std::int64_t host_pages) {
  if ((*nodes_)[index].in_drop_order) return;
  Push(index);
  if (heap_.size() <= 1024 + 4 * static_cast<std::size_t>(host_pages)) return;
  heap_.clear();  // most entries are of nodes that are gone
  for (std::uint32_t i = 0; i < nodes_->slots(); ++i) {
    (*nodes_)[i].in_drop_order = false;
    if ((*nodes_)[i].exists() && (*nodes_)[i].has_host_page()) Push(i);
  }
}

void HostDropOrder::Push(std::uint32_t index) {
  TreeNode& node = (*nodes_)[index];
  node.in_drop_order = true;
  heap_.push_back({node.host_worth, node.depth, nodes_->IdOf(index)});
  std::push_heap(heap_.begin(), heap_.end());
}

void HostDropOrder::Pop() {
  const NodeId node = heap_.front().node;
  if (nodes_->Exists(node)) (*nodes_)[node.index].in_drop_order = false;
  std::pop_heap(heap_.begin(), heap_.end());
  heap_.pop_back();
}

// The copy of a device page, or a leaf of the host part.
bool HostDropOrder::IsDroppable(NodeId id) const {
  if (!nodes_->Exists(id)) return false;
  const TreeNode& node = (*nodes_)[id.index];
  return node.has_host_page() && !node.moving() && (node.on_device() || node.first_child == TreeNode::kNone);
}

bool HostDropOrder::FindNext() {
  while (!heap_.empty()) {
    const Entry first = heap_.front();
    const bool droppable = IsDroppable(first.node);
    if (droppable && (*nodes_)[first.node.index].host_worth == first.worth) return true;
    Pop();
    if (droppable) Push(first.node.index);  // used since it was pushed
  }
  return false;
}

TimeNs HostDropOrder::LeastWorth() { return FindNext() ? heap_.front().worth : std::numeric_limits<TimeNs>::max(); }

std::uint32_t HostDropOrder::Take() {
  CHECK(FindNext());
  const std::uint32_t index = heap_.front().node.index;
  Pop();
  return index;
}

}  // namespace loramux
