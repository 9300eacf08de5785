// Decides what each engine step does: continuous batching with a decision per step, and chunked prefill. Among tenants,
// the one with the least service goes first (fairness.h); within a tenant, first come, first served. With one tenant it
// is first come, first served. Other queue orders change this (queue_order.h).
//
// A step serves requests in this order:
//  1. Running requests that decode. A step has `seats`. If more requests run, those of the tenants with the most
//     service pause: they keep their memory and lose nothing.
//  2. Prompts, up to the token budget of the step, in the order of their tenants' counters: running requests in
//     prefill, and waiting requests within `lookahead`.
//     - A request with a loading adapter is passed over, so that a step never waits for a load. Exception: enough
//       layers have arrived that the step is not expected to wait for the others (arrival.h). The same holds for keys
//       and values from the host tier.
//     - A request that memory has no room for ends the scan, so that no later request takes the room that it needs.
//       Idle adapters that earlier requests need are evicted last.
//     - A waiting request may take the seat of a running one if its tenant got less service.
//  3. History in the host tier, for waiting requests without a seat. It is fetched ahead, once per request, into pages
//     that are free or that no request within `lookahead` wants, as far as the requests before it leave room. No step
//     waits for it.
//
// Prefix cache: with a dependency tree, a prompt begins after the pages that the tree has of it, computed by requests
// with the same adapter content. Of the next page, its first tokens are reused too, if the device has a page of which
// at least the first quarter matches; that page is copied. Each page that a request fills becomes the tree's. Pages
// that no request uses stay as history.
//
// Eviction: where a page is missing, history and idle adapters are evicted (EvictionPolicy). An adapter goes only after
// the history that depends on it, so that all history on the device is usable.
//
// Preemption: if eviction is not enough, the running requests of lowest rank are preempted: their pages are freed, and
// they are computed again later. The rank is the tenant's counter in quanta of a step's tokens, then the order of
// arrival. An adapter that a waiting request of higher rank wants is evicted only after all running requests of lower
// rank than that request were preempted. If memory blocks the next request in the order of service, running requests of
// lower rank are preempted for it, as long as this discards at most `discard_share` of all computed tokens.
//
// Cache regimes (cache/cache_regime.h) change three things. Adapters may have a share of the pages; then each side
// evicts only its own. Adapters that no request wants may be evicted at once. Adapters may be evicted before the
// history that depends on them, which is then unusable until they are back.
//
// Adapters that the operator locked to the device are loaded before any request is admitted, and never evicted.
//
// Progress: the request of the highest rank is never preempted. No request is preempted for a younger one of its
// tenant. A rank changes only after a quantum of new tokens. So every request finishes.
//
// Not thread-safe. Does not own pools, residency or policy. Reads no clock.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "adapter/residency.h"
#include "base/clock.h"
#include "cache/adapter_arrival_histogram.h"
#include "cache/cache_regime.h"
#include "cache/dependency_tree.h"
#include "cache/eviction_policy.h"
#include "cache/kv_eviction_plan.h"
#include "cache/kv_tiers.h"
#include "cache/proactive_swapper.h"
#include "cache/turnover.h"
#include "cache/usage_monitor.h"
#include "memory/page_pool.h"
#include "schedule/arrival.h"
#include "schedule/fairness.h"
#include "schedule/heap.h"
#include "schedule/length_predictor.h"
#include "schedule/performance_model.h"
#include "schedule/plan.h"
#include "schedule/queue_order.h"
#include "schedule/request.h"

namespace loramux {

// What a step does if a request could start but its adapter is not on the device.
enum class ColdStart : std::uint8_t {
  // The step goes on without the request, which starts when its adapter has arrived, or arrives in time.
  kPassOver,
  // The step waits for the adapters of the requests that it admits, and then also admits requests that arrived
  // meanwhile. Adapters of requests that cannot start yet load in the background. S-LoRA's loop.
  kHold,
  // The step waits. Beside steps, only adapters for `prefetch_lookahead` are loaded. vLLM-LoRA's ensure_loaded,
  // CaraServe's ONDMD.
  kStall,
  // The request starts while its adapter still loads; the executor must cope with that, as CaraServe does with prefill
  // on the CPU.
  kBeginAtOnce,
};

// Options of Scheduler.
struct SchedulerOptions {
  std::int64_t page_tokens = 16;        // positions in a page
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
  // A step either computes prompts or decodes; the two take turns (S-LoRA's loop). REQUIRES: whole_prompt_tokens > 0.
  bool separate_phases = false;
  // With separate_phases: decoding steps after a step of prompts, before the next step of prompts (S-LoRA's
  // max_wait_tokens). If more than kPrefetchTurns, loads for waiting requests begin beside only two of these steps, as
  // in S-LoRA.
  std::int64_t decode_turns = 1;
  std::int64_t max_distinct_adapters = 0;  // distinct adapters in a batch (--max-loras); 0: bounded by memory alone
  std::int64_t lookahead = 64;             // waiting requests that a step considers
  std::int64_t max_loads_in_flight = 4;    // adapter loads under way
  // The adapter of a request that arrives during a step begins to load at once (LoadForNewcomer), not with the next
  // plan. Only with ColdStart::kPassOver.
  bool load_on_arrival = false;
  ColdStart cold_start = ColdStart::kPassOver;
  // With kStall: number of waiting requests without a seat, oldest first, for which adapters are loaded beside a step.
  std::int64_t prefetch_lookahead = 0;
  // Whether later requests may pass one that would exceed max_distinct_adapters (vLLM-LoRA).
  bool skip_beyond_distinct = false;
  FairnessOptions fairness;
  bool fetch_ahead = true;  // fetch history from the host tier for waiting requests without a seat
  AdapterPrefetch adapter_prefetch = AdapterPrefetch::kNone;  // load adapters before a request wants them
  TimeNs age_bound = 30 * kNsPerSecond;                       // QueueOrderOptions::age_bound
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
  std::shared_ptr<const PerformanceModel> costs;  // for predictions (service_times.h); null: steps count alike
};

// Pages reserved for adapters on a device of `capacity_pages`. 0: one pool for all.
inline std::int64_t AdapterSharePages(double adapter_share, std::int64_t capacity_pages) {
  if (adapter_share <= 0) return 0;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(adapter_share * static_cast<double>(capacity_pages)));
}

// Sets the options that the regime decides. The caller makes the regime's EvictionPolicy and DependencyTree.
inline void ApplyRegime(const CacheRegime& regime, SchedulerOptions& options) {
  options.adapter_share = regime.adapter_share;
  options.keep_idle_adapters = regime.keep_idle_adapters;
  options.maintain_dependency = regime.maintain_dependency;
  options.host_bonus = regime.host_bonus;
  options.proactive_swapping = regime.proactive_swapping;
}

// Prefix cache hits of prompts, at their first admission.
struct PrefixStats {
  std::int64_t looked_up_tokens = 0, found_tokens = 0;
  std::int64_t from_host_tokens = 0;  // of the found tokens: fetched from the host tier first
  std::int64_t copied_pages = 0;      // pages copied for their first tokens, over all admissions
};

// Pages that moved without a request for them (proactive swapping).
struct SwapStats {
  std::int64_t history_out = 0, adapters_out = 0;  // left the device
  std::int64_t history_in = 0, adapters_in = 0;    // started to move from the host tier
};

// Adapters that were loaded before a request wanted them. Those neither used nor wasted are still on the device.
struct AdapterPrefetchStats {
  std::int64_t loads = 0;
  std::int64_t used = 0;    // a request arrived for it
  std::int64_t wasted = 0;  // it was evicted before one arrived
};

// S-LoRA prefetches in the middle of its decode turns, and again so many turns before their end.
inline constexpr std::int64_t kPrefetchTurns = 3;

// Plans and commits engine steps. Keeps pointers to requests from Add to Remove; owns none of its arguments.
class Scheduler {
 public:
  // Null `tree`: no prefix cache and no history. Null `tiers`: no keys and values in the host tier. Null `queue`: first
  // come, first served. Null `predictor`: orders that need predictions see 0. All that is given must outlive the
  // scheduler. REQUIRES: the tree's pages are of `device` and hold options.page_tokens positions.
  Scheduler(SchedulerOptions options, PagePool* device, ResidencyManager* residency, const EvictionPolicy* policy,
            DependencyTree* tree = nullptr, KvTiers* tiers = nullptr, QueueOrder* queue = nullptr,
            LengthPredictor* predictor = nullptr);
  // The tree keeps its pages.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Adds a new request to the waiting ones. The caller keeps it alive until Remove. REQUIRES: `arrival` is set; ids
  // ascend; a reference to its adapter (ResidencyManager::Acquire) is held from before Add until after Remove; the
  // request fits the device memory when it is alone.
  void Add(Request* request);
  // Removes a waiting or running request and releases its pages and the pin of its adapter. `by_itself`: it generated
  // its whole output, so predictions can learn from it. REQUIRES: no step that reads its pages is in flight.
  void Remove(Request* request, TimeNs now, bool by_itself = true);

  // Plans the next step. Changes only the plan, which is valid until the next call. Allocates nothing in the steady
  // state.
  const StepPlan& Plan(TimeNs now);
  // Applies the last plan. REQUIRES: nothing has changed since Plan.
  void Commit(TimeNs now);
  // Starts the load of one adapter during a step (load_on_arrival), so that a request need not wait for the next plan
  // and its step. Considers the requests that arrived since the last plan. Takes the first with an adapter that fits
  // beside the needs of the running requests and of the waiting requests up to it. Does nothing if a load is under way
  // or waits for its turn: then the next plan decides the order. Each request is considered once. Returns true if a
  // load began. Invalidates the last plan.
  bool LoadForNewcomer(TimeNs now);
  // Notes after the step that `num_tokens` of the request were computed. Until then, the page that is copied for it
  // stays locked. REQUIRES: its adapter is resident, and the path to its tail is on the device.
  void Advance(Request* request, std::int64_t num_tokens, TimeNs now);

  // Preempts a request after its first step if the fetch of its keys and values failed, so that the step's results are
  // invalid. It then begins with what the device has. REQUIRES: it was admitted with that step; BeganOnFailedFetch.
  void BeginAgain(Request* request, TimeNs now);
  // True if the fetch of keys and values that the running request uses has failed.
  bool BeganOnFailedFetch(const Request& request) const;
  // Notes the duration of a step, without the time that it waited for layers to arrive.
  void StepTook(TimeNs duration) { step_floor_.Add(duration); }

  // Background work beside the computation, which makes the next plan cheaper. Scores history, keeps a few pages free,
  // copies history to the host tier, and loads expected adapters. At most every 100 ms, refreshes what the policies
  // know of all candidates, and swaps pages proactively (with proactive_swapping; `ending`: swaps nothing in). Returns
  // true if there is more to do at once. Invalidates the last plan.
  bool Prepare(TimeNs now, bool ending = false);
  // The time at which Prepare should be called even if nothing else happens: the earlier of NextSwap and NextPrefetch.
  // None: not needed.
  std::optional<TimeNs> NextMove() const;
  // The same for proactive swapping.
  std::optional<TimeNs> NextSwap() const;
  // The same for the load of an expected adapter.
  std::optional<TimeNs> NextPrefetch() const;

  // Running and waiting requests, each in the order of arrival. Valid until the next change.
  std::span<Request* const> running() const { return running_; }
  std::span<Request* const> waiting() const {
    return {waiting_.data() + waiting_head_, waiting_.size() - waiting_head_};
  }
  std::int64_t preemptions() const { return preemptions_; }  // includes squashes
  std::int64_t squashes() const { return squashes_; }        // preemptions of requests that had overtaken another
  // Requests that the queue order gave up (ObjectiveOrder).
  std::int64_t given_up() const { return given_up_; }
  const QueueOrder& queue() const { return *queue_; }
  const SchedulerOptions& options() const { return options_; }
  const DependencyTree* tree() const { return tree_; }  // null: none
  const KvTiers* tiers() const { return tiers_; }       // null: history stays on the device
  // Total time from the arrival of requests until their adapter was on the device, even if they also waited for other
  // reasons.
  TimeNs adapter_wait_total() const { return adapter_wait_total_; }
  std::int64_t loads_on_arrival() const { return loads_on_arrival_; }  // loads by LoadForNewcomer
  std::int64_t early_admissions() const { return early_admissions_; }  // admissions while layers were arriving
  // Loads that steps waited for. Only with ColdStart::kStall.
  std::int64_t cold_starts() const { return cold_starts_; }
  const PredictionStats& prediction_stats() const { return prediction_stats_; }
  const TenantCounters& tenants() const { return tenants_; }
  const PrefixStats& prefix_stats() const { return prefix_stats_; }
  std::int64_t history_evictions() const { return history_evictions_; }  // pages
  const SwapStats& swap_stats() const { return swap_stats_; }
  // Measured times of reloads and prefills, as the policies use them.
  const ReloadCostEstimator& reload_costs() const { return reload_costs_; }
  const AdapterPrefetchStats& prefetch_stats() const { return prefetch_stats_; }
  // Pages of keys and values that no running request uses.
  std::int64_t history_pages() const { return tree_ == nullptr ? 0 : tree_->idle_pages(); }

  // The pages of history that no request can use because their adapter is not on the device. 0 if dependency is
  // maintained. Takes time proportional to the adapters on the device.
  std::int64_t CountInvalidHistory();

  // The context that the eviction policy was given last.
  const EvictionContext& eviction_context() const { return context_; }

  // Aborts if queues, pages and pins are inconsistent.
  void CheckIntegrity() const;

 private:
  // Parts of CheckIntegrity.
  void CheckTree() const;
  void CheckLanes() const;
  // Precedence for memory. The least comes first and is preempted last.
  struct Rank {
    std::int64_t level = std::numeric_limits<std::int64_t>::max();  // the tenant's service in quanta
    RequestId id{std::numeric_limits<std::uint64_t>::max()};
    auto operator<=>(const Rank&) const = default;
  };
  // Flags of an adapter in the plan under construction.
  static constexpr std::uint8_t kEvicted = 1;      // the plan evicts it from the device
  static constexpr std::uint8_t kWanted = 2;       // an earlier request in the queue needs it
  static constexpr std::uint8_t kHostEvicted = 4;  // the plan evicts it from the host tier
  static constexpr std::uint8_t kLoadPlanned = 8;  // the plan starts its load
  static constexpr std::uint8_t kUsable = 16;      // it is loading, and enough layers have arrived to begin

  // The capacities as the plan under construction leaves them, and buffers. Commit does not use them.
  struct Scratch {
    std::int64_t free_device = 0, free_host = 0;  // pages
    std::int64_t free_adapters = 0;   // pages, if adapters have a share; free_device then excludes the share
    std::int64_t budget = 0;          // tokens left in this step
    std::int64_t droppable_host = 0;  // pages of keys and values in the host tier that may be dropped
    std::int64_t loads_in_flight = 0, fetches_in_flight = 0;
    std::int64_t distinct_adapters = 0;  // among running requests
    std::int64_t free_seats = 0;         // in the batch of this step
    bool memory_short = false;           // running requests lost pages to each other: no request is admitted
    bool usable_fetches = false;         // fetches that are `usable` exist
    bool locked_waits = false;           // a locked adapter waits for room: no request is admitted
    bool loads_wait = false;             // a load was put off by max_loads_in_flight
    bool loads_pause = false;            // no load begins beside this step (decode_turns)
    bool awaits_load = false;            // with kHold: a request lacks only its adapter to start
    const Request* blocked = nullptr;    // the first waiting request that was kBlocked
    // A running request.
    struct Runner {
      Request* request = nullptr;
      Rank rank;
      double service = 0;           // counter of its tenant
      std::int32_t uncomputed = 0;  // tokens
      std::int32_t next_pages = 0;  // pages that one more token needs
      bool paused = false;          // has no seat in this step
    };
    std::vector<Runner> runners;  // running requests without the preempted ones, highest rank first
    std::vector<Runner> merge_buffer;
    std::int64_t decode_pages = 0;  // sum of next_pages over all runners
    // A runner that may be paused.
    struct Pausable {
      double service = 0;
      RequestId id;
      std::size_t runner = 0;  // index in runners
    };
    // Most service first; of equal service the youngest.
    struct PausesBefore {
      bool operator()(const Pausable& a, const Pausable& b) const {
        return (a.service > b.service) | ((a.service == b.service) & (a.id > b.id));
      }
    };
    Heap<Pausable, PausesBefore> pausable;        // runners of one level of rank
    std::size_t lower_levels = 0;                 // number of runners ahead of that level
    std::vector<Runner> prefills;                 // runners in prefill
    std::array<double, kMaxLanes> lane_use = {};  // tokens of running and of admitted requests
    // The predicted end of a running request; time as in RunTimeOf.
    struct End {
      double time = 0;
      const Request* request = nullptr;
    };
    struct EndsBefore {
      bool operator()(const End& a, const End& b) const { return a.time < b.time; }
    };
    Heap<End, EndsBefore> ends;           // of running requests, the earliest first
    double decode_seconds = 0;            // predicted duration of a step in which all runners decode
    double time_until_room = 0;           // of the request that memory has no room for; as in RunTimeOf
    Rank first_waiter;                    // highest rank of the waiting requests within lookahead
    Rank first_overdue;                   // highest rank of overdue requests with a resident adapter
    std::vector<std::int32_t> slot_pins;  // by residency slot: pins after this plan
    std::vector<std::uint8_t> flags;      // by residency slot: kEvicted | kWanted | ...
    bool candidates_ready = false;        // `candidates` is complete
    // An idle adapter that may be evicted.
    struct Candidate {
      double score;
      AdapterGeneration adapter;
    };
    std::vector<Candidate> candidates;  // a heap, the lowest score on top
    // Adapters on the device with the content of a shared branch. Valid if `plan` is the number of this plan.
    struct Residents {
      std::uint64_t plan = 0;
      std::int32_t count = 0;
    };
    // By branch.
    std::vector<Residents> residents;
    std::uint64_t plan = 0;               // number of this plan
    std::int64_t evictable_adapters = 0;  // pages of adapters that may be evicted from the device
    std::int64_t unwanted_adapters = 0;   // of these, pages of adapters that no earlier request wants
  };

  // scheduler_plan.cc Makes plan_. `may_pause`: running requests may be paused for waiting ones.
  void MakePlan(TimeNs now, bool may_pause);
  // Sets scratch_ to the present capacities.
  void ResetScratch(TimeNs now);
  // Finds the loads and fetches of which enough layers have arrived to begin with them.
  void LookAtArrivals(TimeNs now);
  // Fills scratch_.runners by rank.
  void RankRunning(TimeNs now);
  // The runner that is served before all others because its tenant made no progress for too long; null: none.
  Scratch::Runner* OverdueRunner(TimeNs now);
  // The rank of a request; `service` is the counter of its tenant.
  Rank RankOf(RequestId id, double service) const;
  // Marks as wanted the adapters of waiting requests that outrank a running one.
  void MarkAdaptersOfWaitersAhead();
  // Decides which running requests pause. `for_waiters`: also to give seats to waiting requests.
  void PlanSeats(bool for_waiters);
  // Pauses as many running requests as there are seats missing.
  void PauseBeyondSeats();
  // Pauses the first of scratch_.pausable if its tenant got more than `service`. False: it did not.
  bool PauseWorst(double service);
  // Fills scratch_.pausable with the runners of the last level of rank that is left.
  void NextPausable();
  // Gives seats that are left back to paused requests.
  void PlanIdleSeats(TimeNs now);
  // Plans one token for each running request that decodes.
  void PlanDecodes(TimeNs now);
  // Lowers the token budget for prompts (SchedulerOptions::spread_prompts).
  void SpreadPrompts();
  // Tokens of the prompts that memory has room for. None: it has room for all waiting requests.
  std::optional<std::int64_t> PromptsBoundByMemory() const;
  // Plans chunks of running prompts, and admissions.
  void PlanPrompts(TimeNs now);
  // kAdmitted: it starts. kPassedOver: it does not, but later requests may. kBlocked: it does not, and ends the scan.
  enum class Admission { kAdmitted, kPassedOver, kBlocked };

  // scheduler_cold.cc True if steps wait for loads (kStall).
  bool Stalled() const;
  // The outcome for a request that would exceed max_distinct_adapters.
  Admission BeyondDistinct(const Request& request) const;
  // Plans that the step waits for the adapter of the request (kStall).
  Admission PlanStall(Request* request, TimeNs now);
  // Plans loads for the oldest waiting requests without a seat (prefetch_lookahead).
  void PlanPrefetches(TimeNs now);
  // Drops the computation from the plan if loads come first (kStall, kBeginAtOnce).
  void LoadBeforeStep();

  // Admits the request, or starts the load or the fetch that it needs first.
  Admission TryAdmit(Request* request, TimeNs now);
  // Fetches history from the host tier for the request. kAdmitted: there is nothing to wait for.
  Admission TryFetch(Request* request, TimeNs now);
  // Adds a fetch to the plan. REQUIRES: there is room.
  void AddFetch(Request* request, NodeId tail, std::int64_t pages, bool ahead);
  // True if its adapter is loading and not usable yet.
  bool IsLoading(const Request& request) const;
  // True if the history that it would begin with is being fetched and not usable yet.
  bool IsFetching(const Request& request) const;
  // True if the page is on the device, or is expected to arrive in time.
  bool IsUsable(NodeId node) const {
    if (tree_->OnDevice(node)) return true;
    if (!scratch_.usable_fetches || !tree_->Moving(node)) return false;
    const KvTiers::Fetching* fetch = tiers_->FetchOf(node);
    return fetch != nullptr && fetch->usable;
  }
  // True if its adapter is absent and not loading.
  bool MustLoad(const Request& request) const {
    return request.adapter != kBaseModel && residency_->Get(request.adapter).device == TierState::kAbsent;
  }
  // True if admission of the request would exceed max_distinct_adapters.
  bool ExceedsDistinctAdapters(const Request& request) const;
  // True if `prompt` more tokens of prompts would exceed whole_prompt_tokens in this step.
  bool BreaksWholePrompts(std::int64_t prompt) const {
    const std::int64_t limit = options_.whole_prompt_tokens;
    return limit > 0 && plan_.prefill_tokens > 0 && plan_.prefill_tokens + prompt > limit;
  }
  // Adds a chunk to the plan.
  void AddChunk(Request* request, std::int64_t tokens, std::int64_t new_pages);
  // Adds an admission and its first chunk to the plan.
  void AddAdmission(const PlannedAdmission& admission, std::int64_t new_pages);
  // Locks the pages that the request reuses, and makes room for `pages` more. False: there is no room.
  bool TakePages(PlannedAdmission& admission, std::int64_t pages, TimeNs now);
  // The page after `tail` of which the first tokens can be reused.
  DependencyTree::InPage FindInPage(const Request& request, NodeId tail) const;
  // The deepest node that the tree has for the tokens of the request, in either tier.
  NodeId FindTail(Request& request) const;
  // The deepest usable node on the path to `tail`.
  NodeId DeviceTail(NodeId tail) const;
  // The node after which the request would begin, as far as this plan does not evict the path.
  NodeId PlannedTail(Request& request) const {
    return tree_ == nullptr ? NodeId{} : kv_plan_.Kept(DeviceTail(FindTail(request)));
  }
  // Pages on the path to `tail`; 0 without a tree.
  std::int64_t Depth(NodeId tail) const { return tree_ == nullptr ? 0 : tree_->Depth(tail); }
  // Tokens of a chunk for a request with `uncomputed` tokens.
  std::int64_t ChunkTokens(std::int64_t uncomputed) const {
    return std::min({uncomputed, options_.prefill_chunk, scratch_.budget});
  }
  // Requests that a step can compute.
  std::int64_t Seats() const { return std::min(options_.max_running, options_.max_batch_tokens); }

  // scheduler_phases.cc Notes that a request could start but for its adapter, which loads.
  void AwaitLoad() {
    const bool could_begin = scratch_.free_seats > 0 && scratch_.budget > 0 && scratch_.blocked == nullptr;
    scratch_.awaits_load |= could_begin && options_.cold_start == ColdStart::kHold;
  }
  // True if the next step waits for loads (kHold).
  bool LoadsHoldStep() const;
  // Admits no request in steps that are owed to decoding (separate_phases).
  void GiveTurnToDecodes();
  // Drops the decodes from a plan that computes prompts (separate_phases).
  void SeparatePhases();
  // Drops the computation from the plan if the step is to wait for loads (kHold).
  void HoldForLoads();
  // Updates decodes_due_ and held_for_loads_ for the committed plan.
  void NotePhase();

  // scheduler_order.cc Fills order_, lane_begins_ and overdue_.
  void OrderWaiting(TimeNs now);
  // Sorts order_ by the state of the adapters (QueueOrder::residents_first), up to `limit` turns.
  void PutResidentsFirst(std::size_t limit, TimeNs now);
  // Fills overdue_.
  void FindOverdue(TimeNs now);
  // The oldest first turn of a tenant that has waited too long for it; null: none.
  Request* OverdueTurn() const;
  // True if the request is in overdue_.
  bool IsOverdue(const Request& request) const {
    return std::binary_search(overdue_.begin(), overdue_.end(), &request,
                              [](const Request* a, const Request* b) { return a->id < b->id; });
  }
  // Predicts the output of a new request and places it in the queue.
  void EnterQueue(Request* request);
  // The query for the predictor.
  LengthQuery QueryOf(const Request& request) const;
  // Lets queue order and predictor learn from a request that ended by itself.
  void ObserveEnd(const Request& request, TimeNs now);
  // Counts the error of a prediction.
  void CountPrediction(const Request& request, std::int32_t output_tokens);
  // Places requests anew after changes of the queue order.
  void RefitLanes(TimeNs now);
  // Admits requests by the quotas of the lanes.
  void PlanLanes(TimeNs now);
  // Admits requests of the lane, from turn `first` on, while `tokens` last.
  std::size_t PutBatch(std::size_t lane, std::size_t first, double& tokens, TimeNs now);
  // True if the quota of its lane has room for the request.
  bool HasQuota(const Request& request) const;
  // Predicted time until the request ends: seconds with a performance model, else steps.
  double RunTimeOf(const Request& request) const;
  // Predicted seconds of a step in which all runners decode.
  double DecodeSeconds() const;
  // Sets scratch_.time_until_room for the request.
  void EstimateTimeUntilRoom(const Request& request);
  // True if the request may overtake the one that memory has no room for.
  bool MayOvertake(const Request& request) const;
  // Preempts requests that overtook another one if that one can then start.
  void PlanSquashes(TimeNs now);

  // scheduler_ahead.cc Plans fetches for waiting requests without a seat.
  void PlanFetchesAhead(TimeNs now);
  // True if a fetch for the request would help it.
  bool CouldFetchAhead(const Request& request) const;
  // Fetches as many pages for the request as there is room for. False: there is no room for any request.
  bool TryFetchAhead(Request* request, TimeNs now);
  // Evicts unwanted pages until `pages` are free. Returns the free pages.
  std::int64_t MakeRoomAhead(std::int64_t pages, TimeNs now);
  // Plans the load for the last of these requests if all of them have room beside it.
  bool PlanLoadFor(std::span<Request* const> waiting, TimeNs now);
  // Upper bound of the pages that running requests and `waiting` need in the next plan.
  std::int64_t NextPlanNeeds(std::span<Request* const> waiting) const;
  // True if a request is expected to use the adapter soon (adapter_prefetch).
  bool IsExpected(const AdapterResidency& adapter, TimeNs now) const;
  // Notes that the adapter of a new request is in use.
  void EndIdle(const Request& request);
  // Notes that the adapter of a finished request may be idle.
  void BeginIdle(const Request& request, TimeNs now);
  // Loads one expected adapter.
  void LoadExpected(TimeNs now);
  // The next adapter that must be loaded now to be there in time.
  std::optional<AdapterGeneration> NextExpected(TimeNs now);
  // Plans the load of an expected adapter. False: there is no room.
  bool PlanExpectedLoad(const AdapterResidency& adapter, TimeNs now);
  // Forgets that the adapter was prefetched. Returns whether it was, and was not used since.
  bool EndPrefetch(AdapterGeneration generation);

  // scheduler_memory.cc Preempts lower ranks for the next request in the order of service.
  void PlanReclaim(TimeNs now);
  // The first request in the order of service that needs only room; null: none.
  Request* NextToServe() const;
  // Takes `pages` pages for runners[index]; evicts and preempts as needed.
  bool FreePagesFor(std::size_t index, std::int64_t pages, TimeNs now);
  // Preempts the runner of the lowest rank.
  void PlanPreemption(TimeNs now) { PlanPreemptionOf(scratch_.runners.size() - 1, now); }
  // Preempts runners[runner].
  void PlanPreemptionOf(std::size_t runner, TimeNs now);
  // Evicts until `pages` are free for this use. False: not possible, and nothing was evicted.
  bool MakeRoom(PageCategory use, std::int64_t pages, TimeNs now);
  // Evicts one page of history or one adapter. False: none may be evicted.
  bool EvictOne(PageCategory use, TimeNs now, bool even_wanted);
  // Fills scratch_.candidates.
  void RankIdleAdapters(TimeNs now);
  // Adds an adapter to scratch_.candidates.
  void PushCandidate(AdapterGeneration generation, TimeNs now);
  // The eviction score of an adapter.
  double ScoreOf(const AdapterResidency& adapter, TimeNs now);
  // Brings an adapter that may be evicted to the top of scratch_.candidates. False: there is none.
  bool FindIdleAdapter(bool even_wanted);
  // Evicts the first of scratch_.candidates.
  void EvictAdapter(TimeNs now);
  // Evicts a page of history.
  void EvictHistory(const KvEvictionPlan::Victim& victim, TimeNs now);
  // Keeps NewcomersReserve() pages free beside the computation.
  void KeepReserve(TimeNs now);
  // True if history on the device depends on the adapter.
  bool CarriesHistory(AdapterGeneration generation);
  // Pages that the preemption of the request frees.
  std::int64_t PagesFreedBy(const Request& request) const;
  // Plans loads of locked adapters.
  void PlanLockedLoads(TimeNs now);
  // Plans the load of an adapter. kPassedOver: planned or put off. kBlocked: no room.
  Admission TryLoad(AdapterGeneration generation, TimeNs now);
  // The worth of the copy of an adapter in the host tier.
  TimeNs HostWorthOf(const AdapterResidency& adapter) const;
  // Adds a load to the plan. REQUIRES: there is room.
  void AddLoad(const AdapterResidency& adapter);
  // Makes room in the host tier for the load of an adapter. False: the load bypasses it.
  bool PlanHostRoom(const AdapterResidency& adapter);
  // Pages that the request needs next: of its adapter if that is absent, else of its tokens.
  std::int64_t PagesToStart(const Request& request) const;
  // Pages of its adapter, if that counts as evictable.
  std::int64_t PagesOfIdleAdapter(const Request& request) const;
  // Pages that admissions and loads leave free for running requests.
  std::int64_t GrowthReserve() const;
  // Pages that KeepReserve keeps free.
  std::int64_t NewcomersReserve() const;
  // Pages that may be evicted for this use. `even_wanted`: including adapters that earlier requests want.
  std::int64_t EvictablePages(PageCategory use, bool even_wanted) const;
  // True if adapters have a share of the device.
  bool Partitioned() const { return adapter_pages_ > 0; }
  // Free pages for this use.
  std::int64_t& Free(PageCategory use) {
    return Partitioned() && use == PageCategory::kAdapter ? scratch_.free_adapters : scratch_.free_device;
  }
  // Pages that the request lacks for `positions` positions. Avoids the division in the usual case that none is missing.
  std::int64_t MissingPages(const Request& request, std::int64_t positions) const {
    const std::int64_t missing = positions - static_cast<std::int64_t>(request.pages.size()) * options_.page_tokens;
    return missing <= 0 ? 0 : (missing + options_.page_tokens - 1) / options_.page_tokens;
  }
  // True if the adapter may be evicted by this plan.
  bool Evictable(const AdapterResidency& adapter) const;
  bool Evictable(AdapterGeneration generation) const { return Evictable(residency_->Get(generation)); }
  // Pages of the adapter that may be evicted from the device. Tests the residency first, which usually decides.
  std::int64_t EvictablePagesOf(const AdapterResidency& adapter) const {
    return adapter.device == TierState::kResident && Evictable(adapter) ? adapter.pages : 0;
  }
  // Adds (sign 1) or subtracts (-1) the evictable pages of the adapter.
  void CountEvictable(AdapterGeneration generation, std::int64_t sign);
  // The next four change the state of an adapter in the plan and keep the sums of evictable pages up to date. To sum
  // over all adapters would take most of the time of a plan. Called for each waiting request; usually the adapter is
  // marked already.
  void WantInPlan(AdapterGeneration generation) {
    std::uint8_t& flags = Flags(generation);
    if ((flags & kWanted) != 0) return;
    scratch_.unwanted_adapters -= EvictablePagesOf(residency_->Get(generation));
    flags |= kWanted;
  }
  void EvictInPlan(AdapterGeneration generation);
  void PinInPlan(AdapterGeneration generation);
  void UnpinInPlan(AdapterGeneration generation);
  // Adapters with the content of the branch that are on the device and stay there in this plan.
  std::int32_t& ResidentsOf(BranchId branch);
  // Only WantInPlan and EvictInPlan may set kWanted and kEvicted.
  std::uint8_t& Flags(AdapterGeneration generation) { return scratch_.flags[residency_->SlotOf(generation)]; }
  std::uint8_t Flags(AdapterGeneration generation) const { return scratch_.flags[residency_->SlotOf(generation)]; }
  // Pins of the adapter after this plan.
  std::int32_t Pins(AdapterGeneration generation) const { return scratch_.slot_pins[residency_->SlotOf(generation)]; }

  // scheduler_usage.cc Notes the adapters that the committed plan uses.
  void RecordUse(TimeNs now);
  // Measures the step that has ended.
  void MeasureStep(TimeNs now);
  // Updates context_.
  void RefreshContext(TimeNs now);
  // Evicts all adapters that no request wants (keep_idle_adapters is false).
  void PlanIdleEvictions(TimeNs now);

  // scheduler_swap.cc Swaps pages proactively. True: call again at once.
  bool Swap(TimeNs now, bool ending);
  // Frees pages above the threshold. True: pages moved.
  bool SwapOut(TimeNs now);
  // Evicts the least valuable page or adapter. False: none may go.
  bool SwapOutOne(TimeNs now);
  // Brings valuable pages back into free memory. True: the walk goes on in the next call.
  bool SwapIn(TimeNs now, bool ending);
  // Offers the adapters in the host tier to swapper_.
  void OfferAdapters(TimeNs now);
  // The room that swapping in may use.
  ProactiveSwapper::Room RoomToSwapIn() const;
  // Fills usable_branches_.
  void MarkUsableBranches();
  // Pages in use on the device.
  std::int64_t UsedPages() const { return device_->capacity_pages() - device_->free_pages(); }

  // scheduler.cc Starts the planned loads, after making room in the host tier.
  void StartLoads(TimeNs now);
  // Applies the planned evictions of history; CommitEvictions also those of adapters.
  void CommitHistoryEvictions();
  void CommitEvictions();
  // Pins an adapter for a running request.
  void Pin(AdapterGeneration generation, TimeNs now);
  // Gives an admitted request the pages that it begins with.
  void BeginFrom(const PlannedAdmission& admission, TimeNs now);
  // Unlocks the page that was copied for the request.
  void EndCopy(Request* request, TimeNs now);
  // Adds (sign 1) or subtracts (-1) the prefix of the request in prefix_stats_.
  void CountPrefix(const Request& request, std::int64_t sign);
  // Cancels the fetch of a removed request, unless others may use it.
  void CancelFetchFor(const Request& request);
  // Hands the pages that the request has filled to the tree.
  void InsertFilledPages(Request* request, TimeNs now);
  // Sets the branch of the request; holds the branch if its adapter is new.
  void KnowBranch(Request* request);
  // Releases the branch of an adapter that is dropped.
  void ForgetBranch(const AdapterResidency& adapter);
  // True if the adapter in the slot has a branch.
  bool HasBranch(std::size_t slot) const { return slot < branch_of_slot_.size() && branch_of_slot_[slot].has_value(); }
  // Frees the pages of the request and unpins its adapter.
  void ReleaseMemory(Request* request, TimeNs now);
  // Makes a running request wait again, without its pages.
  void Preempt(Request* request, TimeNs now);
  // Insert into and erase from running_, by_rank_ and waiting_.
  void InsertRunning(Request* request);
  void EraseRunning(Request* request);
  void EraseWaiting(Request* request);

  const SchedulerOptions options_;
  PagePool* device_;
  ResidencyManager* residency_;
  const EvictionPolicy* policy_;
  DependencyTree* tree_;
  KvTiers* tiers_;
  KvEvictionPlan kv_plan_;
  const std::int64_t adapter_pages_;  // pages of the device for adapters; 0: one pool
  UsageMonitor usage_;
  ProactiveSwapper swapper_;
  std::vector<NodeId> running_tails_;  // scratch of Prepare
  SwapStats swap_stats_;
  // In the last plan: a request or a locked adapter waits for room, so nothing is loaded or swapped in unrequested.
  bool somebody_waits_for_room_ = false;
  bool loads_wait_ = false;                              // in the last plan: Scratch::loads_wait
  std::optional<RequestId> newest_;                      // the last request that arrived
  std::optional<RequestId> newest_seen_;                 // the last one that a plan or LoadForNewcomer has considered
  TimeNs swapped_in_at_ = -ProactiveSwapper::kInterval;  // time of the observation after which SwapIn last began
  std::vector<bool> usable_branches_;                    // by branch: its keys and values may be swapped in
  AdapterArrivalHistogram arrivals_;                     // arrivals by adapter; used if adapters are prefetched
  std::vector<AdapterGeneration> prefetched_;            // by residency slot: prefetched and not used; kBaseModel: none
  AdapterPrefetchStats prefetch_stats_;
  TimeNs prefetch_lead_ = 0;        // mean duration of a load: it begins so long before the adapter is expected
  TimeNs prefetch_not_before_ = 0;  // next attempt after one without room
  ReloadCostEstimator reload_costs_;
  // The step under way.
  struct StepUnderWay {
    TimeNs began = -1;  // -1: none, or already measured
    std::int64_t tokens = 0, prefill_tokens = 0;
  } step_;
  EvictionContext context_;                                  // for the eviction policy
  std::vector<bool> branch_counted_;                         // scratch of CountInvalidHistory
  BranchId base_branch_;                                     // of the base model
  std::vector<std::optional<BranchId>> branch_of_slot_;      // by residency slot; set once a request uses the adapter
  std::vector<std::vector<std::uint32_t>> slots_of_branch_;  // the inverse
  PrefixStats prefix_stats_;
  std::int64_t history_evictions_ = 0, evicted_adapter_pages_ = 0;  // pages
  Turnover turnover_;
  std::vector<Request*> running_;  // ascending id
  // The same requests by rank as of the last plan, with newly admitted ones at the end.
  std::vector<Request*> by_rank_;
  std::vector<std::int32_t> pins_;    // by residency slot: running requests with the adapter
  std::int64_t pinned_adapters_ = 0;  // slots with pins
  std::vector<Request*> waiting_;     // ascending id, from waiting_head_ on
  std::size_t waiting_head_ = 0;
  TenantCounters tenants_;
  std::unique_ptr<QueueOrder> own_queue_;  // if none was given
  QueueOrder* queue_;
  LengthPredictor* predictor_;
  PredictionStats prediction_stats_;
  ServiceOrder order_;                          // the waiting requests in the order of service, lane after lane
  std::vector<Turn> later_turns_, last_turns_;  // scratch of PutResidentsFirst
  std::vector<std::size_t> lane_begins_;        // first turn of each lane in order_.turns, and the end
  // Requests that have waited too long, the oldest first. They are served before all others.
  std::vector<Request*> overdue_;
  std::array<double, kMaxLanes> lane_use_ = {};  // by lane: tokens of running requests
  std::int64_t overtakers_ = 0;                  // running requests that have overtaken another
  std::int64_t squashes_ = 0, given_up_ = 0;
  std::int64_t preemptions_ = 0, early_admissions_ = 0, cold_starts_ = 0, loads_on_arrival_ = 0;
  std::vector<AdapterGeneration> stalls_;  // adapters that steps wait for (kStall)
  bool stalled_since_step_ = false;        // a step has waited, and none has computed since
  TimeNs adapter_wait_total_ = 0;
  StepFloor step_floor_;
  double discardable_ = 0;  // computed tokens that preemptions for waiting requests may discard
  // Steps owed to decoding (separate_phases), and whether the next step waits for loads (kHold).
  std::int64_t decodes_due_ = 0;
  bool held_for_loads_ = false;
  StepPlan plan_;
  Scratch scratch_;
  std::vector<PlannedChunk> chunk_buffer_;  // scratch of SortByAdapter
};

}  // namespace loramux
