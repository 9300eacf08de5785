#include "schedule/plan/host_room.h"

namespace loramux {

void HostRoom::Reset(MemoryMoves& moves) {
  moves_ = &moves;
  free_ = view_.residency.host().free_pages();
  fetches_in_flight_ = view_.tiers.fetches_in_flight();
  droppable_ = view_.tree.tiers().droppable_host_pages();
}

bool HostRoom::Plan(const AdapterResidency& adapter) {
  const bool kept = !adapters_.IsHostEvicted(adapter.version->generation);  // by an earlier load of this plan?
  if (adapter.host == TierState::kResident && kept) return true;
  if (adapter.pages > view_.residency.host().capacity_pages()) return false;
  if (free_ < adapter.pages) RefreshVictims();
  const std::size_t first_victim = moves_->host_evictions.size();
  std::int64_t dropped = 0;  // pages of keys and values
  std::size_t from = 0;      // in the order of victims
  while (free_ < adapter.pages) {
    const std::optional<HostVictims::Copy> victim = NextVictim(from);
    if (DropsHistoryBefore(victim)) {
      --droppable_;
      ++free_;
      ++dropped;
    } else if (victim.has_value()) {
      EvictCopy(view_.residency.All()[victim->slot]);
    } else {  // all other copies are moving to the device, or will be
      Undo(first_victim, dropped);
      return false;
    }
  }
  free_ -= adapter.pages;
  return true;
}

// Copies of adapters that requests wait for stay, because those adapters will be loaded themselves, and so do those
// that are being copied to the device or that a step computes with.
void HostRoom::RefreshVictims() {
  changes_.clear();
  residency_.TakeChanges(changes_);
  for (const std::uint32_t slot : changes_) {
    const AdapterResidency& adapter = view_.residency.All()[slot];
    const bool waited_for = adapter.device == TierState::kAbsent && adapter.references > adapter.pins;
    const bool in_use = adapter.device == TierState::kLoading || adapter.read_in_host;
    const bool may_go = adapter.host == TierState::kResident && !in_use && !waited_for;
    if (may_go) {
      victims_.Set(slot, view_.worth.HostWorthOf(adapter, view_.tree), adapter.host_arrival);
    } else {
      victims_.Remove(slot);
    }
  }
}

std::optional<HostVictims::Copy> HostRoom::NextVictim(std::size_t& from) {
  for (;; ++from) {
    const std::optional<HostVictims::Copy> copy = victims_.Nth(from);
    if (!copy.has_value() || !adapters_.HostCopyIsPlanned(copy->slot)) return copy;
  }
}

bool HostRoom::DropsHistoryBefore(const std::optional<HostVictims::Copy>& victim) const {
  if (droppable_ <= 0) return false;
  return !victim.has_value() || tree_.LeastHostWorth() < victim->worth;
}

void HostRoom::EvictCopy(const AdapterResidency& adapter) {
  adapters_.MarkHostEviction(adapter.version->generation, true);
  moves_->host_evictions.push_back(adapter.version->generation);
  free_ += adapter.pages;
}

void HostRoom::Undo(std::size_t first, std::int64_t dropped) {
  for (std::size_t i = first; i < moves_->host_evictions.size(); ++i) {
    const AdapterGeneration kept = moves_->host_evictions[i];
    adapters_.MarkHostEviction(kept, false);
    free_ -= view_.residency.Get(kept).pages;
  }
  moves_->host_evictions.resize(first);
  free_ -= dropped;
  droppable_ += dropped;
}

}  // namespace loramux
