// Moves keys and values between device and host tier, off the engine thread. Nothing ever waits for a swap-out: full
// pages never change, so what is likely to be evicted soon is copied to the host tier beforehand, and its eviction is
// then only a matter of freeing the device page. What a waiting request needs back is fetched, all of its path in one
// job, while others run (FastLibra 4.3, asynchronous swapping). A fetch moves layer by layer over all its pages, so
// that a request may begin with the first layers while later ones arrive. A fetch that fails then keeps its pages until
// EndFailedFetches: the step in flight may still read them.
//
// Engine thread only. Reads no clock.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "adapter/transfer.h"
#include "base/clock.h"
#include "base/ids.h"
#include "cache/dependency_tree.h"
#include "cache/kv_eviction_plan.h"
#include "memory/page_pool.h"

namespace loramux {

struct KvTierStats {
  std::int64_t pages_backed_up = 0, pages_fetched = 0, failed_jobs = 0;
  std::int64_t fetches = 0;              // that a request with a seat waited for
  std::int64_t fetches_ahead = 0;        // for requests without one
  TimeNs fetch_time_total = 0;           // from the decision to the last page's arrival, over `fetches`
  std::int64_t pages_fetched_ahead = 0;  // for nobody in particular, in none of the above
  std::int64_t cancelled_fetches = 0;
};

// How a page of keys and values is divided into layers (tensor/kv_layout.h).
struct KvSlices {
  std::int32_t layers = 1;
  std::size_t layer_bytes = 0;  // 0: pages move whole
};

class KvTiers {
 public:
  static constexpr std::int64_t kMaxFetches = 4;  // jobs at a time
  // of those; the others are left to requests that have a seat
  static constexpr std::int64_t kMaxFetchesAhead = 2;
  // backed up, or fetched for nobody; of either there is one job at a time
  static constexpr std::int64_t kMaxPagesOfJob = 64;

  // Owns none of it. The transfer is for keys and values alone: its completions are polled here.
  KvTiers(DependencyTree* tree, PagePool* device, PagePool* host, AdapterTransfer* transfer, KvSlices slices = {})
      : tree_(tree), device_(device), host_(host), transfer_(transfer), slices_(slices) {}

  // A fetch in flight, or a failed one whose pages running requests hold.
  struct Fetching {
    std::uint64_t id = 0;
    RequestId requester;
    bool ahead = false;                              // the requester had no seat yet
    std::vector<DependencyTree::MovingPages> pages;  // of one path, from the top down
    std::shared_ptr<LayerProgress> progress;
    TimeNs begun = 0;
    std::int32_t users = 0;  // running requests that began before its end
    bool usable = false;     // as the plan that is being made decided
    bool failed = false;
  };

  // Begins to bring the path to `tail` to the device; `ahead`: the request has no seat yet. REQUIRES:
  // DependencyTree::BeginFetch's.
  void Fetch(NodeId tail, RequestId requester, TimeNs now, bool ahead = false);
  // The same for several paths that have no node of the host part in common, in one job that no request waits for; it
  // moves whole, and is used only at its end. REQUIRES: !fetching_ahead().
  void FetchAhead(std::span<const NodeId> tails);
  // Its requester is gone, and nobody else would use it: ends soon.
  void Cancel(RequestId requester);
  // When the device is filling up: copies idle pages that go next to the host tier, which gives up older ones for them.
  // Where there are few of these, what runs will be idle next, and gone before it could be copied then: so the paths to
  // the `running` requests' tails too.
  void BackUp(const KvEvictionPlan& plan, std::span<const NodeId> running);
  // Collects finished jobs, and looks at the progress of the others. True if any was finished.
  bool Poll(TimeNs now);

  // that requests wait for
  std::int64_t fetches_in_flight() const { return static_cast<std::int64_t>(fetches_.size()); }
  bool fetching_ahead() const { return !ahead_pages_.empty(); }
  bool backing_up() const { return !backing_up_.empty(); }
  // In one job that no request waits for. A small part of the device: what is being copied cannot be evicted.
  std::int64_t MaxPagesOfJob() const;
  bool IsRequester(RequestId id) const;
  // For the plan to look at, and to mark as usable.
  std::span<Fetching> fetches() { return fetches_; }
  // The fetch that brings the node, until the next call that changes anything; null if there is none.
  Fetching* FetchOf(NodeId node);
  // A running request uses what arrives, up to `tail`, or does so no longer because the fetch has failed. REQUIRES:
  // FetchOf.
  void Use(NodeId tail) { ++FetchOf(tail)->users; }
  void StopUse(NodeId tail) { --FetchOf(tail)->users; }
  // Some running request uses a fetch whose end is not known yet.
  bool AnyInUse() const;
  bool AnyFailed() const;  // whose pages running requests hold
  void EndFailedFetches();
  bool idle() const { return fetches_.empty() && backing_up_.empty() && ahead_pages_.empty(); }
  const KvTierStats& stats() const { return stats_; }

 private:
  void Submit(TransferKind kind, std::uint64_t id, const std::vector<DependencyTree::MovingPages>& pages,
              std::shared_ptr<LayerProgress> progress);
  void EndBackUp(bool failed);
  void EndFetch(Fetching& fetch, const TransferCompletion& completion, TimeNs now);
  void EndFetchAhead(bool failed);
  bool MakeHostRoom(std::int64_t pages, TimeNs worth);
  void BackUpPath(NodeId tail, std::size_t most);

  DependencyTree* tree_;
  PagePool* device_;
  PagePool* host_;
  AdapterTransfer* transfer_;
  const KvSlices slices_;
  std::vector<Fetching> fetches_;                         // in the order in which they began
  std::vector<DependencyTree::MovingPages> backing_up_;   // in one job; none: nothing is being copied
  std::vector<std::size_t> backing_up_ends_;              // in those, behind each path's
  std::vector<DependencyTree::MovingPages> ahead_pages_;  // fetched for nobody, in one job; none: nothing is
  std::vector<std::size_t> ahead_ends_;                   // in those, behind each path's
  std::uint64_t back_up_id_ = 0, ahead_id_ = 0;
  std::vector<NodeId> chain_, soon_;
  std::uint64_t next_id_ = 0;
  KvTierStats stats_;
};

}  // namespace loramux
