// When a step may begin although its data is still arriving on the device layer by layer (memory/layer_progress.h).
//
// Layers arrive one after the other and are used one after the other. If `a` of `n` layers have arrived, a step never
// waits if the other layers take no longer to arrive than the step takes to compute its layers. A step also computes
// other requests, which must not wait. With other requests in it, the missing layers must therefore be expected to
// arrive within the time of a step that only decodes. A request that is alone may wait within the step as well as
// before it.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "memory/layer_progress.h"

namespace loramux {

// Estimates a lower bound of the duration of the next step from the shortest of the recent ones.
class StepFloor {
 public:
  // Notes the duration of a step, without the time that it waited for layers. A longer step raises the floor slowly, by
  // an eighth of the difference, so that batches may grow.
  void Add(TimeNs took) { floor_ = floor_ == 0 ? took : took < floor_ ? took : floor_ + (took - floor_) / 8; }
  // The floor; 0 before the first step.
  TimeNs value() const { return floor_; }

 private:
  TimeNs floor_ = 0;
};

// True if enough layers have arrived for a step to begin. `elapsed`: time since the transfer was requested; it includes
// the wait of the transfer for its turn, which makes the estimate cautious. `alone`: the step has no other request.
// A quarter of the layers (LayerProgress::lead) must have arrived in any case: the estimate needs some, and a transfer
// that makes no progress would hold up the step. Uses the progress as the engine last looked at it
// (LayerProgress::Look).
inline bool LeadSuffices(const LayerProgress& progress, TimeNs elapsed, TimeNs step_floor, bool alone) {
  const std::int64_t arrived = progress.seen(), left = progress.layers() - arrived;
  if (arrived < progress.lead() || progress.cancelled()) return false;
  return alone || elapsed * left <= step_floor * arrived;
}

}  // namespace loramux
