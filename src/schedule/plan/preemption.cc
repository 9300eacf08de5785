#include "schedule/plan/preemption.h"

#include <algorithm>

namespace loramux {

Rank Preemption::RankOf(const Request& request) const {
  const PlanningView& view = draft_.view;
  return loramux::RankOf(request.id, view.queues.tenants().Service(request), view.options.max_batch_tokens);
}

// A waiting request that outranks a running one was passed over while its adapter was loading, or was preempted.
// Requests of lower rank must not take the pages of its adapter, or it could starve.
void Preemption::LookAtWaiters() {
  first_waiter_ = first_overdue_ = Rank{};
  if (draft_.runners.empty()) return;
  const Rank last = draft_.runners.back().rank;
  const auto mark = [&](const Request& waiter) {
    const Rank rank = RankOf(waiter);
    first_waiter_ = std::min(first_waiter_, rank);
    if (waiter.adapter != kBaseModel && rank < last) draft_.room.Want(waiter.adapter);
  };
  for (const Turn& turn : draft_.turns.all()) mark(*turn.request);
  for (const Request* overdue : draft_.turns.overdue()) {
    mark(*overdue);  // may lie beyond lookahead
    if (overdue->adapter == kBaseModel) continue;
    if (draft_.view.residency.Get(overdue->adapter).device != TierState::kResident) continue;
    first_overdue_ = std::min(first_overdue_, RankOf(*overdue));
  }
}

void Preemption::KeepSnapshotOfLast() {
  const DependencyTree& tree = draft_.view.tree;
  kept_ = {};
  if (tree.state_pages() == 0 || draft_.runners.size() < 2) return;
  const NodeId snapshot = draft_.runners.back().request->snapshot;
  if (!tree.tiers().HasDevicePage(snapshot) || draft_.room.history().Staying(snapshot) != snapshot) return;
  kept_ = snapshot;
  draft_.room.history().Use(kept_, tree.nodes().KvNode(kept_));
}

void Preemption::Preempt(std::size_t runner) {
  Request* request = draft_.runners[runner].request;
  draft_.runners.Erase(runner);
  draft_.rules.Preempts(*request);
  draft_.plan.preemptions.push_back(request);
  draft_.room.Take(-request->own_pages());
  KvEvictionPlan& history = draft_.room.history();
  if (kept_.generation != 0 && request->snapshot == kept_) {
    history.EndUse(kept_, draft_.room.now(), draft_.view.tree.nodes().KvNode(kept_));
    kept_ = {};
  }
  history.EndUse(request->tail, draft_.room.now());
  if (kept_.generation == 0) KeepSnapshotOfLast();
  if (request->adapter == kBaseModel) return;
  draft_.room.EndUse(request->adapter);
  draft_.room.RankAnew();  // its adapter may be idle now
}

// ---------------------------------------------------------------- For waiting requests

void Preemption::Reclaim() {
  const PlanningView& view = draft_.view;
  if (view.discardable <= 0) return;
  Request* const next = NextToServe();
  // preempting frees no room for an adapter with a share of its own
  if (next == nullptr || (view.partitioned() && view.MustLoad(*next))) return;
  std::int64_t missing = view.PagesToStart(*next) + view.GrowthReserve() - draft_.room.free_kv();
  // Pages that other requests use are neither free nor evictable.
  missing -= draft_.room.history().UsedDepth(view.tree.nodes().KvNode(draft_.prefixes.PlannedTail(*next)));
  if (missing + view.GrowthReserve() <= 0) return;
  missing += draft_.runners.decode_pages() + draft_.PagesOfIdleAdapter(*next) -
             draft_.room.evictable(PageCategory::kKv, /*even_wanted=*/false);
  const std::int64_t level = RankOf(*next).level;
  std::int64_t victims = 0;
  for (std::size_t i = draft_.runners.size(); missing > 0 && i > 0 && draft_.runners[i - 1].rank.level > level; --i) {
    missing -= draft_.prefixes.PagesFreedBy(*draft_.runners[i - 1].request);
    ++victims;
  }
  if (missing > 0) return;
  for (; victims > 0; --victims) {
    draft_.plan.discarded_tokens += draft_.runners.back().request->computed;
    PreemptLast();
  }
}

// Requests that wait for a load or a fetch are skipped; they would not start even with room.
Request* Preemption::NextToServe() const {
  for (Request* const overdue : draft_.turns.overdue()) {
    if (!draft_.IsArriving(*overdue)) return overdue;
  }
  for (const Turn& turn : draft_.turns.all()) {
    if (!draft_.IsArriving(*turn.request) && draft_.rules.HasQuota(*turn.request)) return turn.request;
  }
  return nullptr;
}

// ---------------------------------------------------------------- For running requests

// Evicts history, even without a copy, and idle adapters, then preempts lower ranks, and at last the runner itself. An
// adapter that a waiting request of higher rank wants is evicted only after all runners that rank below that request
// were preempted. If that request is overdue, the runner itself is among those: while the adapter came back, other
// requests would be admitted and take its pages again.
bool Preemption::ForGrowth(std::size_t runner, std::int64_t pages) {
  Runners& runners = draft_.runners;
  while (draft_.room.free_kv() < pages) {
    if (draft_.room.EvictOne(PageCategory::kKv, /*even_wanted=*/false)) continue;
    if (draft_.room.history().spares_uncopied()) {  // the step at hand cannot wait for a copy
      draft_.room.history().SpareUncopied(false);
      const bool evicted = draft_.room.EvictOne(PageCategory::kKv, /*even_wanted=*/false);
      draft_.room.history().SpareUncopied(true);
      if (evicted) continue;
    }
    const std::size_t last = runners.size() - 1;
    // Otherwise no waiting request takes from a running one.
    const bool ranks = !draft_.rules.ReservesOutput() && draft_.view.options.discard_share > 0;
    const bool below_waiter = ranks && last > runner && first_waiter_ < runners[last].rank;
    const bool below_overdue = ranks && first_overdue_ < runners[last].rank;
    if (!below_waiter && !below_overdue) {
      draft_.room.RankAnew();  // wanted adapters were dropped from the candidates
      if (draft_.room.EvictOne(PageCategory::kKv, /*even_wanted=*/true)) continue;
      if (last == 0) return false;  // alone: loads in flight hold the missing pages
    }
    draft_.memory_short = true;
    PreemptLast();
    // The caller sees that the runner was preempted. If no waiter was ahead, the last one is the runner itself.
    if (last == runner || (!below_waiter && below_overdue)) return true;
  }
  draft_.room.Take(pages);
  return true;
}

}  // namespace loramux
