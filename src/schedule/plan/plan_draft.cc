#include "schedule/plan/plan_draft.h"

#include <algorithm>

#include "base/check.h"

namespace loramux {

void PlanDraft::Reset(TimeNs now, MemoryMoves& moves) {
  now_ = now;
  moves_ = &moves;
  free_kv_ = view_.device.free_pages();
  if (view_.partitioned()) {
    const PoolStats pool = view_.device.Stats();
    free_adapters_ = view_.adapter_pages - pool.used(PageCategory::kAdapter);
    free_kv_ = pool.capacity_pages - view_.adapter_pages - pool.used(PageCategory::kKv);
  }
  loads_in_flight_ = view_.residency.loads_in_flight();
  ranked_ = false;
  adapters_.Reset();
  history_.Reset(now);
  host_.Reset(moves);
}

// ---------------------------------------------------------------- Room

std::int64_t PlanDraft::evictable(PageCategory use, bool even_wanted) const {
  if (view_.partitioned() && use == PageCategory::kKv) return history_.evictable();
  const std::int64_t history = view_.partitioned() ? 0 : history_.evictable();
  return history + adapters_.evictable_pages(even_wanted);
}

bool PlanDraft::MakeRoom(PageCategory use, std::int64_t pages) {
  const std::int64_t& free = FreeFor(use);
  if (free >= pages) return true;
  if (free + evictable(use, /*even_wanted=*/false) < pages) return false;
  while (free < pages) CHECK(EvictOne(use, /*even_wanted=*/false));
  return true;
}

// Adapters that no earlier request wants go before history that waiting requests would use.
bool PlanDraft::EvictOne(PageCategory use, bool even_wanted) {
  const bool any = !view_.partitioned();
  std::optional<KvEvictionPlan::Victim> history;
  if (any || use == PageCategory::kKv) history = NextHistory();
  bool adapter = false;
  if (any || use == PageCategory::kAdapter) {
    Rank();
    adapter = FindIdleAdapter(even_wanted);
  }
  if (!adapter && !history.has_value()) return false;
  if (adapter && (!history.has_value() || history->wanted || candidates_.front().score < history->score)) {
    EvictFirst();
  } else {
    EvictHistory(*history);
  }
  return true;
}

std::optional<double> PlanDraft::LeastIdleAdapter() {
  Rank();
  return FindIdleAdapter(/*even_wanted=*/false) ? std::optional(candidates_.front().score) : std::nullopt;
}

// Once the last of its history is gone, an idle adapter may be evicted too.
void PlanDraft::EvictHistory(const KvEvictionPlan::Victim& victim) {
  const BranchId branch = view_.tree.View(victim.node).branch;
  history_.Evict(victim, now_);
  moves_->kv_evictions.push_back(victim.node);
  ++free_kv_;
  const AdapterBranches& branches = view_.pages.branches();
  if (branch == branches.base() || history_.pages(branch) > 0 || !view_.options.maintain_dependency) return;
  for (const std::uint32_t slot : branches.SlotsOf(branch)) {
    const AdapterResidency& adapter = view_.residency.All()[slot];
    if (adapter.device != TierState::kResident || !adapters_.Evictable(adapter)) continue;
    candidates_.push_back({view_.worth.ScoreOf(adapter, now_), adapter.version->generation});
    std::push_heap(candidates_.begin(), candidates_.end(), Worse{});
  }
}

void PlanDraft::EvictAdapter(const AdapterResidency& adapter) {
  adapters_.Evict(adapter.version->generation);
  moves_->device_evictions.push_back(adapter.version->generation);
  FreeFor(PageCategory::kAdapter) += adapter.pages;
}

// ---------------------------------------------------------------- Idle adapters

void PlanDraft::Rank() {
  if (ranked_) return;
  candidates_.clear();
  for (const AdapterGeneration generation : view_.residency.IdleAdapters()) AddCandidate(generation);
  for (const AdapterGeneration generation : adapters_.released()) {  // still pinned; duplicates do no harm
    if (view_.residency.Get(generation).device == TierState::kResident) AddCandidate(generation);
  }
  std::make_heap(candidates_.begin(), candidates_.end(), Worse{});
  ranked_ = true;
}

void PlanDraft::AddCandidate(AdapterGeneration generation) {
  const AdapterResidency& adapter = view_.residency.Get(generation);
  if (!adapters_.Evictable(adapter) || adapters_.CarriesHistory(generation)) return;
  candidates_.push_back({view_.worth.ScoreOf(adapter, now_), generation});
}

// Adapters that became wanted or pinned since the heap was made are dropped; the next heap has them again.
bool PlanDraft::FindIdleAdapter(bool even_wanted) {
  while (!candidates_.empty()) {
    const AdapterGeneration first = candidates_.front().adapter;
    const bool wanted = adapters_.IsWanted(first) && !even_wanted;
    if (adapters_.pins(first) == 0 && !wanted && !adapters_.IsEvicted(first) && !adapters_.CarriesHistory(first))
      return true;
    std::pop_heap(candidates_.begin(), candidates_.end(), Worse{});
    candidates_.pop_back();
  }
  return false;
}

void PlanDraft::EvictFirst() {
  const AdapterGeneration victim = candidates_.front().adapter;
  std::pop_heap(candidates_.begin(), candidates_.end(), Worse{});
  candidates_.pop_back();
  EvictAdapter(view_.residency.Get(victim));
}

// ---------------------------------------------------------------- Loads

void PlanDraft::AddLoad(const AdapterResidency& adapter) {
  FreeFor(PageCategory::kAdapter) -= adapter.pages;
  adapters_.MarkLoad(adapter.version->generation);
  moves_->loads.push_back({adapter.version->generation, host_.Plan(adapter)});
}

void PlanDraft::BeginWithLoad(AdapterGeneration generation) {
  const auto load = std::find_if(moves_->loads.begin(), moves_->loads.end(),
                                 [generation](const PlannedLoad& planned) { return planned.adapter == generation; });
  CHECK(load != moves_->loads.end());
  load->begins = true;
}

}  // namespace loramux
