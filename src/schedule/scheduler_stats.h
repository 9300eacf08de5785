// Counters of the scheduler since its start.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "schedule/predict/expected_adapters.h"
#include "schedule/predict/length_predictor.h"
#include "schedule/request_pages.h"

namespace loramux {

// Pages that moved without a request for them (proactive swapping).
struct SwapStats {
  std::int64_t history_out = 0, adapters_out = 0;  // left the device
  std::int64_t history_in = 0, adapters_in = 0;    // started to move from the host tier
};

// Requests that began, for the first time, before their adapter was on the device, with the copy in the host tier.
struct ColdBegins {
  std::int64_t whole = 0;       // the host tier had all of it
  std::int64_t while_read = 0;  // it was still being read from disk
};

// Positions that requests had computed when they were preempted, counted when they begin again.
struct ResumedTokens {
  std::int64_t found = 0;       // the cache had them, perhaps after a fetch
  std::int64_t recomputed = 0;  // they are computed again
};

struct SchedulerStats {
  std::int64_t preemptions = 0;       // includes squashes
  std::int64_t squashes = 0;          // preemptions of requests that had overtaken another
  ResumedTokens resumed;              // after any preemption
  ResumedTokens resumed_squashes;     // tokens after squashes alone
  std::int64_t given_up = 0;          // requests that the queue order gave up (ObjectiveOrder)
  std::int64_t early_admissions = 0;  // admissions while layers were arriving
  std::int64_t loads_on_arrival = 0;  // loads by LoadForNewcomer
  std::int64_t cold_starts = 0;       // loads that steps waited for; with kStall and kOverlap
  std::int64_t exhausted = 0;         // requests whose adapters found no room (PoolFull::kRefuse)
  ColdBegins cold_begins;
  double lanes_least_share = 0;  // QueueOrder::LeastShare
  // Total time from the arrival of requests until their adapter was on the device, even if they also waited for other
  // reasons.
  TimeNs adapter_wait_total = 0;
  std::int64_t history_evictions = 0, evicted_adapter_pages = 0;  // pages that left the device
  SwapStats swaps;
  PrefixStats prefix;
  AdapterPrefetchStats prefetches;
  PredictionStats predictions;
};

}  // namespace loramux
