// Which running requests lose their memory to others.
//
// If eviction is not enough, the running requests of lowest rank are preempted: their pages are freed, and they are
// computed again later. An adapter that a waiting request of higher rank wants is evicted only after all running
// requests of lower rank than that request were preempted.
//
// Progress: the request of the highest rank is never preempted. No request is preempted for a younger one of its
// tenant. A rank changes only after a quantum of new tokens. So every request finishes.
#pragma once

#include <cstdint>

#include "schedule/plan/step_draft.h"

namespace loramux {

// Plans the preemptions of a step. Does not own the draft.
class Preemption {
 public:
  explicit Preemption(StepDraft& draft) : draft_(draft) {}

  // Marks as wanted the adapters of waiting requests that outrank a running one. Call it first: ForGrowth depends on
  // it.
  void LookAtWaiters();
  // The snapshot of the one that is preempted next stays in this plan, so that it can go on from there: otherwise all
  // snapshots would be gone before anyone is preempted. One that runs alone keeps none.
  void KeepSnapshotOfLast();
  // If memory blocks the next request in the order of service, running requests of lower rank are preempted for it, as
  // long as this discards at most `discard_share` of all computed tokens. Enough for all its pages, or none.
  void Reclaim();
  // Takes `pages` pages for the runner; evicts and preempts as needed. Returns false if it fails for now, because loads
  // in flight hold the missing pages. Returns true also if the runner was preempted itself.
  bool ForGrowth(std::size_t runner, std::int64_t pages);
  // Preempts the runner of this index.
  void Preempt(std::size_t runner);

 private:
  // The first request in the order of service that needs only room; null: none.
  Request* NextToServe() const;
  // Preempts the one of the lowest rank.
  void PreemptLast() { Preempt(draft_.runners.size() - 1); }
  Rank RankOf(const Request& request) const;

  StepDraft& draft_;
  NodeId kept_;         // what KeepSnapshotOfLast keeps; generation 0: nothing
  Rank first_waiter_;   // highest rank of the waiting requests within lookahead
  Rank first_overdue_;  // highest rank of overdue requests with a resident adapter
};

}  // namespace loramux
