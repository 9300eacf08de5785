// Steps that wait for adapters, and adapters that come so that none need wait (SchedulerOptions::cold_start).
#include <algorithm>
#include <limits>

#include "base/check.h"
#include "schedule/scheduler.h"

namespace loramux {

// As long as somebody is left who wants one of them.
bool Scheduler::Stalled() const {
  return std::any_of(stalls_.begin(), stalls_.end(), [this](AdapterGeneration generation) {
    if (!residency_->Knows(generation)) return false;
    const AdapterResidency& adapter = residency_->Get(generation);
    return adapter.device == TierState::kLoading && adapter.references > 0;
  });
}

// Nobody goes before one that waits for too long, or whose tenant does: its turn is the first then.
Scheduler::Admission Scheduler::BeyondDistinct(const Request& request) const {
  const bool turn_overdue = !order_.turns.empty() && order_.turns.front().request == &request &&
                            order_.turns.front().service == -std::numeric_limits<double>::infinity();
  return options_.skip_beyond_distinct && !IsOverdue(request) && !turn_overdue ? Admission::kPassedOver
                                                                               : Admission::kBlocked;
}

// It would join now. Its seat and its tokens are taken, so that no more is loaded than the step has room for. After
// steps have waited once, one computes before the next waits: else clients that come and go could keep all others from
// it for ever.
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

// vLLM-LoRA's prefetch_adapters: of the oldest that wait and did not get a seat, beside the step. Not where that waits
// anyway.
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
    // nobody behind takes the room from it
    if (absent && TryLoad(request->adapter, now) == Admission::kBlocked) return;
  }
}

// What somebody needs who would join is loaded first; who computes is planned again then. Evictions stand: the loads
// may need their room, and so do preemptions, which evictions may follow from.
void Scheduler::LoadBeforeStep() {
  if (plan_.stalls.empty() && (options_.cold_start != ColdStart::kBeginAtOnce || plan_.loads.empty())) return;
  plan_.admissions.clear();
  plan_.chunks.clear();
  plan_.fetches.clear();
  plan_.num_tokens = plan_.prefill_tokens = 0;
}

}  // namespace loramux
