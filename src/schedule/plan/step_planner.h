// Decides what an engine step does: continuous batching with a decision per step, and chunked prefill.
//
// A step serves requests in this order:
//  1. Running requests that decode. A step has seats; if more requests run, some pause (Seats).
//  2. Prompts, up to the token budget of the step, in the order of their tenants' counters (Prompts): running requests
//     in prefill, and waiting requests within `lookahead` (Admitter, Lanes). A waiting request may take the seat of a
//     running one if its tenant got less service.
//  3. History in the host tier, for waiting requests without a seat (FetchAhead).
//  4. Snapshots of the states of requests that have come to such a place, as far as history gives way to them.
//  5. Drafts of the requests that decode, in what the others leave of the budget.
// Where a page is missing, history and idle adapters are evicted (Draft), and then running requests are preempted
// (Preemption). Baselines do some of this otherwise (StepRules).
#pragma once

#include "schedule/plan/admitter.h"
#include "schedule/plan/fetch_ahead.h"
#include "schedule/plan/planning_view.h"
#include "schedule/plan/preemption.h"
#include "schedule/plan/prompts.h"
#include "schedule/plan/seats.h"
#include "schedule/plan/step_draft.h"
#include "schedule/plan/step_rules.h"

namespace loramux {

// See the top of this file. A plan is a function of the view and the time; the members are scratch memory, so that
// nothing is allocated in the steady state. Owns none of its arguments.
class StepPlanner {
 public:
  // `residency` and `tree`: those of the view.
  StepPlanner(const PlanningView& view, ResidencyManager& residency, DependencyTree& tree, const EvictionPolicy& policy,
              StepRules& rules);

  // Plans the next step. The plan is valid until the next call.
  const StepPlan& Plan(TimeNs now);

  // The scores of history, which last from plan to plan.
  KvEvictionPlan& history() { return draft_.room.history(); }
  const KvEvictionPlan& history() const { return draft_.room.history(); }
  // The scratch copy of the memory, for the moves beside steps (BackgroundPlanner). Invalidates the plan.
  Draft& room() { return draft_.room; }

 private:
  // Makes the plan. `may_pause`: running requests may be paused for waiting ones.
  void MakePlan(TimeNs now, bool may_pause);
  // Plans one token for each running request that decodes.
  void PlanDecodes();
  // Plans the snapshots that chunks have before them.
  void PlanSnapshots();
  // Whether the device has a snapshot of what the request has computed.
  bool HasSnapshot(const Request& request) const;

  StepRules& rules_;
  StepDraft draft_;
  Seats seats_;
  Preemption preemption_;
  Admitter admitter_;
  Prompts prompts_;
  FetchAhead fetch_ahead_;
  // Adds drafts to the chunks that decode, where there is room for them without a preemption.
  void PlanDrafts();

  std::vector<PlannedChunk> chunk_buffer_;  // scratch of SortByAdapter
};

}  // namespace loramux
