#include "cache/cache_regime.h"

#include <array>
#include <string>

#include "cache/eviction_policy.h"

namespace loramux {
namespace {

constexpr std::array<CacheRegime, 11> kRegimes = {{
    // Without the dependency: whoever asks for an adapter has it loaded, and then its history is of use again; so each
    // of the two is worth what it saves by itself. The bonus: of 0, 60 and 180 s on Mooncake's traces the best
    // (docs/results/cache.md).
    {.name = "loramux", .policy = "loramux", .maintain_dependency = false, .host_bonus = 3 * kFrequencyHalfLife},
    {.name = "lru", .policy = "lru"},
    {.name = "gdsf", .policy = "gdsf"},
    {.name = "fairshare", .policy = "fairshare"},
    {.name = "chameleon", .policy = "chameleon"},
    {.name = "fastlibra", .policy = "fastlibra", .proactive_swapping = true},
    // FastLibra 6.6: without the dependency of keys and values on their adapter.
    {.name = "fastlibra-wom", .policy = "fastlibra", .maintain_dependency = false, .proactive_swapping = true},
    // 6.7: LRU instead of the cost model.
    {.name = "fastlibra-wos", .policy = "lru", .proactive_swapping = true},
    // 6.8: without the reward for enough adapters.
    {.name = "fastlibra-wol", .policy = "fastlibra-wol", .proactive_swapping = true},
    // FastLibra 6.1 and Chameleon on S-LoRA: one pool; nothing stays once idle; adapters of queued requests are fetched
    // ahead. The policy is for adapters of queued requests, where memory is short.
    {.name = "s-lora", .policy = "lru", .keep_history = false, .keep_idle_adapters = false},
    // FastLibra 2.2 and 6.1 on vLLM: a fixed share of 0.2 for adapters, prefix cache, LRU on each side.
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
