// Eviction policies: which idle adapter or idle KV page is evicted first when memory is short. Adapters and KV pages
// are scored on one scale. A policy is a pure function of a candidate and of a context that all candidates share. The
// planner applies it (schedule/scheduler.h); the residency manager and the dependency tree carry the decision out.
// docs/design/cache.md explains the policies to an operator.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "worth/reload_costs.h"

namespace loramux {

// What a candidate holds.
enum class CandidateKind : std::uint8_t { kAdapter, kKeysAndValues };

// Default of SystemSpec::usage_window: half-life of the visit counts of adapters and KV pages.
inline constexpr TimeNs kFrequencyHalfLife = 60 * kNsPerSecond;

// An idle adapter or an idle KV page.
struct EvictionCandidate {
  std::int64_t pages = 0;  // pages that its eviction would free
  double effort = 1;       // how many pages' computation each of them saves, where it would be computed again
  TimeNs last_use = 0;
  double uses = 0;  // adapter: requests since it came to the device; KV page: the decaying frequency
  ReloadFrom reload = ReloadFrom::kDisk;
  CandidateKind kind = CandidateKind::kAdapter;
  double frequency = 0;  // visits, decaying, as of `frequency_at`; see EvictionPolicy::counts_window
  TimeNs frequency_at = 0;
  double reuse_factor = 1;  // expected visits, relative to ReuseRates::Prior
  // For adapters: a waiting request wants it. For KV pages KvEvictionPlan keeps this itself.
  bool queued = false;
};

// GDSF's clock K: the highest score that was evicted so far. It never goes back. It remembers its values, so that no
// candidate needs to keep K as of its last use.
class EvictionClock {
 public:
  // Content of this score is evicted at `now`. REQUIRES: `now` does not decrease.
  void Evicts(double score, TimeNs now);
  // K at `time`; 0 before the first eviction.
  double At(TimeNs time) const;
  // At is no longer asked for times before `oldest`.
  void Forget(TimeNs oldest);

 private:
  // K from `at` on.
  struct Value {
    TimeNs at = 0;
    double k = 0;
  };
  // Beyond so many values, every second one is forgotten: K of old uses is then a little too low.
  static constexpr std::size_t kMost = 1 << 16;

  std::vector<Value> values_;  // ascending in both
};

// The inputs of a score that all candidates share. Everything but `now` is computed beside the forward pass
// (Scheduler::Prepare) and may be up to 100 milliseconds old.
struct EvictionContext {
  TimeNs now = 0;
  double total_visits = 0;             // by requests, to adapters and the base model; decaying, at `made_at`
  double max_frequency = 0;            // largest frequency of an adapter on the device, at `made_at`
  std::int64_t max_pages = 1;          // pages of the largest adapter on the device
  TimeNs oldest_use = 0;               // when the least recently used of them, or an idle page, was used
  std::int64_t resident_adapters = 0;  // FastLibra's Now_lora
  // FastLibra's Low_lora (equation 3): the number of adapters that batches are expected to need.
  double low_lora = 0;
  TimeNs made_at = 0;
  double requests = 0;                    // running and waiting
  double remembered_s = 30;               // seconds; see ReuseRates::Remembered
  ReloadCosts costs;                      // as measured
  TimeNs half_life = kFrequencyHalfLife;  // time in which half of the visits are forgotten
  const EvictionClock* clock = nullptr;   // null: K is 0
};

// Scores candidates for eviction; see the top of this file.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // The candidate with the lowest score is evicted first; at equal scores KV pages go before adapters.
  virtual double Score(const EvictionCandidate& candidate, const EvictionContext& context) const = 0;
  // The name for MakeEvictionPolicy.
  virtual std::string_view name() const = 0;
  // Most pages by which the policy sizes a KV candidate: the pages that one query computed, up to this number. 1: a
  // candidate is as large as the single page that its eviction frees.
  virtual std::int64_t MostPagesOfQuery(ReloadFrom) const { return 1; }
  // Whether a KV page counts the visits of its edge (DependencyTree::NodeView) instead of its own.
  virtual bool counts_edges() const { return false; }
  // Whether scores depend on EvictionCandidate::reuse_factor. If not, no rates of reuse are learned, and it stays 1.
  virtual bool weighs_reuse() const { return false; }
  // Whether scores depend on EvictionContext::low_lora. If not, it stays 0.
  virtual bool counts_needed_adapters() const { return false; }
  // Whether an adapter's frequency is the number of its uses "within a specific time frame" (Chameleon 4.2) up to now,
  // instead of visits that decay.
  virtual bool counts_window() const { return false; }
  // Whether scores depend on EvictionContext::clock. If not, no evictions are noted in it.
  virtual bool has_clock() const { return false; }
};

// Weights of Chameleon's score (section 4.2): F of frequency, R of recency, S of size. Of FastLibra's: the unit of t in
// equation 5, for which its paper gives none.
struct ScoreWeights {
  double frequency = 0.45, recency = 0.10, size = 0.45;
  TimeNs time_unit = kNsPerSecond;  // > 0
};

// Returns the policy of this name:
// - "lru": least recently used first (vLLM-LoRA), for adapters and KV pages alike.
// - "gdsf": GreedyDual-Size-Frequency (Cherkasova 1998; Chameleon 5.3.3): Frequency x Cost / Size + K, with the clock K
//   as of the last use.
// - "fairshare": Chameleon's frequency, recency and size in equal parts (Chameleon 5.3.3).
// - "chameleon": frequency, recency and size with these weights, 0.45, 0.10 and 0.45 unless given (Chameleon 4.2).
// - "fastlibra": the cost model of FastLibra 5.2.
// - "fastlibra-wol": "fastlibra" without its reward for enough adapters (FastLibra 6.8).
// - "loramux": the delay saved by each kept page: visit rate x reload effort x requests that it delays / pages.
// Error: unknown name; the message lists the valid names.
Result<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(std::string_view name, const ScoreWeights& weights = {});
// The names that MakeEvictionPolicy accepts.
std::vector<std::string> EvictionPolicyNames();

}  // namespace loramux
