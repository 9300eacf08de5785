// The computation of a step as its plan under construction leaves it: seats, tokens, chunks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "schedule/plan/batch_time.h"
#include "schedule/plan/draft.h"
#include "schedule/plan/planning_view.h"
#include "schedule/plan/prefixes.h"
#include "schedule/plan/runners.h"
#include "schedule/plan/step_plan.h"
#include "schedule/plan/step_rules.h"
#include "schedule/plan/turns.h"

namespace loramux {

// The blackboard of the parts of StepPlanner. Each part writes what it decides; all read what the others decided.
struct StepDraft {
  // `residency` and `tree`: those of the view.
  StepDraft(const PlanningView& view, ResidencyManager& residency, DependencyTree& tree, const EvictionPolicy& policy,
            StepRules& rules)
      : view(view),
        rules(rules),
        room(view, residency, tree, policy),
        prefixes(view, room),
        runners(view),
        turns(view, room) {}
  StepDraft(const StepDraft&) = delete;
  StepDraft& operator=(const StepDraft&) = delete;

  // Starts a new plan from the present state. `may_pause`: running requests may be paused for waiting ones.
  void Reset(TimeNs now, bool may_pause = true);

  // Tokens of a chunk for the request when `uncomputed` of its tokens are.
  std::int64_t ChunkTokens(const Request& request, std::int64_t uncomputed) const {
    const std::int64_t tokens = std::min({uncomputed, view.options.Chunk(), budget});
    if (tokens <= 1) return tokens;
    const std::int64_t position = PositionOf(request, uncomputed);
    return std::min(request.AlikeFrom(position, tokens), view.NextSnapshot(request, position) - position);
  }
  // True if the step has neither a seat nor a token left for another request.
  bool full() const { return free_seats == 0 || budget == 0; }
  // True if no request may be admitted: running requests lost pages to each other, or a kept adapter waits for room.
  bool closed() const { return memory_short || kept_waits; }
  // True if the request waits for its adapter or for history that is on its way.
  bool IsArriving(const Request& request) const { return room.IsLoading(request) || prefixes.IsFetching(request); }
  // Pages of its adapter that Draft::evictable counts: a request does not get room by evicting its own adapter.
  std::int64_t PagesOfIdleAdapter(const Request& request) const {
    if (request.adapter == kBaseModel || view.partitioned()) return 0;
    return room.EvictablePagesOf(view.residency.Get(request.adapter));
  }
  // True if admission of the request would exceed max_distinct_adapters or max_decode_step. REQUIRES: the plan preempts
  // no more requests.
  bool ExceedsBatch(const Request& request) const {
    return room.ExceedsDistinct(request) || batch_time.Exceeds(view, request) || !rules.Computes(request);
  }
  // True if this plan admits the request.
  bool IsAdmitted(const Request* request) const;

  // Adds a chunk to the plan: the next tokens of the request, of which `uncomputed` are to compute.
  void AddChunk(Request* request, std::int64_t uncomputed, std::int64_t tokens, std::int64_t new_pages);
  // Adds an admission and its first chunk to the plan.
  void AddAdmission(const PlannedAdmission& admission, std::int64_t new_pages);
  // Adds a fetch to the plan. REQUIRES: there is room.
  void AddFetch(Request* request, NodeId tail, std::int64_t pages, bool ahead);

  const PlanningView& view;
  StepRules& rules;
  StepPlan plan;
  Draft room;
  Prefixes prefixes;
  Runners runners;
  BatchTime batch_time;
  Turns turns;
  bool may_pause = true;             // running requests may be paused for waiting ones
  std::int64_t budget = 0;           // tokens left in this step
  std::int64_t free_seats = 0;       // in the batch of this step
  bool memory_short = false;         // running requests lost pages to each other
  bool kept_waits = false;           // a kept adapter waits for room
  bool loads_wait = false;           // a load was put off by max_loads_in_flight
  bool loads_pause = false;          // no load begins beside this step (a StepRule)
  bool awaits_load = false;          // PlanOutlook::awaits_load
  const Request* blocked = nullptr;  // the first waiting request that was kBlocked

 private:
  static std::int64_t PositionOf(const Request& request, std::int64_t uncomputed) {
    return static_cast<std::int64_t>(request.tokens.size()) - uncomputed;
  }
};

}  // namespace loramux
