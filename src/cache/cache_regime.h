// Whole ways to run the cache, by name: ours and those of the source documents. A regime is a row of a table: which
// policy chooses what goes, whether adapters have a share of the memory to themselves, what is kept once nobody uses
// it, and whether keys and values are kept from outliving their adapter on the device.
#pragma once

#include <span>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"

namespace loramux {

struct CacheRegime {
  std::string_view name;
  std::string_view policy;  // of MakeEvictionPolicy
  // of the device's pages: adapters have these, keys and values the rest; 0: one pool for both
  double adapter_share = 0;
  // keys and values of requests that have ended; false: no request finds what another computed
  bool keep_history = true;
  // false: an adapter that no request wants, waiting or running, leaves the device at once
  bool keep_idle_adapters = true;
  // false: an adapter may go while its history stays, which cannot be used until it is back
  bool maintain_dependency = true;
  // in a large host tier each doubling of visits counts like a use so much later; 0: least recently used
  TimeNs host_bonus = 0;
  bool proactive_swapping = false;  // FastLibra's timer (cache/proactive_swapper.h); false: all movement is by demand
};

// All of them, the default first.
std::span<const CacheRegime> CacheRegimes();
// Error: an unknown name; the message lists the valid ones.
Result<CacheRegime> FindCacheRegime(std::string_view name);

}  // namespace loramux
