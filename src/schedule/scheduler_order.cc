// Which waiting requests are admitted, and in which order: turns, lanes with quotas, bypasses. scheduler_plan.cc has
// the needs of each request.
#include <algorithm>
#include <cstdlib>
#include <limits>

#include "base/check.h"
#include "schedule/scheduler.h"
#include "schedule/service_times.h"

namespace loramux {
namespace {

// Waiting requests that are considered behind one that memory has no room for.
constexpr int kBypassTries = 16;
// Number of turns by which a batch prefetches the requests that it will read: about the latency of a miss in the
// second-level cache.
constexpr std::size_t kAhead = 6;
// How the batch of a lane ended, if not at a request.
constexpr std::size_t kEmptied = std::numeric_limits<std::size_t>::max(), kBlocked = kEmptied - 1;

// Loads that must be measured before their time is used.
constexpr std::int64_t kFewestLoads = 4;

// Predicts loads from measured times.
class LoadTimes final : public AdapterLoads {
 public:
  LoadTimes(const ResidencyManager& residency, const ReloadCostEstimator& costs, TimeNs now)
      : residency_(residency), costs_(costs), now_(now) {}

  // The first load is moving; the others wait for it.
  double SecondsUnderWay() const override {
    double seconds = 0;
    for (const AdapterGeneration generation : residency_.Arriving()) {
      const AdapterResidency& adapter = residency_.Get(generation);
      const double load = SecondsOf(adapter, adapter.from_disk);
      const double moved = static_cast<double>(now_ - adapter.transfer_started) / kNsPerSecond;
      seconds += seconds == 0 ? std::max(load - moved, 0.0) : load;
    }
    return seconds;
  }
  double SecondsToLoad(AdapterGeneration generation) const override {
    const AdapterResidency& adapter = residency_.Get(generation);
    return adapter.device == TierState::kAbsent ? SecondsOf(adapter, adapter.host != TierState::kResident) : 0;
  }

 private:
  double SecondsOf(const AdapterResidency& adapter, bool from_disk) const {
    const auto time = costs_.Of(from_disk ? ReloadFrom::kDisk : ReloadFrom::kHost);
    if (time.samples < kFewestLoads) return 0;
    return (time.latency_ns + time.page_ns * static_cast<double>(adapter.pages)) / kNsPerSecond;
  }

  const ResidencyManager& residency_;
  const ReloadCostEstimator& costs_;
  const TimeNs now_;
};

void PrefetchExtent(const Request& request) {
  __builtin_prefetch(&request);
  __builtin_prefetch(&request.predicted_output);
}

}  // namespace

// ---------------------------------------------------------------- The turns

void Scheduler::OrderWaiting(TimeNs now) {
  const std::int32_t lanes = queue_->lanes();
  const auto lookahead = static_cast<std::size_t>(options_.lookahead);
  lane_begins_.clear();
  if (lanes == 1) {
    lane_begins_.push_back(0);
    // Requests with resident adapters may be anywhere in the queue; the search for them ends here.
    const std::size_t window = queue_->residents_first() ? 4 * lookahead : lookahead;
    tenants_.Order(now, 0, window, order_);
    if (queue_->residents_first()) PutResidentsFirst(lookahead, now);
  } else {
    order_.turns.clear();
    for (std::int32_t lane = 0; lane < lanes; ++lane) {
      lane_begins_.push_back(order_.turns.size());
      tenants_.AppendOrder(now, lane, lookahead, order_);
    }
  }
  lane_begins_.push_back(order_.turns.size());
  FindOverdue(now);
}

// Stable, so each of the three groups stays first come, first served. An overdue request, or one of an overdue tenant,
// keeps its place in the first group, so that residents of others cannot starve it.
void Scheduler::PutResidentsFirst(std::size_t limit, TimeNs now) {
  auto& turns = order_.turns;
  for (std::vector<Turn>* part : {&later_turns_, &last_turns_}) part->clear();
  std::size_t kept = 0;
  for (const Turn& turn : turns) {
    const bool overdue =
        turn.service == -std::numeric_limits<double>::infinity() || now - turn.request->arrival > options_.age_bound;
    if (overdue)
      turns[kept++] = turn;
    else if (IsLoading(*turn.request))
      later_turns_.push_back(turn);
    else if (MustLoad(*turn.request))
      last_turns_.push_back(turn);
    else
      turns[kept++] = turn;
  }
  turns.resize(kept);
  for (const std::vector<Turn>* part : {&later_turns_, &last_turns_})
    turns.insert(turns.end(), part->begin(), part->end());
  if (turns.size() > limit) turns.resize(limit);
}

// With one tenant, all requests beyond the age bound go before all others. If only one did, a step with room for many
// would admit that one and then much younger requests. With several tenants, each tenant gets its own turn after
// FairnessOptions::max_wait instead, so that one tenant's old requests do not block the others.
void Scheduler::FindOverdue(TimeNs now) {
  overdue_.clear();
  if (tenants_.active_tenants() > 1) {
    if (Request* const turn = OverdueTurn()) overdue_.push_back(turn);
    return;
  }
  for (Request* const request : waiting()) {  // the oldest first
    if (now - request->arrival <= options_.age_bound || overdue_.size() == static_cast<std::size_t>(options_.lookahead))
      return;
    overdue_.push_back(request);
  }
}

// The overdue request is the first of its lane. It is scheduled before other lanes too, so that they cannot starve
// it.
Request* Scheduler::OverdueTurn() const {
  Request* first = nullptr;
  for (std::size_t lane = 0; queue_->has_quotas() && lane + 1 < lane_begins_.size(); ++lane) {
    if (lane_begins_[lane] == lane_begins_[lane + 1]) continue;
    const Turn& turn = order_.turns[lane_begins_[lane]];
    const bool overdue = turn.service == -std::numeric_limits<double>::infinity();
    if (overdue && (first == nullptr || turn.request->id < first->id)) first = turn.request;
  }
  return first;
}

// ---------------------------------------------------------------- Lanes

void Scheduler::EnterQueue(Request* request) {
  if (request->adapter != kBaseModel) {
    request->adapter_tokens =
        static_cast<std::int32_t>(residency_->Get(request->adapter).version->layout.pages * options_.page_tokens);
  }
  if (predictor_ != nullptr) request->predicted_output = predictor_->Predict(QueryOf(*request));
  queue_->SawArrival(*request, request->arrival);
  PlaceInQueue(*queue_, options_.age_bound, *request);
  const std::int64_t cached = Depth(request->tail) * options_.page_tokens;
  queue_->BeginsToWait(request, request->prompt_tokens - cached, request->arrival);
}

LengthQuery Scheduler::QueryOf(const Request& request) const {
  const bool base = request.adapter == kBaseModel;
  return {.adapter = request.adapter,
          .adapter_digest =
              base ? std::string_view() : std::string_view(residency_->Get(request.adapter).version->file.digest),
          .prompt_tokens = request.prompt_tokens,
          .max_output_tokens = request.max_total_tokens - request.prompt_tokens,
          .hint = request.length_hint};
}

void Scheduler::ObserveEnd(const Request& request, TimeNs now) {
  if (request.first_scheduled >= 0) queue_->SawEnd(request, now - request.first_scheduled);
  if (predictor_ == nullptr) return;
  const auto output_tokens = static_cast<std::int32_t>(request.generated().size());
  CountPrediction(request, output_tokens);
  predictor_->Observe(QueryOf(request), output_tokens);
}

void Scheduler::CountPrediction(const Request& request, std::int32_t output_tokens) {
  const std::int32_t error = request.predicted_output - output_tokens;
  prediction_stats_.error_tokens += std::abs(error);
  const bool right = 4 * static_cast<std::int64_t>(std::abs(error)) <= output_tokens;
  ++(right ? prediction_stats_.right : error < 0 ? prediction_stats_.low : prediction_stats_.high);
}

void Scheduler::RefitLanes(TimeNs now) {
  for (Request* const request : queue_->GiveUp(now, LoadTimes(*residency_, reload_costs_, now))) {
    ++given_up_;
    tenants_.PlaceAnew(request, [this](Request& late) { PlaceInQueue(*queue_, options_.age_bound, late); });
  }
  if (!queue_->Refit(now)) return;
  tenants_.Replace(waiting(), [this](Request& request) { PlaceInQueue(*queue_, options_.age_bound, request); });
  lane_use_.fill(0);
  for (Request* request : running_) {
    request->lane = queue_->LaneOf(*request);
    lane_use_[static_cast<std::size_t>(request->lane)] += static_cast<double>(ExtentOf(*request).total());
  }
}

// Chameleon's algorithm 1. In the first phase each lane uses its own quota. In the second phase lanes use the quotas
// left over by lanes in which no request waits any longer, smallest requests first.
void Scheduler::PlanLanes(TimeNs now) {
  const auto lanes = lane_begins_.size() - 1;
  double leftover = 0;
  std::array<std::size_t, kMaxLanes> next = {};
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    double quota = queue_->Quota(static_cast<std::int32_t>(lane)) - scratch_.lane_use[lane];
    next[lane] = PutBatch(lane, lane_begins_[lane], quota, now);
    if (next[lane] == kEmptied) leftover += std::max(0.0, quota);
  }
  for (std::size_t lane = 0; lane < lanes && leftover > 0; ++lane) {
    if (next[lane] < lane_begins_[lane + 1]) PutBatch(lane, next[lane], leftover, now);
  }
}

// Admits requests of the lane, from turn `first` on, while `tokens` last. Returns the first turn for which the quota
// was too small, or kEmptied, or kBlocked. A lane with nothing running may admit one request regardless of its quota,
// because a request may be larger than the quota.
std::size_t Scheduler::PutBatch(std::size_t lane, std::size_t first, double& tokens, TimeNs now) {
  const Request* blocked = nullptr;  // by memory
  int tries = kBypassTries;
  for (std::size_t at = first; at < lane_begins_[lane + 1]; ++at) {
    Request* const request = order_.turns[at].request;
    if (at + kAhead < order_.turns.size()) PrefetchExtent(*order_.turns[at + kAhead].request);
    if (IsOverdue(*request)) continue;  // already considered
    const auto needed = static_cast<double>(ExtentOf(*request).total());
    if (needed > tokens && scratch_.lane_use[lane] > 0) return blocked == nullptr ? at : kBlocked;
    if (blocked != nullptr && (--tries < 0 || !MayOvertake(*request))) continue;
    const Admission outcome = TryAdmit(request, now);
    if (outcome == Admission::kBlocked && blocked == nullptr) {
      blocked = request;
      if (scratch_.blocked == nullptr) scratch_.blocked = request;
      EstimateTimeUntilRoom(*request);
    }
    if (outcome != Admission::kAdmitted) continue;
    tokens -= needed;
    scratch_.lane_use[lane] += needed;
    if (blocked != nullptr) plan_.admissions.back().overtakes = blocked->id;
  }
  return blocked == nullptr ? kEmptied : kBlocked;
}

// ---------------------------------------------------------------- Bypass and squash (Chameleon 4.3.3)

// In its lane, besides the running requests.
bool Scheduler::HasQuota(const Request& request) const {
  const double use = scratch_.lane_use[static_cast<std::size_t>(request.lane)];
  return !queue_->has_quotas() || use <= 0 ||
         static_cast<double>(ExtentOf(request).total()) <= queue_->Quota(request.lane) - use;
}

// Assumes that the prediction is right. Seconds with a performance model, else steps.
double Scheduler::RunTimeOf(const Request& request) const {
  const auto outputs = static_cast<double>(
      std::max<std::int64_t>(1, request.predicted_output - static_cast<std::int64_t>(request.generated().size())));
  if (options_.costs == nullptr) {
    return outputs + static_cast<double>(request.uncomputed()) / static_cast<double>(options_.max_batch_tokens);
  }
  // a single token belongs to the output
  const std::int64_t prompt = request.uncomputed() > 1 ? request.uncomputed() : 0;
  return PrefillSeconds(*options_.costs, prompt, request.computed) + outputs * scratch_.decode_seconds;
}

// Takes all runners as if none had a prompt to compute.
double Scheduler::DecodeSeconds() const {
  StepLoad load;
  for (const Scratch::Runner& runner : scratch_.runners) {
    const Request& request = *runner.request;
    ++load.decode_sequences;
    load.decode_context += request.computed + 1;
    if (request.adapter == kBaseModel) continue;
    const std::int64_t rank = residency_->Get(request.adapter).version->layout.max_rank;
    ++load.adapter_tokens;
    load.token_ranks += rank;
    load.max_rank = std::max(load.max_rank, rank);
  }
  load.distinct_adapters = std::min(scratch_.distinct_adapters, load.adapter_tokens);
  if (load.adapter_tokens > 0) load.rank_sum = load.token_ranks * load.distinct_adapters / load.adapter_tokens;
  return options_.costs->SecondsOf(load);
}

// Time until running requests have ended that together hold what this request needs. Counts them in the order of
// their predicted ends.
void Scheduler::EstimateTimeUntilRoom(const Request& request) {
  auto& ends = scratch_.ends;
  ends.Clear();
  if (options_.costs != nullptr) scratch_.decode_seconds = DecodeSeconds();
  for (const Scratch::Runner& runner : scratch_.runners) ends.Append(RunTimeOf(*runner.request), runner.request);
  ends.MakeHeap();  // few are needed, and each needs a walk along its path to count its pages
  std::int64_t missing = PagesToStart(request) + GrowthReserve() - scratch_.free_device;
  scratch_.time_until_room = std::numeric_limits<double>::infinity();
  for (; !ends.empty(); ends.PopFirst()) {
    missing -= PagesFreedBy(*ends.first().request);
    if (missing > 0) continue;
    scratch_.time_until_room = ends.first().time;
    return;
  }
}

// A request may overtake only if it will probably end before the older one could start, and only once. A squash does
// not always make room for the older request, because idle adapters may be wanted by then. Without that limit, two
// requests could alternate: overtake the same request and be squashed for it, without end.
bool Scheduler::MayOvertake(const Request& request) const {
  return !request.squashed && !MustLoad(request) && RunTimeOf(request) < scratch_.time_until_room;
}

// Predictions may have been wrong. An overtaken request gets memory as soon as the pages of the requests that
// overtook it would suffice. Those are preempted and computed again later.
void Scheduler::PlanSquashes(TimeNs now) {
  if (overtakers_ == 0) return;
  auto& runners = scratch_.runners;
  for (const Scratch::Runner& first : runners) {
    if (first.request->overtook == RequestId{}) continue;
    const RequestId overtaken = first.request->overtook;
    const auto found = std::lower_bound(waiting().begin(), waiting().end(), overtaken,
                                        [](const Request* request, RequestId id) { return request->id < id; });
    if (found == waiting().end() || (*found)->id != overtaken || IsLoading(**found) || IsFetching(**found)) continue;
    if (Partitioned() && MustLoad(**found)) continue;  // evicting keys and values makes no room for an adapter
    const std::int64_t room =
        scratch_.free_device + EvictablePages(PageCategory::kKv, false) - PagesOfIdleAdapter(**found);
    std::int64_t missing = PagesToStart(**found) + GrowthReserve() - room;
    if (missing <= 0) continue;  // it can start without a squash
    for (const Scratch::Runner& runner : runners) {
      if (runner.request->overtook == overtaken) missing -= PagesFreedBy(*runner.request);
    }
    if (missing > 0) continue;
    for (std::size_t i = runners.size(); i-- > 0;) {
      if (runners[i].request->overtook == overtaken) PlanPreemptionOf(i, now);
    }
    return;  // at most one per step: erasing has moved `runners`
  }
}

}  // namespace loramux
