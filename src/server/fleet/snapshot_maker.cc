#include "server/fleet/snapshot_maker.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "cluster/offered_names.h"

namespace loramux {
namespace {

// Where requests find the adapter; nullopt: on the disk alone.
std::optional<AdapterPlace> PlaceOf(const AdapterSnapshot& adapter) {
  if (adapter.device == TierState::kResident) return AdapterPlace::kDevice;
  if (adapter.device == TierState::kLoading) return AdapterPlace::kArriving;
  if (adapter.host == TierState::kResident) return AdapterPlace::kHost;
  return std::nullopt;
}

// One version of an adapter.
struct ListedVersion {
  SnapshotAdapter entry;
  bool named = false;  // the name stands for it
  AdapterGeneration generation;
};

std::optional<ListedVersion> List(const AdapterSnapshot& adapter, std::int64_t page_bytes,
                                  const AdapterRegistry& registry) {
  const std::optional<AdapterPlace> place = PlaceOf(adapter);
  if (!place && adapter.running + adapter.waiting == 0) return std::nullopt;
  ListedVersion listed;
  listed.generation = adapter.version.generation;
  listed.named = !registry.IsRetired(listed.generation);
  listed.entry = {.name = adapter.version.name,
                  .digest = {},
                  .place = place.value_or(AdapterPlace::kDisk),
                  .rank = adapter.version.max_rank,
                  .bytes = adapter.version.pages * page_bytes,
                  .running = adapter.running,
                  .waiting = adapter.waiting};
  if (const auto version = registry.Find(listed.generation)) {
    if (!version->parts.empty()) return std::nullopt;  // a sum of adapters is no model that a router may ask for
    listed.entry.digest = version->file.digest;
  }
  return listed;
}

// The newer version of a name replaces the older one; a version that lost its name never replaces one that has it.
void Join(ListedVersion newcomer, ListedVersion& known) {
  const std::int64_t running = known.entry.running + newcomer.entry.running;
  const std::int64_t waiting = known.entry.waiting + newcomer.entry.waiting;
  const auto worth = [](const ListedVersion& version) { return std::pair(version.named, version.generation.value); };
  if (worth(newcomer) > worth(known)) known = std::move(newcomer);
  known.entry.running = running;
  known.entry.waiting = waiting;
}

std::vector<SnapshotAdapter> ListAdapters(const EngineSnapshot& engine, const AdapterRegistry& registry) {
  std::map<std::string, ListedVersion> by_name;
  for (const AdapterSnapshot& adapter : engine.adapters) {
    auto listed = List(adapter, engine.stats.device.page_bytes, registry);
    if (!listed) continue;
    const auto known = by_name.find(adapter.version.name);
    if (known == by_name.end()) {
      by_name.emplace(adapter.version.name, std::move(*listed));
    } else {
      Join(std::move(*listed), known->second);
    }
  }
  std::vector<SnapshotAdapter> adapters;
  adapters.reserve(by_name.size());
  for (auto& [name, version] : by_name) adapters.push_back(std::move(version.entry));
  return adapters;
}

}  // namespace

ServerSnapshot MakeServerSnapshot(const EngineSnapshot& engine, const AdapterRegistry& registry) {
  const EngineStats& stats = engine.stats;
  ServerSnapshot snapshot;
  snapshot.base_model = registry.base_names().front();
  snapshot.running = stats.running;
  snapshot.waiting = stats.waiting;
  snapshot.waiting_prompt_tokens = engine.waiting_tokens;
  snapshot.running_prompt_tokens = engine.running_prompt_tokens;
  snapshot.running_context = engine.running_context;
  snapshot.max_running = stats.max_running;
  snapshot.max_batch_tokens = engine.max_batch_tokens;
  snapshot.lane_waiting = engine.lane_waiting;
  snapshot.page_tokens = engine.page_tokens;
  snapshot.page_bytes = stats.device.page_bytes;
  snapshot.device_pages = stats.device.capacity_pages;
  snapshot.free_pages = stats.device.free_pages;
  snapshot.history_pages = stats.history_pages;
  snapshot.idle_adapter_pages = stats.idle_adapter_pages;
  snapshot.adapters = ListAdapters(engine, registry);
  return snapshot;
}

void AddOffered(const AdapterRegistry& registry, AdapterFinder& finder, ServerSnapshot& snapshot) {
  const auto versions = registry.List();
  const auto found = finder.Offered();
  std::vector<std::string_view> names(registry.base_names().begin(), registry.base_names().end());
  for (const auto& version : versions) names.push_back(version->name);
  for (const OfferedAdapter& adapter : found) names.push_back(adapter.name);
  SetOffered(names, snapshot);
}

std::int64_t CachedTokens(const EngineSnapshot& engine) {
  return (engine.stats.device.used(PageCategory::kKv) + engine.stats.host.used(PageCategory::kKv)) * engine.page_tokens;
}

}  // namespace loramux
