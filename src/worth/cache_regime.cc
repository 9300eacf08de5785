#include "worth/cache_regime.h"

#include <array>
#include <string>

#include "worth/eviction_policy.h"

namespace loramux {
namespace {

constexpr std::array<CacheRegime, 11> kRegimes = {{
    // Without the dependency: a request for an adapter causes its load, after which its history is usable again. So
    // adapter and history are each worth what they save by themselves. The bonus is the best of 0, 60 and 180 seconds
    // on Mooncake's traces (docs/design/cache.md).
    {.name = "loramux", .policy = "loramux", .maintain_dependency = false, .host_bonus = 3 * kFrequencyHalfLife},
    {.name = "lru", .policy = "lru"},
    {.name = "gdsf", .policy = "gdsf"},
    {.name = "fairshare", .policy = "fairshare"},
    {.name = "chameleon", .policy = "chameleon"},
    {.name = "fastlibra", .policy = "fastlibra", .proactive_swapping = true},
    // FastLibra 6.6: without the dependency of KV on its adapter.
    {.name = "fastlibra-wom", .policy = "fastlibra", .maintain_dependency = false, .proactive_swapping = true},
    // FastLibra 6.7: LRU instead of the cost model.
    {.name = "fastlibra-wos", .policy = "lru", .proactive_swapping = true},
    // FastLibra 6.8: without the reward for enough adapters.
    {.name = "fastlibra-wol", .policy = "fastlibra-wol", .proactive_swapping = true},
    // S-LoRA in FastLibra 6.1 and Chameleon: one pool; nothing stays once idle; adapters of queued requests are fetched
    // ahead. The policy concerns only the adapters of queued requests when memory is short.
    {.name = "s-lora", .policy = "lru", .keep_history = false, .keep_idle_adapters = false},
    // vLLM in FastLibra 2.2 and 6.1: a fixed share of 0.2 for adapters, prefix cache, LRU on each side.
    {.name = "vllm", .policy = "lru", .adapter_share = 0.2, .maintain_dependency = false},
}};

}  // namespace

std::span<const CacheRegime> CacheRegimes() { return kRegimes; }

Result<CacheRegime> FindCacheRegime(std::string_view name) {
  std::string valid;
  for (const CacheRegime& regime : kRegimes) {
    if (regime.name == name) return regime;
    valid += (valid.empty() ? "" : ", ") + std::string(regime.name);
  }
  return InvalidArgument("cache: expected one of " + valid + ", found '" + std::string(name) + "'", "--cache");
}

}  // namespace loramux
