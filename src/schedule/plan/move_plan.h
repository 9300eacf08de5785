// What happens in memory beside the steps, without a request that computes. BackgroundPlanner decides it,
// Scheduler::CommitMoves applies it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "cache/tree_nodes.h"
#include "schedule/plan/memory_moves.h"

namespace loramux {

// Why a MovePlan moves something.
enum class MoveReason : std::uint8_t {
  kNewcomer,  // a request arrived during a step: its adapter loads at once
  kExpected,  // an adapter is expected to be used soon: it loads
  kReserve,   // history is evicted, so that the next plan finds free pages
  kSwapOut,   // memory is busy: what is worth least leaves the device (cache/proactive_swapper.h)
  kSwapIn,    // memory is idle: what is worth most comes back from the host tier
};

// Commit carries it out in this order: evictions (keys and values before adapters), loads, fetches.
struct MovePlan : MemoryMoves {
  MoveReason reason = MoveReason::kReserve;
  std::vector<NodeId> fetches;  // ends of the paths to fetch from the host tier, for no particular request
  std::int64_t fetched_pages = 0;
  std::optional<RequestId> newest_seen;  // kNewcomer: the requests up to this one have been considered

  bool empty() const {
    return kv_evictions.empty() && device_evictions.empty() && host_evictions.empty() && loads.empty() &&
           fetches.empty();
  }
  void Clear() {
    MemoryMoves::Clear();
    fetches.clear();
    fetched_pages = 0;
    newest_seen.reset();
  }
};

}  // namespace loramux
