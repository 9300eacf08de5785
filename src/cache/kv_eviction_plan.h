// Which pages of the dependency tree a plan would evict, without touching the tree: an overlay of what the plan under
// way evicts, locks and unlocks, and the order in which idle leaves go (EvictionPolicy; those that waiting requests
// want last, as Chameleon 4.2 does). Schedule commits it with DependencyTree::Evict, victim by victim.
//
// Scores are kept in a queue of the lowest ones, made by a walk over all idle leaves once in a while (Refresh, a
// bounded part at a time) and not in each plan. Leaves that appear are sorted in; an entry whose node was used since is
// passed over. Not thread-safe; reads no clock.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "cache/dependency_tree.h"
#include "cache/eviction_policy.h"

namespace loramux {

class KvEvictionPlan {
 public:
  // Does not own. A null tree has nothing to evict.
  KvEvictionPlan(DependencyTree* tree, const EvictionPolicy* policy) : tree_(tree), policy_(policy) {}

  // What scores depend on from now on; made at `context.made_at`, and `context.now` does not count.
  void set_context(const EvictionContext& context) { context_ = context; }
  // When the page that nobody uses for longest was used last, as far as the last walk over them knows.
  std::optional<TimeNs> oldest_use() const { return oldest_use_; }

  // A new plan: nothing is planned. The tree may have changed.
  void Reset(TimeNs now);

  // Pages that may still be evicted, all of them if need be.
  std::int64_t evictable() const { return evictable_; }
  // Of the branch, those that are left.
  std::int64_t pages(BranchId branch) const;

  // In this plan a request begins (ends) to use the path to `tail`.
  void Lock(NodeId tail);
  void Unlock(NodeId tail, TimeNs now);
  // The deepest node on the path to `tail` that this plan keeps.
  NodeId Kept(NodeId tail) const;
  // Pages on the path that a single lock holds: what becomes evictable with its end.
  std::int64_t PagesWithOneLock(NodeId tail) const;
  // Pages on the path that somebody locks.
  std::int64_t LockedDepth(NodeId tail) const;

  struct Victim {
    double score = 0;
    NodeId node;
    TimeNs last_use = 0;  // when it was scored
    bool wanted = false;  // by a waiting request: after all that are not
    // Who goes first.
    bool Before(const Victim& other) const {
      if (wanted != other.wanted) return other.wanted;
      return score != other.score ? score < other.score : node.index < other.node.index;
    }
  };
  // The next to go; none if nothing is evictable. Changes no plan.
  std::optional<Victim> Next(TimeNs now);
  // It goes. REQUIRES: Next returned it, and nothing was locked since.
  void Evict(const Victim& victim, TimeNs now);

  // Appends the leaves that go first, at most `count`, as far as they are scored. Some may not be leaves any more.
  void AppendNext(std::size_t count, std::vector<NodeId>& out) const {
    for (std::size_t i = queue_.size(); i-- > 0 && count > 0; --count) out.push_back(queue_[i].node);
  }

  // A walk that scores many nodes is done in pieces, a piece between two steps. What it costs is counted in looks, as
  // paths of a policy that weighs queries (EvictionPolicy::MostPagesOfQuery) cost more than the rest of a score: one
  // for each page that a score looked at, and kLooksOfNode for the node. A piece ends after kLooksOfPiece: about 200
  // us.
  static constexpr std::int64_t kLooksOfNode = 3, kLooksOfPiece = 14'000;
  std::int64_t looks() const { return looks_; }  // of all scores so far, nodes left out

  // What the policy gives a node, in whatever tier it is.
  double Score(NodeId node, TimeNs now) const { return Scored(node, now).score; }

  // In this plan the path to `tail` is fetched from the host tier; IsFetched: by an earlier part of this plan.
  void Fetch(NodeId tail);
  bool IsFetched(NodeId node) const { return Peek(node.index).fetched; }

  // Scores again if few scored leaves are left, or their scores are old; goes on with that if it takes several calls.
  // To be called beside the computation, so that planning need not.
  void Refresh(TimeNs now);

 private:
  // Of a node (branch), in the plan whose number it bears.
  struct Mark {
    std::uint64_t plan = 0;
    std::int32_t locks = 0, children_gone = 0;  // to add, to take away
    bool evicted = false, fetched = false;
  };
  struct BranchMark {
    std::uint64_t plan = 0;
    std::int64_t gone = 0;
  };
  struct LaterFirst {
    bool operator()(const Victim& a, const Victim& b) const { return b.Before(a); }
  };

  Mark Peek(std::uint32_t index) const;
  Mark& At(std::uint32_t index);
  std::int32_t Locks(NodeId node) const { return tree_->View(node).locks + Peek(node.index).locks; }
  bool IsIdleLeaf(NodeId node) const;
  double VisitsOf(const DependencyTree::NodeView& view) const {
    return policy_->counts_edges() ? view.edge_frequency : view.frequency;
  }
  std::int64_t PagesOfQuery(NodeId node, const DependencyTree::NodeView& view, std::int64_t most) const;
  Victim Scored(NodeId node, TimeNs now) const;
  void Offer(NodeId node, TimeNs now);
  bool Stands(const Victim& victim, TimeNs now);
  void ScoreAll(TimeNs now);
  void BeginWalk(TimeNs now);
  void Walk(std::int64_t most_looks, TimeNs now);
  void EndWalk();
  void Keep(const Victim& victim);
  void KeepLowest();
  void SortIn(NodeId leaf, TimeNs now);

  DependencyTree* tree_;  // only the list of its new leaves is taken
  const EvictionPolicy* policy_;
  mutable EvictionContext context_;  // `now` is that of the last score
  std::optional<TimeNs> oldest_use_, walk_oldest_use_;
  mutable std::int64_t looks_ = 0;
  std::uint64_t plan_ = 1;
  std::int64_t evictable_ = 0;
  std::vector<Mark> marks_;               // by node index
  std::vector<BranchMark> branch_marks_;  // by branch
  std::vector<NodeId> evicted_;           // in this plan
  std::vector<Victim> queue_;             // of the lowest scores, the next one last
  bool truncated_ = false;                // there are leaves with higher scores that are not in it
  std::vector<Victim> walk_;              // the next queue_: what the walk under way has found
  std::optional<Victim> walk_bound_;      // what goes later is not in it
  std::size_t walk_left_ = 0;             // of the tree's idle leaves, the first ones: still to be scored
  bool walking_ = false;
  std::vector<NodeId> new_leaves_;
  std::size_t left_ = 0;  // of queue_, in this plan
  TimeNs scored_at_ = 0;
  bool scored_in_plan_ = false;  // queue_ lacks what this plan evicts and uses
  std::vector<Victim> offered_;  // a heap: leaves that the plan itself has made
};

}  // namespace loramux
