#include "schedule/predict/adapter_worth.h"

#include <algorithm>

namespace loramux {
namespace {

constexpr TimeNs kContextLasts = 100 * kNsPerMs;  // FastLibra's monitor interval

ReloadFrom ReloadOf(const AdapterResidency& adapter) {
  return adapter.host == TierState::kResident ? ReloadFrom::kHost : ReloadFrom::kDisk;
}

}  // namespace

void AdapterWorth::StepBegan(const StepPlan& plan, TimeNs now) {
  for (const PlannedAdmission& admission : plan.admissions) {
    const AdapterGeneration adapter = admission.request->adapter;
    if (adapter == kBaseModel) {
      usage_.VisitBase(now);
    } else {
      usage_.Visit(residency_.SlotOf(adapter), adapter, now);
    }
  }
  if (plan.chunks.empty()) return;
  usage_.SawBatch(static_cast<std::int64_t>(plan.chunks.size()), now);
  step_ = {.began = now, .tokens = plan.num_tokens, .prefill_tokens = plan.prefill_tokens};
}

// Uses steps with at least a page of prefill tokens that are at least four fifths prefill to measure the prefill of a
// page.
void AdapterWorth::StepEnded(TimeNs now) {
  if (step_.began < 0) return;
  const TimeNs took = now - step_.began;
  step_.began = -1;
  if (step_.prefill_tokens < page_tokens_ || 5 * step_.prefill_tokens < 4 * step_.tokens) return;
  reload_costs_.SawPrefill(static_cast<double>(step_.tokens) / static_cast<double>(page_tokens_), took);
}

void AdapterWorth::SawLoad(const AdapterResidency& adapter, TimeNs took) {
  reload_costs_.SawLoad(adapter.from_disk ? ReloadFrom::kDisk : ReloadFrom::kHost, adapter.version->layout.pages, took);
}

bool AdapterWorth::IsStale(TimeNs now) const { return now - context_.made_at >= kContextLasts; }

void AdapterWorth::Refresh(const CacheState& state, TimeNs now) {
  const TimeNs since = now - context_.made_at;
  turnover_.Saw(state.idle_pages, state.evicted_pages, now);
  context_ = {.now = now,
              .total_visits = usage_.TotalVisits(now),
              .oldest_use = std::min(now, state.oldest_history),
              .made_at = now,
              .requests = static_cast<double>(state.requests),
              .remembered_s = ReuseRates::Remembered(turnover_.Seconds()),
              .costs = reload_costs_.Costs()};
  const double batch_size = usage_.RecentBatchSize(now);
  for (const AdapterResidency& adapter : residency_.All()) {
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
}

double AdapterWorth::ScoreOf(const AdapterResidency& adapter, TimeNs now) const {
  const UsageMonitor::Visits visits = usage_.Of(adapter.slot, adapter.version->generation);
  return Score({.pages = adapter.pages,
                .last_use = adapter.last_use,
                .uses = static_cast<double>(adapter.uses),
                .reload = ReloadOf(adapter),
                .frequency = visits.frequency,
                .frequency_at = visits.at,
                .reuse_factor = usage_.ReuseFactor(visits, now),
                .queued = adapter.references > adapter.pins || expected_.IsExpected(adapter, now)},
               now);
}

double AdapterWorth::ScoreIfUsed(const AdapterResidency& adapter, TimeNs now) const {
  const UsageMonitor::Visits visits = usage_.Of(adapter.slot, adapter.version->generation);
  return Score({.pages = adapter.version->layout.pages,
                .last_use = now,
                .uses = static_cast<double>(adapter.uses),
                .reload = ReloadOf(adapter),
                .frequency = visits.frequency,
                .frequency_at = visits.at,
                .queued = true},
               now);
}

TimeNs AdapterWorth::HostWorthOf(const AdapterResidency& adapter, const DependencyTree& tree) const {
  return tree.reuse().HostWorth(adapter.last_use, usage_.Of(adapter.slot, adapter.version->generation).frequency);
}

}  // namespace loramux
