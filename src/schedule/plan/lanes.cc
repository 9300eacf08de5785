#include "schedule/plan/lanes.h"

#include <algorithm>
#include <array>
#include <limits>

#include "schedule/profile/service_times.h"

namespace loramux {
namespace {

// Waiting requests that are considered behind one that memory has no room for.
constexpr int kBypassTries = 16;
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

void Lanes::Admit() {
  const Turns& turns = draft_.turns;
  double leftover = 0;
  std::array<std::size_t, kMaxLanes> next = {};
  for (std::size_t lane = 0; lane < turns.lanes(); ++lane) {
    double quota = draft_.view.queues.order().Quota(static_cast<std::int32_t>(lane)) - draft_.lane_use[lane];
    next[lane] = AdmitFrom(lane, turns.lane_begin(lane), quota);
    if (next[lane] == kEmptied) leftover += std::max(0.0, quota);
  }
  for (std::size_t lane = 0; lane < turns.lanes() && leftover > 0; ++lane) {
    if (next[lane] < turns.lane_begin(lane + 1)) AdmitFrom(lane, next[lane], leftover);
  }
}

// A lane with nothing running may admit one request regardless of its quota, because a request may be larger than the
// quota.
std::size_t Lanes::AdmitFrom(std::size_t lane, std::size_t first, double& tokens) {
  const std::vector<Turn>& turns = draft_.turns.all();
  const Request* blocked = nullptr;  // by memory
  int tries = kBypassTries;
  for (std::size_t at = first; at < draft_.turns.lane_begin(lane + 1); ++at) {
    Request* const request = turns[at].request;
    if (at + kAhead < turns.size()) PrefetchExtent(*turns[at + kAhead].request);
    if (draft_.turns.IsOverdue(*request)) continue;  // already considered
    const auto needed = static_cast<double>(request->quota_tokens);
    if (needed > tokens && draft_.lane_use[lane] > 0) return blocked == nullptr ? at : kBlocked;
    if (blocked != nullptr && (--tries < 0 || !MayOvertake(*request))) continue;
    const AdmissionOutcome outcome = admitter_.TryAdmit(request);
    if (outcome == AdmissionOutcome::kBlocked && blocked == nullptr) {
      blocked = request;
      if (draft_.blocked == nullptr) draft_.blocked = request;
      EstimateTimeUntilRoom(*request);
    }
    if (outcome != AdmissionOutcome::kAdmitted) continue;
    tokens -= needed;
    draft_.lane_use[lane] += needed;
    if (blocked != nullptr) draft_.plan.admissions.back().overtakes = blocked->id;
  }
  return blocked == nullptr ? kEmptied : kBlocked;
}

// ---------------------------------------------------------------- Bypass

// Assumes that the prediction is right.
double Lanes::RunTimeOf(const Request& request) const {
  const SystemSpec& options = draft_.view.options;
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
double Lanes::DecodeSeconds() const {
  StepLoad load;
  for (const Runner& runner : draft_.runners) {
    const Request& request = *runner.request;
    ++load.decode_sequences;
    load.decode_context += request.computed + 1;
    if (request.adapter == kBaseModel) continue;
    const std::int64_t rank = draft_.view.residency.Get(request.adapter).version->layout.max_rank;
    ++load.adapter_tokens;
    load.token_ranks += rank;
    load.max_rank = std::max(load.max_rank, rank);
  }
  load.distinct_adapters = std::min(draft_.room.adapters().distinct(), load.adapter_tokens);
  if (load.adapter_tokens > 0) load.rank_sum = load.token_ranks * load.distinct_adapters / load.adapter_tokens;
  return draft_.view.options.costs->SecondsOf(load);
}

// Time until running requests have ended that together hold what this request needs. Counts them in the order of
// their predicted ends.
void Lanes::EstimateTimeUntilRoom(const Request& request) {
  ends_.Clear();
  if (draft_.view.options.costs != nullptr) decode_seconds_ = DecodeSeconds();
  for (const Runner& runner : draft_.runners) ends_.Append(RunTimeOf(*runner.request), runner.request);
  ends_.MakeHeap();  // few are needed, and each needs a walk along its path to count its pages
  std::int64_t missing = draft_.view.PagesToStart(request) + draft_.view.GrowthReserve() - draft_.room.free_kv();
  time_until_room_ = std::numeric_limits<double>::infinity();
  for (; !ends_.empty(); ends_.PopFirst()) {
    missing -= draft_.prefixes.PagesFreedBy(*ends_.first().request);
    if (missing > 0) continue;
    time_until_room_ = ends_.first().time;
    return;
  }
}

// A request may overtake only if it will probably end before the older one could start, and only once. A squash does
// not always make room for the older request, because idle adapters may be wanted by then. Without that limit, two
// requests could alternate: overtake the same request and be squashed for it, without end.
bool Lanes::MayOvertake(const Request& request) const {
  if (request.squashed || RunTimeOf(request) >= time_until_room_) return false;
  return !draft_.view.MustLoad(request) || FitsBesideOthers(request);
}

// The paper's "small enough to fit in the remaining space of the cache": it evicts nothing for its adapter.
bool Lanes::FitsBesideOthers(const Request& request) const {
  const PlanningView& view = draft_.view;
  const AdapterDraft& adapters = draft_.room.adapters();
  if (view.partitioned() || adapters.IsEvicted(request.adapter)) return false;
  const std::int64_t tokens = static_cast<std::int64_t>(request.tokens.size()) + 1;
  const std::int64_t adapter = adapters.IsLoadPlanned(request.adapter) ? 0 : view.residency.Get(request.adapter).pages;
  return adapter + view.MissingPages(request, tokens) + view.GrowthReserve() <= draft_.room.free_kv();
}

}  // namespace loramux
