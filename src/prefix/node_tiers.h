// The tiers of the dependency tree: which node has a page on the device or in the host tier, who uses it, and what is
// in transfer. It owns the pages of all nodes.
//
// The device nodes form the upper part of each branch; nodes below them may be in the host tier alone. A device node
// may have a copy in the host tier. Only leaves of the device part are evicted, and only roots of the host part are
// fetched (FastLibra 4.2). A node that requests or a transfer use stays where it is.
//
// Not thread-safe. Reads no clock. Knows neither tokens nor visits.
//
// Invariants (CheckIntegrity):
// - Every node has a page in a tier, and the parent of a device node is on the device.
// - Pages are current, and no page belongs to two nodes.
// - A parent has at least as many users as its children together.
// - A used node is on the device or on its way there.
// - The counts and lists (idle pages, idle leaves, host roots, transfers by branch) equal those of a walk.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/clock.h"
#include "memory/page_pool.h"
#include "prefix/host_order.h"
#include "prefix/node_list.h"
#include "prefix/tree_nodes.h"

namespace loramux {

// The place of a node's host page in the order of the host tier. Nodes of a path are used at the same time, and the
// beginning is used at least as often as the end. So of equal worth the deeper node goes first, because nothing can
// stay without the nodes above it.
inline HostOrder::Entry HostEntry(const TreeNode& node, std::uint32_t index) {
  constexpr std::uint64_t kDeepest = std::numeric_limits<std::int32_t>::max();
  return {node.host_worth, (kDeepest - static_cast<std::uint64_t>(node.depth)) << 32 | index, index};
}

// See the top of this file. Unless noted, functions that take a NodeId require that the node exists.
class NodeTiers {
 public:
  // Owns none of the arguments. `host` may be null (no host tier), `device` too if no page ever comes.
  NodeTiers(TreeNodes* nodes, PagePool* device, PagePool* host);

  // ---- Where pages are ----

  PageHandle Page(NodeId node) const { return nodes_->At(node).page; }  // REQUIRES: on the device
  // Whether the node's keys and values can be read on the device. Always true for the top of a branch.
  bool OnDevice(NodeId node) const { return nodes_->At(node).on_device(); }
  // Whether the node exists and has a device page. A running fetch may still be filling that page.
  bool HasDevicePage(NodeId node) const { return nodes_->Exists(node) && (*nodes_)[node.index].has_device_page(); }
  // Writes the device pages from the branch down to the node. REQUIRES: out.size() is the depth of the node, and the
  // path is on the device or on its way there.
  void CopyPath(NodeId node, std::span<PageHandle> out) const;

  std::int64_t pages() const { return pages_; }  // on the device, in all branches
  std::int64_t pages(BranchId branch) const { return CountsOf(branch).pages; }
  std::int64_t idle_pages() const { return idle_pages_; }  // device pages without users: history
  // Pages in the host tier, including those in transfer.
  std::int64_t host_pages() const { return host_pages_; }
  // Host pages that are not in transfer.
  std::int64_t droppable_host_pages() const { return host_pages_ - moving_; }
  // Pages in transfer whose node has been removed; the number is the same in each tier.
  std::int64_t orphans() const { return orphans_; }
  // Whether pages of the branch are in transfer between the tiers.
  bool HasMoves(BranchId branch) const { return CountsOf(branch).moving > 0; }
  // Indices of the branches with pages in transfer. They are few. The order is arbitrary but deterministic.
  std::span<const std::uint32_t> BranchesWithMoves() const { return moving_branches_; }

  // Indices of the nodes that may be evicted: without users, on the device, without children there. The order is
  // arbitrary but deterministic.
  std::span<const std::uint32_t> IdleLeaves() const { return idle_leaves_.all(); }
  // Appends the nodes that became idle leaves since the last call; some may no longer be. Returns false if there were
  // too many to list.
  bool TakeNewIdleLeaves(std::vector<NodeId>& out);
  // Indices of the nodes where the host part of each path begins: nodes in the host tier alone, below a device node or
  // a branch. These may be fetched next if their adapter is on the device (FastLibra 4.2). The order is arbitrary but
  // deterministic.
  std::span<const std::uint32_t> HostRoots() const { return host_roots_.all(); }

  // ---- Users ----

  // Adds or removes a user of one node: a request, or a transfer. Call UpdateLeaf for the last node of the path when
  // all its nodes are done.
  void AddUser(std::uint32_t index) {
    TreeNode& node = (*nodes_)[index];
    if (node.users++ == 0 && node.has_device_page()) --idle_pages_;
  }
  // Returns true if it was the last user. REQUIRES: the node has users.
  bool RemoveUser(std::uint32_t index) {
    TreeNode& node = (*nodes_)[index];
    CHECK_GT(node.users, 0);
    if (--node.users == 0 && node.has_device_page()) ++idle_pages_;
    return node.users == 0;
  }
  void UpdateLeaf(std::uint32_t index);

  // ---- Pages come and go ----

  // The node's page on the device is `page` from now on. If the node has a copy in the host tier, the copy stays.
  // REQUIRES: the node has no device page, and its parent has one or is a top.
  void ArriveOnDevice(std::uint32_t index, PageHandle page);
  // Frees the device page of a node with a copy in the host tier. REQUIRES: no users, no children on the device.
  void EvictToHost(std::uint32_t index);
  // Frees the node's pages in both tiers. Pages in transfer are left to the transfer, which frees them. The caller
  // removes the node. REQUIRES: no children.
  void RemovePages(std::uint32_t index);

  // The page of least host worth that can be dropped from the host tier; null: there is none.
  const HostOrder::Entry* NextToDrop();
  // Call when the host page of a node may have become droppable.
  void OfferToDrop(std::uint32_t index) {
    if (!drop_order_.Has(index)) drop_order_.Set(HostEntry((*nodes_)[index], index));
  }
  // A plan drops the page: NextToDrop passes it over until OfferToDrop.
  void HoldFromDrop(std::uint32_t index) { drop_order_.Remove(index); }
  // Frees the host page of a node, which has a page on the device too or is removed.
  void FreeHostPage(std::uint32_t index);

  // ---- Transfers ----

  // The two pages of a node in transfer. The transfer holds both until EndMove.
  struct MovingPages {
    NodeId node;
    PageHandle device, host;
  };
  // See the functions of these names in DependencyTree.
  void BeginBackUp(std::span<const NodeId> nodes, std::vector<MovingPages>& pages);
  void BeginFetch(NodeId tail, std::vector<MovingPages>& pages);
  void EndMove(std::span<const MovingPages> pages, bool failed);

  // Aborts if an invariant is violated.
  void CheckIntegrity() const;

 private:
  static constexpr std::uint32_t kNone = TreeNode::kNone;
  using Move = TreeNode::Move;

  // The pages of one branch.
  struct BranchCounts {
    std::int64_t pages = 0;  // on the device
    std::int64_t moving = 0;
    std::uint32_t moving_position = 0;  // in moving_branches_, if moving > 0
  };
  BranchCounts CountsOf(BranchId branch) const {
    return branch.value < branches_.size() ? branches_[branch.value] : BranchCounts{};
  }
  // Bring host_roots_ up to date after a change of the node, or also of its children.
  void UpdateHostRoot(std::uint32_t index);
  void UpdateHostRootsBelow(std::uint32_t index);
  // Records that the node lost its device page, which the caller has freed or passed on.
  void LeaveDevice(std::uint32_t index);
  // A transfer uses the path.
  void UsePath(std::uint32_t tail);
  // Sets the node's move and keeps moving_ and moving_branches_ up to date.
  void SetMove(TreeNode& node, Move move);
  void CheckNode(std::uint32_t index) const;
  void CheckUsers() const;
  void CheckCounts() const;

  TreeNodes* nodes_;
  PagePool* device_;
  PagePool* host_;
  NodeList<&TreeNode::leaf_position> idle_leaves_;
  NodeList<&TreeNode::root_position> host_roots_;
  HostOrder drop_order_;  // worths may have risen since
  std::vector<NodeId> new_idle_leaves_;
  bool new_idle_leaves_complete_ = true;
  std::vector<BranchCounts> branches_;  // by branch, as far as any had pages
  std::vector<std::uint32_t> moving_branches_;
  std::int64_t pages_ = 0, idle_pages_ = 0, host_pages_ = 0, moving_ = 0, orphans_ = 0;
};

}  // namespace loramux
