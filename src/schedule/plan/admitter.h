// Whether a waiting request starts with this step, and what it needs first.
#pragma once

#include <cstdint>

#include "schedule/plan/cold_start.h"
#include "schedule/plan/step_draft.h"

namespace loramux {

// Plans admissions, and the loads and fetches that come before them. Owns none of its arguments.
//
// A request with a loading adapter is passed over, so that a step never waits for a load. Exception: enough layers have
// arrived that the step is not expected to wait for the others (arrival.h). The same holds for keys and values from the
// host tier. A request that memory has no room for ends the scan, so that no later request takes the room that it
// needs.
class Admitter {
 public:
  explicit Admitter(StepDraft& draft) : draft_(draft) {}

  // Finds the loads and fetches of which enough layers have arrived to begin with them.
  void LookAtArrivals();
  // Admits the request, or starts the load or the fetch that it needs first. If this step has no seat for the request,
  // only the load of its adapter begins.
  AdmissionOutcome TryAdmit(Request* request);
  // Plans loads of adapters that an operator keeps. If one waits for room, no request may be admitted and take the
  // room.
  void LoadKept();

  // The rest is for rules (StepRule).
  // Plans the load of an adapter. kPassedOver: planned or put off. kBlocked: no room.
  AdmissionOutcome TryLoad(AdapterGeneration generation);
  // The same for a request. One that could begin but for that room is put off, or refused (SystemSpec::pool_full).
  AdmissionOutcome TryLoadOf(Request* request);
  // Loads adapters beside the step for the oldest waiting requests without a seat, at most `most` requests.
  void LoadForOldest(std::int64_t most);
  // The same for those that come first in the order of this plan, with overdue ones in front.
  void LoadForFirst(std::int64_t most);
  // The outcome for a request that would exceed max_distinct_adapters or max_decode_step.
  AdmissionOutcome BeyondBatch(const Request& request) const;
  StepDraft& draft() { return draft_; }

 private:
  // Loads for a waiting request without a seat, and counts it off `most`. False: no further one is looked at.
  bool LoadAhead(const Request* request, std::int64_t& most);
  // The adapter of the request is not usable: loads it. `absent`: it is not on its way either.
  AdmissionOutcome TryLoadFor(Request* request, bool absent);
  // True if the request begins now, with the copy of its adapter in the host tier.
  bool BeginsCold(Request& request) const;
  // What ColdStartPolicy::kAuto compares. All 0 for other policies and without a performance model.
  ColdStartCosts CostsOf(Request& request) const;
  // Fetches history from the host tier for the request. kAdmitted: there is nothing to wait for.
  AdmissionOutcome TryFetch(Request* request);
  // Pages on the path to `tail` that only the host tier has. kPassedOver if some are on their way, kAdmitted if all are
  // usable in time, none if `pages` must be fetched.
  std::optional<AdmissionOutcome> LookAtPath(NodeId tail, std::int64_t& pages) const;
  // Pages that the request takes beside those of the tree.
  std::int64_t PagesBeside(const PlannedAdmission& admission) const;
  // Uses the pages that the request begins with, and takes PagesBeside more. False: there is no room.
  bool TakePages(PlannedAdmission& admission);
  // The same with states. Before, `tail` is what PlannedTail returned.
  bool TakePagesAfterSnapshot(PlannedAdmission& admission);
  // Admits the request to a step that has a seat, with its adapter.
  AdmissionOutcome Admit(Request* request);

  StepDraft& draft_;
};

}  // namespace loramux
