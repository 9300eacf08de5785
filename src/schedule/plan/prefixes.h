// Where requests begin in this plan: what the dependency tree has of their tokens, and what of that is on its way.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/plan/draft.h"
#include "schedule/plan/planning_view.h"
#include "schedule/prefix_search.h"

namespace loramux {

// A prompt begins after the pages that the tree has of it, computed by requests with the same adapter content. Of the
// next page, its first tokens are reused too, if the device has a page of which at least the first quarter matches;
// that page is copied. Owns none of its arguments.
class Prefixes {
 public:
  Prefixes(const PlanningView& view, const Draft& room) : view_(view), room_(room) {}

  // Finds the fetches of which enough layers have arrived to begin with them, once per plan, so that the whole plan
  // uses the same result. `alone`: at most one request waits, and none runs.
  void LookAtFetches(TimeNs now, bool alone);

  // Pages of keys and values on the path to `tail`.
  std::int64_t Depth(NodeId tail) const { return view_.tree.nodes().KvDepth(tail); }
  // True if the page is on the device, or is expected to arrive in time.
  bool IsUsable(NodeId node) const {
    if (view_.tree.tiers().OnDevice(node)) return true;
    return !usable_fetches_.empty() && view_.tree.nodes().At(node).moving() && ArrivesInTime(node);
  }
  // True if the history that the request would begin with is being fetched and not usable yet.
  bool IsFetching(const Request& request) const;
  // The deepest usable node on the path to `tail`.
  NodeId DeviceTail(NodeId tail) const;
  // The node after which the request would begin, as far as this plan does not evict the path: with states, the last
  // page of a snapshot, or the top.
  NodeId PlannedTail(Request& request) const {
    const NodeId found = FindTail(view_.tree, request);
    return view_.options.state_pages > 0 ? Beginning(found) : room_.history().Staying(DeviceTail(found));
  }
  // With states: `found` or the deepest snapshot above it that is on the device and stays in this plan; or the top.
  NodeId Beginning(NodeId found) const;
  // The page after `tail` of which the first tokens can be reused.
  DependencyTree::InPage FindInPage(const Request& request, NodeId tail) const;
  // Pages that the preemption of the request frees. Pages that it shares with other requests do not count, even if
  // those are preempted too.
  std::int64_t PagesFreedBy(const Request& request) const;

 private:
  bool ArrivesInTime(NodeId node) const;

  const PlanningView& view_;
  const Draft& room_;
  std::vector<std::uint64_t> usable_fetches_;  // KvTiers::Job::id; few
};

}  // namespace loramux
