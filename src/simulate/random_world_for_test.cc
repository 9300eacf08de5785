#include "simulate/random_world_for_test.h"
#include "base/check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>

#include "base/prng.h"
#include "costs/service_times.h"

namespace loramux {
namespace {

constexpr std::int64_t kPageBytes = 1 << 20;

class Drawing {
 public:
  explicit Drawing(std::uint64_t seed) : prng_(seed) {}
  template <typename T>
  T OneOf(std::initializer_list<T> values) {
    return *(values.begin() + static_cast<std::ptrdiff_t>(prng_.NextBelow(values.size())));
  }
  bool Chance(double probability) { return prng_.NextDouble() < probability; }
  // log-uniform: each magnitude is equally likely
  double Between(double low, double high) { return low * std::pow(high / low, prng_.NextDouble()); }
  std::uint64_t Below(std::uint64_t bound) { return prng_.NextBelow(bound); }

 private:
  Prng prng_;
};

// A step takes 1 ms, a prompt's token 0.1 ms, a decoding sequence 0.2 ms: round figures close to a real device.
SimulatedDevice DrawDevice(Drawing& draw) {
  SimulatedDevice device{.name = "random",
                         .page_tokens = draw.OneOf<std::int64_t>({4, 16}),
                         .page_bytes = kPageBytes,
                         .device_pages = static_cast<std::int64_t>(draw.Between(20, 3000)),
                         .adapter_bytes_per_rank = kPageBytes / draw.OneOf<std::int64_t>({4, 8, 32})};
  device.model.step = 1e-3;
  device.model.per_prefill_token = 1e-4;
  device.model.per_decode_sequence = 2e-4;
  device.model.disk = {.latency = 5e-3, .bytes_per_second = draw.OneOf<double>({1e8, 1e9})};
  device.model.host_to_device = {.latency = 1e-4, .bytes_per_second = draw.OneOf<double>({2e8, 1e9, 1e11})};
  device.model.device_to_host = device.model.host_to_device;
  return device;
}

Workload DrawRequests(Drawing& draw, std::uint64_t seed) {
  WorkloadOptions options{.requests = static_cast<std::int64_t>(draw.Between(20, 250)),
                          .rate = draw.Between(2, 1000),
                          .input_mean = draw.Between(5, 200),
                          .output_mean = draw.Between(1, 40),
                          .input_cv = draw.OneOf({0.0, 1.0, 3.0}),
                          .output_cv = draw.OneOf({0.0, 1.0, 2.0}),
                          .max_input = 1200,
                          .max_output = 150,
                          .adapters = draw.OneOf<std::int64_t>({0, 1, 3, 12, 60}),
                          .base_share = draw.OneOf({0.0, 0.0, 0.3}),
                          .turns = draw.OneOf({1.0, 1.0, 3.0}),
                          .think_seconds = draw.Between(0.01, 2),
                          .seed = seed};
  if (draw.Chance(0.5)) options.ranks = {8, 16};
  if (options.adapters > 0) {
    options.popularity =
        draw.OneOf({Popularity::kUniform, Popularity::kPowerLaw, Popularity::kDistinct, Popularity::kGaussian});
    options.rank_popularity = draw.OneOf({Popularity::kUniform, Popularity::kPowerLaw});
    options.deviation = static_cast<double>(options.adapters) / 4;
  }
  return MakeWorkload(options).value();
}

// Optional properties of requests, and prompts that begin alike.
void DrawWishes(Drawing& draw, Workload& workload) {
  const std::uint64_t tenants = draw.OneOf<std::uint64_t>({0, 0, 1, 2, 5});
  const double urgent = draw.OneOf({0.0, 0.3}), leaving = draw.OneOf({0.0, 0.0, 0.1}), alike = draw.OneOf({0.0, 0.5});
  workload.blocks = {1, 2, 3};
  for (WorkloadRequest& request : workload.requests) {
    if (tenants > 0) request.tenant = static_cast<std::int32_t>(draw.Below(tenants));
    if (draw.Chance(urgent)) request.priority = static_cast<std::int32_t>(draw.Below(21)) - 10;
    if (draw.Chance(urgent)) request.deadline = static_cast<TimeNs>(draw.Between(1e6, 1e10));
    if (draw.Chance(leaving)) request.cancel_after = static_cast<TimeNs>(draw.Between(1e5, 1e10));
    if (request.follows || !draw.Chance(alike)) continue;
    request.first_block = static_cast<std::uint32_t>(draw.Below(workload.blocks.size()));
    request.num_blocks = 1;  // 512 tokens: most prompts completely
  }
}

// Requests may begin before their adapters are there; a core keeps up with about 50 tokens, or with none.
void DrawColdStarts(Drawing& draw, SimulationOptions& options) {
  options.preset.spec.cold_start_policy = draw.OneOf({ColdStartPolicy::kAssist, ColdStartPolicy::kAuto});
  CpuAssist& assist = options.device.model.assist;
  assist = {.layers = 4, .cores = draw.OneOf<std::int64_t>({0, 1, 8}), .per_token = 1e-6};
  assist.groups[0] = {.hand_off = 1e-5, .per_token_rank = draw.OneOf({1e-6, 1e-3}), .base_share = 0.3};
  if (draw.Chance(0.7)) options.costs = std::make_shared<const PerformanceModel>(options.device.model);
}

}  // namespace

RandomWorld DrawWorld(std::string_view preset, std::uint64_t seed) {
  Drawing draw(SplitMix64(seed));
  RandomWorld world{.options = {.device = DrawDevice(draw), .preset = FindPreset(preset).value()},
                    .workload = DrawRequests(draw, seed)};
  DrawWishes(draw, world.workload);
  SimulationOptions& options = world.options;
  options.preset.spec.max_running = draw.OneOf<std::int64_t>({1, 3, 16, 256});
  options.preset.spec.max_batch_tokens = draw.OneOf<std::int64_t>({16, 64, 512});
  if (draw.Chance(0.2)) options.preset.spec.adapter_share = draw.OneOf({0.3, 0.6});
  options.host_bytes = draw.OneOf<double>({0, 30, 300, 5000}) * kPageBytes;
  options.adapters_in_host_memory = draw.Chance(0.5);
  options.predictor_accuracy = draw.OneOf({0.0, 0.5, 0.8, 1.0});
  options.preset.spec.age_bound = static_cast<TimeNs>(draw.Between(2e7, 3e10));
  options.preset.spec.fairness.max_wait = static_cast<TimeNs>(draw.Between(2e7, 3e10));
  options.preset.spec.objective = static_cast<TimeNs>(draw.Between(1e8, 1e10));
  options.seed = seed;
  if (seed % 5 == 1) options.preset.spec.count_cached = CountCached::kQuota;
  if (seed % 5 == 2) options.preset.spec.count_cached = CountCached::kNowhere;
  options.check_every = draw.OneOf<std::int64_t>({0, 0, 3, 20});
  options.samples = draw.OneOf<std::int64_t>({0, 20});
  if (draw.Chance(0.3)) options.preset.spec.adapter_prefetch = AdapterPrefetch::kHistogram;
  if (draw.Chance(0.5)) options.device.model.dense_floor = draw.OneOf({2e-3, 2e-2});  // a ridge of 20 and 200 tokens
  if (draw.Chance(0.3)) options.preset.spec.load_on_arrival = true;
  if (draw.Chance(0.5)) {  // each tenant is a sharing domain
    for (WorkloadRequest& request : world.workload.requests) request.prefix_domain = request.tenant;
  }
  if (draw.Chance(0.4)) DrawColdStarts(draw, options);
  if (draw.Chance(0.4)) {  // batches bounded by time, at about 1 to 30 sequences
    const double seconds = ShortestStepSeconds(options.device.model) * draw.OneOf({1.02, 1.2, 2.0, 5.0});
    options.preset.spec.max_decode_step = static_cast<TimeNs>(seconds * kNsPerSecond) + 1;
  }
  if (draw.Chance(0.2)) options.preset.spec.pool_full = PoolFull::kRefuse;
  if (draw.Chance(0.2)) options.preset.spec.adapter_bound = AdapterBound::kStep;
  // With one that is skipped, the order of admissions is not that of the queue.
  if (draw.Chance(0.1) && !options.preset.spec.skip_beyond_distinct)
    options.preset.spec.max_distinct_adapters = draw.OneOf<std::int64_t>({1, 2, 5});
  if (draw.Chance(0.3)) {
    options.preset.spec.host_copies =
        draw.OneOf({HostCopies::kLoaded, HostCopies::kRegistered, HostCopies::kAlways, HostCopies::kAlways});
  }
  if (draw.Chance(0.3)) {  // layers of linear attention
    options.preset.spec.state_pages = draw.OneOf<std::int64_t>({1, 3, 12});
    options.preset.spec.state_snapshot_tokens = draw.OneOf<std::int64_t>({0, 16, 100, 2048});
  }
  return world;
}

SystemSpec SpecOf(const RandomWorld& world) {
  SystemSpec spec = world.options.preset.spec;
  spec.page_tokens = world.options.device.page_tokens;
  CHECK(Complete(spec, std::max<std::int64_t>(2, world.workload.MaxSequenceTokens())).ok());
  spec.costs = world.options.costs != nullptr ? world.options.costs
                                              : std::make_shared<const PerformanceModel>(world.options.device.model);
  return spec;
}

}  // namespace loramux
