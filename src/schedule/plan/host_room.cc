#include "schedule/plan/host_room.h"

namespace loramux {

void HostRoom::Reset(MemoryMoves& moves) {
  moves_ = &moves;
  free_ = view_.residency.host() == nullptr ? 0 : view_.residency.host()->free_pages();
  fetches_in_flight_ = view_.tiers == nullptr ? 0 : view_.tiers->fetches_in_flight();
  droppable_ = view_.tiers == nullptr ? 0 : view_.tree->tiers().droppable_host_pages();
}

bool HostRoom::Plan(const AdapterResidency& adapter) {
  const bool kept = !adapters_.IsHostEvicted(adapter.version->generation);  // by an earlier load of this plan?
  if (adapter.host == TierState::kResident && kept) return true;
  const PagePool* host = view_.residency.host();
  if (host == nullptr || adapter.pages > host->capacity_pages()) return false;
  const std::size_t first_victim = moves_->host_evictions.size();
  std::int64_t dropped = 0;  // pages of keys and values
  while (free_ < adapter.pages) {
    const AdapterResidency* victim = LeastAdapter();
    if (DropsHistoryBefore(victim)) {
      --droppable_;
      ++free_;
      ++dropped;
    } else if (victim != nullptr) {
      EvictCopy(*victim);
    } else {  // all other copies are moving to the device, or will be
      Undo(first_victim, dropped);
      return false;
    }
  }
  free_ -= adapter.pages;
  return true;
}

// Copies of adapters that requests wait for stay, because those adapters will be loaded themselves.
const AdapterResidency* HostRoom::LeastAdapter() const {
  const AdapterResidency* least = nullptr;
  TimeNs least_worth = 0;
  for (const AdapterGeneration generation : view_.residency.HostResidents()) {
    const AdapterResidency& adapter = view_.residency.Get(generation);
    if (adapters_.HostCopyMoves(adapter)) continue;
    if (adapter.device == TierState::kAbsent && adapter.references > adapter.pins) continue;
    const TimeNs worth = view_.worth.HostWorthOf(adapter, view_.tree);
    if (least != nullptr && worth >= least_worth) continue;
    least = &adapter;
    least_worth = worth;
  }
  return least;
}

bool HostRoom::DropsHistoryBefore(const AdapterResidency* victim) const {
  if (droppable_ <= 0) return false;
  return victim == nullptr ||
         (view_.tiers != nullptr && tree_->LeastHostWorth() < view_.worth.HostWorthOf(*victim, view_.tree));
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
