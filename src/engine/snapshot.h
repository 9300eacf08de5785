// What the engine reports about itself to /health, metrics and tests.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "adapter/registry.h"
#include "base/clock.h"
#include "memory/page_pool.h"
#include "residency/adapter_residency.h"
#include "schedule/scheduler.h"

namespace loramux {

// Requests on adapters that were loaded anew (Engine::Retarget).
struct RetargetedRequests {
  std::int64_t moved = 0;    // went on with the new version
  std::int64_t aborted = 0;  // ended, as was asked for
  std::int64_t failed = 0;   // could not go on
};

// Counters, cheap to copy; updated at the end of each step. Totals count since the engine's start.
struct EngineStats : SchedulerStats {
  std::int64_t running = 0, waiting = 0;
  std::int64_t held = 0;  // requests that Engine::SetHold keeps from the queue
  std::int64_t steps = 0, tokens_generated = 0, tokens_prefilled = 0, finished = 0;
  // Speculation: drafts that steps verified, their tokens, and those of them that turned out right.
  std::int64_t drafts = 0, drafted_tokens = 0, accepted_tokens = 0;
  RetargetedRequests retargeted;
  std::int64_t replayed_steps = 0;  // steps among them that a device repeated from a recording
  double profile_step_seconds = 0;  // ShortestStepSeconds of the profile that plans use; 0: no profile
  KvTierStats kv_tiers;
  TimeNs step_wait_total = 0;      // time that steps waited for layers that were still arriving
  std::int64_t history_pages = 0;  // device KV pages that no running request uses
  // history pages without their adapter on the device; nonzero in some regimes only
  std::int64_t invalid_history_pages = 0;
  std::int64_t idle_adapter_pages =
      0;                         // device pages of adapters that no running request uses, and that may be evicted
  std::int64_t max_running = 0;  // requests in a batch at most (SystemSpec::Seats)
  PoolStats device, host;
  AdapterStats adapters;
  ReloadCostEstimator reload_costs;
};

// A snapshot's copy of an adapter version's data, so that the last snapshot does not keep an unloaded adapter's file
// open.
struct VersionSummary {
  VersionSummary() = default;
  explicit VersionSummary(const AdapterVersion& version)
      : generation(version.generation),
        name(version.name),
        pages(version.layout.pages),
        max_rank(version.layout.max_rank) {}

  AdapterGeneration generation;
  std::string name;
  std::int64_t pages = 0;
  std::int32_t max_rank = 0;
};

// One adapter that a request has asked for.
struct AdapterSnapshot {
  VersionSummary version;
  TierState device = TierState::kAbsent, host = TierState::kAbsent;
  bool pinned = false;       // to the device, by an operator
  std::int64_t running = 0;  // requests in the batch
  std::int64_t waiting = 0;  // requests in the queue
  TimeNs last_use = 0;
  std::int64_t loads = 0;     // to the device, successful
  std::int64_t uses = 0;      // requests that began to use it
  TimeNs last_load_time = 0;  // time of the last load to the device; 0: none yet
};

// The engine's state in detail. Its cost is proportional to adapters and queue length; made on request
// (Engine::Snapshot).
struct EngineSnapshot {
  TimeNs made_at = 0;
  EngineStats stats;
  std::int64_t page_tokens = 0;
  std::vector<AdapterSnapshot> adapters;   // by residency slot
  std::vector<std::int64_t> lane_waiting;  // requests in the queue, by lane
  std::int64_t max_batch_tokens = 0;       // SystemSpec::max_batch_tokens
  std::int64_t waiting_tokens = 0;         // tokens that the requests in the queue have to compute
  // Of the requests in the batch: prompt tokens that are not computed yet, and positions that are.
  std::int64_t running_prompt_tokens = 0, running_context = 0;
};

// Builds a snapshot. Engine thread only.
std::shared_ptr<const EngineSnapshot> MakeSnapshot(TimeNs now, const EngineStats& stats, std::int64_t page_tokens,
                                                   const ResidencyManager& residency, const Scheduler& scheduler);

// Where the engine thread hands over snapshots to other threads. Thread-safe.
class SnapshotExchange {
 public:
  // Whether a snapshot was requested and not delivered yet. Costs the engine's step one relaxed load.
  bool wanted() const { return wanted_.load(std::memory_order_relaxed); }
  // Stores the snapshot and wakes the waiting threads. Called by the engine thread.
  void Deliver(std::shared_ptr<const EngineSnapshot> snapshot);
  // Returns the last snapshot if it was made at `not_before` or later. Otherwise requests a new one, calls `wake`,
  // waits up to `patience` and returns the last one (null if there is none).
  template <typename Wake>
  std::shared_ptr<const EngineSnapshot> Ask(TimeNs not_before, std::chrono::milliseconds patience, Wake wake) {
    std::unique_lock lock(mutex_);
    const auto fresh = [&] { return last_ != nullptr && last_->made_at >= not_before; };
    if (fresh()) return last_;
    const auto old = last_;
    wanted_.store(true, std::memory_order_relaxed);
    wake();
    delivered_.wait_for(lock, patience, [&] { return last_ != old; });
    return last_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable delivered_;
  std::atomic<bool> wanted_{false};
  std::shared_ptr<const EngineSnapshot> last_;
};

}  // namespace loramux
