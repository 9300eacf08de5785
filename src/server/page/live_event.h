// One event of GET /internal/live: the engine's state and what happened since the event before, as JSON
// (docs/reference/api.md describes each field).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "adapter/registry.h"
#include "engine/snapshot.h"
#include "http/json_reader.h"
#include "server/adapters/adapter_finder.h"
#include "server/metrics/recent_ends.h"

namespace loramux {

// The input of LiveEvent.
struct LiveInput {
  const EngineSnapshot* engine = nullptr;  // not null
  const AdapterRegistry* registry = nullptr;
  RecentEnds::Taken ends;         // since the event before
  std::int64_t unix_seconds = 0;  // now
  int viewers = 0;                // connections that get the event
};

// Adapters with running or waiting requests that an event names; the busiest.
inline constexpr std::size_t kMostBusyAdapters = 50;

// Returns the event's JSON, on one line. REQUIRES: engine and registry are set.
std::string LiveEvent(const LiveInput& input);

// A JSON array, what GET /internal/adapters says of every adapter that is registered, offered or broken, by name.
// `finder` may block on the disk. `visible` says whether the caller may know the name.
Json AdapterList(const EngineSnapshot& engine, const AdapterRegistry& registry, AdapterFinder& finder,
                 const std::function<bool(std::string_view)>& visible);

}  // namespace loramux
