// The description of a system: what an operator, a preset or a cache regime decides of how it schedules, queues and
// caches, and what follows of it from the model and the machine.
//
// The table of system_settings.h describes the fields: a new setting is a field here, a row there, and the code that
// obeys it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "costs/performance_model.h"
#include "schedule/queue/fairness.h"
#include "worth/adapter_arrival_histogram.h"
#include "worth/cache_regime.h"
#include "worth/eviction_policy.h"

namespace loramux {

// What a step does if a request could start but its adapter is not on the device.
enum class ColdStart : std::uint8_t {
  // The step goes on without the request, which starts when its adapter has arrived, or arrives in time.
  kPassOver,
  // The step waits for the adapters of the requests that it admits, and then also admits requests that arrived
  // meanwhile. Adapters of requests that cannot start yet load in the background. S-LoRA's loop.
  kHold,
  // The step waits. Beside steps, only adapters for `prefetch_lookahead` are loaded. CaraServe's ONDMD.
  kStall,
  // The step computes the request too. Each of its layers waits until the adapter's has arrived from the host tier; an
  // adapter that is on disk alone is passed over. Beside steps, only adapters for `prefetch_lookahead` are loaded.
  // vLLM-LoRA: "while the prompt tokens are being prefilled, the adapter weights are transferred in parallel".
  kOverlap,
};

// What becomes of a request that could begin, but whose adapter finds no room because requests use all that are there.
enum class PoolFull : std::uint8_t {
  kWait,    // it waits until an adapter is idle
  kRefuse,  // it ends with an error (vLLM-LoRA's AdapterPoolExhaustedError)
};

// What max_distinct_adapters bounds.
enum class AdapterBound : std::uint8_t {
  kRunning,  // the adapters of all running requests
  // Those that one step computes: running and waiting requests are one queue, and a step takes the first adapters of it
  // (vLLM-LoRA's select_batch). A running request beyond them pauses for this step.
  kStep,
};

// Whether a request begins while its adapter is still on its way to the device, computed meanwhile from the copy in the
// host tier (CaraServe 4; docs/design/scheduling.md). Only with ColdStart::kPassOver.
enum class ColdStartPolicy : std::uint8_t {
  kWait,    // it begins when enough layers are on the device (schedule/plan/arrival.h)
  kAssist,  // it begins at once where the host tier has the adapter
  kAuto,    // as kAssist where that is expected to be sooner than to wait, request by request
};

// S-LoRA prefetches in the middle of its decode turns, and again so many turns before their end.
inline constexpr std::int64_t kPrefetchTurns = 3;

inline constexpr std::int32_t kMaxLanes = 4;  // the default of Chameleon's K_max, and the most that it may be

// How the size of a request is computed (Chameleon 4.3.1: weighted request size).
enum class RequestSizeForm : std::uint8_t {
  kProduct,     // (A x input + B x output) x adapter: as in Chameleon, degree 2
  kSum,         // (A x input + B x output + adapter) / 2: degree 1
  kOutputOnly,  // predicted output: as in uServe
};
// How the number of lanes is chosen.
enum class LaneCountRule : std::uint8_t {
  // Adds a lane as long as it removes at least a tenth of the sum of squares of one cluster. Two groups of sizes give 2
  // lanes, an even spread gives 3.
  kWorthIt,
  // Chameleon's "minimal WCSS", literally. More clusters never have a larger sum of squares, so this is nearly always
  // kMaxLanes.
  kLeastSquares,
};

// Where the prompt tokens count that the cache had when the request arrived, in either tier.
enum class CountCached : std::uint8_t {
  kEverywhere,  // in the size and against the quota, as in Chameleon, which caches no keys and values
  kQuota,       // against the quota: the size, which stands for the time to run, counts only what is to be computed
  kNowhere,     // the quota, too, counts only what the request adds to the memory
};

// When keys and values without a copy in the host tier are copied there.
enum class SwapOut : std::uint8_t {
  kAhead,    // as soon as the device fills, those that are evicted next: an eviction then only frees
  kEvicted,  // when they are evicted: what leaves the device is copied first, and stays until the copy is there
};

// Which adapters have a copy in the host tier, whether requests have asked for them or not.
enum class HostCopies : std::uint8_t {
  kLoaded,  // those that were loaded: a load leaves its copy there if there is room
  // Those that are registered, too: they are read one after the other beside the steps, as far as there are free pages.
  // Their copies leave as all others do.
  kRegistered,
  // As kRegistered, but history gives way to them, and their copies stay as long as they have a name. vLLM-LoRA: "CPU
  // tier: All registered adapters in DRAM (always available)".
  kAlways,
};

// Where guesses of the next tokens come from, which a step computes beside the last known one of a request.
enum class Speculation : std::uint8_t {
  kNone,
  kNgram,  // what followed when the last tokens occurred before (engine/drafter.h)
};

// How requests speculate. What they answer does not depend on it.
struct SpeculationOptions {
  static constexpr std::int64_t kMostStepTokens = 64;  // drafted tokens of a step

  Speculation method = Speculation::kNone;
  std::int64_t draft_tokens = 8;                 // the most that are drafted for a request in one step
  std::int64_t least_ngram = 3, most_ngram = 8;  // last tokens of a request that must have occurred before
};

// A system. What a setting means to its user is the text of its row in kSettings.
struct SystemSpec {
  std::string cache = "loramux";             // FindCacheRegime
  std::string queue = "fifo";                // MakeQueueOrder
  std::string length_predictor = "history";  // or "proxy", which takes the hints of requests first, or "none"
  bool keep_history = true;                  // and the regime keeps it: requests reuse pages of earlier ones
  std::int64_t page_tokens = 16;             // positions in a page
  std::int64_t state_pages = 0;              // pages of a request beside those of its positions (KvLayout::state_pages)
  // Tokens between two snapshots of a request's states, beside those where its prompt ends and where it parts from what
  // the tree has (PlanningView::NextSnapshot). SnapshotInterval begins with it. 0: no snapshots, so that requests with
  // states share no prefix.
  std::int64_t state_snapshot_tokens = 2048;
  std::int64_t max_running = 256;       // requests in a batch
  std::int64_t max_batch_tokens = 512;  // tokens computed in a step
  std::int64_t prefill_chunk = 0;       // tokens of one request in a step; 0: max_batch_tokens
  bool chunked_prefill = true;          // false: Complete makes prompts whole
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
  std::int64_t max_distinct_adapters = 0;  // distinct adapters in a batch; 0: bounded by memory alone
  AdapterBound adapter_bound = AdapterBound::kRunning;
  // > 0: plan/batch_time.h. REQUIRES then: costs, and more than one request alone takes.
  TimeNs max_decode_step = 0;
  std::int64_t lookahead = 64;           // waiting requests that a step considers
  std::int64_t max_loads_in_flight = 4;  // adapter loads under way
  // The adapter of a request that arrives during a step begins to load at once (BackgroundPlanner), not with the next
  // plan. Only with ColdStart::kPassOver.
  bool load_on_arrival = false;
  // What steps do otherwise than continuous batching (schedule/baselines).
  ColdStart cold_start = ColdStart::kPassOver;
  // A step either computes prompts or decodes; the two take turns (S-LoRA's loop). REQUIRES: whole_prompt_tokens > 0.
  bool separate_phases = false;
  // With separate_phases: decoding steps after a step of prompts, before the next step of prompts (S-LoRA's
  // max_wait_tokens). 0: prompts always go first, and decoding is interrupted for them (CaraServe, figure 2). If more
  // than kPrefetchTurns, loads for waiting requests begin beside only two of these steps, as in S-LoRA.
  std::int64_t decode_turns = 1;
  // With kStall, kOverlap, and with lanes: number of waiting requests without a seat for which adapters are loaded
  // beside a step; the first in the queue's order, or with lanes the oldest.
  std::int64_t prefetch_lookahead = 0;
  // Whether later requests may pass one that would exceed max_distinct_adapters (vLLM-LoRA) or max_decode_step.
  bool skip_beyond_distinct = false;
  ColdStartPolicy cold_start_policy = ColdStartPolicy::kWait;
  // The executor reads the host tier's pages as fast as the device's (the CPU), so that to begin from there costs
  // nothing.
  bool reads_host_tier = false;
  // Adapters are used layer by layer as they are read from disk and verified. With reads_host_tier, without kWait.
  bool disk_by_layer = false;
  SpeculationOptions speculation;
  FairnessOptions fairness;
  bool fetch_ahead = true;  // fetch history from the host tier for waiting requests without a seat
  AdapterPrefetch adapter_prefetch = AdapterPrefetch::kNone;
  ExpectationOptions expectation;  // settings of kHistogram
  SwapThresholds swapping;         // with proactive_swapping
  SwapOut swap_out = SwapOut::kAhead;
  HostCopies host_copies = HostCopies::kLoaded;
  TimeNs batch_window = 5 * kNsPerSecond;
  ScoreWeights score_weights;  // weights of the eviction policy "chameleon"
  // The time over which uses count: the window of policies that count them (EvictionPolicy::counts_window), and the
  // half-life of visits elsewhere.
  TimeNs usage_window = kFrequencyHalfLife;
  // The most that a due time shifts, in either direction (queue/queue_order.h).
  TimeNs age_bound = 30 * kNsPerSecond;
  // Requests that have waited longer than the age bound, or whose tenant has for too long, go before all others, in any
  // order, also outside lanes and their quotas.
  bool overdue_first = true;
  TimeNs objective = 5 * kNsPerSecond;  // for the time to the first token
  // Of the orders with lanes (queue/size_lanes.h).
  RequestSizeForm request_size = RequestSizeForm::kProduct;
  double size_input_weight = 0.4, size_output_weight = 0.6;
  LaneCountRule lane_count = LaneCountRule::kWorthIt;
  CountCached count_cached = CountCached::kEverywhere;
  std::int32_t most_lanes = kMaxLanes;
  TimeNs lane_refresh = 300 * kNsPerSecond;
  // S-LoRA's admission: a request begins only if memory holds the whole output that it may have, beside that of all
  // running requests (schedule/baselines/output_reservation.h). So none is preempted for want of memory. Only in one
  // pool.
  bool reserve_output = false;
  double discard_share = 0.25;  // share of the computed tokens that preemptions for waiting requests may discard
  // > 0: share of the device's pages for adapters; keys and values have the rest. 0: the regime's, or one pool for
  // both.
  double adapter_share = 0;
  std::int64_t adapter_bytes = 0;  // > 0: bytes of the device for adapters, in place of a share
  PoolFull pool_full = PoolFull::kWait;

  // Whether adapters and keys and values each have a part of the device.
  bool partitioned() const { return adapter_share > 0 || adapter_bytes > 0; }
  // From the cache regime (worth/cache_regime.h).
  bool keep_idle_adapters = true;  // false: an adapter that no request wants is evicted at once
  // False: an adapter may be evicted before the history that needs it. Taken as false if adapters have a share,
  // because each side then evicts only its own.
  bool maintain_dependency = true;
  TimeNs host_bonus = 0;            // DependencyTree::set_host_bonus if the host tier is much larger than the device
  bool proactive_swapping = false;  // pages also move without a request (residency/proactive_swapper.h); one pool only
  double total_tokens = 0;          // capacity of the device, for the quotas of lanes
  std::shared_ptr<const PerformanceModel> costs;  // for predictions (plan_by_model.h); null: steps count alike

  // Requests that a step can compute.
  std::int64_t Seats() const { return std::min(max_running, max_batch_tokens); }
  // The most drafted tokens of a step.
  std::int64_t DraftedTokens() const {
    return speculation.method == Speculation::kNone ? 0
                                                    : std::min(SpeculationOptions::kMostStepTokens, max_batch_tokens);
  }
  // Tokens of one request that a step can compute.
  std::int64_t Chunk() const { return prefill_chunk > 0 ? prefill_chunk : max_batch_tokens; }
};

// Sets what follows from the cache regime and, for whole prompts, from the most positions of a sequence. May be called
// again. REQUIRES: max_model_len > 0. Errors: there is no such regime.
Status Complete(SystemSpec& spec, std::int64_t max_model_len);

// Sets what an operator decides and presets leave open, as `from` has it.
void TakeOperatorsSettings(const SystemSpec& from, SystemSpec& to);

// Pages reserved for adapters on a device of `capacity_pages`; some are left for keys and values. 0: one pool for all.
inline std::int64_t AdapterPartPages(const SystemSpec& spec, std::int64_t capacity_pages, std::int64_t page_bytes) {
  if (!spec.partitioned()) return 0;
  const std::int64_t pages = spec.adapter_bytes > 0
                                 ? std::min(spec.adapter_bytes / page_bytes, capacity_pages - 1)
                                 : static_cast<std::int64_t>(spec.adapter_share * static_cast<double>(capacity_pages));
  return std::max<std::int64_t>(1, pages);
}

}  // namespace loramux
