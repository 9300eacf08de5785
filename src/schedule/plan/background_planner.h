// Decides what moves in memory beside the steps: loads for requests that arrive during a step and for adapters that are
// expected, pages that are kept free, and proactive swapping (FastLibra 5.3; residency/proactive_swapper.h). Never at
// the cost of a request.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "residency/proactive_swapper.h"
#include "schedule/plan/draft.h"
#include "schedule/plan/move_plan.h"
#include "schedule/plan/planning_view.h"
#include "schedule/plan/step_plan.h"
#include "schedule/plan/step_rules.h"

namespace loramux {

// See the top of this file. Plans on the scratch copy of the memory that the step planner uses, between its plans. Owns
// none of its arguments.
class BackgroundPlanner {
 public:
  // `outlook`: what the last committed plan has seen.
  BackgroundPlanner(const PlanningView& view, Draft& room, const StepRules& rules, const PlanOutlook& outlook)
      : view_(view), room_(room), rules_(rules), outlook_(outlook), swapper_(view.tree, view.options.swapping) {}

  // Plans the moves for one reason. Null: there is nothing to decide. A plan that moves nothing is a decision too, and
  // is to be committed. Valid until the next call of either planner.
  const MovePlan* Plan(MoveReason reason, TimeNs now);

  // Plans that so many pages of history leave the host tier, for loads that are about to begin. Valid until its next
  // call. REQUIRES: as HostDraft::Drop.
  const MovePlan& DropHistory(std::int64_t pages);

  // Observes the use of memory, at most once an interval. Returns whether pages are to be swapped in or out. None:
  // memory is balanced, or pages are not swapped proactively. `ending`: no request will come any more.
  std::optional<MoveReason> ObserveMemory(TimeNs now, bool ending);
  // True if the last swap has more to do at once, or a plan could evict what could not be copied.
  bool swaps_on() const { return swaps_on_ || copies_ended_; }
  // The time of the next swap if nothing else happens. None if nothing could move the last time and nothing has
  // happened since.
  std::optional<TimeNs> NextSwap() const;

 private:
  // True: plan_ is the decision.
  bool ForNewcomer(TimeNs now);
  bool ForExpected(TimeNs now);
  bool ForReserve(TimeNs now);
  bool ForRegistered();
  bool BackUp();
  // Pages that have to leave the device soon: with SwapOut::kEvicted those that memory above the upper threshold, or
  // what waits for room, takes; otherwise as many as a copy may have once the device fills.
  std::int64_t PagesToBackUp() const;
  double EnoughFree() const;  // pages: with more, the device is not filling up
  bool SwapOut(TimeNs now);
  bool SwapIn(TimeNs now);
  bool Reset(TimeNs now);

  void Begin(MoveReason reason, TimeNs now);
  // Plans the load for the last of these requests if all of them have room beside it.
  bool PlanLoadFor(std::span<Request* const> waiting);
  // Upper bound of the pages that running requests and `waiting` need in the next plan.
  std::int64_t NextPlanNeeds(std::span<Request* const> waiting) const;
  // Plans the load of an expected adapter. False: there is no room.
  bool PlanExpectedLoad(const AdapterResidency& adapter, TimeNs now);
  // Evicts the least valuable page or adapter for a swap. False: none may go.
  bool SwapOutOne();
  // Offers the adapters in the host tier to the swapper.
  void OfferAdapters(TimeNs now);
  // The room that swapping in may use.
  ProactiveSwapper::Room RoomToSwapIn() const;
  std::int64_t LoadsToSwapIn() const;
  std::int64_t Failures() const { return view_.tiers.stats().failed_jobs + view_.residency.Stats().load_failures; }
  void WantAdaptersOfWaiting();
  std::int64_t UsedPages() const { return view_.device.capacity_pages() - view_.device.free_pages(); }

  const PlanningView& view_;
  Draft& room_;
  const StepRules& rules_;
  const PlanOutlook& outlook_;
  ProactiveSwapper swapper_;
  MovePlan plan_, host_plan_;  // scratch of Plan; scratch of DropHistory
  std::vector<NodeId> soon_;   // scratch of BackUp
  bool swaps_on_ = false;
  bool copies_ended_ = false;     // the last BackUp found that nothing can be copied, for the first time
  bool swapped_in_some_ = false;  // the last swap in moved something
  std::int64_t failures_ = 0;     // in transfers, before it
  TimeNs swapped_in_at_ =
      std::numeric_limits<TimeNs>::min();  // time of the observation after which a swap in last began
  std::vector<bool> usable_branches_;      // by branch: its keys and values may be swapped in
};

}  // namespace loramux
