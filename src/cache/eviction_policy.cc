#include "cache/eviction_policy.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "cache/reuse_rates.h"

namespace loramux {

namespace {

double Pages(const EvictionCandidate& candidate) {
  return static_cast<double>(std::max<std::int64_t>(1, candidate.pages));
}

double Seconds(TimeNs duration) { return static_cast<double>(std::max<TimeNs>(0, duration)) / kNsPerSecond; }

double HalfLives(TimeNs duration) {
  return static_cast<double>(std::max<TimeNs>(0, duration)) / static_cast<double>(kFrequencyHalfLife);
}

// Visits that are not forgotten at `time`.
double FrequencyAt(const EvictionCandidate& candidate, TimeNs time) {
  return candidate.frequency * std::exp2(-HalfLives(time - candidate.frequency_at));
}

class Lru final : public EvictionPolicy {
 public:
  double Score(const EvictionCandidate& candidate, const EvictionContext&) const override {
    return static_cast<double>(candidate.last_use);
  }
  std::string_view name() const override { return "lru"; }
};

class Gdsf final : public EvictionPolicy {
 public:
  double Score(const EvictionCandidate& candidate, const EvictionContext& context) const override {
    const double pages = Pages(candidate);
    const double idle_ms = static_cast<double>(std::max<TimeNs>(0, context.now - candidate.last_use)) / kNsPerMs + 1.0;
    return (candidate.uses + 1) * (context.costs.disk.latency + pages * context.costs.Page(candidate.reload)) /
           (pages * idle_ms);
  }
  std::string_view name() const override { return "gdsf"; }
};

// Chameleon 4.2: Score = F x Frequency + R x Recency + S x Size; larger adapters are kept because they are dearer to
// load. The document does not say how the three become comparable; as in its weighted request size (4.3.1) each is
// divided by its maximum, here among the adapters on the device. Recency: 0 for what was used longest ago, 1 for what
// is used now. It scores adapters alone and keeps no history; a page of keys and values is a candidate of one page
// here, by the same formula, and mostly goes first for its size. Adapters of queued requests go after all others (above
// 1, the most that the sum can be).
class WeightedSum final : public EvictionPolicy {
 public:
  WeightedSum(std::string_view name, double frequency, double recency, double size)
      : name_(name), frequency_(frequency), recency_(recency), size_(size) {}
  double Score(const EvictionCandidate& candidate, const EvictionContext& context) const override {
    const auto share = [](double part, double whole) { return whole > 0 ? std::clamp(part / whole, 0.0, 1.0) : 0.0; };
    const double frequency = share(FrequencyAt(candidate, context.made_at), context.max_frequency);
    const double recency =
        share(Seconds(candidate.last_use - context.oldest_use), Seconds(context.now - context.oldest_use));
    const double size = share(Pages(candidate), static_cast<double>(context.max_pages));
    return frequency_ * frequency + recency_ * recency + size_ * size + (candidate.queued ? 1.0 : 0.0);
  }
  std::string_view name() const override { return name_; }

 private:
  const std::string_view name_;
  const double frequency_, recency_, size_;
};

// FastLibra's equation 4: more than 1 as long as fewer adapters are on the device than batches are expected to need.
double LoraReward(const EvictionContext& context) {
  return std::max(1.0, context.low_lora / static_cast<double>(std::max<std::int64_t>(1, context.resident_adapters)));
}

// FastLibra 5.2, literally: Eval = LoRA_Eval x cost x prob x (1 - sigmoid(t)). cost: "can be computed using the PCIe
// bandwidth and size": the size in pages, whatever tier it would really come from. So
//   keys and values that must be computed again are thought as cheap as a copy, and of two candidates with the same
//   visits the larger one stays, though it takes more memory for it. Its nodes are what a query computed (4.2), ours
//   are pages: so a page counts as the run of pages that it belongs to. (By itself it would always go before its
//   adapter, and to maintain that order would change nothing.)
// prob: its share of all recent visits. t: the document gives no unit; in seconds, 1 - sigmoid(t) = 1 / (1 + e^t) is
// divided by e each second. So what was used
//   seconds ago outweighs any size and any frequency: the order is nearly that of last uses. 0 after 12 minutes.
// LoRA_Eval: multiplying everything by the same number would not change the order; so, as its name says, it is for
// adapters.
class FastLibra final : public EvictionPolicy {
 public:
  FastLibra(std::string_view name, bool lora_reward, double unit_seconds = 1)
      : name_(name), lora_reward_(lora_reward), unit_seconds_(unit_seconds) {}
  double Score(const EvictionCandidate& candidate, const EvictionContext& context) const override {
    const double frequency = FrequencyAt(candidate, context.made_at);
    const double prob = context.total_visits > 0 ? std::min(1.0, frequency / context.total_visits) : 1.0;
    const double decay = 1.0 / (1.0 + std::exp(Seconds(context.now - candidate.last_use) / unit_seconds_));
    const bool rewarded = lora_reward_ && candidate.kind == CandidateKind::kAdapter;
    return (rewarded ? LoraReward(context) : 1.0) * Pages(candidate) * prob * decay;
  }
  std::string_view name() const override { return name_; }
  std::int64_t MostPagesOfQuery(ReloadFrom) const override { return 64; }

 private:
  const std::string_view name_;
  const bool lora_reward_;
  const double unit_seconds_;
};

// The delay that a page saves by staying, in a unit of time: visits per time x effort to get it back x requests that
// the effort delays / pages. Where FastLibra's model fails:
// - the effort is that of the tier it would come from, with the latency of a load, and prefill for what must be
//   computed, and it is divided by the pages that it takes; one fetch brings all that a query left behind, so those
//   pages share its latency;
// - a load delays who waits for it; a prefill takes the device from everybody who is there. So where requests queue for
//   the device, what must be computed again counts that many times as much;
// - the rate of visits is estimated from their number and the time since the last one, by a prior that never saturates
//   (ReuseRates::Prior), corrected by what is seen on the load at hand (ReuseRates). What is seen may lower a worth,
//   and not lift it above the prior: on that scale adapters and history, of which each has rates of its own, can be
//   compared;
// - the number of visits is the edge's: who goes on with a conversation reads all of it, the last page as well as the
//   first, though that has been visited once and this one in every turn. By their own visits the last pages of all
//   conversations would go first, and each of them would wait for a few pages; so one goes as a whole.
// Adapters: FastLibra's reward while there are too few, and, as in Chameleon, after all others those of queued
// requests. An adapter and its history are weighed each for itself, and either may go first
// (CacheRegime::maintain_dependency): history saves its prefill whether or not the adapter has to be loaded, and the
// adapter its load whether or not there is history.
class Loramux final : public EvictionPolicy {
 public:
  double Score(const EvictionCandidate& candidate, const EvictionContext& context) const override {
    // One that was loaded and never used yet: as if used once, when it came.
    const bool unused = candidate.frequency <= 0;
    const TimeNs last_visit = unused ? candidate.last_use : candidate.frequency_at;
    const double prior =
        ReuseRates::Prior(unused ? 1.0 : candidate.frequency, Seconds(context.now - last_visit), context.remembered_s);
    const double rate = prior * std::min(1.0, candidate.reuse_factor);
    // a page
    const double effort =
        context.costs.Latency(candidate.reload) / Pages(candidate) + context.costs.Page(candidate.reload);
    if (candidate.kind == CandidateKind::kKeysAndValues) {
      const double delayed = candidate.reload == ReloadFrom::kComputation ? std::max(1.0, context.requests) : 1.0;
      return rate * effort * delayed;
    }
    constexpr double kQueued = 1e30;  // above what the rest can be; a factor, so that they keep their order
    return rate * effort * LoraReward(context) * (candidate.queued ? kQueued : 1.0);
  }
  std::string_view name() const override { return "loramux"; }
  bool counts_edges() const override { return true; }
  // Shared by more, a latency is little beside the pages' own cost; a computation has none.
  std::int64_t MostPagesOfQuery(ReloadFrom from) const override { return from == ReloadFrom::kHost ? 16 : 1; }
};

using Made = std::unique_ptr<EvictionPolicy>;

struct Entry {
  std::string_view name;
  Made (*make)();
};

constexpr std::array<Entry, 7> kPolicies = {{
    {"lru", [] { return Made(std::make_unique<Lru>()); }},
    {"gdsf", [] { return Made(std::make_unique<Gdsf>()); }},
    {"fairshare", [] { return Made(std::make_unique<WeightedSum>("fairshare", 1.0 / 3, 1.0 / 3, 1.0 / 3)); }},
    {"chameleon", [] { return Made(std::make_unique<WeightedSum>("chameleon", 0.45, 0.10, 0.45)); }},
    {"fastlibra", [] { return Made(std::make_unique<FastLibra>("fastlibra", /*lora_reward=*/true)); }},
    {"fastlibra-wol", [] { return Made(std::make_unique<FastLibra>("fastlibra-wol", /*lora_reward=*/false)); }},
    {"loramux", [] { return Made(std::make_unique<Loramux>()); }},
}};

}  // namespace

std::vector<std::string> EvictionPolicyNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kPolicies) names.emplace_back(entry.name);
  return names;
}

std::unique_ptr<EvictionPolicy> MakeFastLibraPolicy(double unit_seconds) {
  return std::make_unique<FastLibra>("fastlibra", /*lora_reward=*/true, unit_seconds);
}

Result<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(std::string_view name) {
  for (const Entry& entry : kPolicies) {
    if (entry.name == name) return entry.make();
  }
  std::string valid;
  for (const Entry& entry : kPolicies) valid += (valid.empty() ? "" : ", ") + std::string(entry.name);
  return InvalidArgument("eviction policy: expected one of " + valid + ", found '" + std::string(name) + "'",
                         "--cache");
}

}  // namespace loramux
