#include "step/step_batch.h"

namespace loramux {

void StepBatch::Clear() {
  copies.clear();
  placements.clear();
  tokens.clear();
  pages.clear();
  sequences.clear();
  segments.clear();
  arrivals.clear();
  samples.Clear();
  scores.clear();
  pools.Clear();
}

}  // namespace loramux
