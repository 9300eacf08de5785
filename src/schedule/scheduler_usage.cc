// What the scheduler learns about the use of adapters, and the eviction of idle ones that some cache regimes require.
#include <algorithm>

#include "base/check.h"
#include "schedule/scheduler.h"

namespace loramux {

namespace {

constexpr TimeNs kContextLasts = 100 * kNsPerMs;  // FastLibra's monitor interval

}  // namespace

// Called after the plan was applied.
void Scheduler::RecordUse(TimeNs now) {
  for (const PlannedAdmission& admission : plan_.admissions) {
    const AdapterGeneration adapter = admission.request->adapter;
    if (adapter == kBaseModel) {
      usage_.VisitBase(now);
    } else {
      usage_.Visit(residency_->SlotOf(adapter), adapter, now);
    }
  }
  if (plan_.chunks.empty()) return;
  usage_.SawBatch(static_cast<std::int64_t>(plan_.chunks.size()), now);
  step_ = {.began = now, .tokens = plan_.num_tokens, .prefill_tokens = plan_.prefill_tokens};
}

// Uses steps with at least a page of prefill tokens that are at least four fifths prefill to measure the prefill of a
// page.
void Scheduler::MeasureStep(TimeNs now) {
  if (step_.began < 0) return;
  const TimeNs took = now - step_.began;
  step_.began = -1;
  if (step_.prefill_tokens < options_.page_tokens || 5 * step_.prefill_tokens < 4 * step_.tokens) return;
  reload_costs_.SawPrefill(static_cast<double>(step_.tokens) / static_cast<double>(options_.page_tokens), took);
}

bool Scheduler::Prepare(TimeNs now, bool ending) {
  RefitLanes(now);
  if (now - context_.made_at >= kContextLasts) RefreshContext(now);
  if (tree_ != nullptr) tree_->ObserveIdlePages(now, context_.remembered_s);
  kv_plan_.Refresh(now);
  if (options_.adapter_prefetch != AdapterPrefetch::kNone) LoadExpected(now);
  if (tree_ != nullptr) KeepReserve(now);
  if (tiers_ != nullptr) {
    running_tails_.clear();
    for (const Request* request : running_) running_tails_.push_back(request->tail);
    tiers_->BackUp(kv_plan_, running_tails_);
  }
  return options_.proactive_swapping && !Partitioned() && Swap(now, ending);
}

std::optional<TimeNs> Scheduler::NextMove() const {
  const std::optional<TimeNs> swap = NextSwap(), prefetch = NextPrefetch();
  if (!swap.has_value() || !prefetch.has_value()) return swap.has_value() ? swap : prefetch;
  return std::min(*swap, *prefetch);
}

// Takes about 0.1 us per known adapter.
void Scheduler::RefreshContext(TimeNs now) {
  const TimeNs since = now - context_.made_at;
  turnover_.Saw(history_pages() + residency_->idle_pages(), history_evictions_ + evicted_adapter_pages_, now);
  context_ = {.now = now,
              .total_visits = usage_.TotalVisits(now),
              .oldest_use = std::min(now, kv_plan_.oldest_use().value_or(now)),
              .made_at = now,
              .requests = static_cast<double>(running_.size() + waiting().size()),
              .remembered_s = ReuseRates::Remembered(turnover_.Seconds()),
              .costs = reload_costs_.Costs()};
  const double batch_size = usage_.RecentBatchSize(now);
  for (const AdapterResidency& adapter : residency_->All()) {
    if (adapter.version == nullptr) continue;
    const UsageMonitor::Visits visits = usage_.Of(adapter.slot, adapter.version->generation);
    usage_.SawNoVisit(visits, now, since);
    const double frequency = UsageMonitor::Decayed(visits, now);
    if (context_.total_visits > 0)
      context_.low_lora += ProbabilityInBatch(frequency / context_.total_visits, batch_size);
    if (adapter.device != TierState::kResident) continue;
    ++context_.resident_adapters;
    context_.max_frequency = std::max(context_.max_frequency, frequency);
    context_.max_pages = std::max(context_.max_pages, adapter.version->layout.pages);
    context_.oldest_use = std::min(context_.oldest_use, adapter.last_use);
  }
  usage_.Learn(now, context_.remembered_s);
  kv_plan_.set_context(context_);
}

// Evicts adapters that no running or waiting request wants, and none is expected to want.
void Scheduler::PlanIdleEvictions(TimeNs now) {
  for (const AdapterGeneration generation : residency_->DeviceResidents()) {
    const AdapterResidency& adapter = residency_->Get(generation);
    if (adapter.references > 0 || IsExpected(adapter, now) || !Evictable(generation) || CarriesHistory(generation))
      continue;
    EvictInPlan(generation);
    plan_.device_evictions.push_back(generation);
    Free(PageCategory::kAdapter) += adapter.version->layout.pages;
  }
}

std::int64_t Scheduler::CountInvalidHistory() {
  if (tree_ == nullptr || options_.maintain_dependency) return 0;
  std::int64_t valid = tree_->pages(base_branch_);
  branch_counted_.clear();
  for (const AdapterGeneration generation : residency_->DeviceResidents()) {
    const std::size_t slot = residency_->SlotOf(generation);
    if (!HasBranch(slot)) continue;
    const std::uint32_t branch = branch_of_slot_[slot]->value;
    if (branch_counted_.size() <= branch) branch_counted_.resize(branch + 1, false);
    if (!branch_counted_[branch]) valid += tree_->pages(BranchId{branch});
    branch_counted_[branch] = true;
  }
  return tree_->pages() - valid;
}

}  // namespace loramux
