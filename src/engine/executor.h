// Executes a planned step. A seam: CpuExecutor computes; ModeledExecutor and SimulatedExecutor only model the time. An
// executor on a device stands here too (docs/design/extending.md).
#pragma once

#include "step/step_batch.h"
#include "step/step_result.h"

namespace loramux {

// Submit and Poll are called on the engine thread.
class Executor {
 public:
  virtual ~Executor() = default;
  // Whether it reads what the step works on. If not, the engine leaves StepBatch::tokens, pages and placements empty;
  // the sequences still have their numbers of tokens.
  virtual bool reads_contents() const { return true; }
  // Starts a step and does not wait for it. Steps are computed in the order of their submission: a later step reads the
  // keys and values that an earlier one writes. The engine submits a step once it has polled the one before; an
  // executor may be given more.
  virtual void Submit(StepBatch batch) = 0;
  // If the earliest step that was not polled yet is done, fills `result`, reusing its memory, and returns true. Never
  // blocks.
  virtual bool Poll(StepResult& result) = 0;
};

}  // namespace loramux
