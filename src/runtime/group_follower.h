// The ranks of a group beside rank 0: each carries out, on its part of the model and its own pages, what rank 0 says.
#pragma once

#include "base/result.h"
#include "collective/collectives.h"
#include "runtime/placed_model.h"

namespace loramux {

// Follows rank 0 until it ends the group. `threads`: as CpuExecutorOptions::threads. Errors: what keeps this rank from
// beginning, which rank 0 is told too; rank 0 is lost (kUnavailable). REQUIRES: AgreeOnFacts; the model is this rank's
// part, on the CPU; rank > 0.
Status FollowGroup(Collectives& group, PlacedModel& model, int threads);

}  // namespace loramux
