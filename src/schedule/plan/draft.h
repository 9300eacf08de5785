// The memory as a plan under construction leaves it: a scratch copy of the capacities, of users, and of what goes and
// comes. Only here room is planned.
//
// Eviction: where a page is missing, history and idle adapters are evicted, whichever the policy values less
// (EvictionPolicy). An adapter goes only after the history that depends on it, so that all history on the device is
// usable. With a share for adapters, each side evicts only its own pages.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "residency/kv_eviction_plan.h"
#include "residency/moves.h"
#include "schedule/plan/host_draft.h"
#include "schedule/plan/planning_view.h"

namespace loramux {

// See the top of this file. Writes evictions and loads into the list that Reset was given.
class Draft {
 public:
  // `residency` and `tree`: those of the view (HostDraft). Owns none of its arguments.
  Draft(const PlanningView& view, ResidencyManager& residency, DependencyTree& tree, const EvictionPolicy& policy)
      : view_(view), history_(tree, policy), host_(view, residency, tree) {}

  // Starts a new plan from the present state. `moves` gets what it evicts and loads, with the reasons `leaves` and
  // `comes`; it must outlive the plan.
  void Reset(TimeNs now, Moves& moves, MoveReason leaves, MoveReason comes);
  TimeNs now() const { return now_; }
  // With SwapOut::kEvicted: whether history without a copy in the host tier stays until it has one, as far as running
  // requests allow. False: no copies can be made.
  void SetCopiesMade(bool made) { copies_made_ = made; }
  bool copies_made() const { return copies_made_; }

  // History in this plan. It also keeps the scores of leaves from one plan to the next.
  KvEvictionPlan& history() { return history_; }
  const KvEvictionPlan& history() const { return history_; }
  // The host tier in this plan.
  HostDraft& host() { return host_; }
  const HostDraft& host() const { return host_; }

  // ---- Room on the device ----

  // Free pages for this use.
  std::int64_t free(PageCategory use) const {
    return view_.partitioned() && use == PageCategory::kAdapter ? free_adapters_ : free_kv_;
  }
  std::int64_t free_kv() const { return free_kv_; }
  // Pages that may be evicted for this use. `even_wanted`: including adapters that earlier requests want.
  std::int64_t evictable(PageCategory use, bool even_wanted) const;
  // Takes pages for keys and values. Less than 0: a preempted request gives back pages of its own. REQUIRES: they are
  // free.
  void Take(std::int64_t pages) { free_kv_ -= pages; }
  // An adapter may be idle now that was not, or counts again: candidates are ranked anew.
  void RankAnew() { ranked_ = false; }

  // Evicts until `pages` are free for this use; all or nothing, but for history that has to be copied first. Evicts
  // nothing that an earlier request wants.
  bool MakeRoom(PageCategory use, std::int64_t pages);
  // Evicts what no waiting request wants until so many pages are free for keys and values, or nothing is left of it.
  // Returns the free pages.
  std::int64_t MakeUnwantedRoom(std::int64_t pages);
  // Evicts one page of history or one adapter. False: none may be evicted.
  bool EvictOne(PageCategory use, bool even_wanted);
  // The lowest score of an adapter that may be evicted (not among the wanted ones); none: there is none.
  std::optional<double> LeastIdleAdapter();
  // Evicts that adapter. REQUIRES: LeastIdleAdapter was called last and found one.
  void EvictIdleAdapter();
  // Evicts a page of history, which history() named as the next.
  void EvictHistory(const KvEvictionPlan::Victim& victim);
  // Evicts an adapter that no request wants. REQUIRES: it is evictable and carries no history.
  void EvictAdapter(const AdapterResidency& adapter);

  // ---- Adapters ----

  // What the plan decides or knows about an adapter. kWanted: an earlier request in the queue needs it. kUsable: it is
  // loading, and enough layers have arrived to begin. The plan sets the others itself.
  enum Mark : std::uint8_t { kEvicted = 1, kWanted = 2, kLoads = 4, kUsable = 8 };
  bool Is(AdapterGeneration generation, Mark mark) const { return (Of(generation).marks & mark) != 0; }
  // Called for each waiting request; usually its adapter is marked already.
  void Want(AdapterGeneration generation) {
    InPlan& adapter = Of(generation);
    if ((adapter.marks & kWanted) != 0) return;
    unwanted_pages_ -= EvictablePagesOf(view_.residency.Get(generation));
    adapter.marks |= kWanted;
  }
  void MarkUsable(AdapterGeneration generation) { Of(generation).marks |= kUsable; }
  // The plan lets a request begin (Use) or end (EndUse) its use.
  void Use(AdapterGeneration generation);
  void EndUse(AdapterGeneration generation);
  // True if the adapter of the request is loading and not usable yet.
  bool IsLoading(const Request& request) const {
    return request.adapter != kBaseModel && view_.residency.Get(request.adapter).device == TierState::kLoading &&
           !Is(request.adapter, kUsable);
  }
  // Users of the adapter after this plan, and the number of adapters with users.
  std::int32_t users(const AdapterResidency& adapter) const { return adapter.users + adapters_[adapter.slot].users; }
  std::int64_t distinct() const { return distinct_; }
  // True if admission of the request would exceed max_distinct_adapters, where that bounds running requests.
  bool ExceedsDistinct(const Request& request) const {
    return request.adapter != kBaseModel && view_.options.max_distinct_adapters > 0 &&
           view_.options.adapter_bound == AdapterBound::kRunning && users(view_.residency.Get(request.adapter)) == 0 &&
           distinct_ >= view_.options.max_distinct_adapters;
  }
  // True if the plan may evict the adapter from the device, as far as users and moves allow.
  bool Evictable(const AdapterResidency& adapter) const {
    if (adapter.kept || users(adapter) != 0 || (adapters_[adapter.slot].marks & kEvicted) != 0) return false;
    // While pages of its history move, they cannot be evicted, and so the adapter cannot either.
    return !view_.pages.branches().HasMoves(adapter.slot);
  }
  // Pages of the adapter that may be evicted from the device. Tests the residency first, which usually decides.
  std::int64_t EvictablePagesOf(const AdapterResidency& adapter) const {
    return adapter.device == TierState::kResident && Evictable(adapter) ? adapter.pages : 0;
  }
  // True if history on the device depends on the adapter: without it, that history would be unusable.
  bool CarriesHistory(AdapterGeneration generation);

  // Loads under way, with those of this plan.
  std::int64_t loads_in_flight() const { return loads_in_flight_; }
  // Adds the load of an adapter. REQUIRES: its pages are free.
  void Load(const AdapterResidency& adapter);
  // A request of this plan begins with the adapter, whose load the plan starts. REQUIRES: Load was called.
  void BeginWithLoad(AdapterGeneration generation);

 private:
  // What the plan changes about an adapter.
  struct InPlan {
    std::int32_t users = 0;  // to add
    std::uint8_t marks = 0;
  };
  // Adapters on the device with the content of a shared branch. Valid if `plan` is the number of this plan.
  struct Residents {
    std::uint64_t plan = 0;
    std::int32_t count = 0;
  };
  // An idle adapter that may be evicted.
  struct Candidate {
    double score;
    AdapterGeneration adapter;
  };
  // Orders two candidates in a heap with the next victim on top.
  struct Worse {
    bool operator()(const Candidate& a, const Candidate& b) const {
      return a.score != b.score ? a.score > b.score : a.adapter > b.adapter;
    }
  };
  // Fills candidates_, if that is due.
  void Rank();
  // Brings an adapter that may be evicted to the top of candidates_. False: there is none.
  bool FindIdleAdapter(bool even_wanted);
  std::int64_t& FreeFor(PageCategory use) {
    return view_.partitioned() && use == PageCategory::kAdapter ? free_adapters_ : free_kv_;
  }
  InPlan& Of(AdapterGeneration generation) { return adapters_[view_.residency.SlotOf(generation)]; }
  const InPlan& Of(AdapterGeneration generation) const { return adapters_[view_.residency.SlotOf(generation)]; }
  // Adds (sign 1) or subtracts (-1) the evictable pages of the adapter.
  void CountEvictable(AdapterGeneration generation, std::int64_t sign);
  // Adapters with the content of the branch that are on the device and stay there in this plan.
  std::int32_t& ResidentsOf(BranchId branch);

  const PlanningView& view_;
  KvEvictionPlan history_;
  HostDraft host_;
  Moves* moves_ = nullptr;
  MoveReason leaves_ = MoveReason::kRoom, comes_ = MoveReason::kWaits;
  TimeNs now_ = 0;
  std::uint64_t plan_ = 0;  // the number of this plan
  bool copies_made_ = true;
  std::int64_t free_kv_ = 0;        // pages; without the share of adapters, if they have one
  std::int64_t free_adapters_ = 0;  // pages, if adapters have a share
  std::int64_t loads_in_flight_ = 0;
  std::vector<InPlan> adapters_;  // by residency slot
  std::int64_t distinct_ = 0;
  // Sums over all adapters, and over those that no earlier request wants, kept up to date: to sum over all adapters
  // would take most of the time of a plan.
  std::int64_t evictable_pages_ = 0, unwanted_pages_ = 0;
  std::vector<AdapterGeneration> released_;  // adapters whose use the plan ended; may repeat, and include used ones
  std::vector<Residents> residents_;         // by branch
  bool ranked_ = false;                      // candidates_ is complete
  std::vector<Candidate> candidates_;        // a heap, the lowest score on top
};

}  // namespace loramux
