#include "cluster/replica_sets.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace loramux {
namespace {

constexpr TimeNs kHalfLife = 20 * kNsPerSecond;  // time in which the measured load of the past halves

}  // namespace

double ReplicaSets::Decayed(const Entry& entry, TimeNs now) const {
  const double age = static_cast<double>(std::max<TimeNs>(0, now - entry.at));
  return entry.seconds * std::exp2(-age / static_cast<double>(kHalfLife));
}

// A constant load of x seconds per second has the decayed sum x * half-life / ln 2.
double ReplicaSets::Load(double seconds) const {
  return seconds * std::numbers::ln2 * kNsPerSecond / static_cast<double>(kHalfLife);
}

std::int64_t ReplicaSets::Count(std::string_view adapter, double seconds, std::int64_t servers, TimeNs now) {
  auto found = adapters_.find(adapter);
  if (found == adapters_.end()) {
    if (adapters_.size() >= kMostAdapters) ForgetCold(now);
    found = adapters_.emplace(std::string(adapter), Entry{.at = now, .changed_at = now}).first;
  }
  Entry& entry = found->second;
  const TimeNs silence = std::max<TimeNs>(0, now - entry.at);
  entry.seconds = Decayed(entry, now) + seconds;
  entry.at = std::max(entry.at, now);
  const double load = Load(entry.seconds);
  const auto wanted = static_cast<std::int64_t>(std::ceil(std::min(load / grow_, 1e6)));
  const std::int64_t most = std::max<std::int64_t>(1, servers);
  if (wanted > entry.replicas) {
    entry.replicas = wanted;
    entry.changed_at = now;
  } else if (entry.replicas > 1 && now - entry.changed_at >= hold_ &&
             load < shrink_ * static_cast<double>(entry.replicas - 1)) {
    // One at a time; but after a silence as many as it held the adapter for nothing.
    const std::int64_t holds = 1 + silence / std::max<TimeNs>(1, hold_);
    const auto least = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(load / shrink_)));
    entry.replicas = std::max(least, entry.replicas - holds);
    entry.changed_at = now;
  }
  entry.replicas = std::min(entry.replicas, most);
  return entry.replicas;
}

std::int64_t ReplicaSets::Replicas(std::string_view adapter) const {
  const auto found = adapters_.find(adapter);
  return found == adapters_.end() ? 1 : found->second.replicas;
}

double ReplicaSets::LoadOf(std::string_view adapter, TimeNs now) const {
  const auto found = adapters_.find(adapter);
  return found == adapters_.end() ? 0 : Load(Decayed(found->second, now));
}

void ReplicaSets::ForgetCold(TimeNs now) {
  std::vector<double> loads;
  for (const auto& [name, entry] : adapters_) loads.push_back(Decayed(entry, now));
  const auto middle = loads.begin() + static_cast<std::ptrdiff_t>(loads.size() / 2);
  std::nth_element(loads.begin(), middle, loads.end());
  std::erase_if(adapters_, [&](const auto& each) { return Decayed(each.second, now) <= *middle; });
}

}  // namespace loramux
