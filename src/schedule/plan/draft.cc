#include "schedule/plan/draft.h"

#include <algorithm>

#include "base/check.h"

namespace loramux {

void Draft::Reset(TimeNs now, Moves& moves, MoveReason leaves, MoveReason comes) {
  now_ = now;
  moves_ = &moves;
  leaves_ = leaves;
  comes_ = comes;
  free_kv_ = view_.device.free_pages();
  if (view_.partitioned()) {
    const PoolStats pool = view_.device.Stats();
    free_adapters_ = view_.adapter_pages - pool.used(PageCategory::kAdapter);
    free_kv_ = pool.capacity_pages - view_.adapter_pages - pool.used(PageCategory::kKv);
  }
  loads_in_flight_ = view_.residency.Stats().loading;
  ranked_ = false;
  ++plan_;
  const bool copies = view_.options.swap_out == SwapOut::kEvicted && view_.tiers.max_pages_of_job() > 0;
  history_.Reset(now, copies && copies_made_);
  host_.Reset(moves, leaves, comes);
  const ResidencyManager& residency = view_.residency;
  adapters_.assign(residency.All().size(), {});
  distinct_ = residency.Stats().active;
  released_.clear();
  evictable_pages_ = residency.idle_pages();
  for (const std::uint32_t branch : view_.tree.tiers().BranchesWithMoves()) {
    for (const std::uint32_t slot : view_.pages.branches().SlotsOf(BranchId{branch})) {
      const AdapterResidency& adapter = residency.All()[slot];
      if (adapter.idle()) evictable_pages_ -= adapter.pages;
    }
  }
  unwanted_pages_ = evictable_pages_;
}

// ---------------------------------------------------------------- Room

std::int64_t Draft::evictable(PageCategory use, bool even_wanted) const {
  if (view_.partitioned() && use == PageCategory::kKv) return history_.evictable();
  const std::int64_t history = view_.partitioned() ? 0 : history_.evictable();
  return history + (even_wanted ? evictable_pages_ : unwanted_pages_);
}

bool Draft::MakeRoom(PageCategory use, std::int64_t pages) {
  const std::int64_t& free = FreeFor(use);
  if (free >= pages) return true;
  if (free + evictable(use, /*even_wanted=*/false) < pages) return false;
  while (free < pages) {
    if (EvictOne(use, /*even_wanted=*/false)) continue;
    CHECK(history_.spares_uncopied());  // the rest is copied first, and goes in a later plan
    return false;
  }
  return true;
}

std::int64_t Draft::MakeUnwantedRoom(std::int64_t pages) {
  while (free_kv_ < pages) {
    const bool adapter = !view_.partitioned() && LeastIdleAdapter().has_value();
    const std::optional<KvEvictionPlan::Victim> history = history_.Next(now_);
    if (!adapter && (!history.has_value() || history->wanted)) break;
    if (!EvictOne(PageCategory::kKv, /*even_wanted=*/false)) break;
  }
  return free_kv_;
}

// Adapters that no earlier request wants go before history that waiting requests would use.
bool Draft::EvictOne(PageCategory use, bool even_wanted) {
  const bool any = !view_.partitioned();
  std::optional<KvEvictionPlan::Victim> history;
  if (any || use == PageCategory::kKv) history = history_.Next(now_);
  bool adapter = false;
  if (any || use == PageCategory::kAdapter) {
    Rank();
    adapter = FindIdleAdapter(even_wanted);
  }
  if (!adapter && !history.has_value()) return false;
  if (adapter && (!history.has_value() || history->wanted || candidates_.front().score < history->score)) {
    EvictIdleAdapter();
  } else {
    EvictHistory(*history);
  }
  return true;
}

std::optional<double> Draft::LeastIdleAdapter() {
  Rank();
  return FindIdleAdapter(/*even_wanted=*/false) ? std::optional(candidates_.front().score) : std::nullopt;
}

// Once the last of its history is gone, an idle adapter may be evicted too.
void Draft::EvictHistory(const KvEvictionPlan::Victim& victim) {
  const BranchId branch = view_.tree.View(victim.node).branch;
  history_.Evict(victim, now_);
  moves_->push_back({.item = victim.node, .why = leaves_});
  ++free_kv_;
  const AdapterBranches& branches = view_.pages.branches();
  if (branch == branches.base() || history_.pages(branch) > 0 || !view_.options.maintain_dependency) return;
  for (const std::uint32_t slot : branches.SlotsOf(branch)) {
    const AdapterResidency& adapter = view_.residency.All()[slot];
    if (adapter.device != TierState::kResident || !Evictable(adapter)) continue;
    candidates_.push_back({view_.worth.ScoreOf(adapter, now_), adapter.version->generation});
    std::push_heap(candidates_.begin(), candidates_.end(), Worse{});
  }
}

void Draft::EvictAdapter(const AdapterResidency& adapter) {
  CountEvictable(adapter.version->generation, -1);
  const AdapterBranches& branches = view_.pages.branches();
  if (branches.IsShared(adapter.slot)) --ResidentsOf(branches.Of(adapter.slot));
  adapters_[adapter.slot].marks |= kEvicted;
  moves_->push_back({.item = adapter.version->generation, .why = leaves_, .pages = adapter.pages});
  FreeFor(PageCategory::kAdapter) += adapter.pages;
}

// ---------------------------------------------------------------- Idle adapters

void Draft::Rank() {
  if (ranked_) return;
  candidates_.clear();
  const auto add = [this](AdapterGeneration generation) {
    const AdapterResidency& adapter = view_.residency.Get(generation);
    if (adapter.device != TierState::kResident || !Evictable(adapter) || CarriesHistory(generation)) return;
    candidates_.push_back({view_.worth.ScoreOf(adapter, now_), generation});
  };
  for (const AdapterGeneration generation : view_.residency.IdleAdapters()) add(generation);
  for (const AdapterGeneration generation : released_) add(generation);  // still in use; duplicates do no harm
  std::make_heap(candidates_.begin(), candidates_.end(), Worse{});
  ranked_ = true;
}

// Adapters that became wanted or used since the heap was made are dropped; the next heap has them again.
bool Draft::FindIdleAdapter(bool even_wanted) {
  while (!candidates_.empty()) {
    const AdapterGeneration first = candidates_.front().adapter;
    const bool wanted = Is(first, kWanted) && !even_wanted;
    if (users(view_.residency.Get(first)) == 0 && !wanted && !Is(first, kEvicted) && !CarriesHistory(first))
      return true;
    std::pop_heap(candidates_.begin(), candidates_.end(), Worse{});
    candidates_.pop_back();
  }
  return false;
}

void Draft::EvictIdleAdapter() {
  const AdapterGeneration victim = candidates_.front().adapter;
  std::pop_heap(candidates_.begin(), candidates_.end(), Worse{});
  candidates_.pop_back();
  EvictAdapter(view_.residency.Get(victim));
}

// ---------------------------------------------------------------- Adapters

void Draft::CountEvictable(AdapterGeneration generation, std::int64_t sign) {
  const std::int64_t pages = sign * EvictablePagesOf(view_.residency.Get(generation));
  evictable_pages_ += pages;
  if (!Is(generation, kWanted)) unwanted_pages_ += pages;
}

void Draft::Use(AdapterGeneration generation) {
  CountEvictable(generation, -1);
  if (users(view_.residency.Get(generation)) == 0) ++distinct_;
  ++Of(generation).users;
}

void Draft::EndUse(AdapterGeneration generation) {
  --Of(generation).users;
  if (users(view_.residency.Get(generation)) == 0) --distinct_;
  CountEvictable(generation, 1);
  released_.push_back(generation);
}

bool Draft::CarriesHistory(AdapterGeneration generation) {
  const std::size_t slot = view_.residency.SlotOf(generation);
  const AdapterBranches& branches = view_.pages.branches();
  if (!branches.Has(slot) || !view_.options.maintain_dependency) return false;
  const BranchId branch = branches.Of(slot);
  return history_.pages(branch) > 0 && !(view_.tree.branches().IsShared(branch) && ResidentsOf(branch) > 1);
}

// Counted once per plan and branch.
std::int32_t& Draft::ResidentsOf(BranchId branch) {
  if (residents_.size() <= branch.value) residents_.resize(branch.value + std::size_t{1});
  Residents& residents = residents_[branch.value];
  if (residents.plan == plan_) return residents.count;
  residents = {plan_, 0};
  for (const std::uint32_t slot : view_.pages.branches().SlotsOf(branch)) {
    const bool stays =
        view_.residency.All()[slot].device == TierState::kResident && (adapters_[slot].marks & kEvicted) == 0;
    residents.count += static_cast<std::int32_t>(stays);
  }
  return residents.count;
}

void Draft::Load(const AdapterResidency& adapter) {
  ++loads_in_flight_;
  FreeFor(PageCategory::kAdapter) -= adapter.pages;
  adapters_[adapter.slot].marks |= kLoads;
  moves_->push_back({.item = adapter.version->generation,
                     .from = host_.Load(adapter) ? Tier::kHost : Tier::kDisk,
                     .to = Tier::kDevice,
                     .why = comes_,
                     .pages = adapter.pages});
}

void Draft::BeginWithLoad(AdapterGeneration generation) {
  const auto load = std::find_if(moves_->begin(), moves_->end(), [generation](const Move& move) {
    return move.is_load() && move.item.adapter == generation;
  });
  CHECK(load != moves_->end());
  load->why = MoveReason::kBegins;
}

}  // namespace loramux
