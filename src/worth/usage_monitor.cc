#include "worth/usage_monitor.h"

#include <algorithm>
#include <cmath>

namespace loramux {

double UsageMonitor::Decayed(const Visits& visits, TimeNs now) const {
  const auto idle = static_cast<double>(std::max<TimeNs>(0, now - visits.at));
  return visits.frequency * std::exp2(-idle / static_cast<double>(window_));
}

void UsageMonitor::Add(Visits& visits, TimeNs now) const { visits = {Decayed(visits, now) + 1.0, now}; }

void UsageMonitor::Visit(std::size_t slot, AdapterGeneration generation, TimeNs now) {
  if (entries_.size() <= slot) entries_.resize(slot + 1);
  Entry& entry = entries_[slot];
  if (entry.generation != generation) entry = {.generation = generation};
  const std::int64_t part = PartOf(now);
  for (std::int64_t i = std::max(entry.part + 1, part - kWindowParts + 1); i <= part; ++i)
    entry.parts[static_cast<std::size_t>(i % kWindowParts)] = 0;
  entry.part = std::max(entry.part, part);
  ++entry.parts[static_cast<std::size_t>(entry.part % kWindowParts)];
  Visits& visits = entry.visits;
  if (visits.frequency > 0) reuse_.SawVisit(visits.frequency, now - visits.at);
  Add(visits, now);
  Add(total_, now);
}

void UsageMonitor::SawNoVisit(const Visits& visits, TimeNs now, TimeNs since) {
  if (visits.frequency <= 0) return;
  // Capped: after a long time without steps, the length of the idle time says nothing about the load.
  const auto seconds = static_cast<double>(std::clamp<TimeNs>(since, 0, kNsPerSecond)) / kNsPerSecond;
  reuse_.SawIdle(visits.frequency, now - visits.at, seconds);
}

void UsageMonitor::Learn(TimeNs now, double remembered_s) {
  if (now - learned_at_ < kNsPerSecond) return;
  learned_at_ = now;
  reuse_.Learn(now, remembered_s);
}

UsageMonitor::Visits UsageMonitor::Of(std::size_t slot, AdapterGeneration generation) const {
  return slot < entries_.size() && entries_[slot].generation == generation ? entries_[slot].visits : Visits{};
}

std::int64_t UsageMonitor::InWindow(std::size_t slot, AdapterGeneration generation, TimeNs now) const {
  if (slot >= entries_.size() || entries_[slot].generation != generation) return 0;
  const Entry& entry = entries_[slot];
  std::int64_t visits = 0;
  for (std::int64_t i = std::max<std::int64_t>(0, PartOf(now) - kWindowParts + 1); i <= entry.part; ++i)
    visits += entry.parts[static_cast<std::size_t>(i % kWindowParts)];
  return visits;
}

void UsageMonitor::SawBatch(std::int64_t requests, TimeNs now) {
  const std::int64_t number = now / bucket_;
  Bucket& bucket = buckets_[static_cast<std::size_t>(number) % kBuckets];
  if (bucket.number != number) bucket = {.number = number};
  ++bucket.batches;
  bucket.requests += requests;
}

double UsageMonitor::RecentBatchSize(TimeNs now) const {
  const std::int64_t oldest = now / bucket_ - static_cast<std::int64_t>(kBuckets) + 1;
  std::int64_t batches = 0, requests = 0;
  for (const Bucket& bucket : buckets_) {
    if (bucket.number < oldest) continue;
    batches += bucket.batches;
    requests += bucket.requests;
  }
  return batches == 0 ? 0.0 : static_cast<double>(requests) / static_cast<double>(batches);
}

double ProbabilityInBatch(double prob, double batch_size) {
  if (batch_size <= 0 || prob <= 0) return 0;
  if (prob >= 1) return 1;
  return -std::expm1(batch_size * std::log1p(-prob));
}

}  // namespace loramux
