// The memory of requests: their pages, their place in the dependency tree, and their use of adapters.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memory/page_pool.h"
#include "prefix/dependency_tree.h"
#include "residency/adapter_branches.h"
#include "residency/adapter_residency.h"
#include "residency/kv_tiers.h"
#include "schedule/plan/step_plan.h"
#include "schedule/request.h"
#include "schedule/snapshot_interval.h"
#include "schedule/system_spec.h"

namespace loramux {

// Prefix cache hits of prompts, at their first admission.
struct PrefixStats {
  std::int64_t looked_up_tokens = 0, found_tokens = 0;
  std::int64_t from_host_tokens = 0;   // found tokens that were fetched from the host tier first
  std::int64_t copied_pages = 0;       // pages copied for their first tokens, over all admissions
  std::int64_t snapshots = 0;          // snapshots of states that were taken
  std::int64_t dropped_snapshots = 0;  // those dropped when the next one of their answer was taken
  std::int64_t snapshot_interval = 0;  // SnapshotInterval::tokens
};

// Carries out what plans decide about the pages of requests. Owns none of its arguments, and no requests.
class RequestPages {
 public:
  RequestPages(const SystemSpec& options, PagePool& device, ResidencyManager& residency, DependencyTree& tree,
               KvTiers& tiers);

  // A new request begins to wait: finds its place in the tree.
  void Enter(Request* request);
  // An admitted request takes the pages that it begins with, and uses its adapter. Returns true if it begins while its
  // adapter or its history is still arriving.
  bool Admit(const PlannedAdmission& admission, TimeNs now);
  // Takes the snapshot that the chunk has before it, and allocates the chunk's new pages. REQUIRES: they are free, and
  // those of a snapshot's copy.
  void Allocate(const PlannedChunk& chunk, TimeNs now);
  // Starts a fetch for the waiting request, of history that it would begin with.
  void Fetch(const Move& fetch, Request& request, TimeNs now);
  // After a step that computed tokens of the request: ends the use of the page that was copied for it, and hands the
  // pages that it has filled to the tree. With states, it hands them over with the next snapshot.
  void Fill(Request* request, TimeNs now);
  // Ends the use of the pages that were copied for the request. REQUIRES: no step that copies it is in flight.
  void EndCopy(Request* request, TimeNs now);
  // A running request was preempted: frees its pages and ends the use of its adapter.
  void Return(Request* request, TimeNs now);
  // A running (waiting) request leaves. `waiting`: those that still wait. A fetch for the request goes on if one of
  // them would begin in the same place, because it may wait for the same history.
  void LeaveRunning(Request* request, TimeNs now);
  void LeaveWaiting(Request* request, std::span<Request* const> waiting);
  // A waiting request goes on with another adapter: it would begin in another place. `waiting`: as in LeaveWaiting.
  void ChangeAdapter(Request* request, AdapterGeneration adapter, std::span<Request* const> waiting);

  // True if the fetch of keys and values that the running request uses has failed.
  bool BeganOnFailedFetch(const Request& request) const;
  // Undoes the admission of a request that began on a failed fetch, also in the statistics if it was its first.
  void UndoAdmission(Request* request);

  // Forgets an adapter that is dropped. `clear`: as AdapterBranches::Forget.
  void ForgetAdapter(const AdapterResidency& adapter, bool clear) { branches_.Forget(adapter, clear); }
  void LoadFailed(const AdapterResidency& adapter, bool clear) { branches_.LoadFailed(adapter, clear); }

  // AdapterBranches::UnusablePages.
  std::int64_t UnusablePages() { return branches_.UnusablePages(); }

  const AdapterBranches& branches() const { return branches_; }
  const PrefixStats& prefix_stats() const { return prefix_stats_; }
  const SnapshotInterval& snapshot_interval() const { return interval_; }

  // Aborts if pages, users and tree do not belong to these requests.
  void CheckIntegrity(std::span<Request* const> running, std::span<Request* const> waiting) const;

 private:
  // Hands the pages that the request has filled to the tree.
  void HandOver(Request* request, TimeNs now);
  // The request's states, and the pages before them, become the tree's; it goes on with a copy of them.
  void TakeSnapshot(Request* request, TimeNs now);
  // The pages of a snapshot that an answer has passed become free, as far as no other request has come to use them.
  void DropSnapshot(NodeId last);
  // Gives an admitted request the pages that it begins with.
  void BeginFrom(const PlannedAdmission& admission, TimeNs now);
  // Frees the pages of the request and ends the use of its adapter.
  void Release(Request* request, TimeNs now);
  // Adds (sign 1) or subtracts (-1) the prefix of the request in prefix_stats_.
  void CountPrefix(const Request& request, std::int64_t sign);
  // Aborts if the pages of a running request are inconsistent. Returns those that it owns itself.
  std::int64_t CheckPages(const Request& request) const;
  void CheckUsers(std::span<Request* const> running) const;

  const std::int64_t page_tokens_, state_pages_;
  PagePool& device_;
  ResidencyManager& residency_;
  DependencyTree& tree_;
  KvTiers& tiers_;
  AdapterBranches branches_;
  PrefixStats prefix_stats_;
  SnapshotInterval interval_;
};

}  // namespace loramux
