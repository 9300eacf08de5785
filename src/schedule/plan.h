// What one engine step will do: decided on a scratch copy of the capacities, then carried out by Scheduler::Commit.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "schedule/request.h"

namespace loramux {

// One request's part of the step's batch.
struct PlannedChunk {
  Request* request = nullptr;
  std::int32_t num_tokens = 0;  // from request->computed on
  std::int32_t new_pages = 0;   // to allocate before the step
  bool admits = false;          // the request joins the running ones with this step
  bool samples = false;         // its last known token is computed: a new token follows
  std::uint32_t sort_key = 0;   // of SortByAdapter alone, which looks at the request once
};

// A waiting request that joins: it begins behind what the dependency tree has of its tokens. Those are full pages up to
// `tail`; the first `in_page.tokens` positions of the next page are copied, with the whole page, from `in_page.node`, a
// child of `tail`, into the first of the request's own pages before the step computes.
struct PlannedAdmission {
  Request* request = nullptr;
  NodeId tail;  // without a tree: no node
  DependencyTree::InPage in_page;
  RequestId overtakes;  // an older one that memory has no room for; 0: none
};

// Keys and values that a waiting request would begin with come back from the host tier.
struct PlannedFetch {
  Request* request = nullptr;
  NodeId tail;
  bool ahead = false;  // it has no seat yet
  std::int64_t pages = 0;
};

struct PlannedLoad {
  AdapterGeneration adapter;
  bool via_host = false;
};

// Carried out in this order: preemptions, evictions (keys and values before adapters), admissions, page allocations,
// fetches, loads.
struct StepPlan {
  std::vector<Request*> preemptions;
  std::int64_t discarded_tokens = 0;  // computed by those of them that gave way to a waiting request
  std::vector<NodeId> kv_evictions;   // leaves first
  std::vector<AdapterGeneration> device_evictions;
  std::vector<AdapterGeneration> host_evictions;
  std::vector<PlannedAdmission> admissions;
  std::vector<PlannedChunk> chunks;  // requests of one adapter adjacent, base model first
  std::vector<PlannedFetch> fetches;
  std::vector<PlannedLoad> loads;
  // nothing is computed until these are on the device (ColdStart::kStall)
  std::vector<AdapterGeneration> stalls;
  std::int64_t num_tokens = 0;      // of all chunks
  std::int64_t prefill_tokens = 0;  // of those, in chunks of more than one token or without a sample

  void Clear() {
    preemptions.clear();
    kv_evictions.clear();
    device_evictions.clear();
    host_evictions.clear();
    admissions.clear();
    chunks.clear();
    fetches.clear();
    loads.clear();
    stalls.clear();
    num_tokens = prefill_tokens = discarded_tokens = 0;
  }
  bool ChangesNothing() const {
    return preemptions.empty() && chunks.empty() && loads.empty() && device_evictions.empty() && kv_evictions.empty() &&
           fetches.empty();
  }
};

// Requests of one adapter become one segment of the batched LoRA product; the base model's come first, and the order
// within an adapter stays. The buffer's contents do not matter; it is kept so that nothing is allocated.
void SortByAdapter(std::vector<PlannedChunk>& chunks, std::vector<PlannedChunk>& buffer);

}  // namespace loramux
