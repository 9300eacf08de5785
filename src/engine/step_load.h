// What a batch computes, as PerformanceModel counts it: for measuring (loramux profile) and for executors that only
// take time.
#pragma once

#include "engine/executor.h"
#include "schedule/performance_model.h"

namespace loramux {

// REQUIRES: chunks of one adapter adjacent, as everywhere. Attention counts all positions up to the token, also where a
// sliding window makes the model look at fewer. An adapter's rank is the largest of its modules'.
StepLoad LoadOf(const ExecutorBatch& batch);

}  // namespace loramux
