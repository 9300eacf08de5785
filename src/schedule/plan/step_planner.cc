#include "schedule/plan/step_planner.h"

#include <algorithm>
#include <iterator>

namespace loramux {

StepPlanner::StepPlanner(const PlanningView& view, ResidencyManager& residency, DependencyTree& tree,
                         const EvictionPolicy& policy, StepRules& rules)
    : rules_(rules),
      draft_(view, residency, tree, policy, rules),
      seats_(draft_),
      preemption_(draft_),
      admitter_(draft_),
      prompts_(draft_, admitter_),
      fetch_ahead_(draft_) {}

// If the waiting requests for which others pause cannot start, the step would compute nothing. Then the plan is made
// again without pauses.
const StepPlan& StepPlanner::Plan(TimeNs now) {
  StepPlan& plan = draft_.plan;
  plan.Clear();
  if (rules_.Waits(draft_.view.residency)) return plan;
  MakePlan(now, /*may_pause=*/true);
  const bool idle = plan.chunks.empty() && plan.stalls.empty();
  if (idle && draft_.runners.AnyPaused()) {
    plan.Clear();
    MakePlan(now, /*may_pause=*/false);
  }
  rules_.Finish(plan);
  return plan;
}

void StepPlanner::MakePlan(TimeNs now, bool may_pause) {
  draft_.Reset(now, may_pause);
  draft_.turns.Order(now);
  admitter_.LookAtArrivals();
  draft_.runners.Rank(now);
  for (const Runner& runner : draft_.runners) draft_.plan.by_rank.push_back(runner.request);
  preemption_.LookAtWaiters();
  preemption_.KeepSnapshotOfLast();
  rules_.Begin(draft_, preemption_);
  preemption_.Reclaim();
  seats_.Plan(may_pause);
  PlanDecodes();
  rules_.BeforePrompts(draft_);
  draft_.batch_time.Begin(draft_.view, draft_.runners);
  admitter_.LoadKept();
  if (draft_.view.options.spread_prompts) prompts_.Spread();
  prompts_.Plan();
  seats_.FillIdle();
  fetch_ahead_.Plan();
  PlanSnapshots();
  rules_.AfterPrompts(admitter_);
  if (draft_.view.options.speculation.method != Speculation::kNone) PlanDrafts();
  draft_.plan.outlook = {.newest_seen = draft_.view.queues.newest(),
                         .waits_for_room = draft_.closed() || draft_.blocked != nullptr,
                         .loads_wait = draft_.loads_wait,
                         .awaits_load = draft_.awaits_load};
  SortByAdapter(draft_.plan.chunks, chunk_buffer_);
}

void StepPlanner::PlanSnapshots() {
  constexpr std::int64_t kSnapshotsOfOne = 4;  // about: where a prompt parts, ends, and in between
  const PlanningView& view = draft_.view;
  if (view.tree.state_pages() == 0 || !draft_.plan.preemptions.empty() || draft_.closed()) return;
  const std::int64_t pages = view.tree.state_pages();
  for (PlannedChunk& chunk : draft_.plan.chunks) {
    const Request& request = *chunk.request;
    if (chunk.admits || view.NextSnapshot(request, request.computed - 1) != request.computed) continue;
    if (HasSnapshot(request)) continue;
    // Those for the ends of answers are the first that memory does without: other snapshots of what runs are worth
    // more.
    const bool passes = view.pages.snapshot_interval().Passes(request.prompt_tokens, request.computed);
    const std::int64_t others = passes ? kSnapshotsOfOne * pages * std::ssize(view.queues.running()) : 0;
    const std::int64_t room = pages + view.GrowthReserve();
    if (draft_.room.free_kv() + draft_.room.evictable(PageCategory::kKv, /*even_wanted=*/false) < room + others)
      continue;
    if (draft_.room.MakeUnwantedRoom(room) < room) continue;
    draft_.room.Take(pages);
    chunk.takes_snapshot = true;
  }
}

bool StepPlanner::HasSnapshot(const Request& request) const {
  const DependencyTree& tree = draft_.view.tree;
  const NodeId tail =
      tree.index().Match(request.tail, request.tokens, request.computed / draft_.view.options.page_tokens);
  const NodeId end = tree.Beginning(tail);
  return tree.nodes().KvDepth(end) * draft_.view.options.page_tokens == request.computed && tree.tiers().OnDevice(end);
}

// Highest rank first. A request may be preempted before its turn.
void StepPlanner::PlanDecodes() {
  const Runners& runners = draft_.runners;
  for (std::size_t i = 0; i < runners.size() && draft_.budget > 0; ++i) {
    const Runner runner = runners[i];  // it may be erased
    if (runner.paused || runner.uncomputed != 1) continue;
    if (runner.next_pages > 0 && !preemption_.ForGrowth(i, runner.next_pages)) continue;
    if (i >= runners.size()) return;  // the runner was preempted itself
    draft_.AddChunk(runner.request, /*uncomputed=*/1, /*tokens=*/1, runner.next_pages);
  }
}

// All that decode get the same share. Drafts take pages that are free anyway, and none while a request waits for room.
void StepPlanner::PlanDrafts() {
  std::vector<PlannedChunk>& chunks = draft_.plan.chunks;
  const std::int64_t drafting = std::ranges::count_if(
      chunks, [](const PlannedChunk& chunk) { return chunk.Decodes() && !chunk.request->draft.empty(); });
  if (drafting == 0) return;
  const std::int64_t share = std::min(draft_.view.options.DraftedTokens(), draft_.budget) / drafting;
  const bool waits = draft_.closed() || draft_.blocked != nullptr;
  const std::int64_t reserve = draft_.view.GrowthReserve();
  for (PlannedChunk& chunk : chunks) {
    if (!chunk.Decodes()) continue;
    const Request& request = *chunk.request;
    std::int64_t drafted = std::min<std::int64_t>(share, std::ssize(request.draft));
    std::int64_t pages = draft_.view.MissingPages(request, request.computed + 1 + drafted) - chunk.new_pages;
    if (pages > 0 && (waits || draft_.room.free_kv() - reserve < pages)) {
      drafted -= draft_.view.Beyond(request, request.computed + 1 + drafted, chunk.new_pages);
      pages = 0;
    }
    draft_.room.Take(pages);
    chunk.new_pages += static_cast<std::int32_t>(pages);
    chunk.drafted = static_cast<std::int32_t>(drafted);
    draft_.budget -= drafted;
  }
}

}  // namespace loramux
