// The last part of a plan: pages that are brought to the device before a request can start with them.
#include <algorithm>
#include <limits>

#include "base/check.h"
#include "schedule/scheduler.h"

namespace loramux {

// Fetches history from the host tier for waiting requests without a seat, in the order of service. All requests
// before the one at hand are left the pages that they will need. A request that memory blocks may fetch, because it
// needs these pages anyway; requests behind it may not.
void Scheduler::PlanFetchesAhead(TimeNs now) {
  if (tiers_ == nullptr || !options_.fetch_ahead || tree_->host_pages() == 0 || scratch_.memory_short ||
      scratch_.locked_waits)
    return;
  const auto& turns = order_.turns;
  const auto candidate = [this](const Turn& turn) { return CouldFetchAhead(*turn.request); };
  if (scratch_.fetches_in_flight >= KvTiers::kMaxFetchesAhead || std::none_of(turns.begin(), turns.end(), candidate))
    return;
  for (const Turn& turn : turns) {
    if (turn.request->adapter != kBaseModel) WantInPlan(turn.request->adapter);
  }
  std::int64_t left = scratch_.free_device + EvictablePages(PageCategory::kKv, /*even_wanted=*/false) - GrowthReserve();
  for (const Turn& turn : turns) {
    Request* request = turn.request;
    const bool admitted =
        std::any_of(plan_.admissions.begin(), plan_.admissions.end(),
                    [request](const PlannedAdmission& admission) { return admission.request == request; });
    if (admitted) continue;  // its pages are taken already
    const bool blocked = request == scratch_.blocked;
    left -= MissingPages(*request, static_cast<std::int64_t>(request->tokens.size()) + 1);
    if (left < 0 && !blocked) return;
    if (CouldFetchAhead(*request) && !TryFetchAhead(request, now)) return;
    if (blocked || scratch_.fetches_in_flight >= KvTiers::kMaxFetchesAhead) return;
  }
}

// True if the end of its history is only in the host tier, and its adapter is on the device. Uses the last result of
// FindTail: pages added since then were computed since then, on the device.
bool Scheduler::CouldFetchAhead(const Request& request) const {
  const NodeId tail = request.found;
  if (request.fetches == Request::kMostFetches || request.fetched_ahead) return false;
  if (!tree_->Exists(tail) || tree_->OnDevice(tail) || tree_->Moving(tail)) return false;
  if (request.state != RequestState::kWaiting || kv_plan_.IsFetched(tail)) return false;
  if (request.adapter == kBaseModel) return true;
  return residency_->Get(request.adapter).device == TierState::kResident && (Flags(request.adapter) & kEvicted) == 0;
}

// Fetches the first part of the path if there is no room for all of it.
bool Scheduler::TryFetchAhead(Request* request, TimeNs now) {
  NodeId tail = request->found;
  std::int64_t pages = 0;
  NodeId device_tail = tail;
  for (; !tree_->OnDevice(device_tail); device_tail = tree_->Parent(device_tail), ++pages) {
    // Part of another fetch; the rest can come later.
    if (tree_->Moving(device_tail) || kv_plan_.IsFetched(device_tail)) return true;
  }
  // The plan evicts part of the path, or the host tier drops it.
  const bool given_up = scratch_.droppable_host < pages || kv_plan_.Kept(device_tail) != device_tail;
  if (given_up) return true;
  kv_plan_.Lock(device_tail);
  const std::int64_t room = std::min(pages, MakeRoomAhead(pages + GrowthReserve(), now) - GrowthReserve());
  if (room <= 0) {
    kv_plan_.Unlock(device_tail, now);
    return false;
  }
  for (std::int64_t i = room; i < pages; ++i) tail = tree_->Parent(tail);
  AddFetch(request, tail, room, /*ahead=*/true);
  return true;
}

// Only what no waiting request wants.
std::int64_t Scheduler::MakeRoomAhead(std::int64_t pages, TimeNs now) {
  while (scratch_.free_device < pages) {
    if (!Partitioned() && !scratch_.candidates_ready) RankIdleAdapters(now);
    const bool adapter = !Partitioned() && FindIdleAdapter(/*even_wanted=*/false);
    const std::optional<KvEvictionPlan::Victim> history = kv_plan_.Next(now);
    if (!adapter && (!history.has_value() || history->wanted)) break;
    CHECK(EvictOne(PageCategory::kKv, now, /*even_wanted=*/false));
  }
  return scratch_.free_device;
}

// ---------------------------------------------------------------- Adapters of new requests

// In a queue longer than lookahead, new requests do not start with the next step anyway. One call considers all new
// requests, because later calls may happen in steps without any effect, which recordings do not contain.
bool Scheduler::LoadForNewcomer(TimeNs now) {
  if (!options_.load_on_arrival || options_.cold_start != ColdStart::kPassOver || newest_ == newest_seen_) return false;
  if (somebody_waits_for_room_ || loads_wait_ || residency_->loads_in_flight() > 0) return false;
  const std::span<Request* const> queue = waiting();
  if (queue.size() > static_cast<std::size_t>(options_.lookahead)) return false;
  const auto seen = [this](const Request* request) { return newest_seen_.has_value() && request->id <= *newest_seen_; };
  auto newcomer = std::partition_point(queue.begin(), queue.end(), seen);
  newest_seen_ = newest_;
  const auto must_load = [this](const Request* request) { return MustLoad(*request); };
  if (std::none_of(newcomer, queue.end(), must_load)) return false;
  plan_.Clear();
  ResetScratch(now);
  for (const Request* request : queue) {
    if (request->adapter != kBaseModel) WantInPlan(request->adapter);
  }
  for (; newcomer != queue.end(); ++newcomer) {
    if (!MustLoad(**newcomer) || !PlanLoadFor(queue.first(static_cast<std::size_t>(newcomer - queue.begin()) + 1), now))
      continue;
    newest_seen_ = (*newcomer)->id;
    CommitEvictions();
    StartLoads(now);
    ++loads_on_arrival_;
    break;
  }
  const bool loads = !plan_.loads.empty();
  plan_.Clear();
  return loads;
}

bool Scheduler::PlanLoadFor(std::span<Request* const> waiting, TimeNs now) {
  const Request& request = *waiting.back();
  const AdapterResidency& adapter = residency_->Get(request.adapter);
  const std::int64_t pages = adapter.version->layout.pages, needs = NextPlanNeeds(waiting);
  const std::int64_t room =
      Free(PageCategory::kAdapter) + EvictablePages(PageCategory::kAdapter, /*even_wanted=*/false);
  if (ExceedsDistinctAdapters(request) || room < pages + needs) return false;
  if (!MakeRoom(PageCategory::kAdapter, pages + (Partitioned() ? 0 : GrowthReserve()), now)) return false;
  AddLoad(adapter);
  return true;
}

// An upper bound. If adapters have a share, requests need no pages of it.
std::int64_t Scheduler::NextPlanNeeds(std::span<Request* const> waiting) const {
  if (Partitioned()) return 0;
  std::int64_t pages = GrowthReserve();
  for (const std::span<Request* const> requests : {running(), waiting}) {
    for (const Request* request : requests)
      pages += MissingPages(*request, static_cast<std::int64_t>(request->tokens.size()) + 1);
  }
  return pages;
}

// ---------------------------------------------------------------- Expected adapters

// The past arrivals of its requests predict one within the time that a load takes.
bool Scheduler::IsExpected(const AdapterResidency& adapter, TimeNs now) const {
  if (options_.adapter_prefetch == AdapterPrefetch::kNone) return false;
  return arrivals_.Expects(adapter.slot, adapter.version->generation, now + prefetch_lead_);
}

// Only if no other request uses the adapter.
void Scheduler::EndIdle(const Request& request) {
  if (options_.adapter_prefetch == AdapterPrefetch::kNone || request.adapter == kBaseModel) return;
  const AdapterResidency& adapter = residency_->Get(request.adapter);
  if (adapter.references > 1) return;
  arrivals_.EndIdle(adapter.slot, request.adapter, request.arrival);
  if (EndPrefetch(request.adapter))
    ++(adapter.device == TierState::kAbsent ? prefetch_stats_.wasted : prefetch_stats_.used);
}

void Scheduler::BeginIdle(const Request& request, TimeNs now) {
  if (options_.adapter_prefetch == AdapterPrefetch::kNone || request.adapter == kBaseModel) return;
  const AdapterResidency& adapter = residency_->Get(request.adapter);
  if (adapter.references == 1) arrivals_.BeginIdle(adapter.slot, request.adapter, now);
}

bool Scheduler::EndPrefetch(AdapterGeneration generation) {
  const std::size_t slot = residency_->SlotOf(generation);
  if (slot >= prefetched_.size() || prefetched_[slot] != generation) return false;
  prefetched_[slot] = kBaseModel;
  return true;
}

std::optional<TimeNs> Scheduler::NextPrefetch() const {
  const std::optional<TimeNs> first = arrivals_.FirstBegin();
  if (!first.has_value() || residency_->loads_in_flight() > 0) return std::nullopt;
  return std::max(*first - prefetch_lead_, prefetch_not_before_);
}

// Starts the load of one expected adapter, if no other load is under way and no request waits for memory: loads for
// requests come first.
void Scheduler::LoadExpected(TimeNs now) {
  constexpr TimeNs kRetry = 100 * kNsPerMs;
  if (now < prefetch_not_before_) return;
  const std::optional<AdapterGeneration> expected = NextExpected(now);
  if (!expected.has_value() || residency_->loads_in_flight() > 0) return;
  plan_.Clear();
  ResetScratch(now);
  if (somebody_waits_for_room_ || !PlanExpectedLoad(residency_->Get(*expected), now)) {
    prefetch_not_before_ = now + kRetry;
    return;
  }
  CommitEvictions();
  StartLoads(now);
  plan_.Clear();
  ++prefetch_stats_.loads;
  const std::size_t slot = residency_->SlotOf(*expected);
  arrivals_.Settle(slot);
  if (prefetched_.size() <= slot) prefetched_.resize(slot + 1);
  prefetch_stats_.wasted += prefetched_[slot] != kBaseModel;  // its load failed, or it was dropped with its name
  prefetched_[slot] = *expected;
}

// The window in which it is expected begins within the time that a load takes.
std::optional<AdapterGeneration> Scheduler::NextExpected(TimeNs now) {
  const AdapterStats stats = residency_->Stats();
  prefetch_lead_ = stats.device_loads == 0 ? 0 : stats.load_time_total / stats.device_loads;
  while (const auto next = arrivals_.Next(now)) {
    if (next->window.from > now + prefetch_lead_) return std::nullopt;
    const bool known = residency_->Knows(next->adapter);
    if (known && !residency_->Get(next->adapter).retired &&
        residency_->Get(next->adapter).device == TierState::kAbsent) {
      return next->adapter;
    }
    arrivals_.Settle(next->slot);
  }
  return std::nullopt;
}

// Uses pages that are free beyond the reserve, and pages whose content scores less than the adapter would if it were
// used now. Never evicts anything that a waiting request wants.
bool Scheduler::PlanExpectedLoad(const AdapterResidency& adapter, TimeNs now) {
  for (const Request* request : waiting()) {
    if (request->adapter != kBaseModel) WantInPlan(request->adapter);
  }
  const UsageMonitor::Visits visits = usage_.Of(adapter.slot, adapter.version->generation);
  context_.now = now;
  const double worth =
      policy_->Score({.pages = adapter.version->layout.pages,
                      .last_use = now,
                      .uses = static_cast<double>(adapter.uses),
                      .reload = adapter.host == TierState::kResident ? ReloadFrom::kHost : ReloadFrom::kDisk,
                      .frequency = visits.frequency,
                      .frequency_at = visits.at,
                      .queued = true},
                     context_);
  const std::int64_t pages =
      adapter.version->layout.pages + (Partitioned() ? 0 : std::max(GrowthReserve(), NewcomersReserve()));
  while (Free(PageCategory::kAdapter) < pages) {
    if (!scratch_.candidates_ready) RankIdleAdapters(now);
    const bool idle_adapter = FindIdleAdapter(/*even_wanted=*/false);
    std::optional<KvEvictionPlan::Victim> history;
    if (!Partitioned()) history = kv_plan_.Next(now);
    if (history.has_value() && history->wanted) history.reset();
    double least = std::numeric_limits<double>::infinity();
    if (idle_adapter) least = scratch_.candidates.front().score;
    if (history.has_value()) least = std::min(least, history->score);
    if (!(least < worth)) return false;
    CHECK(EvictOne(PageCategory::kAdapter, now, /*even_wanted=*/false));
  }
  AddLoad(adapter);
  return true;
}

}  // namespace loramux
