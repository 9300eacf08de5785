// What a batch computes, in PerformanceModel's terms. Used for measuring (`loramux profile`) and by executors that only
// model the time.
#pragma once

#include "costs/performance_model.h"
#include "engine/executor.h"

namespace loramux {

// The load of a batch. Attention counts all positions up to each token, even where a sliding window makes the model
// look at fewer. An adapter's rank is the largest of its modules' ranks. REQUIRES: sequences of one adapter are
// adjacent.
StepLoad LoadOf(const StepBatch& batch);

}  // namespace loramux
