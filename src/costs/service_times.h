// Predicted times of requests from a performance model.
#pragma once

#include <cstdint>

#include "costs/performance_model.h"

namespace loramux {

// The number of tokens up to which a step takes constant time, because it is bound by reading the weights. 0: there is
// no such bound.
std::int64_t RidgeTokens(const PerformanceModel& model);
// Seconds of a step in which one sequence decodes at its first position.
double ShortestStepSeconds(const PerformanceModel& model);
// Seconds of the prefill of `tokens` after `context` positions, in a step of its own. 0 if there are no tokens.
double PrefillSeconds(const PerformanceModel& model, std::int64_t tokens, std::int64_t context);

}  // namespace loramux
