// A server on a virtual clock: the very Engine, Scheduler, DependencyTree, PagePool, ResidencyManager and KvTiers of
// `serve`. Only the executor and the transfers are models. Deterministic: the same options and workload give the same
// result.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "cache/eviction_policy.h"
#include "engine/engine_observer.h"
#include "engine/snapshot.h"
#include "schedule/pace.h"
#include "schedule/performance_profile.h"
#include "schedule/presets.h"
#include "simulate/devices.h"
#include "simulate/histogram.h"
#include "simulate/workload.h"

namespace loramux {

struct SimulationOptions {
  SimulatedDevice device;
  Preset preset;
  // --max-num-seqs, --max-num-batched-tokens (with chunked prefill)
  std::int64_t max_running = 256, max_batch_tokens = 512;
  const EvictionPolicy* eviction = nullptr;  // in place of the regime's; not owned; null: the regime's
  double adapter_share = 0;                  // of the device's memory, in place of the regime's share; 0: the regime's
  double host_bytes = 256e9;                 // of the host tier; 0: none
  bool adapters_in_host_memory = true;       // at the start; false: on disk alone
  double predictor_accuracy = 0.8;           // of OraclePredictor (Chameleon's reaches about 80 %)
  TimeNs age_bound = 30 * kNsPerSecond;
  TimeNs fairness_max_wait = 30 * kNsPerSecond;               // FairnessOptions::max_wait
  AdapterPrefetch adapter_prefetch = AdapterPrefetch::kNone;  // SchedulerOptions::adapter_prefetch
  TimeNs slo = 5 * kNsPerSecond;                              // SizeLanesOptions::slo
  std::uint64_t seed = 1;                                     // of the predictor and the tree
  // steps after which the integrity of everything is checked; 0: at the end alone
  std::int64_t check_every = 0;
  std::int64_t samples = 200;          // of memory and queue, over the workload's arrivals
  EngineObserver* observer = nullptr;  // of every plan; not owned
  Pace pace;                           // of the device's steps; plans do not know it
  // what plans go by (schedule/service_times.h); null: what is learned on the way
  std::shared_ptr<const PerformanceModel> costs;
};

// Steps and transfers take what was measured, and plans go by it, as those of `serve --profile`; memory stays as it is.
void UseProfile(const PerformanceProfile& profile, SimulationOptions& options);

// Of one request. Times in ns on the virtual clock; -1: not yet.
struct RequestRecord {
  TimeNs arrival = -1, first_scheduled = -1, first_token = -1, last_token = -1;
  std::int32_t adapter = -1, prompt_tokens = 0, output_tokens = 0, cached_tokens = 0;
  // of the time before first_scheduled: its adapter was on its way to the device
  TimeNs adapter_load = 0;
  bool refused = false;    // larger than the memory or the model's length: never in the queue
  bool cancelled = false;  // by its client, before its end

  bool Ended() const { return !refused && !cancelled; }  // with all that it asked for
  TimeNs Ttft() const { return first_token - arrival; }
  TimeNs EndToEnd() const { return last_token - arrival; }
};

// What the memory and the queue hold at one time.
struct WorldSample {
  TimeNs at = 0;
  std::int64_t running = 0, waiting = 0;
  std::int64_t free_pages = 0, running_kv_pages = 0, history_pages = 0, adapter_pages = 0;  // of the device
};

struct SimulationResult {
  std::vector<RequestRecord> requests;                        // as in the workload
  std::vector<std::pair<std::size_t, std::string>> refusals;  // which request was refused, and what it was told
  std::vector<WorldSample> samples;
  EngineStats stats;                 // at the end
  DurationHistogram between_tokens;  // of all requests
  TimeNs end = 0;                    // of the last request
  TimeNs busy = 0;                   // of the executor
  double bytes_to_device = 0, bytes_to_host = 0, bytes_from_disk = 0;
  TimeNs host_link_busy = 0;         // towards the device
  double invalid_history_share = 0;  // of the history on the device, mean over the samples (FastLibra 6.6)
};

// The n-th token that a simulation with this seed answers a request with (an index of the workload's): so a prompt can
// quote it.
TokenId AnsweredToken(std::uint64_t seed, std::size_t request, std::size_t n);

// Runs the workload to its end. Errors: an unknown cache or order; no memory for a page.
Result<SimulationResult> Simulate(const SimulationOptions& options, const Workload& workload);

}  // namespace loramux
