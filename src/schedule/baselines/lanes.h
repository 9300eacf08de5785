// Admission by the quotas of lanes (Chameleon's algorithm 1), and opportunistic bypass and squash (Chameleon 4.3.3).
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "schedule/heap.h"
#include "schedule/plan/planning_view.h"
#include "schedule/plan/step_rules.h"
#include "schedule/queue/queue_order.h"

namespace loramux {

// Admits waiting requests lane by lane. Does not own the order.
class Lanes final : public StepRule {
 public:
  // `prefetches`: SystemSpec::prefetch_lookahead. REQUIRES: the order has quotas.
  Lanes(const QueueOrder& order, std::int64_t prefetches) : order_(order), prefetches_(prefetches) {}

  // Requests that overtook another one are preempted if that one can then start.
  void Begin(StepDraft& draft, Preemption& preemption) override;
  bool HasQuota(const Request& request) const override;
  bool AdmitsWaiting() const override { return true; }
  // In the first phase each lane uses its own quota. In the second phase lanes use the quotas left over by lanes in
  // which no request waits any longer, smallest requests first.
  void AdmitWaiting(Admitter& admitter) override;
  // Loads for requests that wait, also for quota or behind one that is overdue (Chameleon 4.2). Not beside a step that
  // waits for loads: it would wait for these too.
  void AfterPrompts(Admitter& admitter) override;
  void Preempts(const Request& request) override { LaneUse(request) -= static_cast<double>(request.quota_tokens); }
  void AdmitsOverdue(const Request& request) override { LaneUse(request) += static_cast<double>(request.quota_tokens); }

  void Began(const Request& request, RequestId overtakes) override;
  bool Preempted(const Request& request, bool begins_again) override;
  bool WasSquashed(const Request& request) const override;
  void Left(const Request& request) override;

 private:
  // What is remembered of a request that has overtaken another one.
  struct Overtaker {
    RequestId request;
    RequestId overtook;          // the older request that memory had no room for; 0: it runs no longer
    bool squashed = false;       // it was preempted after it had overtaken; it may not overtake again
    bool squashed_last = false;  // its last preemption was a squash
  };
  // The predicted end of a running request; time as in RunTimeOf.
  struct End {
    double time = 0;
    const Request* request = nullptr;
  };
  struct EndsBefore {
    bool operator()(const End& a, const End& b) const { return a.time < b.time; }
  };
  // Admits requests of the lane, from turn `first` on, while `tokens` last. Returns the first turn for which the quota
  // was too small, or kEmptied, or kBlocked.
  std::size_t AdmitFrom(Admitter& admitter, std::size_t lane, std::size_t first, double& tokens);
  // Predicted time until the request ends: seconds with a performance model, else steps.
  double RunTimeOf(const StepDraft& draft, const Request& request) const;
  // Predicted seconds of a step in which all runners decode.
  static double DecodeSeconds(const StepDraft& draft);
  // Sets time_until_room_ for the request, which memory has no room for.
  void EstimateTimeUntilRoom(const StepDraft& draft, const Request& request);
  std::int64_t PagesOfLastUse(const StepDraft& draft, const Request& ended, const Request& request);
  // True if the request may overtake the one that memory has no room for.
  bool MayOvertake(const StepDraft& draft, const Request& request) const;
  // True if free memory has room for the request and for its adapter, which is not on the device.
  static bool FitsBesideOthers(const StepDraft& draft, const Request& request);
  // The waiting request of this id, if the runners that overtook it keep it from starting; null: none.
  static const Request* Overtaken(const StepDraft& draft, RequestId id);
  // Pages that the request needs to run: its adapter, unless that is on the device, and its keys and values.
  static std::int64_t PagesToRun(const PlanningView& view, const Request& request);
  // Pages that the overtaken request lacks.
  static std::int64_t MissingFor(const StepDraft& draft, const Request& overtaken);
  // What is remembered of the request; null: it has overtaken none.
  const Overtaker* Find(RequestId request) const;
  Overtaker* Find(RequestId request) { return const_cast<Overtaker*>(std::as_const(*this).Find(request)); }
  // The request that the running request overtook; 0: none.
  RequestId OvertookBy(const Request& request) const;
  double& LaneUse(const Request& request) { return lane_use_[static_cast<std::size_t>(request.lane)]; }

  const QueueOrder& order_;
  const std::int64_t prefetches_;
  std::vector<Overtaker> overtakers_;            // ascending by request
  std::array<double, kMaxLanes> lane_use_ = {};  // tokens of running requests and of those that the plan admits
  Heap<End, EndsBefore> ends_;                   // when running requests end, the earliest first
  std::vector<std::pair<AdapterGeneration, std::int32_t>> users_left_;  // by adapter, in EstimateTimeUntilRoom
  double decode_seconds_ = 0;                                           // DecodeSeconds, with a performance model
  double time_until_room_ = 0;                                          // as in RunTimeOf
};

}  // namespace loramux
