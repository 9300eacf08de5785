// What happens in memory beside the steps, without a request that computes. BackgroundPlanner decides it,
// Scheduler::CommitMoves applies it.
#pragma once

#include <optional>

#include "base/ids.h"
#include "residency/moves.h"

namespace loramux {

// Commit carries it out in this order: what leaves a tier, loads, fetches.
struct MovePlan {
  MoveReason reason = MoveReason::kReserve;  // why all of them move
  Moves moves;
  std::optional<RequestId> newest_seen;  // kNewcomer: the requests up to this one have been considered

  bool empty() const { return moves.empty(); }
  // Empties the plan and keeps its memory.
  void Clear() {
    moves.clear();
    newest_seen.reset();
  }
};

}  // namespace loramux
