// When a step may begin with what is still arriving on the device layer by layer (adapter/layer_progress.h).
//
// Layers arrive one after the other and are needed one after the other. So a step that begins with `a` of `n` layers
// there never waits if the rest takes no longer to arrive than the step takes to compute its layers. A step also
// computes others, whose time may not be spent waiting: with them, the rest must be expected to arrive in less than a
// step that does nothing but decode. Alone, waiting in the step is no worse than waiting for it.
#pragma once

#include <cstdint>

#include "adapter/layer_progress.h"
#include "base/clock.h"

namespace loramux {

// The shortest of the last steps, as far as that is known: a bound from below for the next one's time.
class StepFloor {
 public:
  // A step took so long, without what it waited. Longer ones raise the floor slowly, so that batches may grow.
  void Add(TimeNs took) { floor_ = floor_ == 0 ? took : took < floor_ ? took : floor_ + (took - floor_) / 8; }
  TimeNs value() const { return floor_; }  // 0: no step yet

 private:
  TimeNs floor_ = 0;
};

// `elapsed` since the transfer was begun: the time that it waited for its turn makes the estimate cautious. A quarter
// of the layers (LayerProgress::lead) must be there in any case: the estimate needs some, and a transfer that does not
// move would hold a step. Goes by what the engine saw of the progress in this step (LayerProgress::Look).
inline bool LeadSuffices(const LayerProgress& progress, TimeNs elapsed, TimeNs step_floor, bool alone) {
  const std::int64_t arrived = progress.seen(), left = progress.layers() - arrived;
  if (arrived < progress.lead() || progress.cancelled()) return false;
  return alone || elapsed * left <= step_floor * arrived;
}

}  // namespace loramux
