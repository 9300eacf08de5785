// Moves keys and values between device and host tier, off the engine thread. Nothing ever waits for a swap-out: full pages
// never change, so what is likely to be evicted soon is copied to the host tier beforehand, and its eviction is then only
// a matter of freeing the device page. What a waiting request needs back is fetched, all of its path in one job, while
// others run (FastLibra 4.3, asynchronous swapping).
//
// Engine thread only. Reads no clock.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "adapter/transfer.h"
#include "base/clock.h"
#include "cache/dependency_tree.h"
#include "cache/kv_eviction_plan.h"
#include "memory/page_pool.h"

namespace loramux {

struct KvTierStats {
  std::int64_t pages_backed_up = 0, pages_fetched = 0, failed_jobs = 0;
  std::int64_t fetches = 0;         // that a request with a seat waited for
  std::int64_t fetches_ahead = 0;   // for requests without one
  TimeNs fetch_time_total = 0;      // from the decision to the last page's arrival, over `fetches`
  std::int64_t pages_fetched_ahead = 0;   // for nobody in particular, in none of the above
};

class KvTiers {
 public:
  static constexpr std::int64_t kMaxFetches = 4;          // jobs at a time
  static constexpr std::int64_t kMaxFetchesAhead = 2;     // of those; the others are left to requests that have a seat
  static constexpr std::int64_t kMaxPagesOfJob = 64;      // backed up, or fetched for nobody; of either there is one job at a time

  // Owns none of it. The transfer is for keys and values alone: its completions are polled here.
  KvTiers(DependencyTree* tree, PagePool* device, PagePool* host, AdapterTransfer* transfer)
      : tree_(tree), device_(device), host_(host), transfer_(transfer) {}

  // Begins to bring the path to `tail` to the device; `ahead`: the request has no seat yet. REQUIRES: DependencyTree::BeginFetch's.
  void Fetch(NodeId tail, TimeNs now, bool ahead = false);
  // The same for several paths that have no node of the host part in common, in one job that no request waits for.
  // REQUIRES: !fetching_ahead().
  void FetchAhead(std::span<const NodeId> tails, TimeNs now);
  // When the device is filling up: copies idle pages that go next to the host tier, which gives up older ones for them.
  void BackUp(const KvEvictionPlan& plan);
  // Collects finished jobs. True if any was.
  bool Poll(TimeNs now);

  std::int64_t fetches_in_flight() const { return fetches_in_flight_; }   // that requests wait for
  bool fetching_ahead() const { return fetching_ahead_; }
  bool backing_up() const { return backing_up_; }
  // In one job that no request waits for. A small part of the device: what is being copied cannot be evicted.
  std::int64_t MaxPagesOfJob() const;
  bool idle() const { return jobs_.empty(); }
  const KvTierStats& stats() const { return stats_; }

 private:
  struct Job {
    std::uint64_t id = 0;
    bool fetch = false;
    bool ahead = false;                  // for a request that has no seat
    bool for_nobody = false;
    TimeNs begun = 0;
    std::vector<std::size_t> ends;       // of a fetch: behind each path's pages
    std::vector<DependencyTree::MovingPages> pages;
  };
  void Submit(Job job);
  void EndFetches(const Job& job, bool failed, TimeNs now);
  bool MakeHostRoom(TimeNs last_use);

  DependencyTree* tree_;
  PagePool* device_;
  PagePool* host_;
  AdapterTransfer* transfer_;
  std::vector<Job> jobs_;                // in flight
  std::vector<NodeId> chain_, soon_;
  std::int64_t fetches_in_flight_ = 0;
  bool backing_up_ = false, fetching_ahead_ = false;
  std::uint64_t next_id_ = 0;
  KvTierStats stats_;
};

}  // namespace loramux
