// Who is let in, and in which order: turns, lanes with quotas, bypasses. (What each needs: scheduler_plan.cc.)
#include <algorithm>
#include <cstdlib>
#include <limits>

#include "base/check.h"
#include "schedule/scheduler.h"

namespace loramux {
namespace {

// Requests behind one that memory has no room for that are looked at.
constexpr int kBypassTries = 16;
// Where a lane's batch ended, if not at a request.
constexpr std::size_t kEmptied = std::numeric_limits<std::size_t>::max(), kBlocked = kEmptied - 1;

}  // namespace

// ---------------------------------------------------------------- The turns

void Scheduler::OrderWaiting(TimeNs now) {
  const std::int32_t lanes = queue_->lanes();
  const auto lookahead = static_cast<std::size_t>(options_.lookahead);
  lane_begins_.clear();
  if (lanes == 1) {
    lane_begins_.push_back(0);
    // Residents may stand anywhere; farther than this nobody looks for them.
    const std::size_t window = queue_->residents_first() ? 4 * lookahead : lookahead;
    tenants_.Order(now, 0, window, order_);
    if (queue_->residents_first()) PutResidentsFirst(lookahead, now);
  } else {
    order_.turns.clear();
    for (std::int32_t lane = 0; lane < lanes; ++lane) {
      lane_begins_.push_back(order_.turns.size());
      tenants_.Order(now, lane, lookahead, lane_order_);
      order_.turns.insert(order_.turns.end(), lane_order_.turns.begin(), lane_order_.turns.end());
    }
  }
  lane_begins_.push_back(order_.turns.size());
  overdue_ = Overdue(now);
}

// Stable: first come, first served within each of the three. Who has waited too long, or is of a tenant that did, keeps its
// place among the first: else the residents of others could keep it waiting for ever.
void Scheduler::PutResidentsFirst(std::size_t limit, TimeNs now) {
  auto& turns = order_.turns;
  for (std::vector<Turn>* part : {&later_turns_, &last_turns_}) part->clear();
  std::size_t kept = 0;
  for (const Turn& turn : turns) {
    const bool overdue = turn.service == -std::numeric_limits<double>::infinity() || now - turn.request->arrival > options_.age_bound;
    if (overdue) turns[kept++] = turn;
    else if (IsLoading(*turn.request)) later_turns_.push_back(turn);
    else if (MustLoad(*turn.request)) last_turns_.push_back(turn);
    else turns[kept++] = turn;
  }
  turns.resize(kept);
  for (const std::vector<Turn>* part : {&later_turns_, &last_turns_}) turns.insert(turns.end(), part->begin(), part->end());
  if (turns.size() > limit) turns.resize(limit);
}

// Who waits for longer than the age bound goes before everybody. Where there are several tenants, each has its own turn
// after FairnessOptions::max_wait, so that nobody's old requests stand in the way of the others: that turn is the first of
// its lane, and goes before the other lanes too, which else might take what it waits for for ever.
Request* Scheduler::Overdue(TimeNs now) const {
  if (waiting().empty()) return nullptr;
  if (tenants_.active_tenants() > 1) {
    Request* first = nullptr;
    for (std::size_t lane = 0; queue_->has_quotas() && lane + 1 < lane_begins_.size(); ++lane) {
      if (lane_begins_[lane] == lane_begins_[lane + 1]) continue;
      const Turn& turn = order_.turns[lane_begins_[lane]];
      const bool overdue = turn.service == -std::numeric_limits<double>::infinity();
      if (overdue && (first == nullptr || turn.request->id < first->id)) first = turn.request;
    }
    return first;
  }
  Request* const oldest = waiting().front();
  return now - oldest->arrival > options_.age_bound ? oldest : nullptr;
}

// ---------------------------------------------------------------- Lanes

void Scheduler::EnterQueue(Request* request) {
  if (request->adapter != kBaseModel) {
    request->adapter_tokens = static_cast<std::int32_t>(residency_->Get(request->adapter).version->layout.pages * options_.page_tokens);
  }
  if (predictor_ != nullptr) request->predicted_output = predictor_->Predict(QueryOf(*request));
  queue_->SawArrival(*request, request->arrival);
  PlaceInQueue(*queue_, options_.age_bound, *request);
}

LengthQuery Scheduler::QueryOf(const Request& request) const {
  const bool base = request.adapter == kBaseModel;
  return {.adapter = request.adapter,
          .adapter_digest = base ? std::string_view() : std::string_view(residency_->Get(request.adapter).version->file.digest),
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
  if (!queue_->Refit(now)) return;
  tenants_.Replace(waiting(), [this](Request& request) { PlaceInQueue(*queue_, options_.age_bound, request); });
  lane_use_.fill(0);
  for (Request* request : running_) {
    request->lane = queue_->LaneOf(*request);
    lane_use_[static_cast<std::size_t>(request->lane)] += static_cast<double>(ExtentOf(*request).total());
  }
}

// Chameleon's algorithm 1. In the first phase each lane uses its own quota, in the second what is left of those of lanes
// that nobody waits in any more, smallest requests first.
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

// Lets requests of the lane in while `tokens` last, from `first` on. Returns the first that its quota was not enough for,
// or kEmptied, or kBlocked. One that nobody of its lane runs beside needs no quota: it may be larger than all there is.
std::size_t Scheduler::PutBatch(std::size_t lane, std::size_t first, double& tokens, TimeNs now) {
  const Request* blocked = nullptr;   // by memory
  int tries = kBypassTries;
  for (std::size_t at = first; at < lane_begins_[lane + 1]; ++at) {
    Request* const request = order_.turns[at].request;
    if (request == overdue_) continue;   // it had its turn
    const auto needed = static_cast<double>(ExtentOf(*request).total());
    if (needed > tokens && scratch_.lane_use[lane] > 0) return blocked == nullptr ? at : kBlocked;
    if (blocked != nullptr && (--tries < 0 || !MayOvertake(*request))) continue;
    const Admission outcome = TryAdmit(request, now);
    if (outcome == Admission::kBlocked && blocked == nullptr) {
      blocked = request;
      if (scratch_.blocked == nullptr) scratch_.blocked = request;
      CountStepsUntilRoom(*request);
    }
    if (outcome != Admission::kAdmitted) continue;
    tokens -= needed;
    scratch_.lane_use[lane] += needed;
    if (blocked != nullptr) plan_.admissions.back().overtakes = blocked->id;
  }
  return blocked == nullptr ? kEmptied : kBlocked;
}

// ---------------------------------------------------------------- Bypass and squash (Chameleon 4.3.3)

// In its lane, beside those that run.
bool Scheduler::HasQuota(const Request& request) const {
  const double use = scratch_.lane_use[static_cast<std::size_t>(request.lane)];
  return !queue_->has_quotas() || use <= 0 || static_cast<double>(ExtentOf(request).total()) <= queue_->Quota(request.lane) - use;
}

// How many steps a request takes, if its prediction is right.
double Scheduler::StepsOf(const Request& request) const {
  const std::int64_t outputs = std::max<std::int64_t>(1, request.predicted_output - static_cast<std::int64_t>(request.generated().size()));
  return static_cast<double>(outputs) + static_cast<double>(request.uncomputed()) / static_cast<double>(options_.max_batch_tokens);
}

// Until running requests have ended that hold what this one needs, whoever ends first giving first.
void Scheduler::CountStepsUntilRoom(const Request& request) {
  auto& ends = scratch_.ends;
  ends.clear();
  for (const Scratch::Runner& runner : scratch_.runners) ends.push_back({StepsOf(*runner.request), PagesFreedBy(*runner.request)});
  std::sort(ends.begin(), ends.end(), [](const Scratch::End& a, const Scratch::End& b) { return a.steps < b.steps; });
  std::int64_t missing = PagesToStart(request) + GrowthReserve() - scratch_.free_device;
  scratch_.steps_until_room = std::numeric_limits<double>::infinity();
  for (const Scratch::End& end : ends) {
    missing -= end.pages;
    if (missing > 0) continue;
    scratch_.steps_until_room = end.steps;
    return;
  }
}

// Only if it will probably have ended before the older one could begin.
bool Scheduler::MayOvertake(const Request& request) const {
  return !MustLoad(request) && StepsOf(request) < scratch_.steps_until_room;
}

// Predictions may have been wrong: who was overtaken gets the memory as soon as it would be enough together with that of
// those who overtook it. They are computed again later.
void Scheduler::PlanSquashes(TimeNs now) {
  if (overtakers_ == 0) return;
  auto& runners = scratch_.runners;
  for (const Scratch::Runner& first : runners) {
    if (first.request->overtook == RequestId{}) continue;
    const RequestId overtaken = first.request->overtook;
    const auto found = std::lower_bound(waiting().begin(), waiting().end(), overtaken,
                                        [](const Request* request, RequestId id) { return request->id < id; });
    if (found == waiting().end() || (*found)->id != overtaken || IsLoading(**found) || IsFetching(**found)) continue;
    if (Partitioned() && MustLoad(**found)) continue;   // keys and values are no room for it
    const std::int64_t room = scratch_.free_device + EvictablePages(PageCategory::kKv, false) - PagesOfIdleAdapter(**found);
    std::int64_t missing = PagesToStart(**found) + GrowthReserve() - room;
    if (missing <= 0) continue;   // it begins without that
    for (const Scratch::Runner& runner : runners) {
      if (runner.request->overtook == overtaken) missing -= PagesFreedBy(*runner.request);
    }
    if (missing > 0) continue;
    for (std::size_t i = runners.size(); i-- > 0;) {
      if (runners[i].request->overtook == overtaken) PlanPreemptionOf(i, now);
    }
    return;   // one in a step: its place in `runners` has moved
  }
}

}  // namespace loramux
