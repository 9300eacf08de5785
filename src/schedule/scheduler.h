// Decides what each engine step does. Continuous batching at every iteration, chunked prefill; among tenants who has
// got the least service (fairness.h), within a tenant first come first served. With one tenant: first come first
// served.
//
// The order of service:
//  1. Running requests that decode. There are `seats` in a step; where more requests run than that, those of the
//     tenants that got the most service pause: they keep their memory and lose nothing.
//  2. Prompts, up to the step's token budget, in order of their tenants' counters: running requests in prefill, and
//     waiting requests within `lookahead`. One whose adapter is being loaded is passed over, so that a step never waits
//     for a load, unless so many of its layers are there that the step is not expected to wait for the others
//     (arrival.h; the same holds for keys and values from the host tier); one that memory does not have room for ends
//     the scan, so that nobody behind it takes what it waits for. Idle adapters that requests ahead in the queue want
//     are evicted last. A waiting request may take the seat of a tenant that got more service than its own.
//  3. History in the host tier, for waiting requests that got no seat: it is fetched ahead, once a request, into pages
//     that are free or that nobody within `lookahead` wants, as far as the requests ahead of it leave room. Nobody
//     waits for that.
// Prompts begin behind what the dependency tree has of them, if there is a tree: pages that other requests of the same
// adapter content have computed, and of the page after those the first tokens, if a page that begins with at least a
// quarter of it is on the device: that one is copied. Each page that a request fills becomes the tree's; what nobody
// uses stays as history. Where a page is missing, history and idle adapters are evicted (EvictionPolicy), an adapter
// only after the history that depends on it, so that all history on the device can be used; if that is not enough, the
// lowest in rank of the running requests are preempted: their pages are freed, and they are computed again later. Rank:
// the tenant's counter in units of a step's tokens, then order of arrival. An adapter that a waiting request of higher
// rank wants is evicted only after everyone of lower rank than that request was preempted. If memory blocks the next in
// the order of service, running requests of lower rank are preempted for it too, as long as no more than
// `discard_share` of all computed tokens is thrown away by that. Regimes of the cache (cache/cache_regime.h) change
// that in three ways: adapters may have a share of the pages, and then each side evicts its own alone; adapters that no
// request wants may leave at once; and adapters may go before the history that depends on them, which then cannot be
// used until they are back. Adapters that the operator locked to the device are loaded before anybody joins, and never
// evicted. The first in rank is never preempted, within a tenant nobody is for a younger one, and between two changes
// of rank lies a quantum of new tokens: so everyone ends.
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

// What becomes of a step when the adapter of a request that could join is not on the device.
enum class ColdStart : std::uint8_t {
  kPassOver,  // others go on; it joins when the adapter is there, or arrives in time
  // the step waits for the adapters of those whom it lets in, and then lets in whoever came meanwhile; those of
  // who
  kHold,
  // could not begin anyway are loaded beside steps: S-LoRA's loop
  // the step waits, and nothing is loaded beside it but what `prefetch_lookahead` says: vLLM-LoRA's ensure_loaded,
  kStall,
  // CaraServe's ONDMD
  // it joins while the adapter is still on its way; the executor makes do (CaraServe's prefill on the CPU)
  kBeginAtOnce,
};

struct SchedulerOptions {
  std::int64_t page_tokens = 16;        // positions that a page holds
  std::int64_t max_running = 256;       // requests in a batch
  std::int64_t max_batch_tokens = 512;  // tokens computed in a step
  std::int64_t prefill_chunk = 512;     // of one request in one step
  // > 0: prompts are never split, and a step computes several only while they have no
  std::int64_t whole_prompt_tokens = 0;
  // more tokens than this together. max_batch_tokens and prefill_chunk must hold
  // any
  // a step of fewer takes as long: it reads the weights (RidgeTokens); 0: not known
  std::int64_t ridge_tokens = 0;
  // where memory lets nobody else in, prompts fill decoding steps up to ridge_tokens
  bool spread_prompts = false;
  // a step computes prompts or decodes, in turn where there are both (S-LoRA's loop).
  bool separate_phases = false;
  // REQUIRES: whole_prompt_tokens > 0
  // separate_phases: steps that decode after one of prompts, before the next may be
  std::int64_t decode_turns = 1;
  // (S-LoRA's max_wait_tokens). More than kPrefetchTurns: loads for those who
  // wait begin beside two of these alone, as there
  std::int64_t max_distinct_adapters = 0;  // in a batch (--max-loras); 0: no bound but memory
  std::int64_t lookahead = 64;             // waiting requests looked at in a step
  std::int64_t max_loads_in_flight = 4;
  // who comes while a step computes has its adapter loaded then, not with the next plan
  bool load_on_arrival = false;
  // (LoadForNewcomer); only with ColdStart::kPassOver
  ColdStart cold_start = ColdStart::kPassOver;
  // kStall: oldest waiting requests without a seat whose adapters are loaded beside a step
  std::int64_t prefetch_lookahead = 0;
  // one that would be an adapter too many lets others by (vLLM-LoRA); false: nobody passes it
  bool skip_beyond_distinct = false;
  FairnessOptions fairness;
  bool fetch_ahead = true;  // history in the host tier, for waiting requests without a seat
  AdapterPrefetch adapter_prefetch = AdapterPrefetch::kNone;  // of adapters that no request wants yet
  TimeNs age_bound = 30 * kNsPerSecond;                       // QueueOrderOptions::age_bound
  double discard_share = 0.25;  // of the computed tokens may be thrown away to let others in
  // Of the regime (cache/cache_regime.h):
  // of the device's pages are for adapters, the rest for keys and values; 0: one pool
  double adapter_share = 0;
  bool keep_idle_adapters = true;  // false: one that no request wants is evicted at once
  // false: an adapter may be evicted before the history that needs it; so it is
  bool maintain_dependency = true;
  // where adapters have a share, as each side evicts its own alone
  TimeNs host_bonus = 0;            // DependencyTree::set_host_bonus, of a host tier much larger than the device
  bool proactive_swapping = false;  // not only on demand (cache/proactive_swapper.h); where there is one pool
  std::shared_ptr<const PerformanceModel> costs;  // for what is predicted (service_times.h); null: steps count alike
};

// Pages for adapters alone of a device with so many; 0 where there is one pool for all.
inline std::int64_t AdapterSharePages(double adapter_share, std::int64_t capacity_pages) {
  if (adapter_share <= 0) return 0;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(adapter_share * static_cast<double>(capacity_pages)));
}

// Fills in what the regime says. Its policy and its history are the caller's to make: EvictionPolicy and
// DependencyTree.
inline void ApplyRegime(const CacheRegime& regime, SchedulerOptions& options) {
  options.adapter_share = regime.adapter_share;
  options.keep_idle_adapters = regime.keep_idle_adapters;
  options.maintain_dependency = regime.maintain_dependency;
  options.host_bonus = regime.host_bonus;
  options.proactive_swapping = regime.proactive_swapping;
}

// Of prompts, when they were first admitted.
struct PrefixStats {
  std::int64_t looked_up_tokens = 0, found_tokens = 0;
  std::int64_t from_host_tokens = 0;  // of those found: that had to be fetched from the host tier first
  std::int64_t copied_pages = 0;      // for the first tokens in them, by all admissions
};

// Pages that moved before anybody asked for it.
struct SwapStats {
  std::int64_t history_out = 0, adapters_out = 0;  // left the device
  std::int64_t history_in = 0, adapters_in = 0;    // began to come from the host tier
};

// Adapters that were loaded though no request wanted them yet. One that was neither used nor wasted is still on the
// device.
struct AdapterPrefetchStats {
  std::int64_t loads = 0;
  std::int64_t used = 0;    // a request came for it
  std::int64_t wasted = 0;  // it was gone before one came
};

// S-LoRA prefetches in the middle of its decode turns, and again so many before their end.
inline constexpr std::int64_t kPrefetchTurns = 3;

class Scheduler {
 public:
  // A null tree: no request gets what another one has computed, and nothing stays behind. REQUIRES: the tree's pages
  // are of `device` and hold options.page_tokens.
  Scheduler(SchedulerOptions options, PagePool* device, ResidencyManager* residency, const EvictionPolicy* policy,
            // null tiers: no keys and values in the host tier
            DependencyTree* tree = nullptr, KvTiers* tiers = nullptr,
            QueueOrder* queue = nullptr,            // null: first come, first served
            LengthPredictor* predictor = nullptr);  // null: no predictions (orders that need them see 0)
  ~Scheduler();                                     // the tree keeps what it holds
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // A new request joins the waiting ones; `arrival` is set. REQUIRES: its reference to its adapter
  // (ResidencyManager::Acquire) is held from before Add until after Remove; ids ascend; the request alone fits the
  // device memory.
  void Add(Request* request);
  // Ends a request in any state: its pages and its adapter's pin are released. `by_itself`: it generated all that it
  // would.
  // REQUIRES: no step that reads its pages is in flight.
  void Remove(Request* request, TimeNs now, bool by_itself = true);

  // Plans the next step; changes nothing but the plan, which is valid until the next call. Allocates nothing in the
  // steady state.
  const StepPlan& Plan(TimeNs now);
  // Carries out the plan that was made last, in the same state of the world.
  void Commit(TimeNs now);
  // Beside a step: begins to load the adapter of the first who came since the plan was made (load_on_arrival) and for
  // whom there is room besides those who run and all up to him, so that he need not wait for the next plan, and the
  // step behind it. Only where no load is under way or waits for its turn: otherwise the next plan decides who goes
  // first. Each is looked at once. True if a load began. The last plan is not valid any more.
  bool LoadForNewcomer(TimeNs now);
  // After the step: the chunk's tokens are computed. Until then a page that was to be copied for it stays. REQUIRES:
  // what it began with has arrived: the adapter is resident, the path to the request's tail on the device.
  void Advance(Request* request, std::int64_t num_tokens, TimeNs now);

  // After a step whose results are worth nothing because the fetch of what the request began with has failed: it is
  // preempted, and begins again with what the device has. REQUIRES: it was admitted with that step.
  void BeginAgain(Request* request, TimeNs now);
  // The request runs with keys and values whose fetch has failed.
  bool BeganOnFailedFetch(const Request& request) const;
  // A step took so long to compute, without what it waited for layers to arrive.
  void StepTook(TimeNs duration) { step_floor_.Add(duration); }

  // Beside the computation, so that the next plan is cheaper: scores history, keeps a few pages free, copies history to
  // the host tier; at most every 100 ms, what the policies know of all candidates, and what is swapped before anybody
  // asks (with proactive_swapping; nothing comes once `ending`). True if there is more to do at once. The last plan is
  // not valid any more.
  bool Prepare(TimeNs now, bool ending = false);
  // When Prepare should be called though nothing happens until then: to swap, or to load an adapter that is expected;
  // none: never.
  std::optional<TimeNs> NextMove() const;
  std::optional<TimeNs> NextSwap() const;
  std::optional<TimeNs> NextPrefetch() const;

  // In order of arrival.
  std::span<Request* const> running() const { return running_; }
  std::span<Request* const> waiting() const {
    return {waiting_.data() + waiting_head_, waiting_.size() - waiting_head_};
  }
  std::int64_t preemptions() const { return preemptions_; }  // squashed ones are among them
  std::int64_t squashes() const { return squashes_; }        // of requests that had overtaken another one
  // requests that others' objectives went before (ObjectiveOrder)
  std::int64_t given_up() const { return given_up_; }
  const QueueOrder& queue() const { return *queue_; }
  const SchedulerOptions& options() const { return options_; }
  const DependencyTree* tree() const { return tree_; }  // null: none
  const KvTiers* tiers() const { return tiers_; }       // null: history stays on the device
  // How long requests were in before their adapter was on the device. One that would have waited anyway counts too.
  TimeNs adapter_wait_total() const { return adapter_wait_total_; }
  std::int64_t loads_on_arrival() const { return loads_on_arrival_; }  // that LoadForNewcomer began
  std::int64_t early_admissions() const { return early_admissions_; }  // with layers that were still arriving
  // loads that steps waited for: only with ColdStart::kStall
  std::int64_t cold_starts() const { return cold_starts_; }
  const PredictionStats& prediction_stats() const { return prediction_stats_; }
  const TenantCounters& tenants() const { return tenants_; }
  const PrefixStats& prefix_stats() const { return prefix_stats_; }
  std::int64_t history_evictions() const { return history_evictions_; }  // pages
  const SwapStats& swap_stats() const { return swap_stats_; }
  // What reloads and prefills took, as the policies are told it.
  const ReloadCostEstimator& reload_costs() const { return reload_costs_; }
  const AdapterPrefetchStats& prefetch_stats() const { return prefetch_stats_; }
  // Pages of keys and values that no running request uses.
  std::int64_t history_pages() const { return tree_ == nullptr ? 0 : tree_->idle_pages(); }

  // Of those, the pages that no request could use now because their adapter is not on the device: none where dependency
  // is maintained. Takes time with the adapters on the device.
  std::int64_t CountInvalidHistory();

  // What the policies were told last of all candidates.
  const EvictionContext& eviction_context() const { return context_; }

  // Aborts if queues, pages and pins disagree.
  void CheckIntegrity() const;

 private:
  void CheckTree() const;
  void CheckLanes() const;
  // Who keeps memory longest comes first.
  struct Rank {
    std::int64_t level = std::numeric_limits<std::int64_t>::max();  // of the tenant, in quanta of service
    RequestId id{std::numeric_limits<std::uint64_t>::max()};
    auto operator<=>(const Rank&) const = default;
  };
  // Of an adapter, in the plan that is being made.
  static constexpr std::uint8_t kEvicted = 1;      // off the device in this plan
  static constexpr std::uint8_t kWanted = 2;       // a request ahead in the queue needs it
  static constexpr std::uint8_t kHostEvicted = 4;  // off the host tier in this plan
  static constexpr std::uint8_t kLoadPlanned = 8;  // its load begins with this plan
  static constexpr std::uint8_t kUsable = 16;      // it is arriving, and a request may begin with its first layers

  // The capacities that planning plays with; Commit never sees it.
  struct Scratch {
    std::int64_t free_device = 0, free_host = 0;
    std::int64_t free_adapters = 0;   // where adapters have a share of the device; free_device is the rest then
    std::int64_t budget = 0;          // tokens left in this step
    std::int64_t droppable_host = 0;  // pages of keys and values in the host tier that may go
    std::int64_t loads_in_flight = 0, fetches_in_flight = 0;
    std::int64_t distinct_adapters = 0;  // among running requests
    std::int64_t free_seats = 0;         // in this step's batch
    bool memory_short = false;           // running requests lost pages to each other: nobody joins
    bool usable_fetches = false;         // there are some
    bool locked_waits = false;           // a locked adapter waits for room: nobody joins, but those who run go on
    bool loads_wait = false;             // more are wanted than may be under way
    bool loads_pause = false;            // between S-LoRA's prefetches: no load begins beside decodes
    bool awaits_load = false;            // with ColdStart::kHold: who would begin now but for its adapter
    const Request* blocked = nullptr;    // ended the scan of those who wait: nobody behind it gets anything
    struct Runner {
      Request* request = nullptr;
      Rank rank;
      double service = 0;           // of its tenant
      std::int32_t uncomputed = 0;  // tokens
      std::int32_t next_pages = 0;  // that one more token needs
      bool paused = false;
    };
    std::vector<Runner> runners;  // the running requests but the preempted, highest rank first
    std::vector<Runner> merge_buffer;
    std::int64_t decode_pages = 0;  // next_pages of all runners
    struct Pausable {
      double service = 0;
      RequestId id;
      std::size_t runner = 0;  // index
    };
    struct PausesBefore {
      bool operator()(const Pausable& a, const Pausable& b) const {
        return (a.service > b.service) | ((a.service == b.service) & (a.id > b.id));
      }
    };
    Heap<Pausable, PausesBefore> pausable;  // of one level
    std::size_t lower_levels = 0;           // this many runners are of lower levels than those
    std::vector<Runner> prefills;
    std::array<double, kMaxLanes> lane_use = {};  // tokens of running requests, and of those that this plan lets in
    struct End {
      double time = 0;
      const Request* request = nullptr;
    };
    struct EndsBefore {
      bool operator()(const End& a, const End& b) const { return a.time < b.time; }
    };
    Heap<End, EndsBefore> ends;           // of running requests
    double decode_seconds = 0;            // a step of all runners that only decode, by the costs
    double time_until_room = 0;           // for the one that memory has no room for; as RunTimeOf
    Rank first_waiter;                    // the highest rank among those within lookahead
    Rank first_overdue;                   // among those beyond the age bound whose adapter is on the device
    std::vector<std::int32_t> slot_pins;  // by residency slot
    std::vector<std::uint8_t> flags;      // by residency slot: kEvicted | kWanted | kHostEvicted | kLoadPlanned
    bool candidates_ready = false;
    struct Candidate {
      double score;
      AdapterGeneration adapter;
    };
    std::vector<Candidate> candidates;  // a heap, lowest score on top
    struct Residents {
      std::uint64_t plan = 0;
      std::int32_t count = 0;
    };
    // by shared branch: adapters on the device with that content, if of this plan
    std::vector<Residents> residents;
    std::uint64_t plan = 0;               // its number
    std::int64_t evictable_adapters = 0;  // pages of those on the device that may go now: all of them, and those that
    std::int64_t unwanted_adapters = 0;   // no request ahead wants
  };

  // scheduler_plan.cc
  void MakePlan(TimeNs now, bool may_pause);
  void ResetScratch(TimeNs now);
  void LookAtArrivals(TimeNs now);
  void RankRunning();
  Rank RankOf(RequestId id, double service) const;
  void MarkAdaptersOfWaitersAhead();
  void PlanSeats(bool for_waiters);
  void PauseBeyondSeats();
  bool PauseWorst(double service);
  void NextPausable();
  void PlanIdleSeats(TimeNs now);
  void PlanDecodes(TimeNs now);
  void SpreadPrompts();
  std::optional<std::int64_t> PromptsBoundByMemory() const;
  void PlanPrompts(TimeNs now);
  enum class Admission { kAdmitted, kPassedOver, kBlocked };
  // scheduler_cold.cc
  bool Stalled() const;
  Admission BeyondDistinct(const Request& request) const;
  Admission PlanStall(Request* request, TimeNs now);
  void PlanPrefetches(TimeNs now);
  void LoadBeforeStep();

  Admission TryAdmit(Request* request, TimeNs now);
  Admission TryFetch(Request* request, TimeNs now);
  void AddFetch(Request* request, NodeId tail, std::int64_t pages, bool ahead);
  bool IsLoading(const Request& request) const;  // and not usable yet
  bool IsFetching(const Request& request) const;
  bool IsUsable(NodeId node) const {  // on the device, or arriving in time
    if (tree_->OnDevice(node)) return true;
    if (!scratch_.usable_fetches || !tree_->Moving(node)) return false;
    const KvTiers::Fetching* fetch = tiers_->FetchOf(node);
    return fetch != nullptr && fetch->usable;
  }
  bool MustLoad(const Request& request) const {  // its adapter, and nobody began to
    return request.adapter != kBaseModel && residency_->Get(request.adapter).device == TierState::kAbsent;
  }
  bool ExceedsDistinctAdapters(const Request& request) const;
  bool BreaksWholePrompts(std::int64_t prompt) const {
    const std::int64_t limit = options_.whole_prompt_tokens;
    return limit > 0 && plan_.prefill_tokens > 0 && plan_.prefill_tokens + prompt > limit;
  }
  void AddChunk(Request* request, std::int64_t tokens, std::int64_t new_pages);
  void AddAdmission(const PlannedAdmission& admission, std::int64_t new_pages);
  bool TakePages(PlannedAdmission& admission, std::int64_t pages, TimeNs now);
  DependencyTree::InPage FindInPage(const Request& request, NodeId tail) const;
  NodeId FindTail(Request& request) const;
  NodeId DeviceTail(NodeId tail) const;
  NodeId PlannedTail(Request& request) const {  // of what this plan does not evict
    return tree_ == nullptr ? NodeId{} : kv_plan_.Kept(DeviceTail(FindTail(request)));
  }
  std::int64_t Depth(NodeId tail) const { return tree_ == nullptr ? 0 : tree_->Depth(tail); }
  std::int64_t ChunkTokens(std::int64_t uncomputed) const {
    return std::min({uncomputed, options_.prefill_chunk, scratch_.budget});
  }
  std::int64_t Seats() const { return std::min(options_.max_running, options_.max_batch_tokens); }

  // scheduler_phases.cc
  void AwaitLoad() {  // somebody begins with the next step who does not have its adapter yet
    const bool could_begin = scratch_.free_seats > 0 && scratch_.budget > 0 && scratch_.blocked == nullptr;
    scratch_.awaits_load |= could_begin && options_.cold_start == ColdStart::kHold;
  }
  bool LoadsHoldStep() const;
  void GiveTurnToDecodes();
  void SeparatePhases();
  void HoldForLoads();
  void NotePhase();
  // scheduler_order.cc
  void OrderWaiting(TimeNs now);
  void PutResidentsFirst(std::size_t limit, TimeNs now);
  void FindOverdue(TimeNs now);
  Request* OverdueTurn() const;
  bool IsOverdue(const Request& request) const {
    return std::binary_search(overdue_.begin(), overdue_.end(), &request,
                              [](const Request* a, const Request* b) { return a->id < b->id; });
  }
  void EnterQueue(Request* request);
  LengthQuery QueryOf(const Request& request) const;
  void ObserveEnd(const Request& request, TimeNs now);
  void CountPrediction(const Request& request, std::int32_t output_tokens);
  void RefitLanes(TimeNs now);
  void PlanLanes(TimeNs now);
  std::size_t PutBatch(std::size_t lane, std::size_t first, double& tokens, TimeNs now);
  bool HasQuota(const Request& request) const;
  double RunTimeOf(const Request& request) const;
  double DecodeSeconds() const;
  void EstimateTimeUntilRoom(const Request& request);
  bool MayOvertake(const Request& request) const;
  void PlanSquashes(TimeNs now);
  // scheduler_ahead.cc
  void PlanFetchesAhead(TimeNs now);
  bool CouldFetchAhead(const Request& request) const;
  bool TryFetchAhead(Request* request, TimeNs now);
  std::int64_t MakeRoomAhead(std::int64_t pages, TimeNs now);
  bool PlanLoadFor(std::span<Request* const> waiting, TimeNs now);
  std::int64_t NextPlanNeeds(std::span<Request* const> waiting) const;
  bool IsExpected(const AdapterResidency& adapter, TimeNs now) const;
  void EndIdle(const Request& request);
  void BeginIdle(const Request& request, TimeNs now);
  void LoadExpected(TimeNs now);
  std::optional<AdapterGeneration> NextExpected(TimeNs now);
  bool PlanExpectedLoad(const AdapterResidency& adapter, TimeNs now);
  bool EndPrefetch(AdapterGeneration generation);

  // scheduler_memory.cc
  void PlanReclaim(TimeNs now);
  Request* NextToServe() const;
  bool FreePagesFor(std::size_t index, std::int64_t pages, TimeNs now);
  void PlanPreemption(TimeNs now) { PlanPreemptionOf(scratch_.runners.size() - 1, now); }  // of the lowest in rank
  void PlanPreemptionOf(std::size_t runner, TimeNs now);
  bool MakeRoom(PageCategory use, std::int64_t pages, TimeNs now);
  bool EvictOne(PageCategory use, TimeNs now, bool even_wanted);
  void RankIdleAdapters(TimeNs now);
  void PushCandidate(AdapterGeneration generation, TimeNs now);
  double ScoreOf(const AdapterResidency& adapter, TimeNs now);
  bool FindIdleAdapter(bool even_wanted);
  void EvictAdapter(TimeNs now);
  void EvictHistory(const KvEvictionPlan::Victim& victim, TimeNs now);
  void KeepReserve(TimeNs now);
  bool CarriesHistory(AdapterGeneration generation);
  std::int64_t PagesFreedBy(const Request& request) const;
  void PlanLockedLoads(TimeNs now);
  Admission TryLoad(AdapterGeneration generation, TimeNs now);
  TimeNs HostWorthOf(const AdapterResidency& adapter) const;
  void AddLoad(const AdapterResidency& adapter);
  bool PlanHostRoom(const AdapterResidency& adapter);
  std::int64_t PagesToStart(const Request& request) const;
  std::int64_t PagesOfIdleAdapter(const Request& request) const;
  std::int64_t GrowthReserve() const;
  std::int64_t NewcomersReserve() const;
  std::int64_t EvictablePages(PageCategory use, bool even_wanted) const;
  bool Partitioned() const { return adapter_pages_ > 0; }
  // Pages that are left for this use.
  std::int64_t& Free(PageCategory use) {
    return Partitioned() && use == PageCategory::kAdapter ? scratch_.free_adapters : scratch_.free_device;
  }
  // No division where nothing is missing, as for most tokens.
  std::int64_t MissingPages(const Request& request, std::int64_t positions) const {
    const std::int64_t missing = positions - static_cast<std::int64_t>(request.pages.size()) * options_.page_tokens;
    return missing <= 0 ? 0 : (missing + options_.page_tokens - 1) / options_.page_tokens;
  }
  bool Evictable(const AdapterResidency& adapter) const;
  bool Evictable(AdapterGeneration generation) const { return Evictable(residency_->Get(generation)); }
  std::int64_t EvictablePagesOf(const AdapterResidency& adapter) const {  // most that are asked for are in use
    return adapter.device == TierState::kResident && Evictable(adapter) ? adapter.pages : 0;
  }
  void CountEvictable(AdapterGeneration generation, std::int64_t sign);
  // The accounts follow each adapter: to walk over all of them for a sum would be most of a plan.
  void WantInPlan(AdapterGeneration generation) {  // for each that waits; of most the adapter is wanted already
    std::uint8_t& flags = Flags(generation);
    if ((flags & kWanted) != 0) return;
    scratch_.unwanted_adapters -= EvictablePagesOf(residency_->Get(generation));
    flags |= kWanted;
  }
  void EvictInPlan(AdapterGeneration generation);
  void PinInPlan(AdapterGeneration generation);
  void UnpinInPlan(AdapterGeneration generation);
  std::int32_t& ResidentsOf(BranchId branch);
  // kWanted and kEvicted are set by WantInPlan and EvictInPlan alone.
  std::uint8_t& Flags(AdapterGeneration generation) { return scratch_.flags[residency_->SlotOf(generation)]; }
  std::uint8_t Flags(AdapterGeneration generation) const { return scratch_.flags[residency_->SlotOf(generation)]; }
  std::int32_t Pins(AdapterGeneration generation) const { return scratch_.slot_pins[residency_->SlotOf(generation)]; }

  // scheduler_usage.cc
  void RecordUse(TimeNs now);
  void MeasureStep(TimeNs now);
  void RefreshContext(TimeNs now);
  void PlanIdleEvictions(TimeNs now);

  // scheduler_swap.cc
  bool Swap(TimeNs now, bool ending);
  bool SwapOut(TimeNs now);
  bool SwapOutOne(TimeNs now);
  bool SwapIn(TimeNs now, bool ending);
  void OfferAdapters(TimeNs now);
  ProactiveSwapper::Room RoomToSwapIn() const;
  void MarkUsableBranches();
  std::int64_t UsedPages() const { return device_->capacity_pages() - device_->free_pages(); }

  // scheduler.cc
  void StartLoads(TimeNs now);
  void CommitHistoryEvictions();
  void CommitEvictions();
  void Pin(AdapterGeneration generation, TimeNs now);
  void BeginFrom(const PlannedAdmission& admission, TimeNs now);
  void EndCopy(Request* request, TimeNs now);
  void CountPrefix(const Request& request, std::int64_t sign);
  void CancelFetchFor(const Request& request);
  void InsertFilledPages(Request* request, TimeNs now);
  void KnowBranch(Request* request);
  void ForgetBranch(const AdapterResidency& adapter);
  bool HasBranch(std::size_t slot) const { return slot < branch_of_slot_.size() && branch_of_slot_[slot].has_value(); }
  void ReleaseMemory(Request* request, TimeNs now);
  void Preempt(Request* request, TimeNs now);
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
  const std::int64_t adapter_pages_;  // of the device, for adapters alone; 0: one pool
  UsageMonitor usage_;
  ProactiveSwapper swapper_;
  std::vector<NodeId> running_tails_;  // of Prepare
  SwapStats swap_stats_;
  bool somebody_waits_for_room_ = false;  // as the last plan saw it: nothing comes that nobody asked for
  bool loads_wait_ = false;               // as the last plan saw it
  std::optional<RequestId> newest_;       // that came
  std::optional<RequestId> newest_seen_;  // of those whose load a plan, or LoadForNewcomer, has looked at
  TimeNs swapped_in_at_ = -ProactiveSwapper::kInterval;  // the observation upon which it was last tried
  std::vector<bool> usable_branches_;                    // of SwapIn
  AdapterArrivalHistogram arrivals_;                     // used where adapters are prefetched
  std::vector<AdapterGeneration> prefetched_;            // by residency slot: not used since; kBaseModel: none
  AdapterPrefetchStats prefetch_stats_;
  TimeNs prefetch_lead_ = 0;        // before an adapter is expected its load begins: what a load takes
  TimeNs prefetch_not_before_ = 0;  // there was no room
  ReloadCostEstimator reload_costs_;
  struct StepUnderWay {
    TimeNs began = -1;  // -1: none, or it is measured already
    std::int64_t tokens = 0, prefill_tokens = 0;
  } step_;
  EvictionContext context_;
  std::vector<bool> branch_counted_;  // of CountInvalidHistory
  BranchId base_branch_;
  std::vector<std::optional<BranchId>> branch_of_slot_;      // by residency slot, since a request used the adapter
  std::vector<std::vector<std::uint32_t>> slots_of_branch_;  // the other way round
  PrefixStats prefix_stats_;
  std::int64_t history_evictions_ = 0, evicted_adapter_pages_ = 0;
  Turnover turnover_;
  std::vector<Request*> running_;  // ascending id
  // the same, nearly in order of rank: as the last plan saw it, newcomers at the end
  std::vector<Request*> by_rank_;
  std::vector<std::int32_t> pins_;    // by residency slot: running requests that use the adapter
  std::int64_t pinned_adapters_ = 0;  // slots of which any do
  std::vector<Request*> waiting_;     // ascending id, from waiting_head_ on
  std::size_t waiting_head_ = 0;
  TenantCounters tenants_;
  std::unique_ptr<QueueOrder> own_queue_;  // where none was given
  QueueOrder* queue_;
  LengthPredictor* predictor_;
  PredictionStats prediction_stats_;
  ServiceOrder order_;  // of the waiting requests, for the plan: of all lanes one after the other
  std::vector<Turn> later_turns_, last_turns_;
  std::vector<std::size_t> lane_begins_;  // in order_.turns, and its end
  // wait for longer than the age bound, the oldest first: before everybody else
  std::vector<Request*> overdue_;
  std::array<double, kMaxLanes> lane_use_ = {};  // tokens in use by the lane's running requests
  std::int64_t overtakers_ = 0;                  // running requests that overtook another one
  std::int64_t squashes_ = 0, given_up_ = 0;
  std::int64_t preemptions_ = 0, early_admissions_ = 0, cold_starts_ = 0, loads_on_arrival_ = 0;
  std::vector<AdapterGeneration> stalls_;  // that steps wait for, as long as they are loading
  bool stalled_since_step_ = false;        // steps have waited, and none has computed since
  TimeNs adapter_wait_total_ = 0;
  StepFloor step_floor_;
  double discardable_ = 0;  // computed tokens that may be thrown away to let others in
  // scheduler_phases.cc: steps that those who decode are owed; the next step is held.
  std::int64_t decodes_due_ = 0;
  bool held_for_loads_ = false;
  StepPlan plan_;
  Scratch scratch_;
  std::vector<PlannedChunk> chunk_buffer_;
};

}  // namespace loramux
