// The memory as a plan under construction leaves it: a scratch copy of the capacities. Only here room is planned.
//
// Eviction: where a page is missing, history and idle adapters are evicted, whichever the policy values less
// (EvictionPolicy). An adapter goes only after the history that depends on it, so that all history on the device is
// usable. With a share for adapters, each side evicts only its own pages.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cache/kv_eviction_plan.h"
#include "schedule/plan/adapter_draft.h"
#include "schedule/plan/host_room.h"
#include "schedule/plan/memory_moves.h"
#include "schedule/plan/planning_view.h"

namespace loramux {

// See the top of this file. Writes evictions and loads into the plan that Reset was given.
class PlanDraft {
 public:
  // `residency` and `tree`: those of the view (HostRoom). Owns none of its arguments.
  PlanDraft(const PlanningView& view, ResidencyManager& residency, DependencyTree& tree, const EvictionPolicy& policy)
      : view_(view), history_(tree, policy), adapters_(view, history_), host_(view, adapters_, residency, tree) {}

  // Starts a new plan from the present state. `moves` gets what it evicts and loads; it must outlive the plan.
  void Reset(TimeNs now, MemoryMoves& moves);
  TimeNs now() const { return now_; }

  AdapterDraft& adapters() { return adapters_; }
  const AdapterDraft& adapters() const { return adapters_; }
  // History in this plan. It also keeps the scores of leaves from one plan to the next.
  KvEvictionPlan& history() { return history_; }
  const KvEvictionPlan& history() const { return history_; }
  HostRoom& host() { return host_; }
  const HostRoom& host() const { return host_; }

  // Free pages for this use.
  std::int64_t free(PageCategory use) const {
    return view_.partitioned() && use == PageCategory::kAdapter ? free_adapters_ : free_kv_;
  }
  std::int64_t free_kv() const { return free_kv_; }
  // Pages that may be evicted for this use. `even_wanted`: including adapters that earlier requests want.
  std::int64_t evictable(PageCategory use, bool even_wanted) const;
  // Takes pages for keys and values. REQUIRES: they are free.
  void Take(std::int64_t pages) { free_kv_ -= pages; }
  // A preempted request gives back pages of its own.
  void GiveBack(std::int64_t pages) { free_kv_ += pages; }
  // An adapter may be idle now that was not, or counts again: candidates are ranked anew.
  void RankAnew() { ranked_ = false; }

  // Evicts until `pages` are free for this use; all or nothing. Evicts nothing that an earlier request wants.
  bool MakeRoom(PageCategory use, std::int64_t pages);
  // Evicts one page of history or one adapter. False: none may be evicted.
  bool EvictOne(PageCategory use, bool even_wanted);
  // The lowest score of an adapter that may be evicted (not among the wanted ones); none: there is none.
  std::optional<double> LeastIdleAdapter();
  // Evicts that adapter. REQUIRES: LeastIdleAdapter was called last and found one.
  void EvictIdleAdapter() { EvictFirst(); }
  // The next page of history to be evicted for this use; none: there is none.
  std::optional<KvEvictionPlan::Victim> NextHistory() { return history_.Next(now_); }
  void EvictHistory(const KvEvictionPlan::Victim& victim);
  // Evicts an adapter that no request wants. REQUIRES: it is evictable and carries no history.
  void EvictAdapter(const AdapterResidency& adapter);

  // Loads under way, with those of this plan that count (CountLoad).
  std::int64_t loads_in_flight() const { return loads_in_flight_; }
  void CountLoad() { ++loads_in_flight_; }
  // Adds the load of an adapter. REQUIRES: its pages are free.
  void AddLoad(const AdapterResidency& adapter);
  // A request of this plan begins with the adapter, whose load the plan starts. REQUIRES: AddLoad was called.
  void BeginWithLoad(AdapterGeneration generation);

 private:
  // An idle adapter that may be evicted.
  struct Candidate {
    double score;
    AdapterGeneration adapter;
  };
  // Of two candidates in a heap with the next victim on top.
  struct Worse {
    bool operator()(const Candidate& a, const Candidate& b) const {
      return a.score != b.score ? a.score > b.score : a.adapter > b.adapter;
    }
  };
  // Fills candidates_, if that is due.
  void Rank();
  void AddCandidate(AdapterGeneration generation);
  // Brings an adapter that may be evicted to the top of candidates_. False: there is none.
  bool FindIdleAdapter(bool even_wanted);
  // Evicts the first of candidates_.
  void EvictFirst();
  std::int64_t& FreeFor(PageCategory use) {
    return view_.partitioned() && use == PageCategory::kAdapter ? free_adapters_ : free_kv_;
  }

  const PlanningView& view_;
  KvEvictionPlan history_;
  AdapterDraft adapters_;
  HostRoom host_;
  MemoryMoves* moves_ = nullptr;
  TimeNs now_ = 0;
  std::int64_t free_kv_ = 0;        // pages; without the share of adapters, if they have one
  std::int64_t free_adapters_ = 0;  // pages, if adapters have a share
  std::int64_t loads_in_flight_ = 0;
  bool ranked_ = false;                // candidates_ is complete
  std::vector<Candidate> candidates_;  // a heap, the lowest score on top
};

}  // namespace loramux
