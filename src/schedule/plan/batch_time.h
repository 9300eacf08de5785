// A bound on a batch by the time that its steps take, in place of a bound on its number of adapters: what an adapter
// adds to a step depends on its rank, and with the padded kernel on the ranks of the others (CaraServe, section 5).
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/plan/planning_view.h"
#include "schedule/plan/runners.h"

namespace loramux {

// The decoding step of all running requests and of those that a plan admits, as the performance model predicts it.
// Prompts count as if they were computed already, because the bound is on what follows them. Owns none of its
// arguments.
class BatchTime {
 public:
  // Starts a new plan: the requests that run. Does nothing without SystemSpec::max_decode_step. Requests that the
  // plan preempts must be gone from `runners`; paused ones count, because they come back.
  void Begin(const PlanningView& view, const Runners& runners);
  // True if a step would take longer than max_decode_step with this request as well. Never for the first request of a
  // batch. Always false without max_decode_step.
  bool Exceeds(const PlanningView& view, const Request& request) const;
  // The plan admits the request.
  void Add(const PlanningView& view, const Request& request);

 private:
  // Adds the request to a load.
  void AddTo(StepLoad& load, const PlanningView& view, const Request& request) const;

  StepLoad load_;
  std::vector<bool> in_batch_;  // by residency slot: the load counts the adapter
};

}  // namespace loramux
