// Steps that wait for adapters, and loads that avoid such waits (SchedulerOptions::cold_start).
#include <algorithm>
#include <limits>

#include "base/check.h"
#include "schedule/scheduler.h"

namespace loramux {

// A load counts only while a request holds a reference to its adapter.
bool Scheduler::Stalled() const {
  return std::any_of(stalls_.begin(), stalls_.end(), [this](AdapterGeneration generation) {
    if (!residency_->Knows(generation)) return false;
    const AdapterResidency& adapter = residency_->Get(generation);
    return adapter.device == TierState::kLoading && adapter.references > 0;
  });
}

// No request passes an overdue one, nor the first turn if its tenant is overdue.
Scheduler::Admission Scheduler::BeyondDistinct(const Request& request) const {
  const bool turn_overdue = !order_.turns.empty() && order_.turns.front().request == &request &&
                            order_.turns.front().service == -std::numeric_limits<double>::infinity();
  return options_.skip_beyond_distinct && !IsOverdue(request) && !turn_overdue ? Admission::kPassedOver
                                                                               : Admission::kBlocked;
}

// The request would be admitted now. Its seat and its tokens are taken, so that no more adapters are loaded than the
// step has room for. After steps have waited once, one must compute before the next may wait. Otherwise clients that
// connect and leave could starve all other requests.
Scheduler::Admission Scheduler::PlanStall(Request* request, TimeNs now) {
  if (scratch_.free_seats == 0 || scratch_.budget == 0) return Admission::kPassedOver;
  if (ExceedsDistinctAdapters(*request)) return BeyondDistinct(*request);
  const AdapterGeneration adapter = request->adapter;
  if (!IsLoading(*request) && (Flags(adapter) & kLoadPlanned) == 0) {
    const Admission outcome = TryLoad(adapter, now);
    if ((Flags(adapter) & kLoadPlanned) == 0) return outcome;
  }
  if (stalled_since_step_) return Admission::kPassedOver;
  if (std::find(plan_.stalls.begin(), plan_.stalls.end(), adapter) == plan_.stalls.end())
    plan_.stalls.push_back(adapter);
  --scratch_.free_seats;
  scratch_.budget -= ChunkTokens(request->uncomputed());
  PinInPlan(adapter);
  if (Pins(adapter) == 1) ++scratch_.distinct_adapters;
  return Admission::kPassedOver;
}

// vLLM-LoRA's prefetch_adapters: loads adapters beside the step for the oldest waiting requests without a seat. Does
// nothing if the step waits anyway.
void Scheduler::PlanPrefetches(TimeNs now) {
  if (!plan_.stalls.empty() || scratch_.memory_short || scratch_.locked_waits) return;
  const auto joins = [this](const Request* request) {
    return std::any_of(plan_.admissions.begin(), plan_.admissions.end(),
                       [request](const PlannedAdmission& admission) { return admission.request == request; });
  };
  std::int64_t left = options_.prefetch_lookahead;
  for (const Request* request : waiting()) {
    if (left == 0) return;
    if (joins(request)) continue;
    --left;
    if (request->adapter == kBaseModel) continue;
    WantInPlan(request->adapter);
    const bool absent = MustLoad(*request) && (Flags(request->adapter) & (kLoadPlanned | kEvicted)) == 0;
    // Later requests must not take the room from this one.
    if (absent && TryLoad(request->adapter, now) == Admission::kBlocked) return;
  }
}

// Adapters of requests that would be admitted are loaded first; the computation is planned again after that.
// Evictions stay in the plan, because the loads may need their room. Preemptions stay too, because evictions may
// depend on them.
void Scheduler::LoadBeforeStep() {
  if (plan_.stalls.empty() && (options_.cold_start != ColdStart::kBeginAtOnce || plan_.loads.empty())) return;
  plan_.admissions.clear();
  plan_.chunks.clear();
  plan_.fetches.clear();
  plan_.num_tokens = plan_.prefill_tokens = 0;
}

}  // namespace loramux
