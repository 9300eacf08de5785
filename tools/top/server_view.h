// What `loramux top` shows of a server, made from two scrapes of its metrics.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/top/metrics_text.h"

namespace loramux {

// Bytes of a tier's page pool by use.
struct TierView {
  std::string name;  // "device", "host"
  double kv = 0, history = 0, adapters = 0, free = 0;
  double total() const { return kv + history + adapters + free; }
};

struct AdapterView {
  std::string name, place;  // place: "device", "host", "disk"
  bool pinned = false;
  std::int64_t rank = 0;  // 0: unknown
  double running = 0, waiting = 0, requests = 0, tokens_per_s = 0, loads = 0;
};

// Seconds below which half, and 95 %, of the latest observations lie. nullopt: there are none.
struct LatencyView {
  std::optional<double> half, most;
};

struct ServerFigures {
  std::string model;
  double uptime_s = 0, resident_bytes = 0, processors = 0;  // processors: busy on average since the last scrape
  double running = 0, waiting = 0, requests_per_s = 0, generated_per_s = 0, prompt_per_s = 0;
  std::vector<std::pair<std::string, double>> lanes;  // waiting sequences by lane, where there are several
  LatencyView ttft, tpot;
  std::vector<TierView> tiers;
  double adapters_registered = 0, adapters_on_device = 0, loads_in_flight = 0, loads_per_s = 0;
  std::vector<AdapterView> adapters;
};

// `before`: the scrape `seconds` earlier; null: there is none, so rates are 0 and latencies those since the server
// started. Latencies are those since `before` where there were any. `unix_now`: seconds.
ServerFigures ViewServer(const MetricSet& now, const MetricSet* before, double seconds, double unix_now);

enum class AdapterOrder { kTokens, kName, kRunning, kWaiting, kRequests };
// Sorts the busiest first, or by name. Adapters that are equal stay in the order of their names.
void SortAdapters(std::vector<AdapterView>& adapters, AdapterOrder order);

}  // namespace loramux
