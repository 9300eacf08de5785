// Moves KV pages between the device tier and the host tier, off the engine thread.
//
// Backing up. Ahead of evictions (SwapOut::kAhead) nothing waits for a swap-out. Full pages never change, so pages that
// are likely to be evicted soon are copied to the host tier in advance. Evicting them then only frees the device page.
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

#include "base/clock.h"
#include "base/ids.h"
#include "memory/page_pool.h"
#include "prefix/dependency_tree.h"
#include "residency/moves.h"
#include "residency/transfer.h"

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

  // A job in flight, or a failed fetch whose pages running requests still use.
  struct Job {
    std::uint64_t id = 0;
    RequestId requester;
    bool ahead = false;                              // the requester had no seat when it began
    std::vector<DependencyTree::MovingPages> pages;  // pages of paths, each from the top down; empty: no job
    std::vector<std::size_t> ends;                   // end of each path in `pages`
    std::shared_ptr<LayerProgress> progress;         // null: a back-up
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
    for (const Job& fetch : fetches_) fetch.progress->Look();
  }

  // Fetches that requests wait for.
  std::int64_t fetches_in_flight() const { return static_cast<std::int64_t>(fetches_.size()); }
  // Whether a FetchAhead (back-up) job is in flight.
  bool fetching_ahead() const { return !ahead_.pages.empty(); }
  bool backing_up() const { return !back_up_.pages.empty(); }
  // Most pages of one job that no request waits for: a small part of the device, because a page in transfer cannot be
  // evicted. 0 without a host tier.
  std::int64_t max_pages_of_job() const { return max_pages_of_job_; }
  // Whether a fetch of this request is in flight.
  bool IsRequester(RequestId id) const;
  std::span<const Job> fetches() const { return fetches_; }
  // The fetch that brings `node`, or null. Valid until the next call that changes the fetches.
  const Job* FetchOf(NodeId node) const;
  // A running request begins to use the arriving pages up to `tail`, or ends its use because the fetch failed.
  // REQUIRES: FetchOf(tail) is not null.
  void Use(NodeId tail) { ++At(tail).users; }
  void EndUse(NodeId tail) { --At(tail).users; }
  // Whether there is a failed fetch whose pages running requests use.
  bool AnyFailed() const;
  // Frees the device pages of all failed fetches. REQUIRES: no request uses them any longer.
  void EndFailedFetches();
  // Whether no job is in flight.
  bool idle() const { return fetches_.empty() && !backing_up() && !fetching_ahead(); }
  const KvTierStats& stats() const { return stats_; }

 private:
  Job& At(NodeId node) { return const_cast<Job&>(*FetchOf(node)); }
  // Adds the path to `tail` to a job that fetches.
  void AddPath(NodeId tail, Job& job);
  // Starts the transfer of the job's pages.
  void Submit(Tier from, Tier to, Job& job);
  // The paths of the job are no longer in transfer.
  void EndMoves(const Job& job, bool failed);
  // Ends a job that no request waits for. Returns its number of pages; 0 if it failed.
  std::int64_t EndBeside(Job& job, bool failed);
  void EndFetch(Job& fetch, const TransferCompletion& completion, TimeNs now);

  DependencyTree& tree_;
  // Null: no host tier.
  PagePool* device_ = nullptr;
  PagePool* host_ = nullptr;
  PageTransfer* transfer_ = nullptr;
  const KvSlices slices_;
  const std::int64_t max_pages_of_job_ = 0;
  std::vector<Job> fetches_;   // those that requests wait for, in order of their start
  Job back_up_, ahead_;        // jobs of BackUp and of FetchAhead
  std::vector<NodeId> chain_;  // scratch of BackUp
  std::uint64_t next_id_ = kHistoryBit;
  KvTierStats stats_;
};

}  // namespace loramux
