// Moves KV pages between the device tier and the host tier, off the engine thread.
//
// Backing up. Nothing ever waits for a swap-out. Full pages never change, so pages that are likely to be evicted soon
// are copied to the host tier in advance. Evicting them then only frees the device page.
//
// Fetching. The pages that a waiting request needs are fetched, its whole path in one job, while other requests run
// (FastLibra 4.3, asynchronous swapping). A fetch moves layer by layer across all its pages, so the request can begin
// with the first layers while later ones arrive. If such a fetch fails, it keeps its pages until EndFailedFetches,
// because the step in flight may still read them.
//
// Without a host tier nothing moves: no page is backed up, so there is none to fetch, and history stays on the device.
//
// A seat is a request's place in a step. Engine thread only. Reads no clock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "adapter/transfer.h"
#include "base/clock.h"
#include "base/ids.h"
#include "cache/dependency_tree.h"
#include "cache/moves.h"
#include "memory/page_pool.h"

namespace loramux {

// Counters since the start. Times are in nanoseconds.
struct KvTierStats {
  std::int64_t pages_backed_up = 0, pages_fetched = 0, failed_jobs = 0;
  std::int64_t fetches = 0;              // fetches that a request with a seat waited for
  std::int64_t fetches_ahead = 0;        // for requests without a seat
  TimeNs fetch_time_total = 0;           // from decision to arrival of the last page, summed over `fetches`
  std::int64_t pages_fetched_ahead = 0;  // by FetchAhead, for no particular request; not in the counts above
  std::int64_t cancelled_fetches = 0;
};

// How a page of keys and values is divided into layers (tensor/kv_layout.h).
struct KvSlices {
  std::int32_t layers = 1;
  std::size_t layer_bytes = 0;  // 0: pages move whole
};

// See the top of this file.
class KvTiers {
 public:
  static constexpr std::int64_t kMaxFetches = 4;  // at a time
  // Most of kMaxFetches for requests without a seat; the rest is reserved for requests with one.
  static constexpr std::int64_t kMaxFetchesAhead = 2;
  // Most pages of a back-up job or of a FetchAhead job. At most one job of each kind is in flight.
  static constexpr std::int64_t kMaxPagesOfJob = 64;

  // Owns none of the arguments.
  KvTiers(DependencyTree& tree, PagePool& device, PagePool& host, PageTransfer& transfer, KvSlices slices = {})
      : tree_(tree),
        device_(&device),
        host_(&host),
        transfer_(&transfer),
        slices_(slices),
        max_pages_of_job_(std::clamp<std::int64_t>(device.capacity_pages() / 32, 1, kMaxPagesOfJob)) {}
  // Without a host tier.
  explicit KvTiers(DependencyTree& tree) : tree_(tree) {}

  // A fetch in flight, or a failed fetch whose pages running requests still use.
  struct Fetching {
    std::uint64_t id = 0;
    RequestId requester;
    bool ahead = false;                              // the requester had no seat when it began
    std::vector<DependencyTree::MovingPages> pages;  // pages of one path, from the top down
    std::shared_ptr<LayerProgress> progress;
    TimeNs begun = 0;
    std::int32_t users = 0;  // running requests that began before the fetch ended
    bool failed = false;
  };

  // Starts to fetch the path to `tail`. `ahead`: the requester has no seat yet. REQUIRES: as
  // DependencyTree::BeginFetch.
  void Fetch(NodeId tail, RequestId requester, TimeNs now, bool ahead = false);
  // Fetches the paths among `moves` in one job that no request waits for. The job moves whole pages, and the pages are
  // usable only when it ends. REQUIRES: !fetching_ahead() if there are any; as DependencyTree::BeginFetch for each
  // path; the paths share no node of the host part.
  void FetchAhead(std::span<const Move> moves);
  // Cancels the fetches of `requester`, which is gone, unless another running request uses them.
  void Cancel(RequestId requester);
  // Copies the pages among `moves` that go to the host tier, in one job. REQUIRES: !backing_up(); a page stands after
  // its parent; as DependencyTree::BeginBackUp.
  void BackUp(std::span<const Move> moves);
  // A job has ended.
  void End(const TransferCompletion& done, TimeNs now);
  // Reads the progress of the fetches, once those that have ended are gone.
  void Look() {
    for (const Fetching& fetch : fetches_) fetch.progress->Look();
  }

  // Fetches that requests wait for.
  std::int64_t fetches_in_flight() const { return static_cast<std::int64_t>(fetches_.size()); }
  // Whether a FetchAhead (back-up) job is in flight.
  bool fetching_ahead() const { return !ahead_pages_.empty(); }
  bool backing_up() const { return !backing_up_.empty(); }
  // Most pages of one job that no request waits for: a small part of the device, because a page in transfer cannot be
  // evicted. 0 without a host tier.
  std::int64_t max_pages_of_job() const { return max_pages_of_job_; }
  // Whether a fetch of this request is in flight.
  bool IsRequester(RequestId id) const;
  std::span<const Fetching> fetches() const { return fetches_; }
  // The fetch that brings `node`, or null. Valid until the next call that changes the fetches.
  const Fetching* FetchOf(NodeId node) const;
  // A running request begins to use the arriving pages up to `tail`, or ends its use because the fetch failed.
  // REQUIRES: FetchOf(tail) is not null.
  void Use(NodeId tail) { ++At(tail).users; }
  void EndUse(NodeId tail) { --At(tail).users; }
  // Whether there is a failed fetch whose pages running requests use.
  bool AnyFailed() const;
  // Frees the device pages of all failed fetches. REQUIRES: no request uses them any longer.
  void EndFailedFetches();
  // Whether no job is in flight.
  bool idle() const { return fetches_.empty() && backing_up_.empty() && ahead_pages_.empty(); }
  const KvTierStats& stats() const { return stats_; }

 private:
  Fetching& At(NodeId node) { return const_cast<Fetching&>(*FetchOf(node)); }
  // Starts a transfer of these pages.
  void Submit(Tier from, Tier to, std::uint64_t id, const std::vector<DependencyTree::MovingPages>& pages,
              std::shared_ptr<LayerProgress> progress);
  // End the back-up job, one fetch, the FetchAhead job.
  void EndBackUp(bool failed);
  void EndFetch(Fetching& fetch, const TransferCompletion& completion, TimeNs now);
  void EndFetchAhead(bool failed);

  DependencyTree& tree_;
  // Null: no host tier.
  PagePool* device_ = nullptr;
  PagePool* host_ = nullptr;
  PageTransfer* transfer_ = nullptr;
  const KvSlices slices_;
  const std::int64_t max_pages_of_job_ = 0;
  std::vector<Fetching> fetches_;                         // in order of their start
  std::vector<DependencyTree::MovingPages> backing_up_;   // pages of the back-up job; empty: none in flight
  std::vector<std::size_t> backing_up_ends_;              // end of each path in backing_up_
  std::vector<DependencyTree::MovingPages> ahead_pages_;  // pages of the FetchAhead job; empty: none in flight
  std::vector<std::size_t> ahead_ends_;                   // end of each path in ahead_pages_
  std::uint64_t back_up_id_ = 0, ahead_id_ = 0;
  std::vector<NodeId> chain_;  // scratch of BackUp
  std::uint64_t next_id_ = kHistoryBit;
  KvTierStats stats_;
};

}  // namespace loramux
