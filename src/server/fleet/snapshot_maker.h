// What routers are told of the engine's state.
#pragma once

#include <string>

#include "adapter/registry.h"
#include "cluster/server_snapshot.h"
#include "engine/snapshot.h"
#include "server/adapters/adapter_finder.h"

namespace loramux {

// Returns what the engine's snapshot and the registry say, without instance, version, drain state, profile and
// prefixes. An adapter is listed if it is in a tier, or has requests. Of several versions of one name, the one that
// the name stands for gives place, rank and digest; the requests of all count. Thread-safe.
ServerSnapshot MakeServerSnapshot(const EngineSnapshot& engine, const AdapterRegistry& registry);

// Sets which models the server takes requests for: the base model's names, the registered adapters, and those that the
// finder would load. May block on the disk. Thread-safe.
void AddOffered(const AdapterRegistry& registry, AdapterFinder& finder, ServerSnapshot& snapshot);

// Returns how many tokens' keys and values both tiers hold, of running requests and of history.
std::int64_t CachedTokens(const EngineSnapshot& engine);

}  // namespace loramux
