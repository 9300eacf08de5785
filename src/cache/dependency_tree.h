// The dependency tree of FastLibra (section 4). It records which keys and values (KV) are cached, by adapter and by
// token content.
//
// Structure. The root is virtual. Below it stands one branch for each adapter content; the base model has a branch too.
// A branch is keyed by a digest of the content, never by a name. After a reload under the same name, a request
// therefore finds none of the KV of the old weights. Below a branch lies a trie whose nodes are single full pages of
// `page_tokens` positions. The path from the branch to a node spells a token sequence.
//
// Domains. A branch has one trie for each sharing domain that has pages or requests (HoldTop): a match finds only pages
// of its own domain. Each trie begins at a node without a page, its top; the branch's own top is that of the shared
// domain "". Domains change nothing else: pages are counted and evicted by branch, whatever their domain.
//
// A node is one page, not an edge of several pages, for two reasons: nodes never split, so handles stay valid; and the
// unit of eviction is the unit of allocation. One hash table over all prefixes finds the children, so a match costs one
// look-up a page.
//
// A prompt may leave the cached path within a page. A child whose page begins with the same tokens then holds the keys
// and values of those first positions (MatchInPage). To find such a child, the tree groups the children of a node by
// their first tokens (node_groups.h). The first child of a node is in no group: most nodes have one child only, and
// then need no group.
//
// Tiers. The device nodes form the upper part of each branch; nodes below them may be in the host tier alone. A device
// node may have a copy in the host tier. Evicting a node with a copy keeps that copy. Evicting a node without a copy
// removes the node and everything below it. Only leaves of the device part are evicted, and only roots of the host part
// are fetched (FastLibra 4.2).
//
// Ownership. The tree owns its pages. A running request locks its path. It inserts each page that it has filled; if
// another request inserted the same content first, it continues with the tree's page. Unlocked pages are history.
// History stays until its memory is needed and is evicted leaves first, so every cached page stays reachable.
//
// Not thread-safe. Reads no clock. No result depends on hash values or addresses.
//
// Invariants (CheckIntegrity):
// - Every node has a page in a tier, and the parent of a device node is on the device.
// - Pages are current, and no page belongs to two nodes.
// - A parent has at least as many locks as its children together.
// - A locked node is on the device or on its way there.
// - The numbers of idle pages, idle leaves and host roots equal those that a walk over all nodes counts.
// - The table finds every node by its prefix.
// - Every node is the first child of its parent, or in a group.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/prng.h"
#include "cache/node_groups.h"
#include "cache/reuse_rates.h"
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

// See the top of this file.
class DependencyTree {
 public:
  // The properties of a node that policies may use. A visit is one Lock or Insert; frequencies decay by half each
  // half-life.
  struct NodeView {
    TimeNs last_use = 0;
    double frequency = 0;  // visits, decaying, as of last_use
    // The frequency that the first page of the node's edge had at its last visit. An edge is a run of pages without a
    // fork. A request that visits one page of an edge mostly visits all of them, so the edge as a whole has the visits.
    // For example, a conversation is an edge and has one visit a turn. Without a host tier this is the node's own
    // frequency: recomputation then costs the same for every page, so evicting an edge as a whole gains nothing.
    double edge_frequency = 0;
    std::int64_t depth = 0;  // pages from the branch to this node, inclusive
    std::int32_t locks = 0;  // running requests whose path contains the node
    std::int32_t wants = 0;  // waiting requests whose match ends at the node
    std::int32_t device_children = 0;
    BranchId branch;
  };

  // Does not own the pools; `host` may be null (no host tier). Prompts are untrusted, so `hash_seed` must be a secret
  // of the process: it prevents prompts that are crafted to collide in the table. No result depends on it. REQUIRES:
  // page_tokens > 0, frequency_half_life > 0.
  DependencyTree(std::int64_t page_tokens, PagePool* device, PagePool* host = nullptr,
                 TimeNs frequency_half_life = 60 * kNsPerSecond, std::uint64_t hash_seed = 0);
  // Destruction does not free the pages; they are released with their pools.
  DependencyTree(const DependencyTree&) = delete;
  DependencyTree& operator=(const DependencyTree&) = delete;

  // ---- Branches ----

  // Returns the branch of this content and creates it if there is none. Each call takes one hold.
  BranchId Hold(std::string_view content_digest);
  // Gives back one hold. The last Release removes the branch and frees its pages as Clear does. REQUIRES (last
  // Release): no request uses the branch.
  void Release(BranchId branch);
  // Frees every page of the branch except pages in transfer; the transfer frees those when it ends. REQUIRES: no
  // request runs with the branch.
  void Clear(BranchId branch);
  // The node without a page where matches of the shared domain begin in this branch.
  NodeId Top(BranchId branch) const;
  // The same for another sharing domain (empty: the shared one). Each call takes one hold, so that the top exists until
  // ReleaseTop. Without holds it exists as long as there are pages below it. Tops of other domains are one node each.
  NodeId HoldTop(BranchId branch, std::string_view domain);
  // Gives back one hold of HoldTop.
  void ReleaseTop(NodeId top);
  // Tops of all branches, those of the shared domain included.
  std::size_t tops() const { return branch_by_key_.size() + tops_.size(); }
  std::int64_t pages(BranchId branch) const { return branches_[branch.value].pages; }  // on the device
  bool IsShared(BranchId branch) const { return branches_[branch.value].holds > 1; }   // more than one hold
  // Whether pages of the branch are in transfer between the tiers.
  bool HasMoves(BranchId branch) const { return branches_[branch.value].moving > 0; }
  // Indices of the branches with pages in transfer. They are few. The order is arbitrary but deterministic.
  std::span<const std::uint32_t> BranchesWithMoves() const { return moving_branches_; }

  // ---- Matching ----

  // Returns the deepest cached node on the path of `tokens`, at a depth of at most `max_pages` pages. `tokens` begins
  // at the branch; the search starts at `from`, which lies on that path. Changes nothing. Takes about 40 nanoseconds a
  // page. REQUIRES: `from` exists.
  NodeId Match(NodeId from, std::span<const TokenId> tokens, std::int64_t max_pages) const;

  // The result of MatchInPage: the first `tokens` positions of the node's page match.
  struct InPage {
    NodeId node;
    std::int64_t tokens = 0;  // 0: no match
  };
  // Finds the device child of `parent` whose page shares the longest prefix with `next`, the tokens that follow those
  // of `parent`. The shared prefix has at least least_in_page() tokens and is shorter than a page. Where many children
  // begin alike, the search examines the first child and the kMostLookedAt youngest children of the group. Changes
  // nothing. Takes less than 1 microsecond, or a few microseconds if all that it reads is out of the CPU caches.
  InPage MatchInPage(NodeId parent, std::span<const TokenId> next) const;
  // The shortest prefix that MatchInPage reports: a quarter of a page. Copying a page would be cheaper than prefilling
  // even fewer tokens. But almost all prompts share their first one or two tokens, so a group would then contain nearly
  // all children.
  std::int64_t least_in_page() const { return (page_tokens_ + 3) / 4; }
  // Group members that MatchInPage examines at most.
  static constexpr int kMostLookedAt = 16;

  // Whether the handle names a node that still exists. Unless noted, the functions that take a NodeId require it.
  bool Exists(NodeId node) const {
    return node.index < nodes_.size() && nodes_[node.index].generation == node.generation &&
           (node.generation & 1u) != 0;
  }
  // Pages from the branch to the node; 0 for the top of a branch.
  std::int64_t Depth(NodeId node) const { return At(node).depth; }
  NodeId Parent(NodeId node) const { return IdOf(At(node).parent); }  // REQUIRES: depth > 0
  PageHandle Page(NodeId node) const { return At(node).page; }        // REQUIRES: on the device
  // Whether the node's keys and values can be read on the device. Always true for the top of a branch.
  bool OnDevice(NodeId node) const { return OnDevice(At(node)); }
  // Whether the node exists and has a device page. A running fetch may still be filling that page.
  bool HasDevicePage(NodeId node) const { return Exists(node) && nodes_[node.index].page.generation != 0; }
  // Whether the node has a complete copy in the host tier.
  bool InHostTier(NodeId node) const { return HasHostCopy(At(node)); }
  // Whether a transfer between the tiers involves the node.
  bool Moving(NodeId node) const { return At(node).move != Move::kNone; }
  // A snapshot of the node for policies.
  NodeView View(NodeId id) const {
    const Node& node = At(id);
    return {node.last_use,        static_cast<double>(node.frequency),
            EdgeFrequency(node),  node.depth,
            node.locks,           node.wants,
            node.device_children, BranchId{node.branch}};
  }
  // Writes the device pages from the branch down to the node. REQUIRES: out.size() == Depth(node), and the path is on
  // the device or on its way there.
  void CopyPath(NodeId node, std::span<PageHandle> out) const;

  // ---- Use ----

  // A running request visits every node on the path to `tail` and locks it until Unlock. Takes time proportional to the
  // depth. REQUIRES (Lock): the path is on the device or on its way there.
  void Lock(NodeId tail, TimeNs now);
  void Unlock(NodeId tail, TimeNs now);
  // Releases the lock on `node` alone; the holder keeps its lock on the path to the parent. REQUIRES: depth > 0.
  void UnlockLast(NodeId node, TimeNs now);
  // Marks `tail` as the node where a waiting request would begin. Policies evict wanted nodes after others, but may
  // evict them; Unwant does nothing if the node is gone.
  void Want(NodeId tail);
  void Unwant(NodeId tail);

  // Result of Insert.
  struct Inserted {
    NodeId node;
    // The owner of the page after Insert.
    enum Outcome {
      kTaken,    // the tree owns `page` now
      kExisted,  // the tree has a page of the same content; `page` stays with the caller
      kNotNow,   // a fetch is bringing the tree's page of the same content; nothing changed, try again later
    } outcome = kTaken;
  };
  // Adds the page that the holder of `parent` filled with the keys and values of `tokens`, and locks its node once for
  // the holder. REQUIRES: `parent` is locked or the top of a branch; tokens.size() == page_tokens.
  Inserted Insert(NodeId parent, std::span<const TokenId> tokens, PageHandle page, TimeNs now);

  // Loads into the CPU caches what the following Insert calls below `parent` will read; `tokens` holds the pages to be
  // inserted, in order. A prefetch costs about a tenth of the cache miss that it saves. Changes nothing.
  void PrefetchInsert(NodeId parent, std::span<const TokenId> tokens) const;

  // Loads into the CPU caches what evicting `nodes[i]` and the next few nodes will read. Call it with ascending `i`,
  // ahead of Evict. Changes nothing.
  void PrefetchEvict(std::span<const NodeId> nodes, std::size_t i) const;
  // Loads the node into the CPU caches. Changes nothing.
  void Prefetch(NodeId node) const { __builtin_prefetch(&nodes_[node.index]); }
  // Loads the node's parent into the CPU caches and returns the parent's index. REQUIRES: `node` exists, depth > 0.
  std::uint32_t PrefetchParent(NodeId node) const {
    const std::uint32_t parent = nodes_[node.index].parent;
    __builtin_prefetch(&nodes_[parent]);
    __builtin_prefetch(&nodes_[parent].host_page);
    return parent;
  }
  // Frees the node's device page. If the node has no copy in the host tier, removes it and everything below it.
  // REQUIRES: the node is unlocked and has no children on the device.
  void Evict(NodeId node);

  // ---- Between the tiers (KvTiers) ----

  // The two pages of a node in transfer. The transfer holds both until EndBackUp or EndFetch.
  struct MovingPages {
    NodeId node;
    PageHandle device, host;
  };
  // Allocates a host page for a copy of each of `nodes` and appends the pairs to `pages`. Each node must be the parent
  // of the next. Locks the path to the last node until EndBackUp; one lock serves the whole call, because a lock costs
  // time proportional to the depth. REQUIRES: `nodes` is not empty; all are on the device, not in the host tier and not
  // in transfer; the host pool has enough free pages.
  void BeginBackUp(std::span<const NodeId> nodes, std::vector<MovingPages>& pages);
  // Allocates device pages for the part of the path to `tail` that is in the host tier alone, and appends the pairs
  // from the top down. The nodes count as device nodes from this call on, but OnDevice is false until EndFetch. Locks
  // the path until then. REQUIRES: `tail` is not on the device, nothing on its path is in transfer, and enough device
  // pages are free.
  void BeginFetch(NodeId tail, std::vector<MovingPages>& pages);
  // Ends the transfer that one BeginBackUp (BeginFetch) appended. Afterwards both pages hold the same bytes; if it
  // `failed`, the copy is freed. Where the node has been removed meanwhile, both pages are freed.
  void EndBackUp(std::span<const MovingPages> pages, bool failed);
  void EndFetch(std::span<const MovingPages> pages, bool failed);

  // The value by which a full host tier orders its pages; the least is dropped first. It is the time of the last use.
  // With a host bonus, each doubling of the visits (as of the last visit) counts like a use that much later. It does
  // not change with time, so a heap can keep the order. Adapters in the host tier are compared by the same value
  // (Scheduler::PlanHostRoom).
  TimeNs HostWorth(TimeNs last_use, double frequency) const;
  // The node's host worth. It never decreases, and a parent's is at least its children's.
  TimeNs HostWorth(NodeId node) const { return At(node).host_worth; }
  // Sets the bonus for each doubling of visits, in nanoseconds; 0 by default. REQUIRES: the host tier is empty.
  void set_host_bonus(TimeNs per_doubling);
  // Frees `count` host pages, the least host worth first. REQUIRES: count <= droppable_host_pages().
  void DropHostPages(std::int64_t count);
  // Host pages that are not in transfer.
  std::int64_t droppable_host_pages() const { return host_pages_ - moving_; }
  // The least host worth of a page that can be dropped; the largest TimeNs if there is none.
  TimeNs LeastHostWorth();

  // ---- For policies ----

  // Indices of the nodes that may be evicted: unlocked, on the device, without children there. The order is arbitrary
  // but deterministic.
  std::span<const std::uint32_t> IdleLeaves() const { return idle_leaves_; }
  // Samples how idle pages of both tiers are reused. One page in kObservedOf is observed: its visits as they come, its
  // time without visits by samples. Each call takes some samples for the time since the previous call. Call it beside
  // the forward pass. `remembered_s`: see ReuseRates::Remembered.
  void ObserveIdlePages(TimeNs now, double remembered_s);
  // The reuse rates learned from the observed pages.
  const ReuseRates& reuse() const { return reuse_; }

  // Appends the nodes that became idle leaves since the last call; some may no longer be. Returns false if there were
  // too many to list.
  bool TakeNewIdleLeaves(std::vector<NodeId>& out);
  // Indices of the nodes where the host part of each path begins: nodes in the host tier alone, below a device node or
  // a branch. These may be fetched next if their adapter is on the device (FastLibra 4.2). The order is arbitrary but
  // deterministic.
  std::span<const std::uint32_t> HostRoots() const { return host_roots_; }
  // Iterate over the children of a node; generation 0 marks the end. The order is arbitrary but deterministic.
  NodeId FirstChild(NodeId node) const { return IdOrNone(At(node).first_child); }
  NodeId NextSibling(NodeId node) const { return IdOrNone(At(node).next_sibling); }
  // The handle of the node at this index.
  NodeId IdOf(std::uint32_t index) const { return {index, nodes_[index].generation}; }
  std::int64_t pages() const { return pages_; }  // on the device, in all branches
  // Pages in the host tier, including those in transfer.
  std::int64_t host_pages() const { return host_pages_; }
  // Pages in transfer whose node has been removed; the number is the same in each tier.
  std::int64_t orphans() const { return orphans_; }
  std::int64_t idle_pages() const { return idle_pages_; }        // unlocked device pages: history
  std::size_t branch_slots() const { return branches_.size(); }  // branch ids are below this
  std::size_t node_slots() const { return nodes_.size(); }       // node indices are below this
  std::int64_t page_tokens() const { return page_tokens_; }

  // Aborts if an invariant is violated. Takes time proportional to the size of the tree.
  void CheckIntegrity() const;

 private:
  // One node in so many is observed for reuse statistics.
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  // The transfer that a node is part of.
  static constexpr std::int64_t kObservedOf = 8;

  enum class Move : std::uint8_t { kNone, kBackUp, kFetch };

  // Two cache lines. The first holds what matches, uses and evictions need of each node on a path.
  struct alignas(64) Node {
    std::uint64_t hash = 0;  // of the whole prefix and the branch
    std::uint32_t parent = kNone;
    std::uint32_t generation = 0;  // odd while the node exists
    std::uint32_t branch = kNone;
    std::int32_t depth = 0;
    std::int32_t locks = 0;
    std::int32_t device_children = 0;
    std::int32_t wants = 0;
    float frequency = 0;
    TimeNs last_use = 0;
    TimeNs host_worth = std::numeric_limits<TimeNs>::min();
    PageHandle page, host_page;  // generation 0: none
    Move move = Move::kNone;
    bool grouped = false;  // in groups_
    bool resting = false;  // observed, and unused since last_use
    float edge_frequency = 0;
    std::uint32_t first_child = kNone, next_sibling = kNone, previous_sibling = kNone;
    std::uint32_t leaf_position = kNone;  // in idle_leaves_
    std::uint32_t root_position = kNone;  // in host_roots_
  };
  // A branch, or a free slot.
  struct alignas(64) Branch {
    std::int64_t pages = 0;  // on the device
    std::int64_t moving = 0;
    std::int64_t holds = 0;             // 0: a free slot
    std::uint32_t top = kNone;          // node of the shared domain
    std::uint32_t moving_position = 0;  // in moving_branches_, if moving > 0
    std::vector<std::uint32_t> tops;    // nodes of the other domains
    std::string key;
  };

  // The top of a domain other than the shared one.
  struct DomainTop {
    std::string key;             // in top_by_key_
    std::int64_t holds = 0;      // by HoldTop
    std::uint32_t position = 0;  // in Branch::tops
  };

  // Slot of the table over all prefixes (linear probing). The tag avoids most look-ups of other nodes.
  struct Slot {
    std::uint32_t tag = 0;  // the lower half of the node's hash
    std::uint32_t node = kNone;
  };

  const Node& At(NodeId node) const {
    CHECK(Exists(node));
    return nodes_[node.index];
  }
  Node& At(NodeId node) {
    CHECK(Exists(node));
    return nodes_[node.index];
  }
  // The tokens of the node's page.
  std::span<const TokenId> TokensOf(std::uint32_t index) const;
  std::uint64_t HashOf(std::uint64_t parent_hash, const TokenId* tokens) const;
  std::uint32_t Find(std::uint32_t parent, std::uint64_t hash, const TokenId* tokens) const;
  std::uint32_t NewNode();
  // Makes the node where a trie of the branch begins; `key` identifies branch and domain.
  std::uint32_t NewTop(std::uint32_t branch, std::string_view key);
  // Removes the node if it is the top of a domain that has neither holds nor pages.
  void RemoveTopIfUnused(std::uint32_t index);
  // Makes the index free; its handles become invalid.
  void FreeNode(std::uint32_t index);
  std::uint32_t GroupKey(std::uint32_t parent, const TokenId* tokens) const;
  // Whether the node's parent has no other child.
  bool IsOnlyChild(std::uint32_t index) const;
  // Updates edge_frequency on the path to `tail`.
  void CountEdges(std::uint32_t tail);
  // The frequency in NodeView::edge_frequency.
  double EdgeFrequency(const Node& node) const {
    return static_cast<double>(host_ == nullptr ? node.frequency : node.edge_frequency);
  }
  // Compares the node's page with `next` and keeps the better of it and `best`.
  void LookInPage(std::uint32_t index, std::uint32_t parent, std::span<const TokenId> next, InPage& best) const;
  // Makes the node a child of `parent`, in the table and (unless it is the first child) in a group.
  void Link(std::uint32_t index, std::uint32_t parent);
  // Undoes Link.
  void Unlink(std::uint32_t index);
  // The table over all prefixes.
  void PutInTable(std::uint32_t tag, std::uint32_t index);
  void TakeFromTable(std::uint32_t tag, std::uint32_t index);
  void GrowTable();
  std::size_t SlotOf(std::uint64_t hash_or_tag) const {
    return static_cast<std::uint32_t>(hash_or_tag) & (slots_.size() - 1);
  }
  std::size_t NextSlot(std::size_t slot) const { return (slot + 1) & (slots_.size() - 1); }
  float LeftAfter(TimeNs idle);  // the part of a frequency that is left
  bool IsObserved(const Node& node) const { return (&node - nodes_.data()) % kObservedOf == 0; }
  // Counts a visit at `now`.
  void Visit(Node& node, TimeNs now);
  // Removes one lock of the node.
  void LetGo(Node& node, TimeNs now);
  // Bring idle_leaves_ and host_roots_ up to date after a change of the node.
  void UpdateIdleLeaf(std::uint32_t index);
  void UpdateHostRoot(std::uint32_t index);
  void UpdateHostRootsBelow(std::uint32_t index);
  NodeId IdOrNone(std::uint32_t index) const { return index == kNone ? NodeId{} : IdOf(index); }
  void CheckNode(std::uint32_t index) const;
  void CheckTop(std::uint32_t index) const;
  // Whether the node is in the host tier alone, below a device node or a branch.
  bool IsHostRoot(const Node& node) const {
    return (node.generation & 1u) != 0 && node.depth > 0 && node.host_page.generation != 0 &&
           node.page.generation == 0 && OnDevice(nodes_[node.parent]);
  }
  static bool OnDevice(const Node& node) {
    return node.depth == 0 || (node.page.generation != 0 && node.move != Move::kFetch);
  }
  static bool HasHostCopy(const Node& node) { return node.host_page.generation != 0 && node.move != Move::kBackUp; }
  // Record that the node got its device page, or lost it. LeaveDevice does not free the page.
  void ArriveOnDevice(std::uint32_t index, PageHandle page);
  void LeaveDevice(std::uint32_t index);
  void FreeHostPage(Node& node);
  // Removes a leaf (Remove) or everything below `top` (RemoveBelow) from both tiers.
  void Remove(std::uint32_t index);
  void RemoveBelow(std::uint32_t top);
  // Lock or unlock a path for a transfer; this is not a visit.
  void LockPath(std::uint32_t tail);
  void UnlockPath(std::uint32_t tail);
  // Sets the node's move and keeps moving_ and moving_branches_ up to date.
  void SetMove(Node& node, Move move);
  // Ends the move of one node. If the node has been removed, frees both pages and returns false.
  bool EndMove(const MovingPages& pages);
  // Raises the node's host worth to that of its last use.
  void RaiseHostWorth(Node& node) {
    node.host_worth = std::max(node.host_worth, HostWorth(node.last_use, static_cast<double>(node.frequency)));
  }
  // The heap of pages that can be dropped from the host tier.
  void OfferToDrop(std::uint32_t index);
  void PushDroppable(std::uint32_t index);
  bool NextToDrop();

  const std::int64_t page_tokens_;
  PagePool* device_;
  PagePool* host_;
  const std::uint64_t hash_seed_;
  const double forget_per_ns_;  // -log2 of the part of a frequency that is left after one nanosecond
  std::vector<Node> nodes_;
  std::vector<TokenId> tokens_;  // page_tokens entries a node
  std::vector<std::uint32_t> free_nodes_;
  std::vector<Slot> slots_;  // size: a power of two; at most half are used
  NodeGroups groups_;        // key: parent and first least_in_page() tokens; members: all children but the first
  std::vector<std::uint32_t> idle_leaves_;
  std::vector<std::uint32_t> host_roots_;
  std::vector<NodeId> new_idle_leaves_;
  bool new_idle_leaves_complete_ = true;
  std::vector<Branch> branches_;
  std::vector<std::uint32_t> free_branches_, moving_branches_;
  std::unordered_map<std::string, std::uint32_t> branch_by_key_;  // looked up, never iterated, as are the next two
  std::unordered_map<std::string, std::uint32_t> top_by_key_;     // nodes
  std::unordered_map<std::uint32_t, DomainTop> tops_;             // by node
  std::int64_t pages_ = 0, idle_pages_ = 0, host_pages_ = 0, moving_ = 0, orphans_ = 0;
  // An entry of the heap; outdated if the node or its worth has changed.
  struct Droppable {
    TimeNs worth = 0;
    std::int32_t depth = 0;
    NodeId node;
    // Order for a heap with the least worth on top. Nodes of a path are used at the same time, and the beginning is
    // used at least as often as the end. Of equal worth the deeper node is dropped first, because nothing can stay
    // without the nodes above it.
    bool operator<(const Droppable& other) const {
      if (worth != other.worth) return worth > other.worth;
      return depth != other.depth ? depth < other.depth : node.index > other.node.index;
    }
  };
  std::vector<Droppable> droppable_;  // a heap; outdated entries are skipped
  ReuseRates reuse_;
  Prng observed_prng_{0};
  TimeNs observed_at_ = 0, learned_at_ = 0;
  TimeNs host_bonus_ = 0;
  TimeNs left_after_ = 0;  // the last argument of LeftAfter
  float left_ = 1;         // and its result
};

inline std::ostream& operator<<(std::ostream& out, NodeId node) { return out << node.index << '.' << node.generation; }

}  // namespace loramux
