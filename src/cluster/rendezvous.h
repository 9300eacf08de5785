// Rendezvous hashing (Thaler and Ravishankar 1998): each key orders all servers, and each router computes the same
// order. A server that leaves moves only the keys that it was first for.
#pragma once

#include <cstdint>
#include <string_view>

#include "cluster/route_policy.h"

namespace loramux {

// The hash of a server's name, for RendezvousWeight.
std::uint64_t RendezvousHash(std::string_view text);
// The server with the largest weight is the key's first. Uniform in 64 bits; the same on every platform.
std::uint64_t RendezvousWeight(std::uint64_t key_hash, std::string_view server);
// The hash of a request's key: the adapter, else the beginning of the prompt, else a random number.
std::uint64_t RendezvousKey(const RouteContext& context);

}  // namespace loramux
