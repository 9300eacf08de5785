#include "schedule/predict/expected_adapters.h"

#include <algorithm>

namespace loramux {
namespace {

constexpr TimeNs kRetry = 100 * kNsPerMs;

}  // namespace

// Only if no other request uses the adapter.
void ExpectedAdapters::Arrived(const Request& request, TimeNs at) {
  if (mode_ == AdapterPrefetch::kNone || request.adapter == kBaseModel) return;
  const AdapterResidency& adapter = residency_.Get(request.adapter);
  if (adapter.references > 1) return;
  histogram_.EndIdle(adapter.slot, request.adapter, at);
  if (EndPrefetch(request.adapter)) ++(adapter.device == TierState::kAbsent ? stats_.wasted : stats_.used);
}

void ExpectedAdapters::Left(const Request& request, TimeNs now) {
  if (mode_ == AdapterPrefetch::kNone || request.adapter == kBaseModel) return;
  const AdapterResidency& adapter = residency_.Get(request.adapter);
  if (adapter.references == 1) histogram_.BeginIdle(adapter.slot, request.adapter, now);
}

void ExpectedAdapters::Evicted(AdapterGeneration generation) {
  if (mode_ == AdapterPrefetch::kNone) return;
  stats_.wasted += EndPrefetch(generation);
  histogram_.ExpectAgain(residency_.SlotOf(generation), generation);
}

void ExpectedAdapters::LoadBegan(AdapterGeneration generation) {
  due_.reset();
  ++stats_.loads;
  const std::size_t slot = residency_.SlotOf(generation);
  histogram_.Settle(slot);
  if (prefetched_.size() <= slot) prefetched_.resize(slot + 1);
  stats_.wasted += prefetched_[slot] != kBaseModel;  // its load failed, or it was dropped with its name
  prefetched_[slot] = generation;
}

void ExpectedAdapters::PutOff(TimeNs now) { not_before_ = now + kRetry; }

bool ExpectedAdapters::EndPrefetch(AdapterGeneration generation) {
  const std::size_t slot = residency_.SlotOf(generation);
  if (slot >= prefetched_.size() || prefetched_[slot] != generation) return false;
  prefetched_[slot] = kBaseModel;
  return true;
}

// The window in which an adapter is expected begins within the time that a load takes.
void ExpectedAdapters::Refresh(TimeNs now) {
  due_.reset();
  if (mode_ == AdapterPrefetch::kNone || now < not_before_) return;
  const AdapterStats stats = residency_.Stats();
  lead_ = stats.device_loads == 0 ? 0 : stats.load_time_total / stats.device_loads;
  while (const auto next = histogram_.Next(now)) {
    if (next->window.from > now + lead_) return;
    const bool known = residency_.Knows(next->adapter);
    if (known && !residency_.Get(next->adapter).retired && residency_.Get(next->adapter).device == TierState::kAbsent) {
      due_ = next->adapter;
      return;
    }
    histogram_.Settle(next->slot);
  }
}

std::optional<AdapterGeneration> ExpectedAdapters::Due(TimeNs now) const {
  return now < not_before_ || residency_.Stats().loading > 0 ? std::nullopt : due_;
}

std::optional<TimeNs> ExpectedAdapters::NextDue() const {
  const std::optional<TimeNs> first = histogram_.FirstBegin();
  if (!first.has_value() || residency_.Stats().loading > 0) return std::nullopt;
  return std::max(*first - lead_, not_before_);
}

}  // namespace loramux
