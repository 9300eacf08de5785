// The dependency tree of FastLibra (section 4). It records which keys and values (KV) are cached, by adapter and by
// token content. The root is virtual. Below it stands one branch for each adapter content; the base model has a branch
// too. Below a branch lies a trie of full pages of `page_tokens` positions for each sharing domain.
//
// The tree joins four parts, which share the records of the nodes (tree_nodes.h):
// - index() finds nodes by their tokens (prefix_index.h);
// - branches() finds the tries of an adapter content (tree_branches.h);
// - tiers() knows where the pages are, who uses them and what moves (node_tiers.h);
// - reuse() counts visits and values what may be needed again (reuse_statistics.h).
// Each part can be read alone. All changes go through the tree, because most of them need several parts.
//
// Ownership. The tree owns its pages. A running request uses its path. It inserts each page that it has filled; if
// another request inserted the same content first, it continues with the tree's page. Pages that nothing uses are
// history. History stays until its memory is needed and is evicted leaves first, so every cached page stays reachable.
//
// Snapshots. Models with recurrent layers carry a state from token to token, which lies in `state_pages` pages of the
// pool. A state after a full page of keys and values may be kept: a snapshot is a chain of nodes below that page's
// node, one for each page of the state, found by tokens that no prompt has. So snapshots are used, evicted and moved as
// other pages are. Requests begin after a page only if the whole snapshot below it is there. What leads to no snapshot
// is useless.
//
// A tree may keep nothing, for caches without history. Matches then end at the top of a branch, requests keep their
// pages, and all counts stay 0. So its users need not know which tree they have.
//
// Not thread-safe. Reads no clock. No result depends on hash values or addresses.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "memory/page_pool.h"
#include "prefix/node_tiers.h"
#include "prefix/prefix_index.h"
#include "prefix/reuse_statistics.h"
#include "prefix/tree_branches.h"
#include "prefix/tree_nodes.h"

namespace loramux {

// See the top of this file. Unless noted, functions that take a NodeId require that the node exists.
class DependencyTree {
 public:
  using InPage = PrefixIndex::InPage;
  using MovingPages = NodeTiers::MovingPages;

  // Does not own the pools; `host` may be null (no host tier). `hash_seed`: see PrefixIndex. REQUIRES: page_tokens > 0,
  // frequency_half_life > 0.
  DependencyTree(std::int64_t page_tokens, PagePool* device, PagePool* host = nullptr,
                 TimeNs frequency_half_life = 60 * kNsPerSecond, std::uint64_t hash_seed = 0);
  // A tree that keeps nothing. REQUIRES: page_tokens > 0.
  explicit DependencyTree(std::int64_t page_tokens) : DependencyTree(page_tokens, nullptr) {}
  // Sets the pages of a snapshot; 0, the default: requests begin after any page. REQUIRES: the tree is empty.
  void set_state_pages(std::int64_t pages);
  // Destruction does not free the pages; they are released with their pools.
  DependencyTree(const DependencyTree&) = delete;
  DependencyTree& operator=(const DependencyTree&) = delete;

  // ---- The parts ----

  const TreeNodes& nodes() const { return nodes_; }
  const PrefixIndex& index() const { return index_; }
  const TreeBranches& branches() const { return branches_; }
  const NodeTiers& tiers() const { return tiers_; }
  const ReuseStatistics& reuse() const { return reuse_; }
  // False: the tree keeps nothing.
  bool keeps_history() const { return keeps_history_; }

  std::int64_t state_pages() const { return state_pages_; }

  // The properties of a node that policies may use.
  struct NodeView {
    TimeNs last_use = 0;
    double frequency = 0;       // visits, decaying, as of last_use
    double edge_frequency = 0;  // visits of its edge: ReuseStatistics::EdgeFrequency
    std::int64_t depth = 0;     // pages from the branch to this node, inclusive
    std::int32_t users = 0;     // running requests, and transfers, whose path contains the node
    std::int32_t wants = 0;     // waiting requests whose match ends at the node
    std::int32_t device_children = 0;
    BranchId branch;
  };
  // A snapshot of the node for policies.
  NodeView View(NodeId id) const {
    const TreeNode& node = nodes_.At(id);
    return {node.last_use,
            static_cast<double>(node.frequency),
            reuse_.EdgeFrequency(node),
            node.depth,
            node.users,
            node.wants,
            node.device_children,
            BranchId{node.branch}};
  }

  // ---- Branches ----

  // See TreeBranches.
  BranchId Hold(std::string_view content_digest) { return branches_.Hold(content_digest); }
  NodeId HoldTop(BranchId branch, std::string_view domain) { return branches_.HoldTop(branch, domain); }
  void ReleaseTop(NodeId top) { branches_.ReleaseTop(top); }
  // Gives back one hold of Hold. The last Release removes the branch and frees its pages as Clear does. REQUIRES (last
  // Release): no request uses the branch.
  void Release(BranchId branch);
  // Frees every page of the branch except pages in transfer; the transfer frees those when it ends. REQUIRES: no
  // request runs with the branch.
  void Clear(BranchId branch);

  // ---- Use ----

  // A running request visits every node on the path to `tail` and uses it until EndUse. Takes time proportional to the
  // depth. REQUIRES (Use): the path is on the device or on its way there.
  void Use(NodeId tail, TimeNs now);
  void EndUse(NodeId tail, TimeNs now);
  // Ends the use of `node` alone; the user keeps the path to the parent. REQUIRES: depth > 0.
  void EndUseOfLast(NodeId node, TimeNs now);
  // Marks `tail` as the node where a waiting request would begin. Policies evict wanted nodes after others, but may
  // evict them; Unwant does nothing if the node is gone.
  void Want(NodeId tail) { reuse_.Want(tail); }
  void Unwant(NodeId tail) { reuse_.Unwant(tail); }

  // Result of Insert.
  struct Inserted {
    NodeId node;
    // The owner of the page after Insert.
    enum Outcome {
      kTaken,    // the tree owns `page` now
      kExisted,  // the tree has a page of the same content; `page` stays with the caller
      // Nothing changed, try again later: a fetch is bringing the tree's page of the same content, or the tree keeps
      // nothing.
      kNotNow,
    } outcome = kTaken;
  };
  // Adds the page that the user of `parent` filled with the keys and values of `tokens`, and uses its node once for
  // that user. REQUIRES: `parent` is used or the top of a branch; tokens.size() == page_tokens.
  Inserted Insert(NodeId parent, std::span<const TokenId> tokens, PageHandle page, TimeNs now);
  // ---- Snapshots ----

  // Adds the next page of a snapshot, whose last page so far, or page of keys and values, is `parent`. Else as Insert.
  Inserted InsertState(NodeId parent, PageHandle page, TimeNs now);
  // The deepest node on the path to `tail` after which a request may begin, in either tier: the last page of a
  // snapshot, or the top. Without snapshots: `tail`.
  NodeId Beginning(NodeId tail) const;
  // That of the path to the page before the snapshot that ends at `node`. REQUIRES: `node` is not a top.
  NodeId BeginningBefore(NodeId node) const { return Beginning(nodes_.Parent(nodes_.KvNode(node))); }
  // Ends the use of the pages up to `node` that follow `tail`: of a snapshot, or of a page of which a part was copied.
  // The user keeps the path to `tail`.
  void EndUseAfter(NodeId tail, NodeId node, TimeNs now);
  // The snapshot that ends at `node` counts as used until now. REQUIRES: it is on the device or on its way there.
  void Renew(NodeId node, TimeNs now);

  // Loads into the CPU caches what Insert will read, for several pages (PrefixIndex). Changes nothing.
  void PrefetchInsert(NodeId parent, std::span<const TokenId> tokens) const {
    if (keeps_history_) index_.PrefetchInsert(parent, tokens);
  }

  // Frees the node's device page. If the node has no copy in the host tier, removes it and everything below it.
  // REQUIRES: the node is not used and has no children on the device.
  void Evict(NodeId node);

  // Samples how idle pages are used again (ReuseStatistics). Call it beside the forward pass.
  void ObserveIdlePages(TimeNs now, double remembered_s) { reuse_.ObserveIdlePages(now, remembered_s); }
  // See NodeTiers.
  bool TakeNewIdleLeaves(std::vector<NodeId>& out) { return tiers_.TakeNewIdleLeaves(out); }

  // ---- Between the tiers (KvTiers) ----

  // Allocates a host page for a copy of each of `nodes` and appends the pairs to `pages`. Each node must be the parent
  // of the next. Uses the path to the last node until EndMove; one use serves the whole call, because a use costs
  // time proportional to the depth. REQUIRES: `nodes` is not empty; all are on the device, not in the host tier and not
  // in transfer; the host pool has enough free pages.
  void BeginBackUp(std::span<const NodeId> nodes, std::vector<MovingPages>& pages) { tiers_.BeginBackUp(nodes, pages); }
  // Allocates device pages for the part of the path to `tail` that is in the host tier alone, and appends the pairs
  // from the top down. The nodes count as device nodes from this call on, but OnDevice is false until EndMove. Uses
  // the path until then. REQUIRES: `tail` is not on the device, nothing on its path is in transfer, and enough device
  // pages are free.
  void BeginFetch(NodeId tail, std::vector<MovingPages>& pages) { tiers_.BeginFetch(tail, pages); }
  // Ends the transfer of the path that one BeginBackUp (BeginFetch) appended. Afterwards both pages hold the same
  // bytes; if it `failed`, the copy is freed. Where the node has been removed meanwhile, both pages are freed.
  void EndMove(std::span<const MovingPages> pages, bool failed) { tiers_.EndMove(pages, failed); }

  // Sets the bonus of ReuseStatistics::HostWorth. A tree that keeps nothing sees no visits and gives no bonus.
  // REQUIRES: the host tier is empty.
  void set_host_bonus(TimeNs per_doubling);
  // Frees the host page of the node, and removes the node if it has no other. REQUIRES: the page can be dropped
  // (NodeTiers::NextToDrop).
  void Drop(NodeId node);
  // See NodeTiers.
  const HostOrder::Entry* NextToDrop() { return tiers_.NextToDrop(); }
  void HoldFromDrop(NodeId node) { tiers_.HoldFromDrop(node.index); }
  // The same for a node that may be gone.
  void OfferToDrop(NodeId node) {
    if (nodes_.Exists(node) && nodes_[node.index].has_host_page()) tiers_.OfferToDrop(node.index);
  }

  // Aborts if an invariant of a part is violated. Takes time proportional to the size of the tree.
  void CheckIntegrity() const;

 private:
  // Removes a leaf (Remove) or everything below `top` (RemoveBelow) from both tiers.
  void Remove(std::uint32_t index);
  void RemoveBelow(std::uint32_t top);
  void CheckSnapshots() const;

  const bool keeps_history_;
  std::int64_t state_pages_ = 0;
  TreeNodes nodes_;
  PrefixIndex index_;
  TreeBranches branches_;
  NodeTiers tiers_;
  ReuseStatistics reuse_;
};

}  // namespace loramux
