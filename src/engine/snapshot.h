// What the engine tells about itself: to /health, metrics and tests.
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
#include "adapter/residency.h"
#include "base/clock.h"
#include "memory/page_pool.h"
#include "schedule/scheduler.h"

namespace loramux {

// Cheap; made at the end of each step.
struct EngineStats {
  std::int64_t running = 0, waiting = 0;
  std::int64_t steps = 0, tokens_generated = 0, tokens_prefilled = 0, preemptions = 0, finished = 0;
  std::int64_t squashes = 0;  // of those preemptions, of requests that had overtaken another one
  std::int64_t given_up = 0;  // requests that others' objectives went before
  PredictionStats predictions;
  double profile_step_seconds = 0;  // by the profile that plans go by: ShortestStepSeconds; 0: there is none
  PrefixStats prefix;
  TimeNs adapter_wait_total = 0;  // Scheduler::adapter_wait_total
  KvTierStats kv_tiers;
  SwapStats swaps;
  // of requests that began while layers of their adapter or history were arriving
  std::int64_t early_admissions = 0;
  std::int64_t loads_on_arrival = 0;       // of adapters, beside a step (SchedulerOptions::load_on_arrival)
  std::int64_t cold_starts = 0;            // Scheduler::cold_starts
  TimeNs step_wait_total = 0;              // that steps waited for such layers
  std::int64_t history_pages = 0;          // of keys and values on the device that no running request uses
  std::int64_t invalid_history_pages = 0;  // of those, whose adapter is not on the device: only in some regimes
  std::int64_t history_evictions = 0;      // pages
  PoolStats device, host;
  AdapterStats adapters;
  AdapterPrefetchStats prefetches;
  ReloadCostEstimator reload_costs;
};

// What a snapshot says of an adapter's version: a copy, so that the last snapshot keeps no unloaded adapter's file
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
  bool pinned = false;       // by an operator, to the device
  std::int64_t running = 0;  // requests in the batch
  std::int64_t waiting = 0;  // requests in the queue
  TimeNs last_use = 0;
};

// Costs time in proportion to adapters and queue; made when somebody asks (Engine::Snapshot).
struct EngineSnapshot {
  TimeNs made_at = 0;
  EngineStats stats;
  std::int64_t page_tokens = 0;
  std::vector<AdapterSnapshot> adapters;   // by residency slot
  std::vector<std::int64_t> lane_waiting;  // requests in the queue, by its lanes
};

std::shared_ptr<const EngineSnapshot> MakeSnapshot(TimeNs now, const EngineStats& stats, std::int64_t page_tokens,
                                                   const ResidencyManager& residency, const Scheduler& scheduler);

// Where the engine's thread leaves a snapshot for those who ask. Thread-safe.
class SnapshotExchange {
 public:
  // Asked for, and not delivered yet. Costs the engine's step one relaxed load.
  bool wanted() const { return wanted_.load(std::memory_order_relaxed); }
  void Deliver(std::shared_ptr<const EngineSnapshot> snapshot);
  // The last one if it was made at `not_before` or later; otherwise asks for a new one, calls `wake`, and waits.
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
