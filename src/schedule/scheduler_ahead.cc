// The plan's last part: what is brought to the device before anybody could begin with it.
#include <algorithm>
#include <limits>

#include "base/check.h"
#include "schedule/scheduler.h"

namespace loramux {

// History in the host tier for those who got no seat in this step, in the order of service. Each that comes first is
// left all the pages that it will need; one that memory blocks may fetch, for they are pages that it needs, but nobody
// behind it.
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

// The end of its history is in the host tier alone, and its adapter is there to use it. Looks at what was found for it
// when it was last looked for: what came since was computed since, on the device.
bool Scheduler::CouldFetchAhead(const Request& request) const {
  const NodeId tail = request.found;
  if (request.fetches == Request::kMostFetches || request.fetched_ahead) return false;
  if (!tree_->Exists(tail) || tree_->OnDevice(tail) || tree_->Moving(tail)) return false;
  if (request.state != RequestState::kWaiting || kv_plan_.IsFetched(tail)) return false;
  if (request.adapter == kBaseModel) return true;
  return residency_->Get(request.adapter).device == TierState::kResident && (Flags(request.adapter) & kEvicted) == 0;
}

// As much of it as there is room for, from the beginning. False: there is no room, for nobody.
bool Scheduler::TryFetchAhead(Request* request, TimeNs now) {
  NodeId tail = request->found;
  std::int64_t pages = 0;
  NodeId device_tail = tail;
  for (; !tree_->OnDevice(device_tail); device_tail = tree_->Parent(device_tail), ++pages) {
    // another's: the rest can come later
    if (tree_->Moving(device_tail) || kv_plan_.IsFetched(device_tail)) return true;
  }
  // by this plan
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

// Evicts what no waiting request wants, until `pages` are free or nothing of that is left. Returns the free ones.
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

// ---------------------------------------------------------------- Adapters of who has just come

// In a long queue they do not begin with the next step anyway. All of them are looked at in one call: later ones may be
// steps in which nothing happens, which no recording has.
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

// For the last of these, if all of them have room beside it.
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

// Pages, at most: of those who run, and of these who wait. Where adapters have a share, none of it.
std::int64_t Scheduler::NextPlanNeeds(std::span<Request* const> waiting) const {
  if (Partitioned()) return 0;
  std::int64_t pages = GrowthReserve();
  for (const std::span<Request* const> requests : {running(), waiting}) {
    for (const Request* request : requests)
      pages += MissingPages(*request, static_cast<std::int64_t>(request->tokens.size()) + 1);
  }
  return pages;
}

// ---------------------------------------------------------------- Adapters that are expected

// A request will use it soon, as its history says.
bool Scheduler::IsExpected(const AdapterResidency& adapter, TimeNs now) const {
  if (options_.adapter_prefetch == AdapterPrefetch::kNone) return false;
  return arrivals_.Expects(adapter.slot, adapter.version->generation, now + prefetch_lead_);
}

// The request that comes may be the only one that uses its adapter.
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

// True if it was prefetched and not used since.
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

// Begins the load of one adapter that is expected, if no other load is under way and nobody waits for memory: what
// requests want comes first.
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
  prefetch_stats_.wasted += prefetched_[slot] != kBaseModel;  // it failed, or was dropped with its name
  prefetched_[slot] = *expected;
}

// One that must be loaded now to be there when it is expected.
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

// Into pages that are free beyond the reserve, or whose content is worth less to the policy than the adapter is, used
// now; never those of what a waiting request wants.
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
