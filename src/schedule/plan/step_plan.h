// The plan of one engine step. StepPlanner decides it on a scratch copy of the capacities (Draft);
// Scheduler::Commit applies it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "prefix/dependency_tree.h"
#include "residency/moves.h"
#include "schedule/request.h"

namespace loramux {

// One request's part of the step's batch. Does not own the request.
struct PlannedChunk {
  Request* request = nullptr;
  std::int32_t num_tokens = 0;  // from position request->computed on
  std::int32_t new_pages = 0;   // pages to allocate before the step, beside those of a snapshot's copy
  std::int32_t drafted = 0;     // tokens of Request::draft that the step computes behind them
  bool admits = false;          // the request starts running with this step
  bool samples = false;         // the chunk computes the last known token, so a new token is sampled
  bool by_base = false;         // the request's adapter does not act on it (Request::base_tokens)
  // The states before the chunk become a snapshot. The step copies its pages to others, with which the request goes on.
  bool takes_snapshot = false;
  std::uint32_t sort_key = 0;  // scratch of SortByAdapter, which then reads each request only once

  // The request decodes: it has one token to compute, and began before this step.
  bool Decodes() const { return !admits && num_tokens == 1 && samples; }
};

// A waiting request that is admitted. It begins after the prefix of its tokens that the dependency tree has: the full
// pages up to `tail`, and the first `in_page.tokens` positions of the next page. That next page is copied whole from
// `in_page.node`, a child of `tail`, into the first page of the request's own, before the step computes. With states:
// `in_page.node` is the last page of the snapshot below `tail`, which is copied whole to the request's states.
struct PlannedAdmission {
  Request* request = nullptr;
  NodeId tail;  // without a tree: no node
  DependencyTree::InPage in_page;
  RequestId overtakes;  // the older request, without room in memory, that this one overtakes; 0: none

  bool copies() const { return in_page.node.generation != 0; }
};

// What a plan has seen, for the moves beside steps that follow it.
struct PlanOutlook {
  std::optional<RequestId> newest_seen;  // the last request that had arrived
  bool waits_for_room = false;           // a request or a kept adapter waits for room
  bool loads_wait = false;               // a load was put off by max_loads_in_flight
  bool awaits_load = false;              // with ColdStart::kHold: a request lacks only its adapter to start
};

// The decision for one step. Commit carries it out in this order: preemptions, what leaves a tier, loads with
// which requests begin, admissions, page allocations, fetches, other loads.
struct StepPlan {
  Moves moves;
  std::vector<Request*> preemptions;
  std::int64_t discarded_tokens = 0;  // computed tokens lost by preemptions in favour of a waiting request
  std::vector<PlannedAdmission> admissions;
  // Waiting requests that may be passed over because they cannot be on time (FirstTokens).
  std::vector<const Request*> deferred;
  // Waiting requests whose adapters find no room (PoolFull::kRefuse). They end.
  std::vector<Request*> exhausted;
  std::vector<PlannedChunk> chunks;  // those of one adapter are adjacent, the base model's come first
  // Adapters that must be on the device before the next step computes (ColdStart::kStall).
  std::vector<AdapterGeneration> stalls;
  std::int64_t num_tokens = 0;      // tokens of all chunks, without drafts
  std::int64_t prefill_tokens = 0;  // tokens of the chunks that have several tokens or do not sample
  std::vector<Request*> by_rank;    // the running requests, highest rank first, with the preempted ones
  // What the plan has seen. None: nothing was looked at, because the step waits for loads (StepRules::Waits).
  std::optional<PlanOutlook> outlook;

  // Empties the plan and keeps its memory.
  void Clear() {
    moves.clear();
    preemptions.clear();
    admissions.clear();
    deferred.clear();
    exhausted.clear();
    stalls.clear();
    by_rank.clear();
    discarded_tokens = 0;
    outlook.reset();
    DropComputation();
  }
  // Drops what the step would compute, with the admissions for it. Moves and preemptions stay.
  void DropComputation() {
    admissions.clear();
    chunks.clear();
    num_tokens = prefill_tokens = 0;
  }
  // True if the plan computes nothing and moves nothing.
  bool ChangesNothing() const { return preemptions.empty() && chunks.empty() && moves.empty() && exhausted.empty(); }
};

// Groups the chunks by adapter, so that each adapter is one segment of the batched LoRA product. The base model's
// chunks come first; the order within an adapter is kept. `buffer` is scratch memory with arbitrary content; the caller
// keeps it so that nothing is allocated.
void SortByAdapter(std::vector<PlannedChunk>& chunks, std::vector<PlannedChunk>& buffer);

}  // namespace loramux
