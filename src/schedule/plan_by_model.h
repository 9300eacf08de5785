// What the scheduler takes from a performance model: bypasses, quotas of lanes, the minimum duration of a step, and the
// cost of reloads until these were measured.
#pragma once

#include <cstdint>
#include <memory>

#include "costs/performance_model.h"
#include "schedule/system_spec.h"
#include "worth/reload_costs.h"

namespace loramux {

// Sets the fields that depend on the model, so that planning uses it. Null: planning uses measured times alone. Serve,
// simulate and replay all call this.
void PlanByModel(std::shared_ptr<const PerformanceModel> model, SystemSpec& spec);

// Sets the costs that `costs` assumes until it has enough measurements.
void ExpectReloads(const PerformanceModel& model, std::int64_t page_bytes, std::int64_t page_tokens,
                   ReloadCostEstimator& costs);

}  // namespace loramux
