#include "schedule/queue/objective_order.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace loramux {
namespace {

// A rate is measured over several steps, however short the objective is.
constexpr TimeNs kShortestMemory = 2 * kNsPerSecond;
constexpr TimeNs kTrusted = kNsPerSecond / 2;
// Share of the objective that is kept for work outside the sum: the step under way, and the step that ends with the
// first token.
constexpr double kMargin = 0.05;
// Admissions that make a rate. A single request that was admitted while all others waited for their adapters makes
// none.
constexpr double kFewestDone = 4;

double Seconds(TimeNs duration) { return static_cast<double>(duration) / kNsPerSecond; }

}  // namespace

DrainRate::DrainRate(TimeNs memory, TimeNs trusted) : memory_(Seconds(memory)), trusted_(Seconds(trusted)) {
  CHECK_GT(memory, 0);
}

void DrainRate::Pass(TimeNs now, bool somebody_waits) {
  const double elapsed = Seconds(now - seen_);
  if (elapsed <= 0) return;
  seen_ = now;
  const double kept = std::exp(-elapsed / memory_);  // observations fade whether or not requests wait
  work_ *= kept;
  done_ *= kept;
  seconds_ = seconds_ * kept + (somebody_waits ? elapsed : 0);
}

std::optional<double> DrainRate::PerSecond() const {
  if (seconds_ < trusted_ || done_ < kFewestDone || work_ <= 0) return std::nullopt;
  return work_ / seconds_;
}

ObjectiveOrder::ObjectiveOrder(TimeNs objective, TimeNs age_bound)
    : objective_(objective),
      age_bound_(age_bound),
      drain_(std::max(kShortestMemory, objective), std::min(kTrusted, objective)) {
  CHECK_GT(objective, 0);
  CHECK_GT(age_bound, 0);
}

void ObjectiveOrder::BeginsToWait(Request* request, std::int64_t work, TimeNs now) {
  Pass(now);
  request->work_tokens = static_cast<std::int32_t>(work);
  const TimeNs latest = request->deadline > 0 ? request->deadline : request->arrival + objective_;
  on_time_.Insert({UrgencyOf(*request), request, static_cast<double>(work), latest});
}

// A request that was admitted before and waits again after a preemption is not counted again.
void ObjectiveOrder::EndsWait(Request* request, bool let_in, TimeNs now) {
  if (request->work_tokens < 0) return;
  Pass(now);
  if (let_in && now > request->arrival) drain_.Done(request->work_tokens);
  request->work_tokens = -1;
  if (request->late) {
    CHECK_GT(late_, 0U);
    --late_;
    return;
  }
  on_time_.Erase(request);
}

std::span<Request* const> ObjectiveOrder::GiveUp(TimeNs now, const AdapterLoads& loads) {
  Pass(now);
  given_up_.clear();
  const std::optional<double> rate = drain_.PerSecond();
  const TimeNs begun = now + static_cast<TimeNs>(kMargin * static_cast<double>(objective_));
  GiveUpLoads(rate, begun, loads);
  if (rate.has_value()) GiveUpWork(*rate, begun);
  if (!given_up_.empty()) on_time_.EraseIf([](const Member& member) { return member.request == nullptr; });
  return given_up_;
}

// The adapters that on-time requests need, in the order of service of the first request of each.
void ObjectiveOrder::FindLoads(std::optional<double> rate, TimeNs begun, const AdapterLoads& loads) {
  loads_.clear();
  members_of_loads_.clear();
  const std::span<const Member> members = on_time_.entries();
  for (std::size_t at = 0; at < members.size(); ++at) {
    const AdapterGeneration adapter = members[at].request->adapter;
    if (adapter != kBaseModel && loads.SecondsToLoad(adapter) > 0) members_of_loads_.emplace_back(adapter, at);
  }
  std::sort(members_of_loads_.begin(), members_of_loads_.end());
  for (std::uint32_t begin = 0, end = 0; begin < members_of_loads_.size(); begin = end) {
    const auto [adapter, first] = members_of_loads_[begin];
    while (end < members_of_loads_.size() && members_of_loads_[end].first == adapter) ++end;
    const double prompt = rate.has_value() ? members[first].work / *rate : 0;  // prefill after the load
    loads_.push_back({.first = first,
                      .begin = begin,
                      .end = end,
                      .seconds = loads.SecondsToLoad(adapter),
                      .due = Seconds(members[first].latest - begun) - prompt});
  }
  std::sort(loads_.begin(), loads_.end(), [](const Load& a, const Load& b) { return a.first < b.first; });
}

void ObjectiveOrder::GiveUpLoads(std::optional<double> rate, TimeNs begun, const AdapterLoads& loads) {
  FindLoads(rate, begun, loads);
  if (loads_.empty()) return;
  const double under_way = loads.SecondsUnderWay();
  double seconds = under_way;
  largest_.clear();
  const auto cheaper = [this](std::size_t a, std::size_t b) {
    return std::pair(loads_[a].PerRequest(), a) < std::pair(loads_[b].PerRequest(), b);
  };
  for (std::size_t at = 0; at < loads_.size(); ++at) {
    Load& load = loads_[at];
    load.given_up = under_way + load.seconds > load.due;  // misses it even as the only load
    if (load.given_up) continue;
    seconds += load.seconds;
    largest_.push_back(at);
    std::push_heap(largest_.begin(), largest_.end(), cheaper);
    for (; seconds > load.due && !load.given_up; largest_.pop_back()) {  // without it, all others fit
      std::pop_heap(largest_.begin(), largest_.end(), cheaper);
      Load& largest = loads_[largest_.back()];
      seconds -= largest.seconds;
      largest.given_up = true;
    }
  }
  const std::span<Member> members = on_time_.entries();
  for (const Load& load : loads_) {
    if (!load.given_up) continue;
    for (std::uint32_t i = load.begin; i < load.end; ++i) GiveUpOne(members[members_of_loads_[i].second]);
  }
  if (!given_up_.empty()) on_time_.EraseIf([](const Member& member) { return member.request == nullptr; });
}

void ObjectiveOrder::GiveUpWork(double rate, TimeNs begun) {
  const std::span<Member> members = on_time_.entries();
  const auto smaller = [&](std::size_t a, std::size_t b) {
    return std::pair(members[a].work, a) < std::pair(members[b].work, b);
  };
  double work = 0;
  largest_.clear();  // built only if a request must be given up, which is rare
  for (std::size_t at = 0; at < members.size(); ++at) {
    Member& member = members[at];
    const double fits = rate * Seconds(member.latest - begun);
    if (member.work > fits) {  // misses it even as the only request
      GiveUpOne(member);
      continue;
    }
    work += member.work;
    if (!largest_.empty()) {
      largest_.push_back(at);
      std::push_heap(largest_.begin(), largest_.end(), smaller);
    }
    if (work > fits && largest_.empty()) {
      for (std::size_t i = 0; i <= at; ++i) {
        if (members[i].request != nullptr) largest_.push_back(i);
      }
      std::make_heap(largest_.begin(), largest_.end(), smaller);
    }
    for (; work > fits && member.request != nullptr; largest_.pop_back()) {  // without it, all others fit
      std::pop_heap(largest_.begin(), largest_.end(), smaller);
      work -= members[largest_.back()].work;
      GiveUpOne(members[largest_.back()]);  // among equal ones, the youngest
    }
  }
}

// The caller removes all members without a request from on_time_.
void ObjectiveOrder::GiveUpOne(Member& member) {
  member.request->late = true;
  given_up_.push_back(member.request);
  ++late_;
  member.request = nullptr;
}

void ObjectiveOrder::CheckIntegrity() const {
  const std::span<const Member> members = on_time_.entries();
  for (std::size_t at = 0; at < members.size(); ++at) {
    const Member& member = members[at];
    CHECK(member.request->state == RequestState::kWaiting && !member.request->late);
    CHECK(member.urgency == UrgencyOf(*member.request));
    CHECK_EQ(static_cast<double>(member.request->work_tokens), member.work);
    if (at > 0) CHECK(members[at - 1].urgency < member.urgency);
  }
}

}  // namespace loramux
