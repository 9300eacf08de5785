#include "schedule/predict/adapter_worth.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace loramux {
namespace {

constexpr std::int64_t kRememberedPrompts = 64;   // window of the mean
constexpr TimeNs kContextLasts = 100 * kNsPerMs;  // FastLibra's monitor interval

ReloadFrom ReloadOf(const AdapterResidency& adapter) {
  return adapter.host == TierState::kResident ? ReloadFrom::kHost : ReloadFrom::kDisk;
}

}  // namespace

void AdapterWorth::StepBegan(const StepPlan& plan, TimeNs now) {
  for (const PlannedAdmission& admission : plan.admissions) {
    const AdapterGeneration adapter = admission.request->adapter;
    ++admissions_;
    prompt_tokens_ += (static_cast<double>(admission.request->uncomputed()) - prompt_tokens_) /
                      static_cast<double>(std::min(admissions_, kRememberedPrompts));
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
              .costs = reload_costs_.Costs(),
              .half_life = usage_window_,
              .clock = &clock_};
  const bool weighs_reuse = policy_.weighs_reuse(), counts_needed = policy_.counts_needed_adapters();
  const double batch_size = counts_needed ? usage_.RecentBatchSize(now) : 0;
  double ranks = 0, pages = 0;
  for (const AdapterResidency& adapter : residency_.All()) {
    if (adapter.version == nullptr) continue;
    const bool resident = adapter.device == TierState::kResident;
    if (!resident && !weighs_reuse && !counts_needed) continue;
    const UsageMonitor::Visits visits = VisitsOf(adapter, now);
    if (weighs_reuse) usage_.SawNoVisit(visits, now, since);
    const double frequency = usage_.Decayed(visits, now);
    if (counts_needed && context_.total_visits > 0)
      context_.low_lora += ProbabilityInBatch(frequency / context_.total_visits, batch_size);
    if (!resident) continue;
    ranks += adapter.version->layout.max_rank;
    pages += static_cast<double>(adapter.pages);
    ++context_.resident_adapters;
    context_.max_frequency = std::max(context_.max_frequency, frequency);
    context_.max_pages = std::max(context_.max_pages, adapter.version->layout.pages);
    context_.oldest_use = std::min(context_.oldest_use, adapter.last_use);
  }
  clock_.Forget(context_.oldest_use);
  if (assists_ && context_.resident_adapters > 0) {
    const auto adapters = static_cast<double>(context_.resident_adapters);
    context_.costs.assisted = AssistedCost(ranks / adapters, pages / adapters);
  }
  if (weighs_reuse) usage_.Learn(now, context_.remembered_s);
}

std::optional<ReloadCosts::Load> AdapterWorth::AssistedCost(double ranks, double pages) const {
  if (assist_model_ == nullptr) return ReloadCosts::Load{.page = 0, .latency = 0};
  const double unit = reload_costs_.UnitNs() / static_cast<double>(kNsPerSecond);
  if (!assist_model_->assist.measured() || unit <= 0 || pages <= 0) return std::nullopt;
  const auto tokens = std::max<std::int64_t>(1, static_cast<std::int64_t>(prompt_tokens_));
  const auto seconds = [&](double rank) {
    const std::array rows = {AssistedRows{.tokens = tokens, .rank = static_cast<std::int64_t>(std::ceil(rank))}};
    return AssistSeconds(*assist_model_, {.prefill_tokens = tokens, .prefill_sequences = 1}, rows);
  };
  const double none = seconds(0);
  return ReloadCosts::Load{.page = std::max(0.0, seconds(ranks) - none) / pages / unit, .latency = none / unit};
}

// A number of uses does not decay: it is as of now.
UsageMonitor::Visits AdapterWorth::VisitsOf(const AdapterResidency& adapter, TimeNs now) const {
  const AdapterGeneration generation = adapter.version->generation;
  if (!policy_.counts_window()) return usage_.Of(adapter.slot, generation);
  return {.frequency = static_cast<double>(usage_.InWindow(adapter.slot, generation, now)), .at = now};
}

double AdapterWorth::ScoreOf(const AdapterResidency& adapter, TimeNs now) const {
  const UsageMonitor::Visits visits = VisitsOf(adapter, now);
  return Score({.pages = adapter.pages,
                .last_use = adapter.last_use,
                .uses = static_cast<double>(adapter.uses_here),
                .reload = ReloadOf(adapter),
                .frequency = visits.frequency,
                .frequency_at = visits.at,
                .reuse_factor = policy_.weighs_reuse() ? usage_.ReuseFactor(visits, now) : 1.0,
                .queued = adapter.references > adapter.users || expected_.IsExpected(adapter, now)},
               now);
}

double AdapterWorth::ScoreIfUsed(const AdapterResidency& adapter, TimeNs now) const {
  const UsageMonitor::Visits visits = VisitsOf(adapter, now);
  return Score({.pages = adapter.version->layout.pages,
                .last_use = now,
                .uses = static_cast<double>(adapter.uses_here),
                .reload = ReloadOf(adapter),
                .frequency = visits.frequency,
                .frequency_at = visits.at},
               now);
}

TimeNs AdapterWorth::HostWorthOf(const AdapterResidency& adapter, const DependencyTree& tree) const {
  return tree.reuse().HostWorth(adapter.last_use, usage_.Of(adapter.slot, adapter.version->generation).frequency);
}

}  // namespace loramux
