// What a step gives: an executor fills it, the engine reads it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "step/sampling.h"
#include "step/step_batch.h"

namespace loramux {

// One sequence's part of a step that could not be computed: its keys, values and token are garbage.
struct SequenceFailure {
  std::int32_t sequence = 0;  // index in StepBatch::sequences
  Error error;
};

// The outcome of a step.
struct StepResult {
  // One for each row of StepBatch::samples, in their order. kNoToken: the row followed a draft that was wrong.
  std::vector<SampledToken> tokens;
  std::vector<ScoredToken> scores;  // one for each row of StepBatch::scores, likewise
  std::vector<double> pooled;       // the sums after the step, [StepBatch::pools.ranges, hidden_size], likewise
  TimeNs waited = 0;                // time spent waiting for layers that had not arrived
  bool replayed = false;            // a device repeated a recorded step
  // The step failed: of the rest only `batch` counts, and the keys and values of the step are undefined. kUnavailable:
  // the executor's device is lost, and every later step fails too.
  std::optional<Error> error;
  // Sequences of the batch whose part of the step failed, ascending; the others' results are good. Empty with `error`.
  std::vector<SequenceFailure> failures;
  StepBatch batch;  // the step's batch, given back so that its memory is used again
};

}  // namespace loramux
