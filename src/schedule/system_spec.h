// A description of a system: how it schedules, queues and caches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "cache/adapter_arrival_histogram.h"
#include "cache/cache_regime.h"
#include "cache/eviction_policy.h"
#include "costs/performance_model.h"
#include "schedule/plan/step_shape_options.h"
#include "schedule/queue/fairness.h"

namespace loramux {

// What a system does.
struct SystemSpec {
  std::int64_t page_tokens = 16;        // positions in a page
  std::int64_t state_pages = 0;         // of a request beside those of its positions (KvLayout::state_pages)
  std::int64_t max_running = 256;       // requests in a batch
  std::int64_t max_batch_tokens = 512;  // tokens computed in a step
  std::int64_t prefill_chunk = 512;     // tokens of one request in a step
  // > 0: prompts are never split, and a step computes several prompts only if they have at most so many tokens
  // together. REQUIRES then: any prompt fits max_batch_tokens and prefill_chunk.
  std::int64_t whole_prompt_tokens = 0;
  // Tokens up to which a step takes constant time, because it is bound by reading the weights (RidgeTokens). 0:
  // unknown.
  std::int64_t ridge_tokens = 0;
  // If memory admits no more requests, prompts are spread over decoding steps, up to ridge_tokens in each.
  bool spread_prompts = false;
  // Prompts are computed so that as many first tokens as possible come within the objective of the queue order
  // (plan/first_tokens.h): long ones give way to others even when they were begun. Nothing changes if the order has no
  // objective, or lanes.
  bool prompts_by_objective = false;
  std::int64_t max_distinct_adapters = 0;  // distinct adapters in a batch (--max-loras); 0: bounded by memory alone
  // > 0: a request is admitted only if a step that decodes it with all running requests is predicted to take at most so
  // long (plan/batch_time.h). REQUIRES then: costs, and more than one request alone takes. 0: no such bound.
  TimeNs max_decode_step = 0;
  std::int64_t lookahead = 64;           // waiting requests that a step considers
  std::int64_t max_loads_in_flight = 4;  // adapter loads under way
  // The adapter of a request that arrives during a step begins to load at once (BackgroundPlanner), not with the next
  // plan. Only with ColdStart::kPassOver.
  bool load_on_arrival = false;
  StepShapeOptions shape;  // what steps do otherwise than continuous batching
  ColdStartPolicy cold_start_policy = ColdStartPolicy::kWait;
  // The executor reads the host tier's pages as fast as the device's (the CPU), so that to begin from there costs
  // nothing.
  bool reads_host_tier = false;
  // Adapters are used layer by layer as they are read from disk and verified. With reads_host_tier, without kWait.
  bool disk_by_layer = false;
  FairnessOptions fairness;
  bool fetch_ahead = true;  // fetch history from the host tier for waiting requests without a seat
  AdapterPrefetch adapter_prefetch = AdapterPrefetch::kNone;  // load adapters before a request wants them
  ExpectationOptions expectation;                             // of kHistogram
  SwapThresholds swapping;                                    // with proactive_swapping
  TimeNs batch_window = 5 * kNsPerSecond;  // FastLibra 5.1: for the mean size of a batch (UsageMonitor)
  ScoreWeights score_weights;              // of the eviction policy "chameleon", which the control plane makes
  TimeNs age_bound = 30 * kNsPerSecond;    // QueueOrderOptions::age_bound
  // S-LoRA's admission: a request begins only if memory holds the whole output that it may have, beside that of all
  // running requests (schedule/baselines/output_reservation.h). So none is preempted for want of memory. Only in one
  // pool.
  bool reserve_output = false;
  double discard_share = 0.25;  // share of the computed tokens that preemptions for waiting requests may discard
  // From the cache regime (cache/cache_regime.h): Share of the device's pages for adapters; keys and values have the
  // rest. 0: one pool for both.
  double adapter_share = 0;
  bool keep_idle_adapters = true;  // false: an adapter that no request wants is evicted at once
  // False: an adapter may be evicted before the history that needs it. Taken as false if adapters have a share,
  // because each side then evicts only its own.
  bool maintain_dependency = true;
  TimeNs host_bonus = 0;            // DependencyTree::set_host_bonus if the host tier is much larger than the device
  bool proactive_swapping = false;  // pages also move without a request (cache/proactive_swapper.h); one pool only
  std::shared_ptr<const PerformanceModel> costs;  // for predictions (plan_by_model.h); null: steps count alike

  // Requests that a step can compute.
  std::int64_t Seats() const { return std::min(max_running, max_batch_tokens); }
};

// Pages reserved for adapters on a device of `capacity_pages`. 0: one pool for all.
inline std::int64_t AdapterSharePages(double adapter_share, std::int64_t capacity_pages) {
  if (adapter_share <= 0) return 0;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(adapter_share * static_cast<double>(capacity_pages)));
}

// Sets the options that the regime decides. The caller makes the regime's EvictionPolicy and DependencyTree.
inline void ApplyRegime(const CacheRegime& regime, SystemSpec& options) {
  options.adapter_share = regime.adapter_share;
  options.keep_idle_adapters = regime.keep_idle_adapters;
  options.maintain_dependency = regime.maintain_dependency;
  options.host_bonus = regime.host_bonus;
  options.proactive_swapping = regime.proactive_swapping;
}

}  // namespace loramux
