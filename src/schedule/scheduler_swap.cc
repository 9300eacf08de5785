// Proactive swapping: pages move between the tiers without a request for them (FastLibra 5.3;
// cache/proactive_swapper.h). Runs beside the computation, in bounded pieces, and never at the cost of a request.
#include <algorithm>

#include "base/check.h"
#include "schedule/scheduler.h"

namespace loramux {
namespace {

constexpr std::int64_t kMostOut = 64;  // evictions in one call

}  // namespace

bool Scheduler::Swap(TimeNs now, bool ending) {
  switch (swapper_.Observe(UsedPages(), device_->capacity_pages(), now)) {
    case ProactiveSwapper::Memory::kBalanced:
      return false;
    case ProactiveSwapper::Memory::kBusy:
      return SwapOut(now);
    case ProactiveSwapper::Memory::kIdle:
      return SwapIn(now, ending);
  }
  return false;
}

// No time if nothing could move the last time and nothing has happened since.
std::optional<TimeNs> Scheduler::NextSwap() const {
  if (!options_.proactive_swapping || Partitioned() || !swapper_.MayMove(UsedPages(), device_->capacity_pages()))
    return std::nullopt;
  return swapper_.observed_at() + ProactiveSwapper::kInterval;
}

// ---------------------------------------------------------------- Out

bool Scheduler::SwapOut(TimeNs now) {
  plan_.Clear();
  ResetScratch(now);
  for (const AdapterGeneration generation : residency_->DeviceResidents()) {
    const AdapterResidency& adapter = residency_->Get(generation);
    if (adapter.references > adapter.pins) WantInPlan(generation);
  }
  RankIdleAdapters(now);
  const std::int64_t enough = scratch_.free_device + swapper_.PagesAbove(UsedPages(), device_->capacity_pages());
  for (std::int64_t i = 0; i < kMostOut && scratch_.free_device < enough && SwapOutOne(now); ++i) {
  }
  CommitEvictions();
  swap_stats_.history_out += static_cast<std::int64_t>(plan_.kv_evictions.size());
  for (const AdapterGeneration generation : plan_.device_evictions) {
    swap_stats_.adapters_out += residency_->Get(generation).version->layout.pages;
  }
  return !plan_.kv_evictions.empty() || !plan_.device_evictions.empty();
}

// Evicts the least valuable page or adapter that no waiting request wants. A page without a copy in the host tier
// stays as long as copies are being made (KvTiers::BackUp begins with those that are evicted next). If none are being
// made, the host tier has no room for it. Adapters need no copy, because they are on disk.
bool Scheduler::SwapOutOne(TimeNs now) {
  std::optional<KvEvictionPlan::Victim> history = kv_plan_.Next(now);
  if (history.has_value() && history->wanted) history.reset();
  if (FindIdleAdapter(/*even_wanted=*/false) &&
      (!history.has_value() || scratch_.candidates.front().score < history->score)) {
    EvictAdapter(now);
    return true;
  }
  if (!history.has_value() || (tiers_ != nullptr && tiers_->backing_up() && !tree_->InHostTier(history->node)))
    return false;
  EvictHistory(*history, now);
  return true;
}

// ---------------------------------------------------------------- In

// Uses only free memory, and only while no request waits for room. Begins once per interval.
bool Scheduler::SwapIn(TimeNs now, bool ending) {
  if (!swapper_.walking() && swapped_in_at_ == swapper_.observed_at()) return false;
  if (somebody_waits_for_room_ || ending) return false;
  if (!swapper_.walking()) {
    swapped_in_at_ = swapper_.observed_at();
    MarkUsableBranches();
    swapper_.BeginWalk(usable_branches_);
  }
  if (!swapper_.Walk(kv_plan_, now)) return true;
  OfferAdapters(now);
  MarkUsableBranches();  // steps may have run since the walk began
  const ProactiveSwapper::Moves& moves = swapper_.Choose(RoomToSwapIn(), usable_branches_, kv_plan_, now);
  for (const AdapterGeneration generation : moves.adapters)
    residency_->BeginLoad(generation, /*via_host=*/true, now, /*ahead=*/true);
  if (!moves.tails.empty()) tiers_->FetchAhead(moves.tails);
  swap_stats_.history_in += moves.kv_pages;
  swap_stats_.adapters_in += moves.pages - moves.kv_pages;
  return false;
}

// Half of the loads in flight are left to requests that arrive meanwhile.
ProactiveSwapper::Room Scheduler::RoomToSwapIn() const {
  const std::int64_t used = UsedPages(), capacity = device_->capacity_pages();
  const bool kv = tiers_ != nullptr && !tiers_->fetching_ahead();
  return {.pages = swapper_.PagesBelow(used, capacity),
          .most = std::min(swapper_.UpperPages(capacity) - used, device_->free_pages() - GrowthReserve()),
          .kv_pages = kv ? tiers_->MaxPagesOfJob() : 0,
          .adapters = std::max<std::int64_t>(1, options_.max_loads_in_flight / 2) - residency_->loads_in_flight()};
}

// An adapter may always be swapped in: its parent is the virtual root, which is always on the device.
void Scheduler::OfferAdapters(TimeNs now) {
  for (const AdapterGeneration generation : residency_->HostResidents()) {
    const AdapterResidency& adapter = residency_->Get(generation);
    if (adapter.device != TierState::kAbsent || adapter.retired || adapter.locked) continue;
    swapper_.Offer({.score = ScoreOf(adapter, now), .adapter = generation, .pages = adapter.version->layout.pages});
  }
}

// Keys and values may be swapped in if their adapter is on the device, or if dependency is not maintained.
void Scheduler::MarkUsableBranches() {
  usable_branches_.clear();
  if (tree_ == nullptr) return;
  usable_branches_.resize(tree_->branch_slots(), !options_.maintain_dependency);
  usable_branches_[base_branch_.value] = true;
  for (const AdapterGeneration generation : residency_->DeviceResidents()) {
    const std::size_t slot = residency_->SlotOf(generation);
    if (HasBranch(slot)) usable_branches_[branch_of_slot_[slot]->value] = true;
  }
}

}  // namespace loramux
