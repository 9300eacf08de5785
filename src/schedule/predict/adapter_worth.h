// What adapters and history are worth to the eviction policy, learned from the use of both.
#pragma once

#include <cstdint>
#include <optional>

#include "costs/performance_model.h"
#include "prefix/dependency_tree.h"
#include "residency/adapter_residency.h"
#include "schedule/plan/step_plan.h"
#include "schedule/predict/expected_adapters.h"
#include "worth/eviction_policy.h"
#include "worth/reload_costs.h"
#include "worth/turnover.h"
#include "worth/usage_monitor.h"

namespace loramux {

// Scores adapters. Owns none of its arguments.
class AdapterWorth {
 public:
  AdapterWorth(const EvictionPolicy& policy, const ResidencyManager& residency, const ExpectedAdapters& expected,
               std::int64_t page_tokens)
      : policy_(policy), residency_(residency), expected_(expected), page_tokens_(page_tokens) {
    context_.clock = &clock_;
  }
  AdapterWorth(const AdapterWorth&) = delete;
  AdapterWorth& operator=(const AdapterWorth&) = delete;

  // A step's plan was committed. Its admissions count as visits, and the step is measured.
  void StepBegan(const StepPlan& plan, TimeNs now);
  // The step has ended. Later calls for the same step have no effect.
  void StepEnded(TimeNs now);
  // A load to the device has ended.
  void SawLoad(const AdapterResidency& adapter, TimeNs took);
  // FastLibra's window for the mean size of a batch (UsageMonitor).
  void set_batch_window(TimeNs window) { usage_.set_batch_window(window); }
  // SystemSpec::usage_window.
  void set_usage_window(TimeNs window) {
    usage_.set_window(window);
    usage_window_ = context_.half_life = window;
  }
  // The costs of reloads, to set what they are until they were measured.
  ReloadCostEstimator& reload_costs() { return reload_costs_; }
  const ReloadCostEstimator& reload_costs() const { return reload_costs_; }

  // Requests begin with the copy in the host tier, at the costs of the model (CpuAssist). Null: the device reads that
  // copy in place, at no cost. Where the model has no measured assistance, reloads cost what loads cost. `model` must
  // outlive this.
  void UseAssist(const PerformanceModel* model) {
    assists_ = true;
    assist_model_ = model;
  }

  // The state of the cache, for Refresh.
  struct CacheState {
    std::int64_t idle_pages = 0;     // pages of history and of adapters that no request uses
    std::int64_t evicted_pages = 0;  // so far
    std::int64_t requests = 0;       // running and waiting
    TimeNs oldest_history = 0;       // the last use of the longest idle page; now if there is none
  };
  // Updates the context of the policy. Takes about 0.1 us per known adapter.
  void Refresh(const CacheState& state, TimeNs now);
  // True if the context is so old that it should be refreshed.
  bool IsStale(TimeNs now) const;
  // The context that the policy gets.
  const EvictionContext& context() const { return context_; }

  // Content of this score is evicted from the device.
  void Evicts(double score, TimeNs now) { clock_.Evicts(score, now); }

  // The score of an adapter: the lowest is evicted first.
  double ScoreOf(const AdapterResidency& adapter, TimeNs now) const;
  // The score that it would have as an idle adapter that was used now.
  double ScoreIfUsed(const AdapterResidency& adapter, TimeNs now) const;
  // The worth of its copy in the host tier, computed as the tree computes it for keys and values, so that both compare.
  TimeNs HostWorthOf(const AdapterResidency& adapter, const DependencyTree& tree) const;

 private:
  // The step under way.
  struct StepUnderWay {
    TimeNs began = -1;  // -1: none, or already measured
    std::int64_t tokens = 0, prefill_tokens = 0;
  };
  // The adapter's frequency for the policy.
  UsageMonitor::Visits VisitsOf(const AdapterResidency& adapter, TimeNs now) const;
  // What a request with the mean prompt loses by assistance, in the unit of the costs: a line through an adapter of no
  // rank and `ranks` in `pages`.
  std::optional<ReloadCosts::Load> AssistedCost(double ranks, double pages) const;
  double Score(const EvictionCandidate& candidate, TimeNs now) const {
    context_.now = now;
    return policy_.Score(candidate, context_);
  }

  const EvictionPolicy& policy_;
  const ResidencyManager& residency_;
  const ExpectedAdapters& expected_;
  const std::int64_t page_tokens_;
  UsageMonitor usage_;
  TimeNs usage_window_ = kFrequencyHalfLife;
  EvictionClock clock_;
  ReloadCostEstimator reload_costs_;
  Turnover turnover_;
  mutable EvictionContext context_;  // `now` is that of the last score
  StepUnderWay step_;
  bool assists_ = false;
  const PerformanceModel* assist_model_ = nullptr;
  double prompt_tokens_ = 0;  // computed in the first step of a request or later: mean over recent admissions
  std::int64_t admissions_ = 0;
};

}  // namespace loramux
