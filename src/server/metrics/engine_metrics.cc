#include "server/metrics/engine_metrics.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "server/adapters/adapter_usage.h"

namespace loramux {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using LabelList = std::vector<ClientMetric::Label>;

// The tier closest to the compute device that holds an adapter.
enum Level { kGpu, kCpu, kDisk, kNumLevels };
constexpr const char* kLevelNames[] = {"gpu", "cpu", "disk"};

// One adapter generation, merged from the engine's snapshot and the registry.
struct Adapter {
  VersionSummary version;
  Level level = kDisk;
  bool in_host = false;  // also if it is on the device
  bool pinned = false;
  std::int64_t running = 0, waiting = 0;
  TimeNs last_use = 0;
  std::int64_t loads = 0;
};

Level LevelOf(const AdapterSnapshot& adapter) {
  if (adapter.device == TierState::kResident) return kGpu;
  return adapter.host == TierState::kResident ? kCpu : kDisk;
}

// Returns the registered adapters, and the unregistered ones that are still in memory or have waiting requests.
std::vector<Adapter> Merge(const EngineMetricsInput& input) {
  std::set<AdapterGeneration> unseen;
  for (const auto& version : input.registered) unseen.insert(version->generation);
  std::vector<Adapter> adapters;
  for (const AdapterSnapshot& known : input.snapshot->adapters) {
    const bool registered = unseen.erase(known.version.generation) != 0;
    const Level level = LevelOf(known);
    if (!registered && level == kDisk && known.waiting == 0) continue;
    adapters.push_back({known.version, level, known.host == TierState::kResident, known.pinned, known.running,
                        known.waiting, known.last_use, known.loads});
  }
  for (const auto& version : input.registered) {
    if (unseen.contains(version->generation))
      adapters.push_back({VersionSummary(*version), kDisk, false, false, 0, 0, 0, 0});
  }
  return adapters;
}

// Sorts by requests in descending order, then by closeness of the tier, then by last use, then by age.
void SortByBusiness(std::vector<Adapter>& adapters) {
  const auto key = [](const Adapter& a) {
    return std::make_tuple(-(a.running + a.waiting), static_cast<int>(a.level), -a.last_use,
                           a.version.generation.value);
  };
  std::sort(adapters.begin(), adapters.end(), [&](const Adapter& a, const Adapter& b) { return key(a) < key(b); });
}

// A page of metric families in the making.
class Page {
 public:
  explicit Page(const std::string& model_name) : model_labels_{{"model_name", model_name}, {"engine", "0"}} {}

  MetricFamily& Add(MetricType type, std::string name, std::string help) {
    return families_.emplace_back(MetricFamily{std::move(name), std::move(help), type, {}});
  }
  static void AddValue(MetricFamily& family, LabelList labels, double value) {
    ClientMetric metric;
    metric.label = std::move(labels);
    (family.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    family.metric.push_back(std::move(metric));
  }
  // Adds a metric with vLLM's name and labels.
  void Model(MetricType type, const std::string& name, std::string help, double value) {
    AddValue(Add(type, "vllm:" + name, std::move(help)), model_labels_, value);
  }
  void Model(MetricType type, const std::string& name, std::string help, std::int64_t value) {
    Model(type, name, std::move(help), static_cast<double>(value));
  }
  // Adds a metric of this project's own.
  void Own(MetricType type, const std::string& name, std::string help, auto value) {
    AddValue(Add(type, "loramux:" + name, std::move(help)), {}, static_cast<double>(value));
  }
  const LabelList& model_labels() const { return model_labels_; }
  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  const LabelList model_labels_;
  std::vector<MetricFamily> families_;
};

// KV pages of running requests, as a share of the pages that adapters in use and pinned adapters leave. At 1 nothing is
// left to evict.
double KvUsage(const EngineSnapshot& snapshot) {
  const PoolStats& pool = snapshot.stats.device;
  std::int64_t in_use = 0;
  for (const AdapterSnapshot& adapter : snapshot.adapters) {
    const bool pinned = adapter.pinned && adapter.device != TierState::kAbsent;
    if (adapter.running > 0 || pinned) in_use += adapter.version.pages;
  }
  const std::int64_t room = pool.capacity_pages - in_use;
  const std::int64_t kv = pool.used(PageCategory::kKv) - snapshot.stats.history_pages;
  return room <= 0 ? 1.0 : std::min(1.0, static_cast<double>(kv) / static_cast<double>(room));
}

// Deferred: for an adapter that is not on the device yet. The counts add up to all that wait.
void AddWaitingByReason(Page& page, const EngineSnapshot& snapshot) {
  std::int64_t deferred = 0;
  for (const AdapterSnapshot& adapter : snapshot.adapters) {
    if (adapter.device != TierState::kResident) deferred += adapter.waiting;
  }
  deferred = std::min(deferred, snapshot.stats.waiting);  // the stats are of the last step
  MetricFamily& family =
      page.Add(MetricType::Gauge, "vllm:num_requests_waiting_by_reason",
               "Sequences that wait in the queue: deferred until their adapter is on the device, or for capacity.");
  for (const auto& [reason, count] :
       {std::pair{"capacity", snapshot.stats.waiting - deferred}, std::pair{"deferred", deferred}}) {
    LabelList labels = page.model_labels();
    labels.push_back({"reason", reason});
    Page::AddValue(family, std::move(labels), static_cast<double>(count));
  }
}

void AddRequests(Page& page, const EngineSnapshot& snapshot) {
  const EngineStats& stats = snapshot.stats;
  page.Model(MetricType::Gauge, "num_requests_running", "Sequences that run in the batch.", stats.running);
  page.Model(MetricType::Gauge, "num_requests_waiting", "Sequences that wait in the queue.", stats.waiting);
  AddWaitingByReason(page, snapshot);
  page.Own(MetricType::Gauge, "held_requests", "Sequences that a pause keeps from the queue.", stats.held);
  MetricFamily& reloaded =
      page.Add(MetricType::Counter, "loramux:reloaded_requests_total",
               "Sequences on an adapter that was loaded anew: moved to the new version, aborted, or failed to move.");
  Page::AddValue(reloaded, {{"outcome", "moved"}}, static_cast<double>(stats.retargeted.moved));
  Page::AddValue(reloaded, {{"outcome", "aborted"}}, static_cast<double>(stats.retargeted.aborted));
  Page::AddValue(reloaded, {{"outcome", "failed"}}, static_cast<double>(stats.retargeted.failed));
  page.Model(MetricType::Counter, "num_preemptions_total",
             "Preemptions: running sequences paused because older ones needed their pages.", stats.preemptions);
  page.Own(MetricType::Counter, "engine_steps_total", "Steps: forward passes of a batch.", stats.steps);
  page.Own(MetricType::Counter, "engine_prefill_tokens_total",
           "Prompt tokens computed in prefill, including repeated prefill after preemptions.", stats.tokens_prefilled);
  page.Model(MetricType::Counter, "spec_decode_num_drafts_total", "Drafts that steps verified (--speculate).",
             stats.drafts);
  page.Model(MetricType::Counter, "spec_decode_num_draft_tokens_total", "Tokens of these drafts.",
             stats.drafted_tokens);
  page.Model(MetricType::Counter, "spec_decode_num_accepted_tokens_total",
             "Tokens of these drafts that turned out right, and so are part of answers.", stats.accepted_tokens);
  page.Own(MetricType::Counter, "history_evicted_pages_total", "History pages evicted from the device tier.",
           stats.history_evictions);
  page.Own(MetricType::Counter, "history_copied_pages_total",
           "History pages copied to the host tier, so that their eviction from the device loses nothing.",
           stats.kv_tiers.pages_backed_up);
  page.Own(MetricType::Counter, "history_fetched_pages_total",
           "History pages fetched back from the host tier for a request.", stats.kv_tiers.pages_fetched);
  page.Own(MetricType::Counter, "history_fetches_total",
           "Fetches of history from the host tier that a request waited for.", stats.kv_tiers.fetches);
  page.Own(MetricType::Counter, "history_fetch_seconds_total",
           "Duration of these fetches, from the decision to the last page, in total.",
           static_cast<double>(stats.kv_tiers.fetch_time_total) / kNsPerSecond);
  page.Own(MetricType::Counter, "history_fetches_ahead_total",
           "Fetches of history that began before the request was admitted.", stats.kv_tiers.fetches_ahead);
  page.Own(MetricType::Counter, "history_failed_moves_total", "Copies of history between the tiers that failed.",
           stats.kv_tiers.failed_jobs);
  MetricFamily& swapped = page.Add(MetricType::Counter, "loramux:swapped_ahead_bytes_total",
                                   "Bytes moved between the device and the host tier ahead of demand.");
  const auto add_swapped = [&](const char* direction, const char* use, std::int64_t pages) {
    Page::AddValue(swapped, {{"direction", direction}, {"use", use}},
                   static_cast<double>(pages * stats.device.page_bytes));
  };
  add_swapped("out", "history", stats.swaps.history_out);
  add_swapped("out", "adapters", stats.swaps.adapters_out);
  add_swapped("in", "history", stats.swaps.history_in);
  add_swapped("in", "adapters", stats.swaps.adapters_in);
  page.Own(MetricType::Counter, "early_admissions_total",
           "Requests that started while layers of their adapter or history were still arriving.",
           stats.early_admissions);
  page.Own(MetricType::Counter, "replayed_steps_total", "Steps that a GPU repeated from a recording.",
           stats.replayed_steps);
  page.Own(MetricType::Counter, "step_wait_seconds_total", "Time that steps waited for such layers.",
           static_cast<double>(stats.step_wait_total) / kNsPerSecond);
  page.Own(MetricType::Gauge, "history_invalid_pages",
           "History pages that cannot be used because their adapter is not on the device.",
           stats.invalid_history_pages);
}

// Bytes copied between the tiers since the start. Failed copies do not count.
void AddMovedBytes(Page& page, const EngineStats& stats) {
  MetricFamily& family = page.Add(MetricType::Counter, "loramux:moved_bytes_total", "Bytes copied between the tiers.");
  const auto add = [&](const char* what, const char* from, const char* to, std::int64_t bytes) {
    Page::AddValue(family, {{"what", what}, {"from", from}, {"to", to}}, static_cast<double>(bytes));
  };
  const AdapterStats& adapters = stats.adapters;
  const std::int64_t page_bytes = stats.device.page_bytes;
  add("adapters", "disk", "cpu", adapters.disk_to_host_bytes);
  add("adapters", "disk", "gpu", adapters.disk_to_device_bytes);
  add("adapters", "cpu", "gpu", adapters.host_to_device_bytes);
  add("history", "gpu", "cpu", stats.kv_tiers.pages_backed_up * page_bytes);
  add("history", "cpu", "gpu", (stats.kv_tiers.pages_fetched + stats.kv_tiers.pages_fetched_ahead) * page_bytes);
}

// Where requests found their adapter and their prompt's keys and values.
void AddHits(Page& page, const EngineStats& stats) {
  const AdapterStats& adapters = stats.adapters;
  MetricFamily& lookups = page.Add(MetricType::Counter, "loramux:adapter_lookups_total",
                                   "Sequences by the tier that held their adapter when they arrived.");
  Page::AddValue(lookups, {{"found", "gpu"}}, static_cast<double>(adapters.asked_on_device));
  Page::AddValue(lookups, {{"found", "cpu"}}, static_cast<double>(adapters.asked_in_host));
  const std::int64_t on_disk = adapters.asked - adapters.asked_on_device - adapters.asked_in_host;
  Page::AddValue(lookups, {{"found", "disk"}}, static_cast<double>(on_disk));
  page.Own(MetricType::Counter, "adapter_wait_seconds_total",
           "Time from a sequence's arrival until its adapter was on the device, in total.",
           static_cast<double>(stats.adapter_wait_total) / kNsPerSecond);
  const PrefixStats& prefix = stats.prefix;
  MetricFamily& tokens = page.Add(MetricType::Counter, "loramux:prompt_tokens_total",
                                  "Prompt tokens by the tier that held their keys and values.");
  Page::AddValue(tokens, {{"found", "gpu"}}, static_cast<double>(prefix.found_tokens - prefix.from_host_tokens));
  Page::AddValue(tokens, {{"found", "cpu"}}, static_cast<double>(prefix.from_host_tokens));
  Page::AddValue(tokens, {{"found", "nowhere"}}, static_cast<double>(prefix.looked_up_tokens - prefix.found_tokens));
  page.Own(MetricType::Counter, "state_snapshots_total",
           "Snapshots of the states of linear attention that were taken for the prefix cache.", prefix.snapshots);
  page.Own(MetricType::Gauge, "state_snapshot_interval_tokens",
           "Tokens between two such snapshots, as chosen from the reuse observed; 0: none are taken.",
           prefix.snapshot_interval);
}

// What preemptions cost.
void AddResumed(Page& page, const EngineStats& stats) {
  MetricFamily& family =
      page.Add(MetricType::Counter, "loramux:resumed_tokens_total",
               "Tokens computed before a preemption, by whether the cache had them when the sequence began again.");
  const auto add = [&](const char* cause, const ResumedTokens& all, const ResumedTokens& without) {
    Page::AddValue(family, {{"cause", cause}, {"found", "cache"}}, static_cast<double>(all.found - without.found));
    Page::AddValue(family, {{"cause", cause}, {"found", "nowhere"}},
                   static_cast<double>(all.recomputed - without.recomputed));
  };
  add("squash", stats.resumed_squashes, {});
  add("memory", stats.resumed, stats.resumed_squashes);
}

void AddQueue(Page& page, const EngineSnapshot& snapshot) {
  const PredictionStats& predictions = snapshot.stats.predictions;
  page.Own(MetricType::Counter, "squashed_requests_total",
           "Sequences preempted in favour of a sequence that they had overtaken.", snapshot.stats.squashes);
  AddResumed(page, snapshot.stats);
  page.Own(MetricType::Counter, "given_up_requests_total",
           "Sequences given up: they could not meet their objective, or would have made others miss theirs.",
           snapshot.stats.given_up);
  page.Own(MetricType::Gauge, "profile_step_seconds",
           "Predicted time of a decode step of one sequence, by the profile in use; 0: no profile.",
           snapshot.stats.profile_step_seconds);
  MetricFamily& lanes = page.Add(MetricType::Gauge, "loramux:queue_lane_waiting",
                                 "Sequences in the queue by lane; lane 0 has the smallest requests.");
  for (std::size_t lane = 0; lane < snapshot.lane_waiting.size(); ++lane) {
    Page::AddValue(lanes, {{"lane", std::to_string(lane)}}, static_cast<double>(snapshot.lane_waiting[lane]));
  }
  page.Own(MetricType::Gauge, "queue_lanes_least_share",
           "Tokens that the lanes need at least to keep the objective, over all tokens; above 1 they cannot.",
           snapshot.stats.lanes_least_share);
  MetricFamily& outcomes =
      page.Add(MetricType::Counter, "loramux:length_predictions_total",
               "Finished sequences by predicted output length: right (within a quarter), low or high.");
  Page::AddValue(outcomes, {{"outcome", "right"}}, static_cast<double>(predictions.right));
  Page::AddValue(outcomes, {{"outcome", "low"}}, static_cast<double>(predictions.low));
  Page::AddValue(outcomes, {{"outcome", "high"}}, static_cast<double>(predictions.high));
  page.Own(MetricType::Counter, "length_prediction_error_tokens_total",
           "Sum of the absolute differences between predicted and actual output lengths, in tokens.",
           predictions.error_tokens);
}

void AddPool(MetricFamily& family, const char* tier, const PoolStats& pool, std::int64_t history_pages) {
  const auto value = [&](const char* use, std::int64_t pages) {
    Page::AddValue(family, {{"tier", tier}, {"use", use}}, static_cast<double>(pages * pool.page_bytes));
  };
  value("kv", pool.used(PageCategory::kKv) - history_pages);
  value("history", history_pages);
  value("adapters", pool.used(PageCategory::kAdapter));
  value("free", pool.free_pages);
}

void AddMemory(Page& page, const EngineSnapshot& snapshot) {
  const double usage = KvUsage(snapshot);
  page.Model(MetricType::Gauge, "kv_cache_usage_perc",
             "KV pages of running sequences, as a share of the pages that adapters in use leave; 0 to 1.", usage);
  page.Model(MetricType::Gauge, "gpu_cache_usage_perc", "Older name of vllm:kv_cache_usage_perc.", usage);
  LabelList labels = page.model_labels();
  labels.push_back({"block_size", std::to_string(snapshot.page_tokens)});
  labels.push_back({"num_gpu_blocks", std::to_string(snapshot.stats.device.capacity_pages)});
  Page::AddValue(
      page.Add(MetricType::Gauge, "vllm:cache_config_info", "Positions per page, and pages of the device tier."),
      std::move(labels), 1);
  MetricFamily& pools = page.Add(MetricType::Gauge, "loramux:pool_bytes", "Bytes of the page pools, by tier and use.");
  AddPool(pools, "gpu", snapshot.stats.device, snapshot.stats.history_pages);
  if (snapshot.stats.host.capacity_pages > 0)
    AddPool(pools, "cpu", snapshot.stats.host, snapshot.stats.host.used(PageCategory::kKv));
  AddMovedBytes(page, snapshot.stats);
  AddHits(page, snapshot.stats);
}

// Adapters on the device, plus the number of adapters of average size that fit into the free and the history pages.
std::int64_t MaxLora(const std::vector<Adapter>& adapters, const EngineStats& stats) {
  std::int64_t pages = 0, residents = 0;
  for (const Adapter& adapter : adapters) {
    pages += adapter.version.pages;
    residents += adapter.level == kGpu;
  }
  const std::int64_t room = stats.device.free_pages + stats.history_pages;
  return pages == 0 ? residents : residents + room * static_cast<std::int64_t>(adapters.size()) / pages;
}

std::string Join(const std::set<std::string>& names) {
  std::string joined;
  for (const std::string& name : names) joined += (joined.empty() ? "" : ",") + name;
  return joined;
}

// Routers split the names at commas and use the series with the largest value. A name is either ready or waiting.
void AddLoraInfo(Page& page, const EngineMetricsInput& input, const std::vector<Adapter>& adapters) {
  std::set<std::string> ready, awaited;
  for (const Adapter& adapter : adapters) {
    if (adapter.level == kGpu) ready.insert(adapter.version.name);
  }
  for (const Adapter& adapter : adapters) {
    if (adapter.waiting > 0 && !ready.contains(adapter.version.name)) awaited.insert(adapter.version.name);
  }
  MetricFamily& family =
      page.Add(MetricType::Gauge, "vllm:lora_requests_info",
               "Adapters that are ready on the device, and adapters that requests wait for; value: Unix time.");
  Page::AddValue(family,
                 {{"max_lora", std::to_string(MaxLora(adapters, input.snapshot->stats))},
                  {"running_lora_adapters", Join(ready)},
                  {"waiting_lora_adapters", Join(awaited)}},
                 static_cast<double>(input.unix_seconds));
}

void AddLoaded(Page& page, const std::vector<Adapter>& by_business, std::size_t top) {
  std::map<std::tuple<std::string, int, bool, std::string>, std::int64_t> counts;
  for (std::size_t i = 0; i < by_business.size(); ++i) {
    const Adapter& adapter = by_business[i];
    const bool named = i < top;
    ++counts[{named ? adapter.version.name : kOtherAdapters, adapter.level, adapter.pinned,
              named ? std::to_string(adapter.version.max_rank) : ""}];
  }
  MetricFamily& family =
      page.Add(MetricType::Gauge, "vllm:lora_adapter_loaded",
               "Generations of an adapter by the tier closest to the compute device that holds them.");
  for (const auto& [key, count] : counts) {
    const auto& [name, level, pinned, rank] = key;
    Page::AddValue(
        family,
        {{"adapter_name", name}, {"level", kLevelNames[level]}, {"pinned", pinned ? "true" : "false"}, {"rank", rank}},
        static_cast<double>(count));
  }
}

void AddRequestsByAdapter(Page& page, const std::vector<Adapter>& by_business, std::size_t top) {
  std::map<std::string, std::int64_t> running, waiting;
  for (std::size_t i = 0; i < by_business.size(); ++i) {
    const Adapter& adapter = by_business[i];
    if (adapter.running + adapter.waiting == 0) break;  // sorted, so the rest has no requests either
    const std::string name = i < top ? adapter.version.name : kOtherAdapters;
    running[name] += adapter.running;
    waiting[name] += adapter.waiting;
  }
  const auto add = [&](const char* name, const char* help, const std::map<std::string, std::int64_t>& counts) {
    MetricFamily& family = page.Add(MetricType::Gauge, name, help);
    for (const auto& [adapter, count] : counts) {
      Page::AddValue(family, {{"adapter_name", adapter}}, static_cast<double>(count));
    }
  };
  add("loramux:adapter_requests_running", "Sequences that run in the batch, by adapter.", running);
  add("loramux:adapter_requests_waiting", "Sequences that wait in the queue, by adapter.", waiting);
}

// A gauge, not a counter: the sum of the rest falls when an adapter gets a series of its own or is unloaded.
void AddLoadsByAdapter(Page& page, const std::vector<Adapter>& by_business, std::size_t top) {
  std::map<std::string, std::int64_t> loads;
  for (std::size_t i = 0; i < by_business.size(); ++i) {
    const Adapter& adapter = by_business[i];
    if (adapter.loads > 0) loads[i < top ? adapter.version.name : kOtherAdapters] += adapter.loads;
  }
  MetricFamily& family = page.Add(MetricType::Gauge, "loramux:adapter_loads",
                                  "Loads to the device of an adapter's present versions, since they were registered.");
  for (const auto& [adapter, count] : loads) {
    Page::AddValue(family, {{"adapter_name", adapter}}, static_cast<double>(count));
  }
}

// What vLLM's manager of adapters reports, apart from loads and evictions: registered, active, share of the memory.
void AddAdapterCounts(Page& page, const EngineMetricsInput& input) {
  const EngineStats& stats = input.snapshot->stats;
  page.Own(MetricType::Gauge, "adapters_registered", "Adapters that a request can name and that were opened.",
           input.registered.size());
  page.Own(MetricType::Gauge, "adapters_active", "Adapters with sequences that run in the batch.",
           stats.adapters.active);
  const auto capacity = static_cast<double>(std::max<std::int64_t>(1, stats.device.capacity_pages));
  page.Own(MetricType::Gauge, "adapter_usage_perc", "Pages of adapters, as a share of the device's pages; 0 to 1.",
           static_cast<double>(stats.device.used(PageCategory::kAdapter)) / capacity);
}

void AddColdStarts(Page& page, const EngineStats& stats) {
  page.Own(MetricType::Counter, "adapter_cold_starts_total",
           "Sequences that arrived while their adapter was not on the device.", stats.adapters.cold_starts());
  page.Own(MetricType::Counter, "adapter_awaited_loads_total",
           "Loads that steps waited for, with a preset whose steps wait for adapters.", stats.cold_starts);
  page.Own(MetricType::Counter, "adapter_pool_exhausted_total",
           "Sequences refused because running sequences used every adapter on the device (--adapter-pool-full refuse).",
           stats.exhausted);
  MetricFamily& begins =
      page.Add(MetricType::Counter, "loramux:adapter_cold_begins_total",
               "Sequences that began before their adapter was on the device: with a whole copy in the host tier (cpu), "
               "or with one that was still being read (disk).");
  Page::AddValue(begins, {{"from", "cpu"}}, static_cast<double>(stats.cold_begins.whole));
  Page::AddValue(begins, {{"from", "disk"}}, static_cast<double>(stats.cold_begins.while_read));
}

void AddLevels(Page& page, const std::vector<Adapter>& adapters, const EngineStats& stats) {
  std::int64_t counts[kNumLevels] = {};
  for (const Adapter& adapter : adapters) ++counts[adapter.level];
  page.Model(MetricType::Gauge, "num_gpu_loaded_lora_adapters", "Adapters that are ready on the device.", counts[kGpu]);
  page.Model(MetricType::Gauge, "num_cpu_loaded_lora_adapters",
             "Adapters with a whole copy in the host tier, also if they are on the device.",
             std::count_if(adapters.begin(), adapters.end(), [](const Adapter& adapter) { return adapter.in_host; }));
  page.Model(
      MetricType::Gauge, "max_gpu_lora_adapters",
      "Adapters that the device can hold: those that are ready, and as many of the mean size as fit the free and "
      "the history pages.",
      MaxLora(adapters, stats));
  MetricFamily& family = page.Add(MetricType::Gauge, "loramux:adapters", "Adapters by the tier that holds them.");
  for (int level = 0; level < kNumLevels; ++level) {
    Page::AddValue(family, {{"level", kLevelNames[level]}}, static_cast<double>(counts[level]));
  }
}

void AddLoadTimes(Page& page, const AdapterStats& stats) {
  ClientMetric metric;
  metric.label = page.model_labels();
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < stats.load_times.size(); ++i) {
    total += static_cast<std::uint64_t>(stats.load_times[i]);
    if (i == kLoadTimeBounds.size()) break;  // the serialiser adds +Inf itself
    metric.histogram.bucket.push_back({total, static_cast<double>(kLoadTimeBounds[i]) / kNsPerSecond});
  }
  metric.histogram.sample_count = total;
  metric.histogram.sample_sum = static_cast<double>(stats.load_time_total) / kNsPerSecond;
  page.Add(MetricType::Histogram, "vllm:lora_adapter_load_seconds",
           "Time from the decision to load an adapter until it is ready.")
      .metric.push_back(std::move(metric));
}

void AddTransfers(Page& page, const EngineStats& engine) {
  const AdapterStats& stats = engine.adapters;
  page.Own(MetricType::Counter, "adapter_disk_reads_total", "Adapters that were read from their files.",
           stats.disk_loads);
  page.Own(MetricType::Counter, "adapter_load_failures_total", "Adapter loads that failed.", stats.load_failures);
  page.Own(MetricType::Gauge, "adapter_loads_in_flight", "Adapter loads in progress.", stats.loading);
  page.Own(MetricType::Counter, "adapter_loads_on_arrival_total",
           "Adapter loads that began during a step, when a request arrived.", engine.loads_on_arrival);
  MetricFamily& family = page.Add(MetricType::Counter, "loramux:adapter_evictions_total", "Adapters evicted, by tier.");
  Page::AddValue(family, {{"tier", "gpu"}}, static_cast<double>(stats.device_evictions));
  Page::AddValue(family, {{"tier", "cpu"}}, static_cast<double>(stats.host_evictions));
}

void AddPrefetches(Page& page, const AdapterPrefetchStats& stats) {
  page.Own(MetricType::Counter, "adapter_prefetches_total", "Adapter loads ahead of demand.", stats.loads);
  page.Own(MetricType::Counter, "adapter_prefetches_used_total", "Prefetched adapters that a request used.",
           stats.used);
  page.Own(MetricType::Counter, "adapter_prefetches_wasted_total",
           "Prefetched adapters that were evicted before a request used them.", stats.wasted);
}

void AddReloadCosts(Page& page, const ReloadCostEstimator& costs) {
  MetricFamily& family =
      page.Add(MetricType::Gauge, "loramux:reload_page_seconds", "Recently measured time to bring back one page.");
  for (const auto& [from, name] : {std::pair{ReloadFrom::kHost, "host"}, std::pair{ReloadFrom::kDisk, "disk"},
                                   std::pair{ReloadFrom::kComputation, "computation"}}) {
    Page::AddValue(family, {{"from", name}}, costs.Of(from).page_ns / kNsPerSecond);
  }
}

}  // namespace

std::vector<MetricFamily> EngineMetrics(const EngineMetricsInput& input) {
  Page page(input.model_name);
  std::vector<Adapter> adapters = Merge(input);
  SortByBusiness(adapters);
  AddRequests(page, *input.snapshot);
  AddQueue(page, *input.snapshot);
  AddMemory(page, *input.snapshot);
  AddLoraInfo(page, input, adapters);
  AddLoaded(page, adapters, input.top_adapters);
  AddLevels(page, adapters, input.snapshot->stats);
  AddAdapterCounts(page, input);
  AddRequestsByAdapter(page, adapters, input.top_adapters);
  AddLoadsByAdapter(page, adapters, input.top_adapters);
  AddColdStarts(page, input.snapshot->stats);
  AddLoadTimes(page, input.snapshot->stats.adapters);
  AddTransfers(page, input.snapshot->stats);
  AddPrefetches(page, input.snapshot->stats.prefetches);
  AddReloadCosts(page, input.snapshot->stats.reload_costs);
  return page.Take();
}

}  // namespace loramux
