// Predicted times of requests and reloads from a performance model. Given a model, the scheduler uses them for
// bypasses, quotas of lanes, the minimum duration of a step, and the cost of reloads until these were measured.
#pragma once

#include <cstdint>
#include <memory>

#include "cache/reload_costs.h"
#include "schedule/profile/performance_model.h"
#include "schedule/queue/queue_order.h"
#include "schedule/system_spec.h"

namespace loramux {

// Sets the options that depend on the model, so that planning uses it. Null: planning uses measured times alone. Serve,
// simulate and replay all call this.
void PlanByModel(std::shared_ptr<const PerformanceModel> model, SystemSpec& scheduler, QueueOrderOptions& queue);

// The number of tokens up to which a step takes constant time, because it is bound by reading the weights. 0: there is
// no such bound.
std::int64_t RidgeTokens(const PerformanceModel& model);
// Seconds of a step in which one sequence decodes at its first position.
double ShortestStepSeconds(const PerformanceModel& model);
// Seconds of the prefill of `tokens` after `context` positions, in a step of its own. 0 if there are no tokens.
double PrefillSeconds(const PerformanceModel& model, std::int64_t tokens, std::int64_t context);

// Sets the costs that `costs` assumes until it has enough measurements.
void ExpectReloads(const PerformanceModel& model, std::int64_t page_bytes, std::int64_t page_tokens,
                   ReloadCostEstimator& costs);

}  // namespace loramux
