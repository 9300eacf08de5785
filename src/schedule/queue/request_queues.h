// The requests that run and those that wait: who they are, in which lane, and whose turn it is.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "residency/adapter_residency.h"
#include "schedule/predict/length_predictor.h"
#include "schedule/queue/fairness.h"
#include "schedule/queue/queue_order.h"
#include "schedule/request.h"
#include "schedule/system_spec.h"
#include "worth/reload_costs.h"

namespace loramux {

// The queues of a scheduler. Keeps pointers to requests from Enter to Leave; owns none of them. Knows nothing of pages.
// Not thread-safe. Reads no clock.
class RequestQueues {
 public:
  // Owns none of the arguments.
  RequestQueues(const SystemSpec& options, const ResidencyManager& residency, QueueOrder& order,
                LengthPredictor& predictor);

  // A new request begins to wait. `cached_tokens`: tokens of its prompt that need not be computed. REQUIRES: ids
  // ascend.
  void Enter(Request* request, std::int64_t cached_tokens);
  // A waiting request begins to run.
  void Admit(Request* request, TimeNs now);
  // A running request was preempted and waits again.
  void Return(Request* request, TimeNs now);
  // A request leaves. `by_itself`: it generated its whole output, so predictions can learn from it.
  void Leave(Request* request, TimeNs now, bool by_itself);
  // Charges its tenant for the positions computed since the last charge.
  void Charge(Request* request, TimeNs now) { tenants_.Charge(request, now); }
  // Lets the order give up requests and refit its lanes, with the measured times of loads. Returns the requests given
  // up.
  std::int64_t Refit(const ReloadCostEstimator& loads, TimeNs now);
  // The running requests by rank, for the next plan, which is faster if most are in order. REQUIRES: a permutation of
  // by_rank().
  void set_by_rank(std::span<Request* const> by_rank) { by_rank_.assign(by_rank.begin(), by_rank.end()); }

  // Running and waiting requests, each in the order of arrival. Valid until the next change.
  std::span<Request* const> running() const { return running_; }
  std::span<Request* const> waiting() const {
    return {waiting_.data() + waiting_head_, waiting_.size() - waiting_head_};
  }
  // The waiting request of this id; null: there is none.
  Request* FindWaiting(RequestId id) const;
  // The running requests by rank as of the last plan, with newly admitted ones at the end.
  std::span<Request* const> by_rank() const { return by_rank_; }
  // By lane: Request::quota_tokens of running requests.
  const std::array<double, kMaxLanes>& lane_use() const { return lane_use_; }
  // The last request that arrived.
  std::optional<RequestId> newest() const { return newest_; }
  const QueueOrder& order() const { return order_; }
  const TenantCounters& tenants() const { return tenants_; }
  const PredictionStats& predictions() const { return predictions_; }

  // Aborts if lists, lanes and counters are inconsistent.
  void CheckIntegrity() const;

 private:
  // The query for the predictor.
  LengthQuery QueryOf(const Request& request) const;
  // Lets order and predictor learn from a request that ended by itself.
  void ObserveEnd(const Request& request, TimeNs now);
  // Counts the error of the prediction, if there was one.
  void CountPrediction(const Request& request, std::int32_t output_tokens);
  // Insert into and erase from running_, by_rank_ and waiting_.
  void InsertRunning(Request* request);
  void EraseRunning(Request* request);
  void InsertWaiting(Request* request);
  void EraseWaiting(Request* request);
  // The tokens in use by lane must be those of the running requests.
  void CheckLanes() const;
  void Place(Request& request) const { PlaceInQueue(order_, options_.age_bound, request); }

  const SystemSpec& options_;
  const ResidencyManager& residency_;
  QueueOrder& order_;
  LengthPredictor& predictor_;
  PredictionStats predictions_;
  TenantCounters tenants_;
  std::vector<Request*> running_;  // ascending id
  std::vector<Request*> by_rank_;
  std::vector<Request*> waiting_;  // ascending id, from waiting_head_ on
  std::size_t waiting_head_ = 0;
  std::array<double, kMaxLanes> lane_use_ = {};
  std::optional<RequestId> newest_;
};

}  // namespace loramux
