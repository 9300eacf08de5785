// Plans which pages of the dependency tree to evict, without changing the tree. The plan is an overlay of the pages
// that the plan in progress evicts, uses and gives up, plus the order in which idle leaves go. EvictionPolicy defines
// that order; pages that waiting requests want go last, as in Chameleon 4.2. The scheduler commits the plan with
// DependencyTree::Evict, victim by victim.
//
// A queue keeps the leaves with the lowest scores. A walk over all idle leaves builds it from time to time, in bounded
// pieces (Refresh), not in each plan. New leaves are inserted in order. Entries whose node was used after scoring are
// skipped.
//
// Not thread-safe; reads no clock.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "prefix/dependency_tree.h"
#include "worth/eviction_policy.h"

namespace loramux {

// See the top of this file.
class KvEvictionPlan {
 public:
  // Owns neither argument.
  KvEvictionPlan(DependencyTree& tree, const EvictionPolicy& policy) : tree_(tree), policy_(policy) {}

  // Sets the context of all further scores, as computed at `context.made_at`. `context.now` is ignored.
  void set_context(const EvictionContext& context) { context_ = context; }
  // The last use of the longest idle page, as of the last complete walk.
  std::optional<TimeNs> oldest_use() const { return oldest_use_; }

  // Starts a new, empty plan. The tree may have changed since the previous one. `spares_uncopied`: SpareUncopied.
  void Reset(TimeNs now, bool spares_uncopied = false);

  // Whether, from here on in this plan, Next passes over pages without a copy in the host tier, because their content
  // would be lost.
  void SpareUncopied(bool spares);
  bool spares_uncopied() const { return spares_uncopied_; }

  // Pages that this plan may still evict, counting also pages that are leaves only after others are evicted. An upper
  // bound while it spares those without a copy: Next may find none.
  std::int64_t evictable() const { return evictable_; }
  // Device pages of the branch that stay in this plan.
  std::int64_t pages(BranchId branch) const;

  // In this plan, a request begins (Use) or ends (EndUse) its use of the path to `tail`; of what follows `above` alone,
  // if that is given.
  void Use(NodeId tail, NodeId above = {});
  void EndUse(NodeId tail, TimeNs now, NodeId above = {});
  // The deepest node on the path to `tail` that stays in this plan.
  NodeId Staying(NodeId tail) const;
  // Pages on the path that have exactly one user: they become evictable when its use ends.
  std::int64_t PagesWithOneUser(NodeId tail) const;
  // Pages on the path that have users.
  std::int64_t UsedDepth(NodeId tail) const;

  // A page chosen for eviction.
  struct Victim {
    double score = 0;
    NodeId node;
    TimeNs last_use = 0;  // as of scoring
    bool wanted = false;  // by a waiting request: goes after all unwanted pages
    // Whether this victim is evicted before `other`.
    bool Before(const Victim& other) const {
      if (wanted != other.wanted) return other.wanted;
      return score != other.score ? score < other.score : node.index < other.node.index;
    }
  };
  // The next victim; none if nothing is evictable. Does not change the plan.
  std::optional<Victim> Next(TimeNs now);
  // Adds `victim` to the plan. REQUIRES: Next returned it, and nothing was used since.
  void Evict(const Victim& victim, TimeNs now);

  // Appends up to `count` leaves that go first, of those that are scored. Some may not be leaves any longer.
  void AppendNext(std::size_t count, std::vector<NodeId>& out) const {
    for (std::size_t i = queue_.size(); i-- > 0 && count > 0; --count) out.push_back(queue_[i].node);
  }

  // A walk that scores many nodes runs in pieces, one piece between two steps. Its cost is counted in looks: one for
  // each page that a score examined, or would have if it were not remembered, and kLooksOfNode for the node itself.
  // (Policies that size a candidate by its query examine paths; see EvictionPolicy::MostPagesOfQuery.) A piece ends
  // after kLooksOfPiece looks, about 200 microseconds.
  static constexpr std::int64_t kLooksOfNode = 3, kLooksOfPiece = 14'000;
  std::int64_t looks() const { return looks_; }  // pages examined by all scores so far

  // The policy's score of a node in either tier.
  double Score(NodeId node, TimeNs now) const { return Scored(node, now).score; }

  // Whether in this plan no request can begin after the node or below it: a page of a snapshot whose last page goes, or
  // of keys and values with nothing below but such pages. It goes first.
  bool IsUseless(NodeId node) const;

  // In this plan, the path to `tail` is fetched from the host tier. IsFetched: whether an earlier part of this plan
  // fetches it.
  void Fetch(NodeId tail);
  bool IsFetched(NodeId node) const { return Peek(node.index).fetched; }

  // Scores the idle leaves again if few scored leaves are left or the scores are old. Continues over several calls if
  // one piece is not enough. Call it beside the forward pass, so that planning itself need not score.
  void Refresh(TimeNs now);

 private:
  // Changes that plan number `plan` makes to a node (branch); marks of earlier plans are ignored.
  struct Mark {
    std::uint64_t plan = 0;
    std::int32_t users = 0, children_gone = 0;  // to add; to subtract
    bool evicted = false, fetched = false;
  };
  // What PagesOfQuery found for a node on the device, and the highest node that it looked at. A visit of any node on
  // the way visits that one too, so the pages stand until it is used again.
  struct PagesFound {
    std::uint32_t generation = 0, top = 0;  // the node's own; an index
    TimeNs used = 0;                        // last use of `top`
    std::int32_t pages = 0, most = 0;
  };
  struct BranchMark {
    std::uint64_t plan = 0;
    std::int64_t gone = 0;
  };
  // For heaps with the next victim on top.
  struct LaterFirst {
    bool operator()(const Victim& a, const Victim& b) const { return b.Before(a); }
  };

  // The changes of this plan to a node; Peek returns empty ones if there are none.
  Mark Peek(std::uint32_t index) const;
  Mark& At(std::uint32_t index);
  std::int32_t Users(NodeId node) const { return tree_.View(node).users + Peek(node.index).users; }
  // Whether the node can be evicted in this plan: on the device, without users and without children there.
  bool IsIdleLeaf(NodeId node) const;
  // The visits that the policy counts.
  double VisitsOf(const DependencyTree::NodeView& view) const {
    return policy_.counts_edges() ? view.edge_frequency : view.frequency;
  }
  // The approximate number of pages that one query computed, at most `most`; remembers it.
  std::int64_t PagesOfQuery(NodeId node, const DependencyTree::NodeView& view, std::int64_t most, TimeNs now) const;
  std::int64_t CountPagesOfQuery(NodeId node, const DependencyTree::NodeView& view, std::int64_t most,
                                 std::uint32_t* top) const;
  // How many pages' computation each page of the snapshot saves.
  double EffortOf(NodeId snapshot) const;
  // The node with its current score.
  Victim Scored(NodeId node, TimeNs now) const;
  // Adds a leaf that this plan created to offered_.
  void Offer(NodeId node, TimeNs now);
  // Whether the plan spares the page.
  bool Spares(NodeId node) const {
    return spares_uncopied_ && !tree_.nodes().At(node).has_host_copy() && !IsUseless(node);
  }
  // Whether a scored leaf is still evictable with that score.
  bool Stands(const Victim& victim, TimeNs now);
  // A walk over all idle leaves at once.
  void ScoreAll(TimeNs now);
  // A walk in pieces: BeginWalk, Walk until walk_left_ is 0, EndWalk, which replaces queue_.
  void BeginWalk(TimeNs now);
  void Walk(std::int64_t most_looks, TimeNs now);
  void PrefetchForWalk(std::span<const std::uint32_t> left) const;
  void EndWalk();
  // Add a victim to walk_, which keeps only the lowest scores.
  void Keep(const Victim& victim);
  void KeepLowest();
  // Inserts a new leaf into queue_ if its score is among the lowest.
  void SortIn(NodeId leaf, TimeNs now);

  DependencyTree& tree_;  // not changed, except that its list of new leaves is taken
  const EvictionPolicy& policy_;
  mutable EvictionContext context_;  // `now` is that of the last score
  std::optional<TimeNs> oldest_use_, walk_oldest_use_;
  mutable std::int64_t looks_ = 0;
  mutable std::vector<PagesFound> found_;  // by node index
  std::uint64_t plan_ = 1;
  std::int64_t evictable_ = 0;
  std::vector<Mark> marks_;               // by node index
  std::vector<BranchMark> branch_marks_;  // by branch
  std::vector<NodeId> evicted_;           // in this plan
  std::vector<Victim> queue_;             // the lowest scores; the next victim is last
  bool truncated_ = false;                // some leaves with higher scores are not in queue_
  std::vector<Victim> walk_;              // the next queue_, built by the walk in progress
  std::optional<Victim> walk_bound_;      // victims after this one are not in walk_
  std::size_t walk_left_ = 0;             // idle leaves still to be scored: the first ones of the tree's list
  bool walking_ = false;
  std::vector<NodeId> new_leaves_;
  std::size_t left_ = 0;  // entries of queue_ left in this plan
  TimeNs scored_at_ = 0;
  bool scored_in_plan_ = false;  // queue_ lacks what this plan evicts and uses
  std::vector<Victim> offered_;  // a heap: leaves that the plan itself created
  bool spares_uncopied_ = false;
  std::vector<Victim> spared_;  // those that offered_ had, while this plan spares them
};

}  // namespace loramux
