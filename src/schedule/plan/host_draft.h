// The host tier as a plan under construction leaves it: which adapters and which history come there, and what gives
// way.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "prefix/host_order.h"
#include "residency/moves.h"
#include "schedule/plan/planning_view.h"

namespace loramux {

// See the top of this file. What leaves the tier is what is worth least (HostOrder).
class HostDraft {
 public:
  // `residency` and `tree`: those of the view. To find what is worth least changes nothing in them but the memory of
  // that search. REQUIRES: nothing else takes the residency's changes.
  HostDraft(const PlanningView& view, ResidencyManager& residency, DependencyTree& tree)
      : view_(view), residency_(residency), tree_(tree) {}

  // Starts a new plan, which writes `moves` (Draft::Reset).
  void Reset(Moves& moves, MoveReason leaves, MoveReason comes);

  // Plans a copy of the adapter, which the plan loads, and which adapters give way for it. False: there is no room, and
  // the load bypasses the tier. History gives way when the plan is committed (Drop).
  bool Load(const AdapterResidency& adapter);
  // True if the plan evicts the adapter's copy.
  bool Evicts(AdapterGeneration generation) const {
    const std::size_t slot = view_.residency.SlotOf(generation);
    return slot < adapters_.size() && adapters_[slot].plan == plan_ && adapters_[slot].leaves;
  }
  // Plans that history leaves the tier: so many pages. REQUIRES: there are so many that may be dropped.
  void Drop(std::int64_t pages);
  // Plans copies of up to `most` pages of the path to `tail`, from its top. Pages of less worth give way. Returns the
  // number of pages.
  std::int64_t BackUp(NodeId tail, std::int64_t most);

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
  // What plan number `plan` does with an item in the tier: its copy leaves it, or must be there.
  struct Mark {
    std::uint64_t plan = 0;
    bool leaves = false, comes = false;
  };
  // Brings victims_ up to date.
  void RefreshVictims();
  // The adapter of least worth whose copy may give way; null: all stay.
  const HostOrder::Entry* NextVictim();
  void EvictCopy(const AdapterResidency& adapter);
  // Takes back the moves from `first` on, and `dropped` pages of history.
  void Undo(std::size_t first, std::int64_t dropped);
  // Returns to victims_ what this plan has set aside.
  void PutBack();

  // The item's mark in this plan.
  Mark& Of(NodeId node) { return At(pages_, node.index); }
  Mark& Of(const AdapterResidency& adapter) { return At(adapters_, adapter.slot); }
  Mark& At(std::vector<Mark>& marks, std::size_t index) const;
  // The page that is dropped next; null: none may be dropped.
  const HostOrder::Entry* NextDrop();
  void DropNext();
  // Offers the page to be dropped if that has become possible because the plan drops all pages below it.
  void OfferParent(NodeId node);

  const PlanningView& view_;
  ResidencyManager& residency_;
  DependencyTree& tree_;
  Moves* moves_ = nullptr;
  MoveReason leaves_ = MoveReason::kRoom, comes_ = MoveReason::kWaits;
  std::int64_t free_ = 0;  // pages
  std::int64_t droppable_ = 0, fetches_in_flight_ = 0;
  HostOrder victims_;                    // adapters, as of the last RefreshVictims, without those in aside_
  std::vector<HostOrder::Entry> aside_;  // adapters that this plan evicts or loads
  std::vector<std::uint32_t> changes_;   // scratch of RefreshVictims
  std::uint64_t plan_ = 0;               // the number of this plan
  std::vector<Mark> adapters_, pages_;   // by residency slot; by node index
  std::vector<NodeId> dropped_, chain_;  // history that this plan drops; scratch of BackUp
  HostOrder offered_;                    // pages that may be dropped because this plan drops all below them
};

}  // namespace loramux
