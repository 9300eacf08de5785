// What gives way when memory is short: idle adapters and idle pages of keys and values, weighed on one scale. A policy
// is a pure function of what is known about a candidate and of what all candidates have in common; the planner applies
// it (schedule/scheduler.h), the residency manager and the dependency tree carry the decision out. docs/design/cache.md
// explains the policies to an operator.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "cache/reload_costs.h"

namespace loramux {

enum class CandidateKind : std::uint8_t { kAdapter, kKeysAndValues };

// Visits of adapters and of keys and values are forgotten by half in this time (DependencyTree's default).
inline constexpr TimeNs kFrequencyHalfLife = 60 * kNsPerSecond;

struct EvictionCandidate {
  std::int64_t pages = 0;  // what evicting it would free
  TimeNs last_use = 0;
  double uses = 0;  // by requests: of an adapter all so far, of keys and values the decaying frequency
  ReloadFrom reload = ReloadFrom::kDisk;
  CandidateKind kind = CandidateKind::kAdapter;
  double frequency = 0;  // visits, decaying, as of `frequency_at`
  TimeNs frequency_at = 0;
  double reuse_factor = 1;  // visits to be expected, over what ReuseRates::Prior says
  // an adapter that a waiting request wants; of keys and values KvEvictionPlan knows that
  bool queued = false;
};

// What a score depends on besides its candidate. All but `now` is made beside the computation (Scheduler::Prepare), so
// it may be a tenth of a second old.
struct EvictionContext {
  TimeNs now = 0;
  double total_visits = 0;             // of requests to adapters and the base model, decaying, at `made_at`
  double max_frequency = 0;            // among the adapters on the device, decaying, at `made_at`
  std::int64_t max_pages = 1;          // among the adapters on the device
  TimeNs oldest_use = 0;               // among the adapters on the device, and the idle pages
  std::int64_t resident_adapters = 0;  // FastLibra's Now_lora
  // FastLibra's Low_lora (its equation 3): adapters that batches are expected to need
  double low_lora = 0;
  TimeNs made_at = 0;
  double requests = 0;       // running and waiting
  double remembered_s = 30;  // ReuseRates::Remembered
  ReloadCosts costs;         // as measured
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // The candidate with the lowest score goes first; of equal ones keys and values before adapters.
  virtual double Score(const EvictionCandidate& candidate, const EvictionContext& context) const = 0;
  virtual std::string_view name() const = 0;
  // Keys and values are as large to it as what one query computed, up to so many pages; 1: as the page that would go.
  virtual std::int64_t MostPagesOfQuery(ReloadFrom) const { return 1; }
  // The visits of a page of history are those of its edge (DependencyTree::NodeView), not its own.
  virtual bool counts_edges() const { return false; }
};

// "lru": least recently used first (vLLM-LoRA), adapters and keys and values alike.
// "gdsf": GreedyDual-Size-Frequency (Cherkasova 1998) over idle time: value = uses x reload cost / (size x age); a
//         frequently used adapter that is small for what its reload costs stays longest.
// "fairshare": Chameleon's frequency, recency and size in equal parts (Chameleon 5.3.3).
// "chameleon": 0.45 frequency + 0.10 recency + 0.45 size (Chameleon 4.2).
// "fastlibra": the cost model of FastLibra 5.2. "fastlibra-wol": without its reward for enough adapters (6.8).
// "loramux": ours. Delay saved per page kept: rate of visits x effort of getting it back x requests that wait for it /
//            pages.
// Error: an unknown name; the message lists the valid ones.
Result<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(std::string_view name);
std::vector<std::string> EvictionPolicyNames();

// FastLibra's with t in units of so many seconds, where the document gives none; "fastlibra" has 1. REQUIRES: above 0.
std::unique_ptr<EvictionPolicy> MakeFastLibraPolicy(double unit_seconds);

}  // namespace loramux
