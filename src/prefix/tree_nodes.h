// The nodes of the dependency tree (dependency_tree.h): their handles, their records and the tokens of their pages.
//
// A record has three parts, and one class writes each of them: PrefixIndex the place in the tree, NodeTiers the pages,
// ReuseStatistics the use. The parts lie in one record because an operation on a path needs all three of each node. The
// first of its two cache lines holds what matches, uses and evictions need.
//
// Not thread-safe. Allocates only when there are more nodes than ever before.
#pragma once

#include <cstdint>
#include <limits>
#include <ostream>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/ids.h"
#include "memory/page_pool.h"

namespace loramux {

// Names one branch. The id is reused after the branch is gone.
using BranchId = StrongId<struct BranchIdTag, std::uint32_t>;

// Handle of one node. It is valid as long as the node exists; Exists() detects the handle of a node that is gone.
struct NodeId {
  std::uint32_t index = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t generation = 0;
  friend bool operator==(NodeId, NodeId) = default;
};

inline std::ostream& operator<<(std::ostream& out, NodeId node) { return out << node.index << '.' << node.generation; }

// The record of a node.
struct alignas(64) TreeNode {
  // No node, or no position.
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  // The transfer that a node is part of.
  enum class Move : std::uint8_t { kNone, kBackUp, kFetch };

  // Place in the tree: PrefixIndex.
  std::uint64_t hash = 0;  // hash of the whole prefix and the branch
  std::uint32_t parent = kNone;
  std::uint32_t generation = 0;  // odd while the node exists; TreeNodes writes it
  std::uint32_t branch = kNone;
  std::int32_t depth = 0;  // pages from the branch to this node, inclusive; 0: the top of a branch, without a page
  // Pages: NodeTiers.
  std::int32_t users = 0;
  std::int32_t device_children = 0;
  // Use: ReuseStatistics.
  std::int32_t wants = 0;
  float frequency = 0;
  TimeNs last_use = 0;
  TimeNs host_worth = std::numeric_limits<TimeNs>::min();
  // Pages, continued; generation 0: none.
  PageHandle page, host_page;
  Move move = Move::kNone;
  // Place in the tree, continued: whether the node is in a group of its siblings.
  bool grouped = false;
  // Use, continued.
  bool resting = false;  // observed, and unused since last_use
  float edge_frequency = 0;
  // Place in the tree, continued.
  std::uint32_t first_child = kNone, next_sibling = kNone, previous_sibling = kNone;
  // Snapshots: DependencyTree. The page's number in its snapshot, from 1; 0: a page of keys and values. For a page of
  // keys and values, the last page of the snapshot below it (kNone: there is none, or not all of it); for a page of a
  // snapshot, the page of keys and values above it.
  std::int32_t state = 0;
  std::uint32_t snapshot = kNone;
  // Pages, continued: positions in the lists of idle leaves and of host roots.
  std::uint32_t leaf_position = kNone, root_position = kNone;

  bool exists() const { return (generation & 1u) != 0; }
  bool has_device_page() const { return page.generation != 0; }
  bool has_host_page() const { return host_page.generation != 0; }
  bool moving() const { return move != Move::kNone; }  // a transfer between the tiers involves the node
  // Whether the keys and values can be read on the device. Always true for the top of a branch.
  bool on_device() const { return depth == 0 || (has_device_page() && move != Move::kFetch); }
  // Whether the node may be evicted from the device.
  bool is_idle_leaf() const { return depth > 0 && has_device_page() && users == 0 && device_children == 0; }
  // Whether the host page is complete.
  bool has_host_copy() const { return has_host_page() && move != Move::kBackUp; }
  // Whether the host page may be dropped: the copy of a device page, or a leaf of the host part, not in transfer.
  bool is_droppable() const { return has_host_page() && !moving() && (on_device() || first_child == kNone); }
};

// See the top of this file. Unless noted, functions that take a NodeId require that the node exists.
class TreeNodes {
 public:
  static constexpr std::uint32_t kNone = TreeNode::kNone;

  // REQUIRES: page_tokens > 0.
  explicit TreeNodes(std::int64_t page_tokens);
  TreeNodes(const TreeNodes&) = delete;
  TreeNodes& operator=(const TreeNodes&) = delete;

  // Adds a node with an empty record and returns its index; its tokens are arbitrary. The index removed last is used
  // first.
  std::uint32_t Add();
  // Makes the index free; its handles become invalid. The record can be read until the next Add.
  void Remove(std::uint32_t index);

  // The record at an index below slots(), whether its node exists or not.
  TreeNode& operator[](std::uint32_t index) { return nodes_[index]; }
  const TreeNode& operator[](std::uint32_t index) const { return nodes_[index]; }
  TreeNode& At(NodeId node) {
    CHECK(Exists(node));
    return nodes_[node.index];
  }
  const TreeNode& At(NodeId node) const {
    CHECK(Exists(node));
    return nodes_[node.index];
  }

  // Whether the handle names a node that still exists.
  bool Exists(NodeId node) const {
    return node.index < nodes_.size() && nodes_[node.index].generation == node.generation &&
           (node.generation & 1u) != 0;
  }
  // The handle of the node at this index.
  NodeId IdOf(std::uint32_t index) const { return {index, nodes_[index].generation}; }
  // Pages from the branch to the node; 0 for the top of a branch.
  std::int64_t Depth(NodeId node) const { return At(node).depth; }
  NodeId Parent(NodeId node) const { return IdOf(At(node).parent); }  // REQUIRES: depth > 0
  // The same without the pages of a snapshot: pages of keys and values on the path, and the last of them.
  std::int64_t KvDepth(NodeId node) const { return At(node).depth - At(node).state; }
  NodeId KvNode(NodeId node) const { return At(node).state > 0 ? IdOf(At(node).snapshot) : node; }
  // The snapshot below a page of keys and values ends at `last`; kNone: there is none any more.
  void SetSnapshot(std::uint32_t above, std::uint32_t last) {
    (*this)[above].snapshot = last;
    ++snapshot_changes_;
  }
  // Counts these changes: the beginning of a path that stays is another one only after one of them.
  std::uint64_t snapshot_changes() const { return snapshot_changes_; }
  // Iterate over the children of a node; generation 0 marks the end. The order is arbitrary but deterministic.
  NodeId FirstChild(NodeId node) const { return IdOrNone(At(node).first_child); }
  NodeId NextSibling(NodeId node) const { return IdOrNone(At(node).next_sibling); }
  // Whether the node exists and is in the host tier alone, below a device node or a branch.
  bool IsHostRoot(std::uint32_t index) const {
    const TreeNode& node = nodes_[index];
    return node.exists() && node.depth > 0 && node.has_host_page() && !node.has_device_page() &&
           nodes_[node.parent].on_device();
  }
  // Whether the node's parent has no other child.
  bool IsOnlyChild(std::uint32_t index) const {
    const TreeNode& node = nodes_[index];
    return node.next_sibling == kNone && nodes_[node.parent].first_child == index;
  }

  // The tokens of the node's page.
  std::span<TokenId> Tokens(std::uint32_t index) { return std::span(tokens_).subspan(index * size_, size_); }
  std::span<const TokenId> Tokens(std::uint32_t index) const {
    return std::span(tokens_).subspan(index * size_, size_);
  }

  // Load a node, or the tokens of its page, into the CPU caches.
  void Prefetch(std::uint32_t index) const { __builtin_prefetch(&nodes_[index]); }
  void PrefetchTokens(std::uint32_t index) const { __builtin_prefetch(tokens_.data() + index * size_); }
  // Loads the node's parent into the CPU caches and returns the parent's index. REQUIRES: depth > 0.
  std::uint32_t PrefetchParent(NodeId node) const {
    const std::uint32_t parent = nodes_[node.index].parent;
    Prefetch(parent);
    __builtin_prefetch(&nodes_[parent].host_page);
    return parent;
  }

  std::int64_t page_tokens() const { return static_cast<std::int64_t>(size_); }
  std::size_t slots() const { return nodes_.size(); }                // node indices are below this
  std::size_t size() const { return nodes_.size() - free_.size(); }  // nodes that exist

  // Aborts if the free list and the records disagree.
  void CheckIntegrity() const;

 private:
  NodeId IdOrNone(std::uint32_t index) const { return index == kNone ? NodeId{} : IdOf(index); }

  const std::size_t size_;  // tokens of a page
  std::vector<TreeNode> nodes_;
  std::vector<TokenId> tokens_;  // size_ entries a node
  std::vector<std::uint32_t> free_;
  std::uint64_t snapshot_changes_ = 0;
};

}  // namespace loramux
