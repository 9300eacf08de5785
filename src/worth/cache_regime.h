// Cache regimes by name: loramux's own and those of the source documents. A regime is one row of a table. It names the
// eviction policy and says whether adapters have their own share of the memory, what stays cached once idle, and
// whether KV pages may outlive their adapter on the device.
#pragma once

#include <span>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"

namespace loramux {

// When FastLibra's timer moves pages: thresholds as shares of the device's pages, and the time between two looks. The
// defaults are FastLibra's (section 5.3).
struct SwapThresholds {
  double upper = 0.95, lower = 0.70;
  TimeNs interval = 100 * kNsPerMs;
  std::int64_t draw = 0;  // decides among adapters that are worth the same; a simulation's seed
};

// One whole-cache policy (`--cache`).
struct CacheRegime {
  std::string_view name;
  std::string_view policy;  // a name for MakeEvictionPolicy
  // Share of the device's pages reserved for adapters; KV pages have the rest. 0: one pool for both.
  double adapter_share = 0;
  // Keep the KV pages of finished requests. false: no request finds what another one computed.
  bool keep_history = true;
  // Keep adapters that no waiting or running request wants. false: such an adapter leaves the device at once.
  bool keep_idle_adapters = true;
  // Evict the KV pages of an adapter before the adapter. false: an adapter may be evicted while its history stays; the
  // history is then unusable until the adapter is back.
  bool maintain_dependency = true;
  // Bonus for each doubling of visits in the host tier, as nanoseconds of later last use. 0: least recently used.
  TimeNs host_bonus = 0;
  // FastLibra's timer (residency/proactive_swapper.h). false: all movement is on demand.
  bool proactive_swapping = false;
};

// All regimes, the default first.
std::span<const CacheRegime> CacheRegimes();
// The regime of this name. Error: unknown name; the message lists the valid names.
Result<CacheRegime> FindCacheRegime(std::string_view name);

}  // namespace loramux
