// The scheduler: which requests wait and run, what each engine step does, and what moves in memory beside the steps.
//
// It joins parts that each know one thing. RequestQueues: who waits, who runs, whose turn it is. RequestPages: which
// pages a request has. AdapterWorth and ExpectedAdapters: what the use of adapters teaches. StepPlanner and
// BackgroundPlanner: what to do next; they change nothing but the plan. The scheduler commits plans.
//
// Not thread-safe. Does not own pools, residency or policy. Reads no clock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "schedule/plan/arrival.h"
#include "schedule/plan/background_planner.h"
#include "schedule/plan/move_plan.h"
#include "schedule/plan/planning_view.h"
#include "schedule/plan/step_plan.h"
#include "schedule/plan/step_planner.h"
#include "schedule/plan/step_rules.h"
#include "schedule/predict/adapter_worth.h"
#include "schedule/predict/expected_adapters.h"
#include "schedule/queue/request_queues.h"
#include "schedule/request_pages.h"
#include "schedule/scheduler_stats.h"
#include "schedule/system_spec.h"

namespace loramux {

// What a scheduler works with. All must outlive it. A part that a cache or an order does not need is there too, and
// does nothing: a tree that keeps nothing, tiers between which nothing moves, a predictor that knows nothing.
struct SchedulerParts {
  PagePool& device;
  ResidencyManager& residency;
  const EvictionPolicy& eviction;
  DependencyTree& tree;
  KvTiers& tiers;
  QueueOrder& queue;
  LengthPredictor& predictor;
};

// Plans and commits engine steps. Keeps pointers to requests from Add to Remove; owns none of its arguments.
class Scheduler {
 public:
  // REQUIRES: the tree's pages are of the device and hold options.page_tokens positions.
  Scheduler(SystemSpec options, const SchedulerParts& parts);
  // The tree keeps its pages.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Adds a new request to the waiting ones. The caller keeps it alive until Remove. REQUIRES: `arrival` is set; ids
  // ascend; a reference to its adapter (ResidencyManager::Acquire) is held from before Add until after Remove; the
  // request fits the device memory when it is alone.
  void Add(Request* request);
  // Removes a waiting or running request and releases its pages and ends its use of its adapter. `by_itself`: it
  // generated its whole output, so predictions can learn from it. REQUIRES: no step that reads its pages is in flight.
  void Remove(Request* request, TimeNs now, bool by_itself = true);

  // A waiting or running request goes on with another adapter, from its tokens: it waits in its place, and its keys and
  // values are computed anew. Its size in the queue stays that of its arrival. REQUIRES: references to both adapters
  // are held; the request fits the device memory beside the new one; no step that reads its pages is in flight.
  void ChangeAdapter(Request* request, AdapterGeneration adapter, TimeNs now);

  // Plans the next step. Changes only the plan, which is valid until the next call of a function that plans. Allocates
  // nothing in the steady state.
  const StepPlan& Plan(TimeNs now) const { return planner_->Plan(now); }
  // Applies a plan. REQUIRES: it is the last one, and nothing has changed since Plan.
  void Commit(const StepPlan& plan, TimeNs now);
  // Notes after the step that `num_tokens` of the request were computed. Until then, the page that is copied for it
  // stays in use. REQUIRES: its adapter is resident, and the path to its tail is on the device.
  void Advance(Request* request, std::int64_t num_tokens, TimeNs now);
  // Preempts a request after its first step if the fetch of its keys and values failed, so that the step's results are
  // invalid. It then begins with what the device has. REQUIRES: it was admitted with that step; BeganOnFailedFetch.
  void BeginAgain(Request* request, TimeNs now);
  // True if the fetch of keys and values that the running request uses has failed.
  bool BeganOnFailedFetch(const Request& request) const { return pages_.BeganOnFailedFetch(request); }
  // Notes the duration of a step, without the time that it waited for layers to arrive.
  void StepTook(TimeNs duration) {
    step_floor_.Add(duration);
    prompt_pace_.Add(prompt_tokens_, duration);
  }

  // Sets who sees each plan of moves beside steps, before it is committed.
  void set_on_moves(std::function<void(const MovePlan&)> on_moves) { on_moves_ = std::move(on_moves); }
  // Starts the load of one adapter during a step (load_on_arrival), so that a request need not wait for the next plan
  // and its step. Each request is considered once. Returns true if a load began. Invalidates the last plan.
  bool LoadForNewcomer(TimeNs now);
  // Drops the history that no running request uses and no transfer moves, from the device and from the host tier.
  // Returns how many pages. REQUIRES: no step is in flight. Invalidates the last plan.
  std::int64_t DropHistory(TimeNs now);
  // Background work beside the computation, which makes the next plan cheaper. Scores history, keeps a few pages free,
  // copies history to the host tier, reads registered adapters there, and loads expected ones. At most every 100 ms,
  // refreshes what the policies know of all candidates, and swaps pages proactively (with proactive_swapping; `ending`:
  // swaps nothing in). Returns true if there is more to do at once. Invalidates the last plan.
  bool Prepare(TimeNs now, bool ending = false);
  // The time at which Prepare should be called even if nothing else happens. None: not needed.
  std::optional<TimeNs> NextMove() const;

  // Running and waiting requests, each in the order of arrival. Valid until the next change.
  std::span<Request* const> running() const { return queues_.running(); }
  std::span<Request* const> waiting() const { return queues_.waiting(); }
  const QueueOrder& queue() const { return queues_.order(); }
  const TenantCounters& tenants() const { return queues_.tenants(); }
  const SystemSpec& options() const { return options_; }
  const DependencyTree& tree() const { return tree_; }
  const KvTiers& tiers() const { return tiers_; }
  SchedulerStats stats() const;
  // What the policies know: measured times of reloads and prefills, and the context that they were given last.
  const AdapterWorth& worth() const { return worth_; }
  // Pages of keys and values that no running request uses.
  std::int64_t history_pages() const { return tree_.tiers().idle_pages(); }
  // The pages of history that no request can use because their adapter is not on the device. 0 if dependency is
  // maintained. Takes time proportional to the adapters on the device.
  std::int64_t CountInvalidHistory();

  // Aborts if queues, pages and users are inconsistent.
  void CheckIntegrity() const;

 private:
  // Plans moves for one reason and commits them. True: pages moved.
  bool MoveFor(MoveReason reason, TimeNs now);
  // Applies a plan of moves.
  void CommitMoves(const MovePlan& plan, TimeNs now);
  // Notes a move beside the steps.
  void CountMove(const Move& move);
  // Carries out the moves that leave a tier.
  void Leave(const Moves& moves, TimeNs now);
  // Carries out the fetches for requests.
  void Fetch(const Moves& moves, TimeNs now);
  // Begins to read the adapters that move to the host tier alone.
  void ReadIntoHost(const Moves& moves, TimeNs now);
  // Carries out the loads: those with which a request of the plan begins, or the others.
  void Load(const Moves& moves, bool begins, TimeNs now);
  // Plans and carries out what leaves the host tier for the adapters that `moves` brings there.
  void MakeHostRoom(const Moves& moves, TimeNs now);
  // Plans and carries out that so many pages of history leave the host tier. REQUIRES: as HostDraft::Drop.
  void DropFromHost(std::int64_t pages, TimeNs now);
  // Lets an admitted request begin to run.
  void Begin(const PlannedAdmission& admission, TimeNs now);
  // Counts how a request found its adapter when it began for the first time.
  void CountBegin(Request& request, const AdapterResidency& adapter, TimeNs now);
  // Adds (sign 1) or subtracts (-1) in the statistics what a request that was preempted begins with.
  void CountResume(const Request& request, std::int64_t sign);
  // Makes a running request wait again, without its pages. `begins_again`: its first step came to nothing.
  void Preempt(Request* request, TimeNs now, bool begins_again = false);
  // Refreshes what the policies know of all candidates, if it is old.
  void RefreshWorth(TimeNs now);

  const SystemSpec options_;
  PagePool& device_;
  ResidencyManager& residency_;
  DependencyTree& tree_;
  KvTiers& tiers_;
  RequestQueues queues_;
  RequestPages pages_;
  ExpectedAdapters expected_;
  AdapterWorth worth_;
  StepFloor step_floor_;
  PromptPace prompt_pace_;
  std::int64_t prompt_tokens_ = 0;  // prompt tokens of the last committed plan
  bool learns_reuse_ = false;       // something depends on the learned rates of reuse
  bool has_clock_ = false;          // the eviction policy notes what was evicted
  double discardable_ = 0;          // computed tokens that preemptions for waiting requests may discard
  PlanOutlook outlook_;             // outlook of the last committed plan
  SchedulerStats stats_;            // without what other parts count
  std::function<void(const MovePlan&)> on_moves_ = [](const MovePlan&) {};
  const PlanningView view_;
  StepRules rules_;                       // rules of the system that the options describe
  std::unique_ptr<StepPlanner> planner_;  // its members are scratch memory of Plan
  BackgroundPlanner background_;
};

}  // namespace loramux
