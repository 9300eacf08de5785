// How the nodes of the dependency tree are used: visits, last use, the requests that wait for them, and what follows
// for their reuse. A visit is one Use or Insert of the tree; frequencies decay by half each half-life.
//
// Edges. An edge is a run of pages without a fork. A request that visits one page of an edge mostly visits all of them,
// so the edge as a whole has the visits. For example, a conversation is an edge and has one visit a turn. Without a
// host tier a page counts alone: recomputation then costs the same for every page, so evicting an edge as a whole gains
// nothing.
//
// Host worth. The value by which a full host tier orders its pages; the least is dropped first. It is the time of the
// last use. With a host bonus, visits (as of the last visit) count like a later use, by as much as the learned rates
// say: so much that a page is then as likely to return as one with a single visit and that last use. Where visits
// predict nothing (conversations that go on or not, however long they are), that is nothing. Otherwise pages with many
// visits would fill the host tier, and what is new would never get into it. The bonus bounds it: each doubling counts
// like a use that much later at most. A page's worth is computed when it is used and does not change with time, so a
// heap can keep the order (HostOrder). Adapters in the host tier are compared by the same value (HostDraft).
//
// Not thread-safe; reads no clock. Allocates nothing.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/clock.h"
#include "base/prng.h"
#include "prefix/tree_nodes.h"
#include "worth/reuse_rates.h"

namespace loramux {

// See the top of this file.
class ReuseStatistics {
 public:
  // Writes the use of `nodes`; does not own them. `by_edge`: pages have the visits of their edge, not their own.
  // REQUIRES: half_life > 0.
  ReuseStatistics(TreeNodes* nodes, TimeNs half_life, bool by_edge);

  // ---- Use ----

  // Counts a visit of a node on a used path. Call CountEdges after a path was visited.
  void Visit(std::uint32_t index, TimeNs now) {
    TreeNode& node = (*nodes_)[index];
    if (node.resting) EndRest(node, now);
    node.frequency = node.frequency * LeftAfter(now - node.last_use) + 1.0f;
    node.last_use = now;
    RaiseHostWorth(node);
  }
  // Counts the visit of a node that was inserted (perhaps again) at the end of a used path.
  void VisitInserted(std::uint32_t index, TimeNs now);
  // Updates the visits of all edges on the path to `tail`.
  void CountEdges(std::uint32_t tail);
  // One use of the node has ended. `idle`: no other is left. The use lasted until now without further visits, so the
  // frequency decays from now on, not from the visit.
  void EndUse(std::uint32_t index, TimeNs now, bool idle) {
    TreeNode& node = (*nodes_)[index];
    const float left = LeftAfter(now - node.last_use);
    node.last_use = now;
    RaiseHostWorth(node);  // with the undecayed visits: a long use costs no worth
    node.frequency *= left;
    node.edge_frequency *= left;
    if (IsObserved(index)) node.resting = idle;
  }
  // A waiting request would begin at the node, or no longer.
  void Want(NodeId node) { ++nodes_->At(node).wants; }
  void Unwant(NodeId node);  // does nothing if the node is gone

  // The visits of the node's edge as of the last visit of the edge's first page; the node's own if edges do not count.
  double EdgeFrequency(const TreeNode& node) const {
    return static_cast<double>(by_edge_ ? node.edge_frequency : node.frequency);
  }

  // ---- Host worth ----

  // The worth of content with these visits as of `last_use`.
  TimeNs HostWorth(TimeNs last_use, double frequency) const {
    return host_bonus_ == 0 ? last_use : last_use + BonusOf(frequency);
  }
  // The node's worth. It never decreases. A parent that is not in use has at least its children's.
  TimeNs HostWorth(NodeId node) const { return nodes_->At(node).host_worth; }
  // Sets the most that each doubling of visits counts, in nanoseconds; 0 by default. That is the bonus until the rates
  // are learned. REQUIRES: no order by worth exists yet.
  void set_host_bonus(TimeNs per_doubling);

  // ---- Learned rates ----

  // Samples how idle pages of both tiers are reused. One page in kObservedOf is observed: its visits as they come, its
  // time without visits by samples. Each call takes some samples for the time since the previous call.
  // `remembered_s`: see ReuseRates::Remembered.
  void ObserveIdlePages(TimeNs now, double remembered_s);
  // The rates learned from the observed pages.
  const ReuseRates& rates() const { return rates_; }

  // Aborts if a count is impossible.
  void CheckIntegrity() const;

 private:
  static constexpr std::uint32_t kObservedOf = 8;

  static bool IsObserved(std::uint32_t index) { return index % kObservedOf == 0; }
  // The part of a frequency that is left. Keeps the last result, because the nodes of a path mostly have the same time
  // of last use.
  float LeftAfter(TimeNs idle) {
    if (idle != left_after_) ComputeLeftAfter(idle);
    return left_;
  }
  void ComputeLeftAfter(TimeNs idle);
  TimeNs BonusOf(double frequency) const;
  // Takes the bonuses from the learned rates.
  void LearnBonuses(double remembered_s);
  // Records the visit of an observed node that rested.
  void EndRest(TreeNode& node, TimeNs now);
  // Raises the node's host worth to that of its last use.
  void RaiseHostWorth(TreeNode& node) const {
    node.host_worth = std::max(node.host_worth, HostWorth(node.last_use, static_cast<double>(node.frequency)));
  }

  TreeNodes* nodes_;
  const double forget_per_ns_;  // -log2 of the part of a frequency that is left after one nanosecond
  const bool by_edge_;
  ReuseRates rates_;
  Prng observed_prng_{0};
  TimeNs observed_at_ = 0, learned_at_ = 0;
  TimeNs host_bonus_ = 0;
  std::array<double, ReuseRates::kClasses> bonuses_ = {};  // ns, after 1, 2, 4, ... visits
  double mean_idle_s_ = 0;  // seconds that the sampled pages have been idle, on average; recent ones weigh more
  TimeNs left_after_ = 0;   // the last argument of LeftAfter
  float left_ = 1;          // and its result
};

}  // namespace loramux
