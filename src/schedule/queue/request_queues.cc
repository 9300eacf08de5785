#include "schedule/queue/request_queues.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

#include "base/check.h"

namespace loramux {
namespace {

// Loads that must be measured before their time is used.
constexpr std::int64_t kFewestLoads = 4;

// The default burst is the tokens of two steps, so that a few requests that arrive together need not wait for the
// shares of other tenants.
FairnessOptions WithBurst(const SystemSpec& options) {
  FairnessOptions fairness = options.fairness;
  if (fairness.burst == 0) fairness.burst = static_cast<double>(2 * options.max_batch_tokens);
  return fairness;
}

bool OlderThan(const Request* a, const Request* b) { return a->id < b->id; }

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

}  // namespace

RequestQueues::RequestQueues(const SystemSpec& options, const ResidencyManager& residency, QueueOrder& order,
                             LengthPredictor& predictor)
    : options_(options),
      residency_(residency),
      order_(order),
      predictor_(predictor),
      tenants_(WithBurst(options), kMaxLanes) {
  const auto most = static_cast<std::size_t>(2 * options.Seats());  // more requests may run than compute in a step
  running_.reserve(most);
  by_rank_.reserve(most);
}

// ---------------------------------------------------------------- The life of a request

void RequestQueues::Enter(Request* request, std::int64_t cached_tokens) {
  CHECK(waiting().empty() || OlderThan(waiting().back(), request));
  CHECK(running_.empty() || OlderThan(running_.back(), request));
  request->state = RequestState::kWaiting;
  waiting_.push_back(request);
  newest_ = request->id;
  if (request->adapter != kBaseModel) {
    const std::int64_t pages = residency_.Get(request->adapter).version->layout.pages;
    request->adapter_tokens = static_cast<std::int32_t>(pages * options_.page_tokens);
  }
  request->predicted_output = predictor_.Predict(QueryOf(*request));
  request->found_on_arrival = static_cast<std::int32_t>(cached_tokens);
  request->quota_tokens = static_cast<std::int32_t>(
      std::min<std::int64_t>(order_.QuotaTokens(*request), std::numeric_limits<std::int32_t>::max()));
  order_.SawArrival(*request, request->arrival);
  Place(*request);
  order_.BeginsToWait(request, request->prompt_tokens - cached_tokens, request->arrival);
  tenants_.Add(request, request->arrival);
}

// If the request is preempted and waits again, it is placed as if it had not been given up.
void RequestQueues::Admit(Request* request, TimeNs now) {
  EraseWaiting(request);
  order_.EndsWait(request, /*let_in=*/true, now);
  InsertRunning(request);
  tenants_.Admit(request, now);
  request->state = RequestState::kRunning;
  if (std::exchange(request->late, false)) Place(*request);
}

void RequestQueues::Return(Request* request, TimeNs now) {
  EraseRunning(request);
  request->state = RequestState::kWaiting;
  tenants_.Return(request, now);
  InsertWaiting(request);
}

Request* RequestQueues::FindWaiting(RequestId id) const {
  const auto requests = waiting();
  const auto found = std::lower_bound(requests.begin(), requests.end(), id,
                                      [](const Request* request, RequestId id) { return request->id < id; });
  return found != requests.end() && (*found)->id == id ? *found : nullptr;
}

void RequestQueues::Leave(Request* request, TimeNs now, bool by_itself) {
  if (by_itself && !request->generated().empty()) ObserveEnd(*request, now);
  tenants_.Remove(request);
  if (request->state == RequestState::kRunning) {
    EraseRunning(request);
  } else {
    CHECK(request->state == RequestState::kWaiting);
    EraseWaiting(request);
    order_.EndsWait(request, /*let_in=*/false, now);
  }
  request->state = RequestState::kFinished;
}

std::int64_t RequestQueues::Refit(const ReloadCostEstimator& loads, TimeNs now) {
  std::int64_t given_up = 0;
  for (Request* const request : order_.GiveUp(now, LoadTimes(residency_, loads, now))) {
    ++given_up;
    tenants_.PlaceAnew(request, [this](Request& late) { Place(late); });
  }
  if (!order_.Refit(now)) return given_up;
  tenants_.Replace(waiting(), [this](Request& request) { Place(request); });
  lane_use_.fill(0);
  for (Request* request : running_) {
    request->lane = order_.LaneOf(*request);
    lane_use_[static_cast<std::size_t>(request->lane)] += static_cast<double>(request->quota_tokens);
  }
  return given_up;
}

// ---------------------------------------------------------------- Predictions

LengthQuery RequestQueues::QueryOf(const Request& request) const {
  const bool base = request.adapter == kBaseModel;
  return {.adapter = request.adapter,
          .adapter_digest =
              base ? std::string_view() : std::string_view(residency_.Get(request.adapter).version->file.digest),
          .prompt_tokens = request.prompt_tokens,
          .max_output_tokens = request.max_total_tokens - request.prompt_tokens,
          .hint = request.length_hint};
}

void RequestQueues::ObserveEnd(const Request& request, TimeNs now) {
  if (request.first_scheduled >= 0) order_.SawEnd(request, now - request.first_scheduled);
  const auto output_tokens = static_cast<std::int32_t>(request.generated().size());
  CountPrediction(request, output_tokens);
  predictor_.Observe(QueryOf(request), output_tokens);
}

void RequestQueues::CountPrediction(const Request& request, std::int32_t output_tokens) {
  if (request.predicted_output == 0) return;
  const std::int32_t error = request.predicted_output - output_tokens;
  predictions_.error_tokens += std::abs(error);
  const bool right = 4 * static_cast<std::int64_t>(std::abs(error)) <= output_tokens;
  ++(right ? predictions_.right : error < 0 ? predictions_.low : predictions_.high);
}

// ---------------------------------------------------------------- The lists

void RequestQueues::InsertRunning(Request* request) {
  running_.insert(std::lower_bound(running_.begin(), running_.end(), request, OlderThan), request);
  by_rank_.push_back(request);
  lane_use_[static_cast<std::size_t>(request->lane)] += static_cast<double>(request->quota_tokens);
}

void RequestQueues::EraseRunning(Request* request) {
  const auto found = std::lower_bound(running_.begin(), running_.end(), request, OlderThan);
  CHECK(found != running_.end() && *found == request);
  running_.erase(found);
  by_rank_.erase(std::find(by_rank_.begin(), by_rank_.end(), request));
  lane_use_[static_cast<std::size_t>(request->lane)] -= static_cast<double>(request->quota_tokens);
}

// The request is older than all that were never admitted, but other preempted requests may be older.
void RequestQueues::InsertWaiting(Request* request) {
  if (waiting_head_ > 0) {
    waiting_[--waiting_head_] = request;
  } else {
    waiting_.insert(waiting_.begin(), request);
  }
  const auto begin = waiting_.begin() + static_cast<std::ptrdiff_t>(waiting_head_);
  for (auto it = begin; it + 1 != waiting_.end() && OlderThan(*(it + 1), *it); ++it) std::swap(*it, *(it + 1));
}

void RequestQueues::EraseWaiting(Request* request) {
  const auto begin = waiting_.begin() + static_cast<std::ptrdiff_t>(waiting_head_);
  const auto found = std::lower_bound(begin, waiting_.end(), request, OlderThan);
  CHECK(found != waiting_.end() && *found == request);
  std::move_backward(begin, found, found + 1);  // usually it is the first, and nothing moves
  ++waiting_head_;
  if (waiting_head_ > 1024 && waiting_head_ * 2 > waiting_.size()) {
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(waiting_head_));
    waiting_head_ = 0;
  }
}

void RequestQueues::CheckIntegrity() const {
  tenants_.CheckIntegrity();
  order_.CheckIntegrity();
  CHECK(std::is_sorted(running_.begin(), running_.end(), OlderThan));
  CHECK(std::is_sorted(waiting().begin(), waiting().end(), OlderThan));
  CHECK(std::is_permutation(running_.begin(), running_.end(), by_rank_.begin(), by_rank_.end()));
  for (const Request* request : running_) CHECK(request->state == RequestState::kRunning);
  for (const Request* request : waiting()) CHECK(request->state == RequestState::kWaiting);
  CheckLanes();
}

void RequestQueues::CheckLanes() const {
  std::array<double, kMaxLanes> use = {};
  for (const Request* request : running_) {
    use[static_cast<std::size_t>(request->lane)] += static_cast<double>(request->quota_tokens);
  }
  // exact: the sums are integers
  for (std::size_t lane = 0; lane < use.size(); ++lane) CHECK(use[lane] == lane_use_[lane]);
}

}  // namespace loramux
