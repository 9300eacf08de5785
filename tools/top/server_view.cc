#include "tools/top/server_view.h"

#include <algorithm>
#include <map>

#include "tools/doctor/system_files.h"

namespace loramux {
namespace {

// Counts a second. A server that was started again counts from 0: no rate then.
class Rates {
 public:
  Rates(const MetricSet& now, const MetricSet* before, double seconds)
      : now_(now), before_(before), seconds_(seconds) {}
  double Of(const std::string& name, const std::string& label = {}, const std::string& value = {}) const {
    if (before_ == nullptr || seconds_ <= 0) return 0;
    return std::max(0.0, now_.Sum(name, label, value) - before_->Sum(name, label, value)) / seconds_;
  }

 private:
  const MetricSet& now_;
  const MetricSet* before_;
  const double seconds_;
};

std::string PlaceOf(const std::string& level) { return level == "gpu" ? "device" : level == "cpu" ? "host" : level; }

LatencyView Latency(const MetricSet& now, const MetricSet* before, const std::string& name) {
  if (!HistogramQuantile(now, before, name, 0.5)) before = nullptr;
  return {HistogramQuantile(now, before, name, 0.5), HistogramQuantile(now, before, name, 0.95)};
}

std::vector<TierView> Tiers(const MetricSet& now) {
  std::vector<TierView> tiers;
  for (const char* level : {"gpu", "cpu"}) {
    TierView tier{.name = PlaceOf(level)};
    for (const MetricSample& sample : now.Of("loramux:pool_bytes")) {
      if (LabelOf(sample, "tier") != level) continue;
      const std::string& use = LabelOf(sample, "use");
      double& sum = use == "kv"         ? tier.kv
                    : use == "history"  ? tier.history
                    : use == "adapters" ? tier.adapters
                                        : tier.free;
      sum += std::clamp(sample.value, 0.0, 1e18);
    }
    if (tier.total() > 0) tiers.push_back(tier);
  }
  return tiers;
}

std::vector<AdapterView> Adapters(const MetricSet& now, const Rates& rates) {
  std::map<std::string, AdapterView> adapters;
  const auto of = [&](const MetricSample& sample) -> AdapterView& {
    AdapterView& adapter = adapters[LabelOf(sample, "adapter_name")];
    adapter.name = LabelOf(sample, "adapter_name");
    return adapter;
  };
  for (const MetricSample& sample : now.Of("vllm:lora_adapter_loaded")) {
    if (sample.value <= 0) continue;
    AdapterView& adapter = of(sample);
    const std::string place = PlaceOf(LabelOf(sample, "level"));
    if (adapter.place.empty() || place == "device" || adapter.place == "disk") adapter.place = place;
    adapter.pinned = adapter.pinned || LabelOf(sample, "pinned") == "true";
    adapter.rank = CountOf(LabelOf(sample, "rank")).value_or(0);
  }
  for (const MetricSample& s : now.Of("loramux:adapter_requests_running")) of(s).running += s.value;
  for (const MetricSample& s : now.Of("loramux:adapter_requests_waiting")) of(s).waiting += s.value;
  for (const MetricSample& s : now.Of("loramux:adapter_requests_total")) of(s).requests += s.value;
  for (const MetricSample& s : now.Of("loramux:adapter_loads")) of(s).loads += s.value;
  std::vector<AdapterView> list;
  for (auto& [name, adapter] : adapters) {
    adapter.tokens_per_s = rates.Of("loramux:adapter_generation_tokens_total", "adapter_name", name);
    list.push_back(std::move(adapter));
  }
  return list;
}

}  // namespace

ServerFigures ViewServer(const MetricSet& now, const MetricSet* before, double seconds, double unix_now) {
  const Rates rates(now, before, seconds);
  ServerFigures view;
  for (const MetricSample& sample : now.Of("vllm:num_requests_running")) view.model = LabelOf(sample, "model_name");
  const double started = now.Sum("process_start_time_seconds");
  view.uptime_s = started > 0 ? std::max(0.0, unix_now - started) : 0;
  view.resident_bytes = now.Sum("process_resident_memory_bytes");
  view.processors = rates.Of("process_cpu_seconds_total");
  view.running = now.Sum("vllm:num_requests_running");
  view.waiting = now.Sum("vllm:num_requests_waiting");
  view.requests_per_s = rates.Of("vllm:request_success_total");
  view.generated_per_s = rates.Of("vllm:generation_tokens_total");
  view.prompt_per_s = rates.Of("vllm:prompt_tokens_total");
  for (const MetricSample& s : now.Of("loramux:queue_lane_waiting"))
    view.lanes.emplace_back(LabelOf(s, "lane"), s.value);
  if (view.lanes.size() < 2) view.lanes.clear();
  view.ttft = Latency(now, before, "vllm:time_to_first_token_seconds");
  view.tpot = Latency(now, before, "vllm:request_time_per_output_token_seconds");
  view.tiers = Tiers(now);
  view.adapters_registered = now.Sum("loramux:adapters_registered");
  view.adapters_on_device = now.Sum("vllm:num_gpu_loaded_lora_adapters");
  view.loads_in_flight = now.Sum("loramux:adapter_loads_in_flight");
  view.loads_per_s = rates.Of("vllm:lora_adapter_load_seconds_count");
  view.adapters = Adapters(now, rates);
  return view;
}

void SortAdapters(std::vector<AdapterView>& adapters, AdapterOrder order) {
  std::sort(adapters.begin(), adapters.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  const auto most_first = [&](auto value) {
    std::stable_sort(adapters.begin(), adapters.end(),
                     [&](const AdapterView& a, const AdapterView& b) { return a.*value > b.*value; });
  };
  switch (order) {
    case AdapterOrder::kTokens:
      return most_first(&AdapterView::tokens_per_s);
    case AdapterOrder::kName:
      return;
    case AdapterOrder::kRunning:
      return most_first(&AdapterView::running);
    case AdapterOrder::kWaiting:
      return most_first(&AdapterView::waiting);
    case AdapterOrder::kRequests:
      return most_first(&AdapterView::requests);
  }
}

}  // namespace loramux
