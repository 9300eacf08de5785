// A server on a virtual clock. It runs the same Engine, Scheduler, DependencyTree, PagePool, ResidencyManager and
// KvTiers as `serve`; only the executor and the transfers are models. Deterministic: the same options and workload give
// the same result.
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
#include "schedule/presets.h"
#include "schedule/profile/pace.h"
#include "schedule/profile/performance_profile.h"
#include "simulate/devices.h"
#include "simulate/histogram.h"
#include "simulate/workload.h"

namespace loramux {

// Options of Simulate.
struct SimulationOptions {
  SimulatedDevice device;
  Preset preset;
  // --max-num-seqs, --max-num-batched-tokens (with chunked prefill)
  std::int64_t max_running = 256, max_batch_tokens = 512;
  const EvictionPolicy* eviction = nullptr;  // replaces the regime's policy; not owned; null: the regime's
  double adapter_share = 0;                  // part of the device memory, replaces the regime's share; 0: the regime's
  double host_bytes = 256e9;                 // size of the host tier; 0: none
  bool adapters_in_host_memory = true;       // at the start; false: only on disk
  double predictor_accuracy = 0.8;           // of OraclePredictor (Chameleon's predictor reaches about 80 %)
  TimeNs age_bound = 30 * kNsPerSecond;
  TimeNs fairness_max_wait = 30 * kNsPerSecond;               // FairnessOptions::max_wait
  AdapterPrefetch adapter_prefetch = AdapterPrefetch::kNone;  // SchedulerOptions::adapter_prefetch
  TimeNs slo = 5 * kNsPerSecond;                              // SizeLanesOptions::slo
  std::uint64_t seed = 1;                                     // of the predictor and the tree
  // steps between integrity checks; 0: only at the end
  std::int64_t check_every = 0;
  std::int64_t samples = 200;          // of memory and queue, spread over the arrivals
  EngineObserver* observer = nullptr;  // sees every plan; not owned
  Pace pace;                           // of the device's steps; plans do not know it
  // the costs that plans use (schedule/service_times.h); null: learned during the run
  std::shared_ptr<const PerformanceModel> costs;
};

// Makes steps and transfers take the measured times, and plans use them, as `serve --profile` does. Memory sizes stay
// unchanged.
void UseProfile(const PerformanceProfile& profile, SimulationOptions& options);

// One request's outcome. Times are in ns on the virtual clock; -1: not yet.
struct RequestRecord {
  TimeNs arrival = -1, first_scheduled = -1, first_token = -1, last_token = -1;
  std::int32_t adapter = -1, prompt_tokens = 0, output_tokens = 0, cached_tokens = 0;
  // the part of the time before first_scheduled in which the adapter was being loaded to the device
  TimeNs adapter_load = 0;
  // larger than the memory or the model's length: never queued; or a later turn that was never asked
  bool refused = false;
  bool cancelled = false;  // by its client, before its end

  bool Ended() const { return !refused && !cancelled; }  // completed in full
  // Durations in ns. REQUIRES: the request ended.
  TimeNs Ttft() const { return first_token - arrival; }
  TimeNs EndToEnd() const { return last_token - arrival; }
};

// The content of memory and queue at one time.
struct WorldSample {
  TimeNs at = 0;
  std::int64_t running = 0, waiting = 0;
  std::int64_t free_pages = 0, running_kv_pages = 0, history_pages = 0, adapter_pages = 0;  // of the device
};

// Outcome of a simulation.
struct SimulationResult {
  std::vector<RequestRecord> requests;                        // in the order of the workload
  std::vector<std::pair<std::size_t, std::string>> refusals;  // index of each refused request, and the error message
  std::vector<WorldSample> samples;
  EngineStats stats;                 // at the end
  DurationHistogram between_tokens;  // over all requests
  TimeNs end = 0;                    // when the last request ended
  TimeNs busy = 0;                   // total step time of the executor
  double bytes_to_device = 0, bytes_to_host = 0, bytes_from_disk = 0;
  TimeNs host_link_busy = 0;         // in the direction of the device
  double invalid_history_share = 0;  // of the history on the device, mean over the samples (FastLibra 6.6)
};

// The n-th token of the answer to `request` (an index of the workload) in a simulation with this seed. A prompt can
// quote it.
TokenId AnsweredToken(std::uint64_t seed, std::size_t request, std::size_t n);

// Runs the workload to its end. Errors: an unknown cache or order; memory too small for one page.
Result<SimulationResult> Simulate(const SimulationOptions& options, const Workload& workload);

}  // namespace loramux
