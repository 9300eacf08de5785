#include "cluster/rendezvous.h"

#include <xxhash.h>

#include "base/prng.h"

namespace loramux {

std::uint64_t RendezvousHash(std::string_view text) { return XXH64(text.data(), text.size(), 0); }

std::uint64_t RendezvousWeight(std::uint64_t key_hash, std::string_view server) {
  return SplitMix64(key_hash ^ SplitMix64(RendezvousHash(server)));
}

std::uint64_t RendezvousKey(const RouteContext& context) {
  if (!context.request.adapter.empty()) return RendezvousHash(context.request.adapter);
  if (!context.request.prefix.empty()) return SplitMix64(context.request.prefix.front());
  return context.random;
}

}  // namespace loramux
