#include "worth/eviction_policy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "worth/reuse_rates.h"

namespace loramux {

namespace {

double Pages(const EvictionCandidate& candidate) {
  return static_cast<double>(std::max<std::int64_t>(1, candidate.pages));
}

double Seconds(TimeNs duration) { return static_cast<double>(std::max<TimeNs>(0, duration)) / kNsPerSecond; }

// The visits that remain after decaying until the context was made.
double Frequency(const EvictionCandidate& candidate, const EvictionContext& context) {
  const auto idle = static_cast<double>(std::max<TimeNs>(0, context.made_at - candidate.frequency_at));
  return candidate.frequency * std::exp2(-idle / static_cast<double>(context.half_life));
}

class Lru final : public EvictionPolicy {
 public:
  double Score(const EvictionCandidate& candidate, const EvictionContext&) const override {
    return static_cast<double>(candidate.last_use);
  }
  std::string_view name() const override { return "lru"; }
};

// Chameleon 5.3.3: "Score = Frequency * Cost / Size + K, where Cost is the overhead to load an object into the cache".
// Cherkasova's frequency is 1 when an object comes to the cache, and grows with each hit; K is the highest score that
// was evicted until the object was used. So what is not used again goes at last, however often it was used before.
class Gdsf final : public EvictionPolicy {
 public:
  double Score(const EvictionCandidate& candidate, const EvictionContext& context) const override {
    const double k = context.clock == nullptr ? 0 : context.clock->At(candidate.last_use);
    return std::max(1.0, candidate.uses) * Cost(candidate, context.costs) / Pages(candidate) + k;
  }
  std::string_view name() const override { return "gdsf"; }
  bool has_clock() const override { return true; }

 private:
  static double Cost(const EvictionCandidate& candidate, const ReloadCosts& costs) {
    const double load = costs.disk.latency + Pages(candidate) * candidate.effort * costs.Page(candidate.reload);
    if (candidate.kind != CandidateKind::kAdapter) return load;
    return costs.OrAssisted(candidate.reload, Pages(candidate), load);
  }
};

// Chameleon 4.2: Score = F x Frequency + R x Recency + S x Size. Larger adapters are kept because they cost more to
// load.
//
// The paper does not say how the three terms become comparable. Here each is divided by its maximum over the adapters
// on the device, as in the paper's weighted request size (4.3.1). Recency is 0 for the longest unused candidate and 1
// for one used now.
//
// Frequency is "the total number of times the adapter has been used within a specific time frame", whose length the
// paper does not give (SystemSpec::usage_window).
//
// Chameleon scores adapters alone and keeps no history. Here a KV page is a candidate of one page with the same
// formula; for its size it mostly goes first. Adapters of queued requests go after all others: their score is above 1,
// the maximum of the sum.
class WeightedSum final : public EvictionPolicy {
 public:
  WeightedSum(std::string_view name, double frequency, double recency, double size)
      : name_(name), frequency_(frequency), recency_(recency), size_(size) {}
  double Score(const EvictionCandidate& candidate, const EvictionContext& context) const override {
    const auto share = [](double part, double whole) { return whole > 0 ? std::clamp(part / whole, 0.0, 1.0) : 0.0; };
    const double frequency = share(Frequency(candidate, context), context.max_frequency);
    const double recency =
        share(Seconds(candidate.last_use - context.oldest_use), Seconds(context.now - context.oldest_use));
    const double size = share(Pages(candidate), static_cast<double>(context.max_pages));
    return frequency_ * frequency + recency_ * recency + size_ * size + (candidate.queued ? 1.0 : 0.0);
  }
  std::string_view name() const override { return name_; }
  bool counts_window() const override { return true; }

 private:
  const std::string_view name_;
  const double frequency_, recency_, size_;
};

// FastLibra's equation 4: above 1 while fewer adapters are on the device than batches are expected to need.
double LoraReward(const EvictionContext& context) {
  return std::max(1.0, context.low_lora / static_cast<double>(std::max<std::int64_t>(1, context.resident_adapters)));
}

// FastLibra 5.2, literally: Eval = LoRA_Eval x cost x prob x (1 - sigmoid(t)).
// - cost: the paper says that it "can be computed using the PCIe bandwidth and size". So it is the size in pages,
//   whatever tier the content would come from. Consequently KV that must be recomputed counts as cheap as a copy, and
//   of two candidates with equal visits the larger one stays, although it occupies more memory. The paper's nodes are
//   what a query computed (4.2), ours are pages. So a page counts as large as the run of pages that it belongs to. By
//   itself a page would always go before its adapter, and maintaining that order would change nothing.
// - prob: the candidate's share of all recent visits.
// - t: the paper gives no unit (ScoreWeights::time_unit). In seconds, 1 - sigmoid(t) = 1 / (1 + e^t) shrinks by a
//   factor of e each second. Seconds of idle time therefore outweigh any size and frequency, and the order is nearly
//   LRU. The score is 0 after 12 minutes.
// - LoRA_Eval: a common factor would not change the order. So, as its name suggests, it applies to adapters only.
class FastLibra final : public EvictionPolicy {
 public:
  FastLibra(std::string_view name, bool lora_reward, TimeNs time_unit)
      : name_(name), lora_reward_(lora_reward), unit_seconds_(Seconds(time_unit)) {}
  double Score(const EvictionCandidate& candidate, const EvictionContext& context) const override {
    const double frequency = Frequency(candidate, context);
    const double prob = context.total_visits > 0 ? std::min(1.0, frequency / context.total_visits) : 1.0;
    const double decay = 1.0 / (1.0 + std::exp(Seconds(context.now - candidate.last_use) / unit_seconds_));
    const bool rewarded = lora_reward_ && candidate.kind == CandidateKind::kAdapter;
    return (rewarded ? LoraReward(context) : 1.0) * Pages(candidate) * prob * decay;
  }
  std::string_view name() const override { return name_; }
  std::int64_t MostPagesOfQuery(ReloadFrom) const override { return 64; }
  bool counts_needed_adapters() const override { return lora_reward_; }

 private:
  const std::string_view name_;
  const bool lora_reward_;
  const double unit_seconds_;
};

// The delay that keeping a page saves: visit rate x reload effort x requests that the effort delays / pages. It
// corrects FastLibra's model in these points:
// - The effort depends on the tier the content would come from. A load has a latency, content without a copy costs its
//   prefill, and the effort is divided by the pages it concerns. One fetch brings all that a query left behind, so
//   those pages share its latency. With CPU assistance, an adapter's effort is at most what a request loses by it.
// - A load delays only the requests that wait for it; a prefill takes the device from all requests. So where requests
//   queue for the device, recomputation counts once for each of them.
// - The visit rate is estimated from the number of visits and the time since the last one. The prior never saturates
//   (ReuseRates::Prior); observations of the current load correct it (ReuseRates). They may lower a score but not raise
//   it above the prior. On that scale adapters and history, which have separate rates, stay comparable.
// - A page counts the visits of its edge. The next turn of a conversation reads all of it. The last page matters as
//   much as the first, although it has one visit and the first has one for every turn. By their own visits, the last
//   pages of all conversations would go first, and every conversation would wait for a few pages. With the edge's
//   visits, one conversation goes as a whole.
//
// Adapters have FastLibra's reward while too few are on the device. As in Chameleon, adapters of queued requests go
// after all others. An adapter and its history are scored separately, and either may go first
// (CacheRegime::maintain_dependency). History saves its prefill whether or not the adapter must be loaded, and the
// adapter saves its load whether or not there is history.
class Loramux final : public EvictionPolicy {
 public:
  double Score(const EvictionCandidate& candidate, const EvictionContext& context) const override {
    // A loaded adapter without a visit counts as visited once, when it was loaded.
    const bool unused = candidate.frequency <= 0;
    const TimeNs last_visit = unused ? candidate.last_use : candidate.frequency_at;
    const double prior =
        ReuseRates::Prior(unused ? 1.0 : candidate.frequency, Seconds(context.now - last_visit), context.remembered_s);
    const double rate = prior * std::min(1.0, candidate.reuse_factor);
    const double load = context.costs.Latency(candidate.reload) / Pages(candidate) +
                        candidate.effort * context.costs.Page(candidate.reload);
    if (candidate.kind == CandidateKind::kKeysAndValues) {
      const double delayed = candidate.reload == ReloadFrom::kComputation ? std::max(1.0, context.requests) : 1.0;
      return rate * load * delayed;
    }
    const double effort = context.costs.assisted.has_value()
                              ? context.costs.OfAdapter(candidate.reload, Pages(candidate)) / Pages(candidate)
                              : load;
    constexpr double kQueued = 1e30;  // above any other score; a factor, so that queued adapters keep their order
    return rate * effort * LoraReward(context) * (candidate.queued ? kQueued : 1.0);
  }
  std::string_view name() const override { return "loramux"; }
  bool counts_edges() const override { return true; }
  bool weighs_reuse() const override { return true; }
  bool counts_needed_adapters() const override { return true; }
  // With more pages to share it, the latency is small beside the cost of the pages. A computation has no latency.
  std::int64_t MostPagesOfQuery(ReloadFrom from) const override { return from == ReloadFrom::kHost ? 16 : 1; }
};

using Made = std::unique_ptr<EvictionPolicy>;

struct Entry {
  std::string_view name;
  Made (*make)(const ScoreWeights& weights);
};

Made MakeWeighted(std::string_view name, const ScoreWeights& w) {
  return std::make_unique<WeightedSum>(name, w.frequency, w.recency, w.size);
}

constexpr std::array<Entry, 7> kPolicies = {{
    {"lru", [](const ScoreWeights&) { return Made(std::make_unique<Lru>()); }},
    {"gdsf", [](const ScoreWeights&) { return Made(std::make_unique<Gdsf>()); }},
    {"fairshare",
     [](const ScoreWeights&) {
       return MakeWeighted("fairshare", {1.0 / 3, 1.0 / 3, 1.0 / 3});
     }},
    {"chameleon", [](const ScoreWeights& weights) { return MakeWeighted("chameleon", weights); }},
    {"fastlibra",
     [](const ScoreWeights& weights) {
       return Made(std::make_unique<FastLibra>("fastlibra", true, weights.time_unit));
     }},
    {"fastlibra-wol",
     [](const ScoreWeights& weights) {
       return Made(std::make_unique<FastLibra>("fastlibra-wol", false, weights.time_unit));
     }},
    {"loramux", [](const ScoreWeights&) { return Made(std::make_unique<Loramux>()); }},
}};

}  // namespace

void EvictionClock::Evicts(double score, TimeNs now) {
  if (!values_.empty() && score <= values_.back().k) return;
  if (!values_.empty() && now <= values_.back().at) {
    values_.back().k = score;
    return;
  }
  values_.push_back({now, score});
  if (values_.size() <= kMost) return;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < values_.size(); i += 2) values_[kept++] = values_[i];
  values_.resize(kept);
}

double EvictionClock::At(TimeNs time) const {
  const auto after = std::upper_bound(values_.begin(), values_.end(), time,
                                      [](TimeNs at, const Value& value) { return at < value.at; });
  return after == values_.begin() ? 0 : std::prev(after)->k;
}

void EvictionClock::Forget(TimeNs oldest) {
  const auto after = std::upper_bound(values_.begin(), values_.end(), oldest,
                                      [](TimeNs at, const Value& value) { return at < value.at; });
  if (after - values_.begin() > 1) values_.erase(values_.begin(), std::prev(after));
}

std::vector<std::string> EvictionPolicyNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kPolicies) names.emplace_back(entry.name);
  return names;
}

Result<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(std::string_view name, const ScoreWeights& weights) {
  for (const Entry& entry : kPolicies) {
    if (entry.name == name) return entry.make(weights);
  }
  std::string valid;
  for (const Entry& entry : kPolicies) valid += (valid.empty() ? "" : ", ") + std::string(entry.name);
  return InvalidArgument("eviction policy: expected one of " + valid + ", found '" + std::string(name) + "'",
                         "--cache");
}

}  // namespace loramux
