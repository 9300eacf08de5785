// Which running requests compute in a step.
//
// If there are too few seats, the tenants with the most service pause in favour of tenants with less; within a tenant,
// the youngest request pauses. Paused requests keep their memory and lose nothing.
#pragma once

#include <cstdint>

#include "schedule/heap.h"
#include "schedule/plan/step_draft.h"

namespace loramux {

// Plans the seats of a step. Does not own the draft.
class Seats {
 public:
  explicit Seats(StepDraft& draft) : draft_(draft) {}

  // Decides which running requests pause. `for_waiters`: also to give seats to waiting requests.
  void Plan(bool for_waiters);
  // Gives seats that are left back to paused requests.
  void FillIdle();

 private:
  // A runner that may be paused.
  struct Pausable {
    Standing standing;
    RequestId id;
    std::size_t runner = 0;  // index in the runners
  };
  // Most service first; of equal service the youngest. All of one level, so an overdue one is alone.
  struct PausesBefore {
    bool operator()(const Pausable& a, const Pausable& b) const {
      const double x = a.standing.service, y = b.standing.service;
      return (x > y) | ((x == y) & (a.id > b.id));
    }
  };
  // Pauses requests for the waiting ones that have less service, as far as memory admits those.
  void PauseForWaiters();
  // Pauses as many running requests as there are seats missing.
  void PauseBeyondSeats();
  // The runner that pauses first; null: none is left.
  const Pausable* Worst();
  // Pauses that runner.
  void PauseWorst();
  // Fills pausable_ with the runners of the last level of rank that is left.
  void NextLevel();

  StepDraft& draft_;
  Heap<Pausable, PausesBefore> pausable_;  // runners of one level of rank
  std::size_t lower_levels_ = 0;           // number of runners ahead of that level
};

}  // namespace loramux
