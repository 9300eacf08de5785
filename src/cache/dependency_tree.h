// The dependency tree of FastLibra (section 4): which keys and values are cached for which adapter and which tokens.
//
// The root is virtual. Below it stand the branches: one for each content of an adapter (the base model has one too),
// keyed by a digest, never by a name, so a reload under the same name finds nothing of the old weights. Below a branch,
// a trie whose nodes are single full pages of `page_tokens` positions: the path from the branch spells a sequence of
// tokens. One node a page, not an edge of many pages: nodes never split, so handles stay valid, and what is evicted is
// what is needed, a page. Children are found through one hash table over all prefixes, so a match costs one look-up a
// page. Where a prompt parts from what is cached within a page, a child that begins as the prompt goes on has the first
// of its keys and values: MatchInPage. For that the children of a node are in groups that begin alike (node_groups.h),
// all but the first child of each node: most nodes have no other, and cost nothing then.
//
// Two tiers: the nodes on the device are the upper part of each branch; below, nodes may be in the host tier alone. A
// node on the device may have a copy in the host tier: when it is evicted it stays there, otherwise it is gone, with
// all that depends on it. Only leaves of the device part are evicted, only roots of the host part are fetched
// (FastLibra 4.2).
//
// The tree owns its pages. A running request locks the path that it uses; it inserts each page that it has filled, and
// goes on with the tree's page where another request filled the same one first. What nobody locks is history: it stays
// until its memory is needed, leaves first, so that whatever is cached can be reached.
//
// Not thread-safe. Reads no clock; no result depends on hashes or addresses.
// Invariants (CheckIntegrity): a node is in a tier; one on the device has its parent on the device; pages are current,
// and no other node's; a parent has at least the locks of its children; what is locked is on the device, or on its way;
// idle pages, idle leaves and host roots are what a walk over all nodes counts; every node is found under its prefix,
// and is its parent's first child or in a group.
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

using BranchId = StrongId<struct BranchIdTag, std::uint32_t>;

// Names one node for as long as it exists; a handle of a node that is gone is detected.
struct NodeId {
  std::uint32_t index = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t generation = 0;
  friend bool operator==(NodeId, NodeId) = default;
};

class DependencyTree {
 public:
  // What the policies may know of a node. Frequency: visits, of which half are forgotten in each half-life.
  struct NodeView {
    TimeNs last_use = 0;
    double frequency = 0;  // visits, decaying, as of last_use
    // That of the first page of its edge: of the pages up to the next fork, as of the last visit. Who visits one mostly
    // visits all, however often each has been visited itself: a conversation is an edge, and has as many visits as
    // turns. Without a host tier its own: what must be computed again costs as much page by page, so that nothing is
    // gained by giving up one as a whole.
    double edge_frequency = 0;
    std::int64_t depth = 0;  // pages from the branch, this one included
    std::int32_t locks = 0;  // running requests whose path leads through it
    std::int32_t wants = 0;  // waiting requests whose match ends at it
    std::int32_t device_children = 0;
    BranchId branch;
  };

  // Does not own the pools; host may be null (no host tier). Prompts are strangers': `hash_seed` is a secret of the
  // process, so that nobody can make up prefixes that collide in the table. No result depends on it.
  // REQUIRES: page_tokens > 0.
  DependencyTree(std::int64_t page_tokens, PagePool* device, PagePool* host = nullptr,
                 TimeNs frequency_half_life = 60 * kNsPerSecond, std::uint64_t hash_seed = 0);
  // Destruction leaves the pages allocated: they go with their pool.
  DependencyTree(const DependencyTree&) = delete;
  DependencyTree& operator=(const DependencyTree&) = delete;

  // ---- Branches ----

  // The branch of this content, made if need be. Each call holds it; Release lets go, and with the last hold the branch
  // is gone, with all its pages. REQUIRES (last Release): no request uses it.
  BranchId Hold(std::string_view content_digest);
  void Release(BranchId branch);
  // Frees everything in it, but pages that are being moved: whoever moves them frees both. REQUIRES: no request uses
  // it.
  void Clear(BranchId branch);
  NodeId Top(BranchId branch) const;  // where its matches begin: a node without a page
  std::int64_t pages(BranchId branch) const { return branches_[branch.value].pages; }  // on the device
  bool IsShared(BranchId branch) const { return branches_[branch.value].holds > 1; }   // several hold it
  bool HasMoves(BranchId branch) const { return branches_[branch.value].moving > 0; }
  // Those that have, in no particular but deterministic order: few, as there are few moves at a time.
  std::span<const std::uint32_t> BranchesWithMoves() const { return moving_branches_; }

  // ---- Matching ----

  // The deepest cached node on the path of `tokens` (from the branch on), of at most `max_pages` pages; begins at
  // `from`, which is on that path. Changes nothing. About 40 ns a page. REQUIRES: `from` exists.
  NodeId Match(NodeId from, std::span<const TokenId> tokens, std::int64_t max_pages) const;

  struct InPage {
    NodeId node;
    std::int64_t tokens = 0;  // 0: none
  };
  // Of the children of `parent` on the device, the one whose page begins with the most of `next` (the tokens behind
  // parent's), and with how many: at least least_in_page(), less than a page. Where very many begin alike, the best of
  // the youngest kMostLookedAt and of the first child. Changes nothing; below 1 us, a few where all that is looked at
  // is cold.
  InPage MatchInPage(NodeId parent, std::span<const TokenId> next) const;
  // A quarter of a page. Fewer are not worth it: the copy of a page would still be cheaper than their prefill, but
  // almost all prompts have their first token or two in common, so a group could not be told from all children.
  std::int64_t least_in_page() const { return (page_tokens_ + 3) / 4; }
  static constexpr int kMostLookedAt = 16;

  bool Exists(NodeId node) const {
    return node.index < nodes_.size() && nodes_[node.index].generation == node.generation &&
           (node.generation & 1u) != 0;
  }
  std::int64_t Depth(NodeId node) const { return At(node).depth; }
  NodeId Parent(NodeId node) const { return IdOf(At(node).parent); }  // REQUIRES: depth > 0
  PageHandle Page(NodeId node) const { return At(node).page; }        // REQUIRES: on the device
  // Its keys and values can be read on the device. (A branch's top always is.)
  bool OnDevice(NodeId node) const { return OnDevice(At(node)); }
  // It exists and has a page there, maybe one that is still to be filled.
  bool HasDevicePage(NodeId node) const { return Exists(node) && nodes_[node.index].page.generation != 0; }
  bool InHostTier(NodeId node) const { return HasHostCopy(At(node)); }
  bool Moving(NodeId node) const { return At(node).move != Move::kNone; }
  NodeView View(NodeId id) const {
    const Node& node = At(id);
    return {node.last_use,        static_cast<double>(node.frequency),
            EdgeFrequency(node),  node.depth,
            node.locks,           node.wants,
            node.device_children, BranchId{node.branch}};
  }
  // The device pages from the branch down to the node. REQUIRES: out.size() == Depth(node), on the device or on its
  // way.
  void CopyPath(NodeId node, std::span<PageHandle> out) const;

  // ---- Use ----

  // A running request visits, and from now on holds, everything on the path to `tail`. Takes time with the depth.
  // REQUIRES (Lock): the path is on the device, or on its way there.
  void Lock(NodeId tail, TimeNs now);
  void Unlock(NodeId tail, TimeNs now);
  // Of the path to `node`, the holder goes on holding the one to its parent. REQUIRES: depth > 0.
  void UnlockLast(NodeId node, TimeNs now);
  // A waiting request would begin at `tail`: evicted after others. Nodes may go all the same; Unwant ignores those.
  void Want(NodeId tail);
  void Unwant(NodeId tail);

  struct Inserted {
    NodeId node;
    enum Outcome {
      kTaken,    // the tree owns `page`
      kExisted,  // `page` stays the caller's: the tree has a page with the same content
      kNotNow,   // the tree's page with the same content is on its way to the device: no change, try again later
    } outcome = kTaken;
  };
  // The holder of `parent` has filled a page with these tokens' keys and values. The node is locked for it once.
  // REQUIRES: `parent` is locked or a branch; tokens.size() == page_tokens.
  Inserted Insert(NodeId parent, std::span<const TokenId> tokens, PageHandle page, TimeNs now);

  // Several pages in a row are about to be inserted below `parent`: brings to the core's caches what that looks at, at
  // a tenth of what each would wait for it. Changes nothing.
  void PrefetchInsert(NodeId parent, std::span<const TokenId> tokens) const;

  // Several nodes are about to be evicted: brings the `i`th one's part of the tree to the core's caches. To be called
  // with ascending i, some ahead. Changes nothing.
  void PrefetchEvict(std::span<const NodeId> nodes, std::size_t i) const;
  void Prefetch(NodeId node) const { __builtin_prefetch(&nodes_[node.index]); }
  // REQUIRES: it exists, depth > 0. Returns the parent's index.
  std::uint32_t PrefetchParent(NodeId node) const {
    const std::uint32_t parent = nodes_[node.index].parent;
    __builtin_prefetch(&nodes_[parent]);
    __builtin_prefetch(&nodes_[parent].host_page);
    return parent;
  }
  // Frees a device page. Without a copy in the host tier the node is gone, and everything below it.
  // REQUIRES: nobody locks the node, and it has no children on the device.
  void Evict(NodeId node);

  // ---- Between the tiers (KvTiers) ----

  struct MovingPages {
    NodeId node;
    PageHandle device, host;
  };
  // Takes a host page for a copy of each of these nodes, of which each is the parent of the next; appends. The path to
  // the last is held until EndBackUp: once for all of them, as that takes time with its depth.
  // REQUIRES: not empty; all on the device, not in the host tier, not moving; so many host pages are free.
  void BeginBackUp(std::span<const NodeId> nodes, std::vector<MovingPages>& pages);
  // Takes device pages for what the path to `tail` has in the host tier alone; they count as on the device from now on,
  // but OnDevice is false until EndFetch; the path is held until then. Appends from the top down.
  // REQUIRES: `tail` is not on the device, nothing on its path is moving, enough device pages are free.
  void BeginFetch(NodeId tail, std::vector<MovingPages>& pages);
  // Both pages hold the same bytes now, or (failed) the copy is given up. Of nodes that are gone meanwhile both are
  // freed. Of what one BeginBackUp (BeginFetch) appended.
  void EndBackUp(std::span<const MovingPages> pages, bool failed);
  void EndFetch(std::span<const MovingPages> pages, bool failed);

  // What stays in the host tier when that is full: what was used last; with a bonus, each doubling of the visits (as of
  // the last one) counts like a use so much later. Not of time, so that a heap can keep the order. Adapters there are
  // weighed by the same (Scheduler::PlanHostRoom).
  TimeNs HostWorth(TimeNs last_use, double frequency) const;
  // never falls; a parent's is at least its children's
  TimeNs HostWorth(NodeId node) const { return At(node).host_worth; }
  void set_host_bonus(TimeNs per_doubling);  // REQUIRES: nothing is in the host tier yet
  // Frees host pages, those worth least first. REQUIRES: at most droppable_host_pages().
  void DropHostPages(std::int64_t count);
  std::int64_t droppable_host_pages() const { return host_pages_ - moving_; }
  // Of the first in that order; the largest number: nothing can be dropped.
  TimeNs LeastHostWorth();

  // ---- For policies ----

  // Nodes that may be evicted now: nobody locks them, they have no children. In no particular but deterministic order.
  std::span<const std::uint32_t> IdleLeaves() const { return idle_leaves_; }
  // How idle pages of either tier are used again. One page in kObservedOf is observed: its visits as they come, the
  // time without by samples, of which this takes some for the time since the last call. To be called beside the
  // computation. `remembered_s`: ReuseRates::Remembered.
  void ObserveIdlePages(TimeNs now, double remembered_s);
  const ReuseRates& reuse() const { return reuse_; }

  // Appends those that became one since the last call (and may be none any more). False if there were too many to list.
  bool TakeNewIdleLeaves(std::vector<NodeId>& out);
  // Where the host part of each path begins: nodes in the host tier alone, below one that is on the device (or a
  // branch). What may be fetched next (FastLibra 4.2), if its adapter is there. In no particular but deterministic
  // order.
  std::span<const std::uint32_t> HostRoots() const { return host_roots_; }
  // A node without a generation: no more. In no particular but deterministic order.
  NodeId FirstChild(NodeId node) const { return IdOrNone(At(node).first_child); }
  NodeId NextSibling(NodeId node) const { return IdOrNone(At(node).next_sibling); }
  NodeId IdOf(std::uint32_t index) const { return {index, nodes_[index].generation}; }
  std::int64_t pages() const { return pages_; }  // of all branches, on the device
  std::int64_t host_pages() const { return host_pages_; }
  // Being moved for nodes that are gone: of each tier.
  std::int64_t orphans() const { return orphans_; }
  std::int64_t idle_pages() const { return idle_pages_; }        // that nobody locks: history
  std::size_t branch_slots() const { return branches_.size(); }  // ids of branches are below
  std::size_t node_slots() const { return nodes_.size(); }       // indices of nodes are below
  std::int64_t page_tokens() const { return page_tokens_; }

  // Aborts if an invariant does not hold. Takes time with the size of the tree.
  void CheckIntegrity() const;

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  static constexpr std::int64_t kObservedOf = 8;

  enum class Move : std::uint8_t { kNone, kBackUp, kFetch };

  // Two cache lines: what matches, uses and evictions need of each node of a path is the first.
  struct alignas(64) Node {
    std::uint64_t hash = 0;  // of the whole prefix and the branch
    std::uint32_t parent = kNone;
    std::uint32_t generation = 0;  // odd while it exists
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
    bool resting = false;  // observed, and since last_use nobody used it
    float edge_frequency = 0;
    std::uint32_t first_child = kNone, next_sibling = kNone, previous_sibling = kNone;
    std::uint32_t leaf_position = kNone;  // in idle_leaves_
    std::uint32_t root_position = kNone;  // in host_roots_
  };
  struct alignas(64) Branch {
    std::int64_t pages = 0;  // on the device
    std::int64_t moving = 0;
    std::int64_t holds = 0;             // 0: a free slot
    std::uint32_t top = kNone;          // node
    std::uint32_t moving_position = 0;  // in moving_branches_, if any are
    std::string key;
  };

  // Of the table over all prefixes (linear probing). The tag spares most looks at a node that is another.
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
  std::span<const TokenId> TokensOf(std::uint32_t index) const;
  std::uint64_t HashOf(std::uint64_t parent_hash, const TokenId* tokens) const;
  std::uint32_t Find(std::uint32_t parent, std::uint64_t hash, const TokenId* tokens) const;
  std::uint32_t NewNode();
  void FreeNode(std::uint32_t index);
  std::uint32_t GroupKey(std::uint32_t parent, const TokenId* tokens) const;
  bool IsOnlyChild(std::uint32_t index) const;
  void CountEdges(std::uint32_t tail);
  double EdgeFrequency(const Node& node) const {
    return static_cast<double>(host_ == nullptr ? node.frequency : node.edge_frequency);
  }
  void LookInPage(std::uint32_t index, std::uint32_t parent, std::span<const TokenId> next, InPage& best) const;
  void Link(std::uint32_t index, std::uint32_t parent);
  void Unlink(std::uint32_t index);
  void PutInTable(std::uint32_t tag, std::uint32_t index);
  void TakeFromTable(std::uint32_t tag, std::uint32_t index);
  void GrowTable();
  std::size_t SlotOf(std::uint64_t hash_or_tag) const {
    return static_cast<std::uint32_t>(hash_or_tag) & (slots_.size() - 1);
  }
  std::size_t NextSlot(std::size_t slot) const { return (slot + 1) & (slots_.size() - 1); }
  float LeftAfter(TimeNs idle);  // of a frequency
  bool IsObserved(const Node& node) const { return (&node - nodes_.data()) % kObservedOf == 0; }
  void Visit(Node& node, TimeNs now);
  void LetGo(Node& node, TimeNs now);
  void UpdateIdleLeaf(std::uint32_t index);
  void UpdateHostRoot(std::uint32_t index);
  void UpdateHostRootsBelow(std::uint32_t index);
  NodeId IdOrNone(std::uint32_t index) const { return index == kNone ? NodeId{} : IdOf(index); }
  void CheckNode(std::uint32_t index) const;
  bool IsHostRoot(const Node& node) const {
    return (node.generation & 1u) != 0 && node.depth > 0 && node.host_page.generation != 0 &&
           node.page.generation == 0 && OnDevice(nodes_[node.parent]);
  }
  static bool OnDevice(const Node& node) {
    return node.depth == 0 || (node.page.generation != 0 && node.move != Move::kFetch);
  }
  static bool HasHostCopy(const Node& node) { return node.host_page.generation != 0 && node.move != Move::kBackUp; }
  void ArriveOnDevice(std::uint32_t index, PageHandle page);
  void LeaveDevice(std::uint32_t index);
  void FreeHostPage(Node& node);
  void Remove(std::uint32_t index);
  void RemoveBelow(std::uint32_t top);
  void LockPath(std::uint32_t tail);
  void UnlockPath(std::uint32_t tail);
  void SetMove(Node& node, Move move);
  bool EndMove(const MovingPages& pages);
  void RaiseHostWorth(Node& node) {
    node.host_worth = std::max(node.host_worth, HostWorth(node.last_use, static_cast<double>(node.frequency)));
  }
  void OfferToDrop(std::uint32_t index);
  void PushDroppable(std::uint32_t index);
  bool NextToDrop();

  const std::int64_t page_tokens_;
  PagePool* device_;
  PagePool* host_;
  const std::uint64_t hash_seed_;
  const double forget_per_ns_;  // -log2 of what is left of a frequency after a nanosecond
  std::vector<Node> nodes_;
  std::vector<TokenId> tokens_;  // page_tokens a node
  std::vector<std::uint32_t> free_nodes_;
  std::vector<Slot> slots_;  // a power of two, at most half of them taken
  NodeGroups groups_;        // by parent and first least_in_page() tokens: all children but the first
  std::vector<std::uint32_t> idle_leaves_;
  std::vector<std::uint32_t> host_roots_;
  std::vector<NodeId> new_idle_leaves_;
  bool new_idle_leaves_complete_ = true;
  std::vector<Branch> branches_;
  std::vector<std::uint32_t> free_branches_, moving_branches_;
  std::unordered_map<std::string, std::uint32_t> branch_by_key_;  // looked up, never iterated
  std::int64_t pages_ = 0, idle_pages_ = 0, host_pages_ = 0, moving_ = 0, orphans_ = 0;
  struct Droppable {
    TimeNs worth = 0;
    std::int32_t depth = 0;
    NodeId node;
    // For a heap with the least on top. A path is used at one time, and its beginning as often as its end: that goes
    // first, for without its beginning the rest could not stay.
    bool operator<(const Droppable& other) const {
      if (worth != other.worth) return worth > other.worth;
      return depth != other.depth ? depth < other.depth : node.index > other.node.index;
    }
  };
  std::vector<Droppable> droppable_;  // a heap; entries that are not true any more are skipped
  ReuseRates reuse_;
  Prng observed_prng_{0};
  TimeNs observed_at_ = 0, learned_at_ = 0;
  TimeNs host_bonus_ = 0;
  TimeNs left_after_ = 0;  // what LeftAfter was asked last,
  float left_ = 1;         // and its answer
};

inline std::ostream& operator<<(std::ostream& out, NodeId node) { return out << node.index << '.' << node.generation; }

}  // namespace loramux
