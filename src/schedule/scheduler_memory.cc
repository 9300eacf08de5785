// The memory of a plan: the pages that a step needs, the pages that are evicted for it, and the adapters that are
// loaded.
#include <algorithm>
#include <limits>

#include "base/check.h"
#include "schedule/scheduler.h"

namespace loramux {

// If the next request in the order of service does not fit, running requests of lower rank are preempted for it:
// enough for all its pages, or none.
void Scheduler::PlanReclaim(TimeNs now) {
  if (discardable_ <= 0) return;
  Request* const next = NextToServe();
  if (next == nullptr || (Partitioned() && MustLoad(*next))) return;  // preempting frees no room for an adapter
  std::int64_t missing = PagesToStart(*next) + GrowthReserve() - scratch_.free_device;
  // Pages that other requests use are neither free nor evictable.
  if (tree_ != nullptr) missing -= kv_plan_.LockedDepth(PlannedTail(*next));
  if (missing + static_cast<std::int64_t>(running_.size()) <= 0) return;
  missing +=
      scratch_.decode_pages + PagesOfIdleAdapter(*next) - EvictablePages(PageCategory::kKv, /*even_wanted=*/false);
  const std::int64_t level = RankOf(next->id, tenants_.Service(*next)).level;
  std::int64_t victims = 0;
  for (auto it = scratch_.runners.rbegin(); missing > 0 && it != scratch_.runners.rend() && it->rank.level > level;
       ++it) {
    missing -= PagesFreedBy(*it->request);
    ++victims;
  }
  if (missing > 0) return;
  for (; victims > 0; --victims) {
    plan_.discarded_tokens += scratch_.runners.back().request->computed;
    PlanPreemption(now);
  }
}

// Requests that wait for a load or a fetch are skipped; they would not start even with room.
Request* Scheduler::NextToServe() const {
  const auto could = [this](const Request& request) { return !IsLoading(request) && !IsFetching(request); };
  for (Request* const overdue : overdue_) {
    if (could(*overdue)) return overdue;
  }
  for (const Turn& turn : order_.turns) {
    if (could(*turn.request) && HasQuota(*turn.request)) return turn.request;
  }
  return nullptr;
}

// Pages that it shares with other requests do not count, even if those are preempted too.
std::int64_t Scheduler::PagesFreedBy(const Request& request) const {
  const std::int64_t own = static_cast<std::int64_t>(request.pages.size()) - request.tree_pages;
  return tree_ == nullptr ? own : own + kv_plan_.PagesWithOneLock(request.tail);
}

// Without its adapter: the pages of the adapter. Otherwise: pages for all known tokens and for the next one, at once,
// so that a request that began its prefill can finish it.
std::int64_t Scheduler::PagesToStart(const Request& request) const {
  if (MustLoad(request)) return residency_->Get(request.adapter).pages;
  return MissingPages(request, static_cast<std::int64_t>(request.tokens.size()) + 1);
}

// EvictablePages counts these pages, but a request does not get room by evicting its own adapter.
std::int64_t Scheduler::PagesOfIdleAdapter(const Request& request) const {
  if (request.adapter == kBaseModel || Partitioned()) return 0;
  return EvictablePagesOf(residency_->Get(request.adapter));
}

// ---------------------------------------------------------------- Room

// Takes `pages` pages for runners[index]. Evicts idle adapters, then preempts lower ranks, and at last the runner
// itself. An adapter that a waiting request of higher rank wants is evicted only after all runners that rank below
// that request were preempted. If that request is overdue, the runner itself is among those: while the adapter came
// back, other requests would be admitted and take its pages again. Returns false if it fails for now, because loads
// in flight hold the missing pages. Returns true also if the runner was preempted itself.
bool Scheduler::FreePagesFor(std::size_t index, std::int64_t pages, TimeNs now) {
  const auto& runners = scratch_.runners;
  while (scratch_.free_device < pages) {
    if (EvictOne(PageCategory::kKv, now, /*even_wanted=*/false)) continue;
    const std::size_t last = runners.size() - 1;
    if (last > index && scratch_.first_waiter < runners[last].rank) {
      scratch_.memory_short = true;
      PlanPreemption(now);
      continue;
    }
    if (scratch_.first_overdue < runners[last].rank) {  // `last` is the runner itself
      scratch_.memory_short = true;
      PlanPreemption(now);
      return true;  // the caller sees that the runner was preempted
    }
    scratch_.candidates_ready = false;  // wanted adapters were dropped from the heap
    if (EvictOne(PageCategory::kKv, now, /*even_wanted=*/true)) continue;
    if (last == 0) return false;  // alone: loads in flight hold the missing pages
    scratch_.memory_short = true;
    PlanPreemption(now);
    if (last == index) return true;  // the caller sees that the runner was preempted
  }
  scratch_.free_device -= pages;
  return true;
}

void Scheduler::PlanPreemptionOf(std::size_t runner, TimeNs now) {
  Request* request = scratch_.runners[runner].request;
  scratch_.decode_pages -= scratch_.runners[runner].next_pages;
  scratch_.runners.erase(scratch_.runners.begin() + static_cast<std::ptrdiff_t>(runner));
  scratch_.lane_use[static_cast<std::size_t>(request->lane)] -= static_cast<double>(ExtentOf(*request).total());
  plan_.preemptions.push_back(request);
  scratch_.free_device += static_cast<std::int64_t>(request->pages.size()) - request->tree_pages;
  if (tree_ != nullptr) kv_plan_.Unlock(request->tail, now);
  if (request->adapter != kBaseModel) {
    UnpinInPlan(request->adapter);
    if (Pins(request->adapter) == 0) --scratch_.distinct_adapters;
    scratch_.candidates_ready = false;  // its adapter may be idle now
  }
}

// One page for each running request, so that the next decoding step does not have to preempt right away. 0 if no
// request runs, so that a request that fits alone is admitted.
std::int64_t Scheduler::GrowthReserve() const { return static_cast<std::int64_t>(running_.size()); }

// Evicts history and idle adapters; all or nothing.
bool Scheduler::MakeRoom(PageCategory use, std::int64_t pages, TimeNs now) {
  const std::int64_t& free = Free(use);
  if (free >= pages) return true;
  if (free + EvictablePages(use, /*even_wanted=*/false) < pages) return false;
  while (free < pages) CHECK(EvictOne(use, now, /*even_wanted=*/false));
  return true;
}

bool Scheduler::Evictable(const AdapterResidency& adapter) const {
  if (adapter.locked || scratch_.slot_pins[adapter.slot] != 0 || (scratch_.flags[adapter.slot] & kEvicted) != 0)
    return false;
  // While pages of its history move, they cannot be evicted, and so the adapter cannot either.
  return !HasBranch(adapter.slot) || !tree_->HasMoves(*branch_of_slot_[adapter.slot]);
}

std::int64_t Scheduler::EvictablePages(PageCategory use, bool even_wanted) const {
  if (Partitioned() && use == PageCategory::kKv) return kv_plan_.evictable();
  const std::int64_t history = Partitioned() ? 0 : kv_plan_.evictable();
  return history + (even_wanted ? scratch_.evictable_adapters : scratch_.unwanted_adapters);
}

void Scheduler::CountEvictable(AdapterGeneration generation, std::int64_t sign) {
  const std::int64_t pages = sign * EvictablePagesOf(residency_->Get(generation));
  scratch_.evictable_adapters += pages;
  if ((Flags(generation) & kWanted) == 0) scratch_.unwanted_adapters += pages;
}

void Scheduler::EvictInPlan(AdapterGeneration generation) {
  CountEvictable(generation, -1);
  const std::size_t slot = residency_->SlotOf(generation);
  if (HasBranch(slot) && tree_->IsShared(*branch_of_slot_[slot])) --ResidentsOf(*branch_of_slot_[slot]);
  scratch_.flags[slot] |= kEvicted;
}

void Scheduler::PinInPlan(AdapterGeneration generation) {
  CountEvictable(generation, -1);
  ++scratch_.slot_pins[residency_->SlotOf(generation)];
}

void Scheduler::UnpinInPlan(AdapterGeneration generation) {
  --scratch_.slot_pins[residency_->SlotOf(generation)];
  CountEvictable(generation, 1);
}

// Evicts history or an adapter, whichever the policy values less; with a share for adapters, only from the side of
// `use`.
bool Scheduler::EvictOne(PageCategory use, TimeNs now, bool even_wanted) {
  const bool any = !Partitioned();
  std::optional<KvEvictionPlan::Victim> history;
  if (any || use == PageCategory::kKv) history = kv_plan_.Next(now);
  if ((any || use == PageCategory::kAdapter) && !scratch_.candidates_ready) RankIdleAdapters(now);
  const bool adapter = (any || use == PageCategory::kAdapter) && FindIdleAdapter(even_wanted);
  if (!adapter && !history.has_value()) return false;
  // Adapters that no earlier request wants go before history that waiting requests would use.
  if (adapter && (!history.has_value() || history->wanted || scratch_.candidates.front().score < history->score)) {
    EvictAdapter(now);
  } else {
    EvictHistory(*history, now);
  }
  return true;
}

namespace {

constexpr auto kWorse = [](const auto& a, const auto& b) {
  return a.score != b.score ? a.score > b.score : a.adapter > b.adapter;
};

}  // namespace

void Scheduler::RankIdleAdapters(TimeNs now) {
  auto& heap = scratch_.candidates;
  heap.clear();
  const auto append = [&](AdapterGeneration generation) {
    if (!Evictable(generation)) return;
    const AdapterResidency& adapter = residency_->Get(generation);
    if (!CarriesHistory(generation)) heap.push_back({ScoreOf(adapter, now), generation});
  };
  for (const AdapterGeneration generation : residency_->IdleAdapters()) append(generation);
  for (const Request* preempted : plan_.preemptions) {
    if (preempted->adapter == kBaseModel || residency_->Get(preempted->adapter).device != TierState::kResident)
      continue;
    append(preempted->adapter);  // still pinned; duplicates do no harm
  }
  std::make_heap(heap.begin(), heap.end(), kWorse);
  scratch_.candidates_ready = true;
}

void Scheduler::PushCandidate(AdapterGeneration generation, TimeNs now) {
  scratch_.candidates.push_back({ScoreOf(residency_->Get(generation), now), generation});
  std::push_heap(scratch_.candidates.begin(), scratch_.candidates.end(), kWorse);
}

double Scheduler::ScoreOf(const AdapterResidency& adapter, TimeNs now) {
  const UsageMonitor::Visits visits = usage_.Of(adapter.slot, adapter.version->generation);
  const EvictionCandidate candidate{
      .pages = adapter.pages,
      .last_use = adapter.last_use,
      .uses = static_cast<double>(adapter.uses),
      .reload = adapter.host == TierState::kResident ? ReloadFrom::kHost : ReloadFrom::kDisk,
      .frequency = visits.frequency,
      .frequency_at = visits.at,
      .reuse_factor = usage_.ReuseFactor(visits, now),
      .queued = adapter.references > adapter.pins || IsExpected(adapter, now)};
  context_.now = now;
  return policy_->Score(candidate, context_);
}

// Without the adapter, that history would be unusable.
bool Scheduler::CarriesHistory(AdapterGeneration generation) {
  const std::size_t slot = residency_->SlotOf(generation);
  if (!HasBranch(slot) || !options_.maintain_dependency) return false;
  const BranchId branch = *branch_of_slot_[slot];
  return kv_plan_.pages(branch) > 0 && !(tree_->IsShared(branch) && ResidentsOf(branch) > 1);
}

// Counted once per plan and branch.
std::int32_t& Scheduler::ResidentsOf(BranchId branch) {
  if (scratch_.residents.size() <= branch.value) scratch_.residents.resize(branch.value + std::size_t{1});
  Scratch::Residents& residents = scratch_.residents[branch.value];
  if (residents.plan == scratch_.plan) return residents.count;
  residents = {scratch_.plan, 0};
  for (const std::uint32_t slot : slots_of_branch_[branch.value]) {
    const bool stays = residency_->All()[slot].device == TierState::kResident && (scratch_.flags[slot] & kEvicted) == 0;
    residents.count += static_cast<std::int32_t>(stays);
  }
  return residents.count;
}

// Adapters that became wanted or pinned since the heap was made are dropped; the next heap has them again.
bool Scheduler::FindIdleAdapter(bool even_wanted) {
  auto& heap = scratch_.candidates;
  while (!heap.empty()) {
    const AdapterGeneration first = heap.front().adapter;
    const bool wanted = (Flags(first) & kWanted) != 0 && !even_wanted;
    if (Pins(first) == 0 && !wanted && (Flags(first) & kEvicted) == 0 && !CarriesHistory(first)) return true;
    std::pop_heap(heap.begin(), heap.end(), kWorse);
    heap.pop_back();
  }
  return false;
}

void Scheduler::EvictAdapter(TimeNs now) {
  auto& heap = scratch_.candidates;
  const AdapterGeneration victim = heap.front().adapter;
  std::pop_heap(heap.begin(), heap.end(), kWorse);
  heap.pop_back();
  EvictInPlan(victim);
  plan_.device_evictions.push_back(victim);
  Free(PageCategory::kAdapter) += residency_->Get(victim).pages;
}

// Once the last of its history is gone, an idle adapter may be evicted too.
void Scheduler::EvictHistory(const KvEvictionPlan::Victim& victim, TimeNs now) {
  const BranchId branch = tree_->View(victim.node).branch;
  kv_plan_.Evict(victim, now);
  plan_.kv_evictions.push_back(victim.node);
  ++scratch_.free_device;
  if (branch == base_branch_ || kv_plan_.pages(branch) > 0 || !options_.maintain_dependency) return;
  for (const std::uint32_t slot : slots_of_branch_[branch.value]) {
    const AdapterResidency& adapter = residency_->All()[slot];
    if (adapter.device != TierState::kResident || !Evictable(adapter.version->generation)) continue;
    PushCandidate(adapter.version->generation, now);
  }
}

// Room for new requests, and for the pages that those must leave free.
std::int64_t Scheduler::NewcomersReserve() const {
  constexpr std::int64_t kNewcomers = 64;  // pages
  return std::min(GrowthReserve() + kNewcomers, device_->capacity_pages() / 32);
}

// Evicts history that is next anyway, so that a plan finds free pages for new requests and for the pages that those
// must leave free. Stops where an adapter would be evicted first; a plan decides about that.
void Scheduler::KeepReserve(TimeNs now) {
  const std::int64_t reserve = NewcomersReserve();
  if (!Partitioned() && device_->free_pages() >= reserve) return;
  plan_.Clear();
  ResetScratch(now);
  RankIdleAdapters(now);
  while (scratch_.free_device < reserve) {
    const std::optional<KvEvictionPlan::Victim> history = kv_plan_.Next(now);
    if (!history.has_value() || history->wanted) break;
    const bool adapter = !Partitioned() && FindIdleAdapter(/*even_wanted=*/false);
    if (adapter && scratch_.candidates.front().score < history->score) break;
    EvictHistory(*history, now);
  }
  CommitHistoryEvictions();
}

// ---------------------------------------------------------------- Loads

// If a locked adapter waits for room, no request may be admitted and take the room.
void Scheduler::PlanLockedLoads(TimeNs now) {
  if (scratch_.memory_short) return;  // no request is admitted anyway
  for (const AdapterGeneration generation : residency_->Locked()) {
    if (residency_->Get(generation).device != TierState::kAbsent) continue;
    if (TryLoad(generation, now) != Admission::kBlocked) continue;
    scratch_.locked_waits = true;
    return;
  }
}

Scheduler::Admission Scheduler::TryLoad(AdapterGeneration generation, TimeNs now) {
  if ((Flags(generation) & kEvicted) != 0) return Admission::kBlocked;  // this plan needs its pages
  if (scratch_.loads_in_flight >= options_.max_loads_in_flight) {
    scratch_.loads_wait = true;
    return Admission::kPassedOver;
  }
  const AdapterResidency& adapter = residency_->Get(generation);
  const std::int64_t reserve = Partitioned() ? 0 : GrowthReserve();
  if (!MakeRoom(PageCategory::kAdapter, adapter.version->layout.pages + reserve, now)) return Admission::kBlocked;
  ++scratch_.loads_in_flight;
  AddLoad(adapter);
  return Admission::kPassedOver;
}

void Scheduler::AddLoad(const AdapterResidency& adapter) {
  Free(PageCategory::kAdapter) -= adapter.version->layout.pages;
  Flags(adapter.version->generation) |= kLoadPlanned;
  plan_.loads.push_back({adapter.version->generation, PlanHostRoom(adapter)});
}

// Computed as the tree computes it for keys and values, so that both compare.
TimeNs Scheduler::HostWorthOf(const AdapterResidency& adapter) const {
  if (tree_ == nullptr) return adapter.last_use;
  return tree_->HostWorth(adapter.last_use, usage_.Of(adapter.slot, adapter.version->generation).frequency);
}

// The least valuable copies in the host tier give way. Copies of adapters that requests wait for stay, because those
// adapters will be loaded themselves.
bool Scheduler::PlanHostRoom(const AdapterResidency& adapter) {
  // evicted by an earlier load of this plan?
  const bool kept = (Flags(adapter.version->generation) & kHostEvicted) == 0;
  if (adapter.host == TierState::kResident && kept) return true;
  if (residency_->host() == nullptr || adapter.version->layout.pages > residency_->host()->capacity_pages())
    return false;
  const std::size_t first_victim = plan_.host_evictions.size();
  std::int64_t dropped = 0;  // pages of keys and values
  while (scratch_.free_host < adapter.version->layout.pages) {
    const AdapterResidency* victim = nullptr;
    TimeNs worth = 0;
    for (const AdapterGeneration generation : residency_->HostResidents()) {
      const AdapterResidency& candidate = residency_->Get(generation);
      const bool moving =
          candidate.device == TierState::kLoading || (Flags(generation) & (kLoadPlanned | kHostEvicted)) != 0;
      if (moving) continue;
      if (candidate.device == TierState::kAbsent && candidate.references > candidate.pins) continue;
      const TimeNs candidate_worth = HostWorthOf(candidate);
      if (victim != nullptr && candidate_worth >= worth) continue;
      victim = &candidate;
      worth = candidate_worth;
    }
    const bool history = victim == nullptr || (tiers_ != nullptr && tree_->LeastHostWorth() < worth);
    if (scratch_.droppable_host > 0 && history) {
      --scratch_.droppable_host;
      ++scratch_.free_host;
      ++dropped;
      continue;
    }
    // All other copies are moving to the device, or will be: bypass the host tier.
    if (victim == nullptr) {
      for (std::size_t i = first_victim; i < plan_.host_evictions.size(); ++i) {
        const AdapterGeneration kept = plan_.host_evictions[i];
        Flags(kept) &= static_cast<std::uint8_t>(~kHostEvicted);
        scratch_.free_host -= residency_->Get(kept).version->layout.pages;
      }
      plan_.host_evictions.resize(first_victim);
      scratch_.free_host -= dropped;
      scratch_.droppable_host += dropped;
      return false;
    }
    Flags(victim->version->generation) |= kHostEvicted;
    plan_.host_evictions.push_back(victim->version->generation);
    scratch_.free_host += victim->version->layout.pages;
  }
  scratch_.free_host -= adapter.version->layout.pages;
  return true;
}

}  // namespace loramux
