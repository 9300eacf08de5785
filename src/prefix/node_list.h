// A list of nodes of the dependency tree with constant-time additions and removals. Each record holds its node's
// position in the list, so a node needs no search. The order is arbitrary but deterministic: a node that leaves is
// replaced by the last one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "prefix/tree_nodes.h"

namespace loramux {

// See the top of this file. `kPosition` is the member of the record that holds the position.
template <std::uint32_t TreeNode::*kPosition>
class NodeList {
 public:
  // Does not own the nodes.
  explicit NodeList(TreeNodes* nodes) : nodes_(nodes) {}

  // Puts the node into the list (`is`) or takes it out. Returns true if it was put in and was not there before.
  bool Set(std::uint32_t index, bool is) {
    TreeNode& node = (*nodes_)[index];
    if (is == (node.*kPosition != TreeNode::kNone)) return false;
    if (is) {
      node.*kPosition = static_cast<std::uint32_t>(list_.size());
      list_.push_back(index);
      return true;
    }
    const std::uint32_t last = list_.back();
    list_[node.*kPosition] = last;
    (*nodes_)[last].*kPosition = node.*kPosition;
    list_.pop_back();
    node.*kPosition = TreeNode::kNone;
    return false;
  }

  // Indices of the nodes.
  std::span<const std::uint32_t> all() const { return list_; }
  // Aborts unless the node is in the list exactly if `is`.
  void Check(std::uint32_t index, bool is) const {
    const std::uint32_t position = (*nodes_)[index].*kPosition;
    CHECK_EQ(position != TreeNode::kNone, is);
    if (is) CHECK_EQ(list_.at(position), index);
  }

 private:
  TreeNodes* nodes_;
  std::vector<std::uint32_t> list_;
};

}  // namespace loramux
