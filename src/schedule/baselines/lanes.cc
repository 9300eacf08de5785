#include "schedule/baselines/lanes.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "costs/service_times.h"
#include "schedule/plan/admitter.h"
#include "schedule/plan/preemption.h"

namespace loramux {
namespace {

// Number of turns by which a batch prefetches the requests that it will read: about the latency of a miss in the
// second-level cache.
constexpr std::size_t kAhead = 6;
// How the batch of a lane ended, if not at a request.
constexpr std::size_t kEmptied = std::numeric_limits<std::size_t>::max(), kBlocked = kEmptied - 1;

void PrefetchExtent(const Request& request) {
  __builtin_prefetch(&request);
  __builtin_prefetch(&request.quota_tokens);
}

}  // namespace

void Lanes::AdmitWaiting(Admitter& admitter) {
  const Turns& turns = admitter.draft().turns;
  double leftover = 0;
  std::array<std::size_t, kMaxLanes> next = {};
  for (std::size_t lane = 0; lane < turns.lanes(); ++lane) {
    double quota = order_.Quota(static_cast<std::int32_t>(lane)) - lane_use_[lane];
    next[lane] = AdmitFrom(admitter, lane, turns.lane_begin(lane), quota);
    if (next[lane] == kEmptied) leftover += std::max(0.0, quota);
  }
  for (std::size_t lane = 0; lane < turns.lanes() && leftover > 0; ++lane) {
    if (next[lane] < turns.lane_begin(lane + 1)) AdmitFrom(admitter, lane, next[lane], leftover);
  }
}

void Lanes::AfterPrompts(Admitter& admitter) {
  const StepDraft& draft = admitter.draft();
  if (prefetches_ > 0 && !draft.closed() && !draft.awaits_load) admitter.LoadForOldest(prefetches_);
}

// A lane with nothing running may admit one request regardless of its quota, because a request may be larger than the
// quota.
std::size_t Lanes::AdmitFrom(Admitter& admitter, std::size_t lane, std::size_t first, double& tokens) {
  StepDraft& draft = admitter.draft();
  const std::vector<Turn>& turns = draft.turns.all();
  const Request* blocked = nullptr;  // by memory
  for (std::size_t at = first; at < draft.turns.lane_begin(lane + 1); ++at) {
    Request* const request = turns[at].request;
    if (at + kAhead < turns.size()) PrefetchExtent(*turns[at + kAhead].request);
    if (draft.turns.IsOverdue(*request)) continue;  // already considered
    const auto needed = static_cast<double>(request->quota_tokens);
    if (needed > tokens && lane_use_[lane] > 0) return blocked == nullptr ? at : kBlocked;
    if (blocked != nullptr && !MayOvertake(draft, *request)) continue;
    const AdmissionOutcome outcome = admitter.TryAdmit(request);
    if (outcome == AdmissionOutcome::kBlocked && blocked == nullptr) {
      blocked = request;
      if (draft.blocked == nullptr) draft.blocked = request;
      EstimateTimeUntilRoom(draft, *request);
    }
    if (outcome != AdmissionOutcome::kAdmitted) continue;
    tokens -= needed;
    lane_use_[lane] += needed;
    if (blocked != nullptr) draft.plan.admissions.back().overtakes = blocked->id;
  }
  return blocked == nullptr ? kEmptied : kBlocked;
}

// ---------------------------------------------------------------- Bypass

// Assumes that the prediction is right.
double Lanes::RunTimeOf(const StepDraft& draft, const Request& request) const {
  const SystemSpec& options = draft.view.options;
  const auto outputs = static_cast<double>(
      std::max<std::int64_t>(1, request.predicted_output - static_cast<std::int64_t>(request.generated().size())));
  if (options.costs == nullptr) {
    return outputs + static_cast<double>(request.uncomputed()) / static_cast<double>(options.max_batch_tokens);
  }
  // a single token belongs to the output
  const std::int64_t prompt = request.uncomputed() > 1 ? request.uncomputed() : 0;
  return PrefillSeconds(*options.costs, prompt, request.computed) + outputs * decode_seconds_;
}

// Takes all runners as if none had a prompt to compute.
double Lanes::DecodeSeconds(const StepDraft& draft) {
  StepLoad load;
  for (const Runner& runner : draft.runners) {
    const Request& request = *runner.request;
    ++load.decode_sequences;
    load.decode_context += request.computed + 1;
    if (request.adapter == kBaseModel) continue;
    const std::int64_t rank = draft.view.residency.Get(request.adapter).version->layout.max_rank;
    ++load.adapter_tokens;
    load.token_ranks += rank;
    load.max_rank = std::max(load.max_rank, rank);
  }
  load.distinct_adapters = std::min(draft.room.distinct(), load.adapter_tokens);
  if (load.adapter_tokens > 0) load.rank_sum = load.token_ranks * load.distinct_adapters / load.adapter_tokens;
  return draft.view.options.costs->SecondsOf(load);
}

// Time until running requests have ended that together hold what this request needs: their pages, and their adapters,
// which can then be evicted. Counts them in the order of their predicted ends.
void Lanes::EstimateTimeUntilRoom(const StepDraft& draft, const Request& request) {
  ends_.Clear();
  if (draft.view.options.costs != nullptr) decode_seconds_ = DecodeSeconds(draft);
  for (const Runner& runner : draft.runners) ends_.Append(RunTimeOf(draft, *runner.request), runner.request);
  ends_.MakeHeap();  // few are needed, and each needs a walk along its path to count its pages
  users_left_.clear();
  std::int64_t missing = MissingFor(draft, request);
  time_until_room_ = std::numeric_limits<double>::infinity();
  for (; !ends_.empty(); ends_.PopFirst()) {
    const Request& ended = *ends_.first().request;
    missing -= draft.prefixes.PagesFreedBy(ended) + PagesOfLastUse(draft, ended, request);
    --missing;  // it grows no more: GrowthReserve
    if (missing > 0) continue;
    time_until_room_ = ends_.first().time;
    return;
  }
}

// Pages of the adapter of `ended` that can be evicted for `request` if no other user is left.
std::int64_t Lanes::PagesOfLastUse(const StepDraft& draft, const Request& ended, const Request& request) {
  if (ended.adapter == kBaseModel || ended.adapter == request.adapter || draft.view.partitioned()) return 0;
  const AdapterResidency& adapter = draft.view.residency.Get(ended.adapter);
  auto left = std::find_if(users_left_.begin(), users_left_.end(),
                           [&](const auto& users) { return users.first == ended.adapter; });
  if (left == users_left_.end()) left = users_left_.insert(left, {ended.adapter, draft.room.users(adapter)});
  const bool stays = --left->second > 0 || adapter.kept || draft.room.Is(ended.adapter, Draft::kWanted);
  return stays ? 0 : adapter.pages;
}

// A request may overtake only if it will probably end before the older one could start, and only once. A squash does
// not always make room for the older request, because idle adapters may be wanted by then. Without that limit, two
// requests could alternate: overtake the same request and be squashed for it, without end.
bool Lanes::MayOvertake(const StepDraft& draft, const Request& request) const {
  const Overtaker* const before = Find(request.id);
  if ((before != nullptr && before->squashed) || RunTimeOf(draft, request) >= time_until_room_) return false;
  return !draft.view.MustLoad(request) || FitsBesideOthers(draft, request);
}

// The paper's "small enough to fit in the remaining space of the cache": it evicts nothing for its adapter.
bool Lanes::FitsBesideOthers(const StepDraft& draft, const Request& request) {
  const PlanningView& view = draft.view;
  const Draft& room = draft.room;
  if (view.partitioned() || room.Is(request.adapter, Draft::kEvicted)) return false;
  const std::int64_t tokens = static_cast<std::int64_t>(request.tokens.size()) + 1;
  const std::int64_t adapter = room.Is(request.adapter, Draft::kLoads) ? 0 : view.residency.Get(request.adapter).pages;
  return adapter + view.MissingPages(request, tokens) + view.GrowthReserve() <= room.free_kv();
}

bool Lanes::HasQuota(const Request& request) const {
  const double use = lane_use_[static_cast<std::size_t>(request.lane)];
  return use <= 0 || static_cast<double>(request.quota_tokens) <= order_.Quota(request.lane) - use;
}

// ---------------------------------------------------------------- Squash

// Predictions may have been wrong. An overtaken request gets memory as soon as the pages of the requests that
// overtook it would suffice. Those are preempted and computed again later. At most one request a step.
void Lanes::Begin(StepDraft& draft, Preemption& preemption) {
  lane_use_ = draft.view.queues.lane_use();
  if (overtakers_.empty()) return;
  Runners& runners = draft.runners;
  for (const Runner& first : runners) {
    const RequestId id = OvertookBy(*first.request);
    const Request* const overtaken = id == RequestId{} ? nullptr : Overtaken(draft, id);
    if (overtaken == nullptr) continue;
    std::int64_t missing = MissingFor(draft, *overtaken);
    if (missing <= 0) continue;  // it can start without a squash
    for (const Runner& runner : runners) {
      if (OvertookBy(*runner.request) == id) missing -= draft.prefixes.PagesFreedBy(*runner.request);
    }
    if (missing > 0) continue;
    for (std::size_t i = runners.size(); i-- > 0;) {
      if (OvertookBy(*runners[i].request) == id) preemption.Preempt(i);
    }
    return;
  }
}

const Request* Lanes::Overtaken(const StepDraft& draft, RequestId id) {
  const PlanningView& view = draft.view;
  const Request* const found = view.queues.FindWaiting(id);
  if (found == nullptr || draft.IsArriving(*found)) return nullptr;
  // evicting keys and values makes no room for an adapter
  return view.partitioned() && view.MustLoad(*found) ? nullptr : found;
}

std::int64_t Lanes::MissingFor(const StepDraft& draft, const Request& overtaken) {
  const std::int64_t room = draft.room.free_kv() + draft.room.evictable(PageCategory::kKv, /*even_wanted=*/false) -
                            draft.PagesOfIdleAdapter(overtaken);
  return PagesToRun(draft.view, overtaken) + draft.view.GrowthReserve() - room;
}

// An adapter with a share of the device needs none of the pages that running requests hold.
std::int64_t Lanes::PagesToRun(const PlanningView& view, const Request& request) {
  const bool loads = view.MustLoad(request) && !view.partitioned();
  return (loads ? view.residency.Get(request.adapter).pages : 0) +
         view.MissingPages(request, static_cast<std::int64_t>(request.tokens.size()) + 1);
}

// ---------------------------------------------------------------- Requests that have overtaken others

const Lanes::Overtaker* Lanes::Find(RequestId request) const {
  const auto found = std::lower_bound(overtakers_.begin(), overtakers_.end(), request,
                                      [](const Overtaker& overtaker, RequestId id) { return overtaker.request < id; });
  return found == overtakers_.end() || found->request != request ? nullptr : &*found;
}

RequestId Lanes::OvertookBy(const Request& request) const {
  const Overtaker* const found = Find(request.id);
  return found == nullptr ? RequestId{} : found->overtook;
}

void Lanes::Began(const Request& request, RequestId overtakes) {
  if (overtakes == RequestId{}) return;
  if (Overtaker* const found = Find(request.id)) {
    found->overtook = overtakes;
    return;
  }
  const auto place = std::lower_bound(overtakers_.begin(), overtakers_.end(), request.id,
                                      [](const Overtaker& overtaker, RequestId id) { return overtaker.request < id; });
  overtakers_.insert(place, {.request = request.id, .overtook = overtakes});
}

bool Lanes::Preempted(const Request& request, bool begins_again) {
  Overtaker* const found = Find(request.id);
  if (found == nullptr) return false;
  const bool overtook = std::exchange(found->overtook, RequestId{}) != RequestId{};
  found->squashed |= overtook;
  if (!begins_again) found->squashed_last = overtook;
  return overtook;
}

bool Lanes::WasSquashed(const Request& request) const {
  const Overtaker* const found = Find(request.id);
  return found != nullptr && found->squashed_last;
}

void Lanes::Left(const Request& request) {
  if (const Overtaker* const found = Find(request.id))
    overtakers_.erase(overtakers_.begin() + (found - overtakers_.data()));
}

}  // namespace loramux
