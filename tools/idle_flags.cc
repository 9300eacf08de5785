#include "tools/idle_flags.h"

#include <algorithm>
#include <sstream>

#include <fmt/format.h>

#include "worth/cache_regime.h"

namespace loramux {
namespace {

using Table = std::vector<IdleFlags>;

// Flags of the model, and of running with a device or without one.
void AddPlaces(const RuntimeFlags& flags, const RuntimeOptions& options, Table& table) {
  const bool on_device = options.device != nullptr;
  const bool waits = options.spec.cold_start_policy == ColdStartPolicy::kWait;
  table.push_back({"--revision", flags.model_name.empty(),
                   "the model is a folder or a file of this machine; --revision is for a model as ORG/NAME"});
  table.push_back({"--max-cpu-loras", flags.max_cpu_loras > 0,
                   "adapters in memory are bounded by their bytes and not by their number; use --host-memory BYTES"});
  table.push_back({"--cold-start", !waits && options.host_memory == 0,
                   "without a host tier no adapter is in memory before it is on the device; use --host-memory BYTES"});
  table.push_back({"--cold-start", !waits && options.spec.cold_start != ColdStart::kPassOver,
                   "the steps of --preset " + flags.preset + " wait for adapters; leave the preset out"});
  table.push_back({"--assist-cores", !on_device,
                   "a CPU computes adapters where they are in memory; --threads is for all that it computes"});
  table.push_back(
      {"--assist-cores", on_device && (waits || options.host_memory == 0),
       "adapters are computed on the device alone: use --cold-start auto or assist, and --host-memory BYTES"});
}

void AddCaching(const RuntimeFlags& flags, const RuntimeOptions& options, const CacheRegime& regime, Table& table) {
  const std::string cache = "--cache " + options.spec.cache;
  table.push_back({"--enable-prefix-caching",
                   flags.settings.Gives("--enable-prefix-caching") && options.spec.keep_history && !regime.keep_history,
                   cache + " keeps no keys and values of requests that have ended; use another --cache"});
  table.push_back({"--score-frequency,--score-recency,--score-size", regime.policy != "chameleon",
                   "they are weights of --cache chameleon, and this is " + cache});
  table.push_back({"--score-time-unit", !regime.policy.starts_with("fastlibra"),
                   "it is for --cache fastlibra and its variants with their cost model, and this is " + cache});
  table.push_back({"--usage-window", regime.policy == "lru", cache + " goes by no number of uses in a time"});
  table.push_back({"--swap-out", options.host_memory == 0 || !options.spec.keep_history || !regime.keep_history,
                   "no keys and values of requests that have ended move to a host tier; use --host-memory BYTES, and a "
                   "--cache that keeps them"});
  table.push_back({"--state-snapshot-tokens",
                   !options.spec.keep_history || !regime.keep_history || !options.spec.chunked_prefill,
                   "prefixes are not cached, or prompts are not computed in chunks"});
  table.push_back({"--adapters-in-host", options.host_memory == 0 && options.spec.host_copies != HostCopies::kLoaded,
                   "there is no host tier; use --host-memory BYTES"});
  table.push_back({"--swap-upper,--swap-lower,--swap-interval", !regime.proactive_swapping,
                   "they are for --cache fastlibra and its variants, and this is " + cache});
  table.push_back({"--adapter-share", options.spec.adapter_bytes > 0, "--adapter-memory is in its place"});
  table.push_back({"--draft-tokens,--draft-ngram-min,--draft-ngram-max",
                   options.spec.speculation.method == Speculation::kNone, "they are for --speculate ngram"});
  table.push_back({"--max-loras-bound", options.spec.max_distinct_adapters == 0, "it is for --max-loras"});
  table.push_back({"--batch-window", regime.policy != "fastlibra" && regime.policy != "loramux",
                   "only --cache loramux and fastlibra count the adapters that are wanted, and this is " + cache});
  table.push_back({"--expect-bin,--expect-variation", options.spec.adapter_prefetch != AdapterPrefetch::kHistogram,
                   "they are for --adapter-prefetch histogram"});
  table.push_back({"--prefetch-lookahead",
                   options.spec.cold_start != ColdStart::kStall && options.spec.cold_start != ColdStart::kOverlap &&
                       !options.spec.queue.starts_with("mlq"),
                   "it is for --schedule mlq, and for presets whose steps wait for adapters, as vllm-lora-prefetch"});
}

void AddOrders(const RuntimeOptions& options, Table& table) {
  const std::string order = "and the order is --schedule " + options.spec.queue;
  const bool lanes = options.spec.queue.starts_with("mlq"), fitted = options.spec.queue == "mlq";
  table.push_back({"--request-size,--count-cached,--lane-refresh", !lanes, "they are for --schedule mlq, " + order});
  table.push_back({"--lane-count,--most-lanes", !fitted, "they are for --schedule mlq, " + order});
  table.push_back({"--size-input-weight,--size-output-weight",
                   !lanes || options.spec.request_size == RequestSizeForm::kOutputOnly,
                   "they are for --schedule mlq with --request-size product or sum"});
  table.push_back({"--ttft-objective", !fitted && options.spec.queue != "objective",
                   "it is for --schedule objective and mlq, " + order});
  table.push_back({"--tenant-weight,--fairness-max-wait", options.spec.fairness.policy == FairnessPolicy::kNone,
                   "requests are served in order of arrival, whatever their tenant; use --fairness vtc"});
}

// Those of `names` that were given, in the table's order.
std::vector<std::string> Given(std::string_view names, std::span<const std::string> given) {
  std::vector<std::string> found;
  std::istringstream stream{std::string(names)};
  for (std::string name; std::getline(stream, name, ',');) {
    if (std::find(given.begin(), given.end(), name) != given.end()) found.push_back(name);
  }
  return found;
}

}  // namespace

std::vector<std::string> WarningsOfIdle(std::span<const std::string> given, std::span<const IdleFlags> table) {
  std::vector<std::string> warnings;
  for (const IdleFlags& flags : table) {
    const std::vector<std::string> found = flags.idle ? Given(flags.names, given) : std::vector<std::string>();
    if (!found.empty()) warnings.push_back(fmt::format("{}: no effect: {}", fmt::join(found, ", "), flags.why));
  }
  return warnings;
}

std::vector<std::string> WarningsOfIdle(const RuntimeFlags& flags, const RuntimeOptions& options) {
  Table table;
  AddPlaces(flags, options, table);
  if (const auto regime = FindCacheRegime(options.spec.cache); regime.ok()) AddCaching(flags, options, *regime, table);
  AddOrders(options, table);
  return WarningsOfIdle(flags.given, table);
}

}  // namespace loramux
