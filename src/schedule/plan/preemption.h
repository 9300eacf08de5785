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
  // Requests that overtook another one are preempted if that one can then start (Chameleon 4.3.3).
  void Squash();
  // If memory blocks the next request in the order of service, running requests of lower rank are preempted for it, as
  // long as this discards at most `discard_share` of all computed tokens. Enough for all its pages, or none.
  void Reclaim();
  // Takes `pages` pages for the runner; evicts and preempts as needed. Returns false if it fails for now, because loads
  // in flight hold the missing pages. Returns true also if the runner was preempted itself.
  bool ForGrowth(std::size_t runner, std::int64_t pages);

 private:
  // The first request in the order of service that needs only room; null: none.
  Request* NextToServe() const;
  // True if the quota of its lane, besides the running requests, has room for the request.
  bool HasQuota(const Request& request) const;
  // The waiting request of this id, if the runners that overtook it keep it from starting; null: none.
  Request* Overtaken(RequestId id) const;
  // Pages that the overtaken request lacks.
  std::int64_t MissingFor(const Request& overtaken) const;
  // Preempts the runner of this index, or the one of the lowest rank.
  void Preempt(std::size_t runner);
  void PreemptLast() { Preempt(draft_.runners.size() - 1); }
  Rank RankOf(const Request& request) const;

  StepDraft& draft_;
  Rank first_waiter_;   // highest rank of the waiting requests within lookahead
  Rank first_overdue_;  // highest rank of overdue requests with a resident adapter
};

}  // namespace loramux
