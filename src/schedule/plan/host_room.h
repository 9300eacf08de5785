// The host tier as a plan under construction leaves it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cache/host_victims.h"
#include "schedule/plan/adapter_draft.h"
#include "schedule/plan/memory_moves.h"
#include "schedule/plan/planning_view.h"

namespace loramux {

// Decides which loads leave a copy in the host tier, and what gives way for it.
class HostRoom {
 public:
  // `residency` and `tree`: those of the view. To find what is worth least changes nothing in them but the memory of
  // that search. REQUIRES: nothing else takes the residency's changes.
  HostRoom(const PlanningView& view, AdapterDraft& adapters, ResidencyManager& residency, DependencyTree& tree)
      : view_(view), adapters_(adapters), residency_(residency), tree_(tree) {}

  // Starts a new plan, which evicts into `moves`.
  void Reset(MemoryMoves& moves);

  // Makes room for a copy of the adapter, which the plan loads. False: there is none, and the load bypasses the tier.
  bool Plan(const AdapterResidency& adapter);
  // Fetches of keys and values under way, with those of this plan.
  std::int64_t fetches_in_flight() const { return fetches_in_flight_; }
  // Pages of keys and values in the tier that may be dropped.
  std::int64_t droppable() const { return droppable_; }
  // The plan fetches `pages` of keys and values, which then may not be dropped.
  void Fetch(std::int64_t pages) {
    ++fetches_in_flight_;
    droppable_ -= pages;
  }

 private:
  // Brings victims_ up to date.
  void RefreshVictims();
  // The copy of least worth that may give way, from position `from` of the order on, which it moves there; none: all
  // stay.
  std::optional<HostVictims::Copy> NextVictim(std::size_t& from);
  // True if keys and values of less worth than `victim` are there to be dropped.
  bool DropsHistoryBefore(const std::optional<HostVictims::Copy>& victim) const;
  void EvictCopy(const AdapterResidency& adapter);
  // Takes back the evictions from `first` on, and `dropped` pages of keys and values.
  void Undo(std::size_t first, std::int64_t dropped);

  const PlanningView& view_;
  AdapterDraft& adapters_;
  ResidencyManager& residency_;
  DependencyTree& tree_;
  HostVictims victims_;                 // as of the last RefreshVictims
  std::vector<std::uint32_t> changes_;  // its scratch
  MemoryMoves* moves_ = nullptr;
  std::int64_t free_ = 0;  // pages
  std::int64_t droppable_ = 0, fetches_in_flight_ = 0;
};

}  // namespace loramux
