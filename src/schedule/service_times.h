// How long requests run and reloads take, by a performance model: what the scheduler predicts with where it was given
// one (bypasses, quotas of lanes, what a step is sure to take, what a reload costs until it was seen).
#pragma once

#include <cstdint>
#include <memory>

#include "cache/reload_costs.h"
#include "schedule/performance_model.h"
#include "schedule/queue_order.h"
#include "schedule/scheduler.h"

namespace loramux {

// From now on plans go by the model; null: by what is learned while serving. The same for serve, simulate and replay.
void PlanByModel(std::shared_ptr<const PerformanceModel> model, SchedulerOptions& scheduler, QueueOrderOptions& queue);

// The tokens from which on a step takes longer for more of them; below, reading the weights takes as long. 0: there is
// no such bound.
std::int64_t RidgeTokens(const PerformanceModel& model);
// Of a step in which one sequence decodes, without a history.
double ShortestStepSeconds(const PerformanceModel& model);
// Of the prefill of so many tokens behind `context` positions, in a step of its own; 0 for no tokens.
double PrefillSeconds(const PerformanceModel& model, std::int64_t tokens, std::int64_t context);

// What `costs` goes by until it has seen enough.
void ExpectReloads(const PerformanceModel& model, std::int64_t page_bytes, std::int64_t page_tokens,
                   ReloadCostEstimator& costs);

}  // namespace loramux
