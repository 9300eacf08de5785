#include "server/page/live_event.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "server/metrics/metrics.h"

namespace loramux {
namespace {

double Milliseconds(TimeNs duration) { return static_cast<double>(duration) / kNsPerMs; }

// Where requests find the adapter.
const char* PlaceName(const AdapterSnapshot& adapter) {
  if (adapter.device == TierState::kResident) return "device";
  if (adapter.device == TierState::kLoading) return "arriving";
  return adapter.host == TierState::kResident ? "host" : "disk";
}

// Pages of the device by use. `adapters` counts those that requests or pins hold; the rest may be evicted.
Json DeviceMemory(const EngineStats& stats) {
  const PoolStats& pool = stats.device;
  return {{"pages", pool.capacity_pages},
          {"free", pool.free_pages},
          {"requests", pool.used(PageCategory::kKv) - stats.history_pages},
          {"history", stats.history_pages},
          {"adapters", pool.used(PageCategory::kAdapter) - stats.idle_adapter_pages},
          {"idle_adapters", stats.idle_adapter_pages}};
}

Json HostMemory(const PoolStats& pool) {
  return {{"pages", pool.capacity_pages},
          {"free", pool.free_pages},
          {"history", pool.used(PageCategory::kKv)},
          {"adapters", pool.used(PageCategory::kAdapter)}};
}

Json BusyAdapters(const EngineSnapshot& engine) {
  std::vector<const AdapterSnapshot*> busy;
  for (const AdapterSnapshot& adapter : engine.adapters) {
    if (adapter.running + adapter.waiting > 0) busy.push_back(&adapter);
  }
  std::stable_sort(busy.begin(), busy.end(), [](const AdapterSnapshot* a, const AdapterSnapshot* b) {
    return a->running + a->waiting > b->running + b->waiting;
  });
  if (busy.size() > kMostBusyAdapters) busy.resize(kMostBusyAdapters);
  Json list = Json::array();
  for (const AdapterSnapshot* adapter : busy) {
    list.push_back({{"name", adapter->version.name},
                    {"place", PlaceName(*adapter)},
                    {"running", adapter->running},
                    {"waiting", adapter->waiting}});
  }
  return list;
}

// Null stands for what did not happen: no token, or no second one.
Json EndedJson(const SequenceEnd& end) {
  Json json = {{"adapter", end.adapter},
               {"tenant", end.tenant},
               {"reason", FinishedReason(end.reason)},
               {"prompt_tokens", end.prompt_tokens},
               {"tokens", end.generated_tokens},
               {"ttft_ms", nullptr},
               {"tpot_ms", nullptr}};
  if (end.generated_tokens > 0) json["ttft_ms"] = Milliseconds(end.first_token - end.received);
  if (end.generated_tokens > 1) {
    json["tpot_ms"] = Milliseconds(end.last_token - end.first_token) / (end.generated_tokens - 1);
  }
  return json;
}

// A card of the list. `place` and what follows are of the engine, and absent while it does not know the adapter.
Json EngineCard(const AdapterSnapshot& adapter, const EngineSnapshot& engine) {
  const std::int64_t page_bytes = engine.stats.device.page_bytes;
  Json card = {{"place", PlaceName(adapter)},
               {"in_host", adapter.host == TierState::kResident},
               {"pinned", adapter.pinned},
               {"rank", adapter.version.max_rank},
               {"bytes", adapter.version.pages * page_bytes},
               {"running", adapter.running},
               {"waiting", adapter.waiting},
               {"uses", adapter.uses},
               {"loads", adapter.loads},
               {"last_load_ms", nullptr},
               {"idle_ms", nullptr}};
  if (adapter.loads > 0) card["last_load_ms"] = Milliseconds(adapter.last_load_time);
  if (adapter.last_use > 0) card["idle_ms"] = Milliseconds(std::max<TimeNs>(0, engine.made_at - adapter.last_use));
  return card;
}

Json DiskCard(const AdapterVersion& version, std::int64_t page_bytes) {
  return {{"place", "disk"}, {"rank", version.layout.max_rank}, {"bytes", version.layout.pages * page_bytes}};
}

}  // namespace

std::string LiveEvent(const LiveInput& input) {
  const EngineSnapshot& engine = *input.engine;
  const EngineStats& stats = engine.stats;
  Json ends = Json::array();
  for (const SequenceEnd& end : input.ends.ends) ends.push_back(EndedJson(end));
  const Json event = {{"unix_seconds", input.unix_seconds},
                      {"now_ms", Milliseconds(engine.made_at)},
                      {"viewers", input.viewers},
                      {"model", input.registry->base_names().front()},
                      {"page_bytes", stats.device.page_bytes},
                      {"page_tokens", engine.page_tokens},
                      {"requests",
                       {{"running", stats.running},
                        {"waiting", stats.waiting},
                        {"max_running", stats.max_running},
                        {"lanes", engine.lane_waiting},
                        {"waiting_tokens", engine.waiting_tokens},
                        {"finished", stats.finished},
                        {"preemptions", stats.preemptions}}},
                      {"tokens", {{"generated", stats.tokens_generated}, {"prefilled", stats.tokens_prefilled}}},
                      {"steps", stats.steps},
                      {"device", DeviceMemory(stats)},
                      {"host", HostMemory(stats.host)},
                      {"adapters",
                       {{"known", stats.adapters.known},
                        {"on_device", stats.adapters.device_resident},
                        {"in_host", stats.adapters.host_resident},
                        {"loading", stats.adapters.loading},
                        {"loads", stats.adapters.device_loads},
                        {"load_ms", Milliseconds(stats.adapters.load_time_total)},
                        {"cold_starts", stats.cold_starts},
                        {"busy", BusyAdapters(engine)}}},
                      {"ended", std::move(ends)},
                      {"ended_left_out", input.ends.left_out}};
  return DumpJson(event);
}

Json AdapterList(const EngineSnapshot& engine, const AdapterRegistry& registry, AdapterFinder& finder,
                 const std::function<bool(std::string_view)>& visible) {
  std::map<std::string, Json> cards;
  for (const OfferedAdapter& adapter : finder.Offered()) {
    cards[adapter.name] = {{"path", adapter.path}, {"state", "offered"}, {"place", "disk"}};
  }
  for (const BrokenAdapter& adapter : finder.Broken()) {
    cards[adapter.name] = {{"path", adapter.path}, {"state", "broken"}, {"reason", adapter.reason}};
  }
  std::map<AdapterGeneration, std::string> names;
  for (const auto& version : registry.List()) {
    Json card = {{"path", version->path.string()}, {"state", "registered"}};
    card.update(DiskCard(*version, engine.stats.device.page_bytes));
    if (!version->warning.empty()) card["warning"] = version->warning;
    names.emplace(version->generation, version->name);
    cards[version->name] = std::move(card);
  }
  for (const AdapterSnapshot& adapter : engine.adapters) {
    const auto known = names.find(adapter.version.generation);
    if (known != names.end()) cards[known->second].update(EngineCard(adapter, engine));
  }
  Json list = Json::array();
  for (auto& [name, card] : cards) {
    if (!visible(name)) continue;
    Json entry = {{"name", name}};
    entry.update(card);
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace loramux
