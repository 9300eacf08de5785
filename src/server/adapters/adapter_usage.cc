#include "server/adapters/adapter_usage.h"

#include <algorithm>
#include <cmath>

namespace loramux {
namespace {

constexpr double kHalfLifeNs = 600.0 * kNsPerSecond;

void AddTo(AdapterCounts& sum, const AdapterCounts& counts) {
  sum.requests += counts.requests;
  sum.prompt_tokens += counts.prompt_tokens;
  sum.generation_tokens += counts.generation_tokens;
}

}  // namespace

double AdapterUsage::At(const Score& score, TimeNs now) {
  return score.value * std::exp2(-static_cast<double>(std::max<TimeNs>(0, now - score.updated)) / kHalfLifeNs);
}

void AdapterUsage::Add(const std::string& adapter, const AdapterCounts& counts, TimeNs now) {
  const std::lock_guard lock(mutex_);
  if (adapter != kOtherAdapters) {  // an adapter with exactly this name gets no series of its own
    if (scores_.size() >= kMaxRemembered && !scores_.contains(adapter)) Forget(now);
    Score& score = scores_[adapter];
    score = {At(score, now) + static_cast<double>(std::max<std::int64_t>(1, counts.requests)), now};
    if (TakesSeries(adapter, score.value, now)) return AddTo(series_[adapter], counts);
  }
  any_others_ = true;
  AddTo(others_, counts);
}

// True if the adapter has a series or gets one in this call.
bool AdapterUsage::TakesSeries(const std::string& adapter, double score, TimeNs now) {
  if (series_.contains(adapter) || series_.size() < max_series_) return true;
  const auto score_of = [&](const auto& entry) { return At(scores_[entry.first], now); };
  const auto least = std::min_element(series_.begin(), series_.end(),
                                      [&](const auto& a, const auto& b) { return score_of(a) < score_of(b); });
  // a lead of more than one request, so that equally busy adapters do not alternate
  if (score <= score_of(*least) + 1) return false;
  series_.erase(least);
  return true;
}

// Forgets the less busy half of the scores, except adapters with a series.
void AdapterUsage::Forget(TimeNs now) {
  std::vector<double> values;
  values.reserve(scores_.size());
  for (const auto& [name, score] : scores_) values.push_back(At(score, now));
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  const double limit = *middle;
  std::erase_if(scores_,
                [&](const auto& entry) { return At(entry.second, now) <= limit && !series_.contains(entry.first); });
}

std::vector<AdapterUsage::Series> AdapterUsage::Collect() const {
  const std::lock_guard lock(mutex_);
  std::vector<Series> all;
  all.reserve(series_.size() + 1);
  for (const auto& [adapter, counts] : series_) all.push_back({adapter, counts});
  if (any_others_) all.push_back({kOtherAdapters, others_});
  return all;
}

std::size_t AdapterUsage::remembered() const {
  const std::lock_guard lock(mutex_);
  return scores_.size();
}

}  // namespace loramux
