// The plan's last part: what is brought to the device before anybody could begin with it.
#include <algorithm>

#include "base/check.h"
#include "schedule/scheduler.h"

namespace loramux {

// History in the host tier for those who got no seat in this step, in the order of service. Each that comes first is left
// all the pages that it will need; one that memory blocks may fetch, for they are pages that it needs, but nobody behind it.
void Scheduler::PlanFetchesAhead(TimeNs now) {
  if (tiers_ == nullptr || !options_.fetch_ahead || tree_->host_pages() == 0 || scratch_.memory_short || scratch_.locked_waits) return;
  const auto& turns = order_.turns;
  const auto candidate = [this](const Turn& turn) { return CouldFetchAhead(*turn.request); };
  if (scratch_.fetches_in_flight >= KvTiers::kMaxFetchesAhead || std::none_of(turns.begin(), turns.end(), candidate)) return;
  for (const Turn& turn : turns) {
    if (turn.request->adapter != kBaseModel) Flags(turn.request->adapter) |= kWanted;
  }
  std::int64_t left = scratch_.free_device + EvictablePages(PageCategory::kKv, /*even_wanted=*/false) - GrowthReserve();
  auto admitted = plan_.admissions.begin();   // in the order of turns, too
  for (const Turn& turn : turns) {
    Request* request = turn.request;
    if (admitted != plan_.admissions.end() && admitted->request == request) {
      ++admitted;   // its pages are taken already
      continue;
    }
    const bool blocked = request == scratch_.blocked;
    left -= MissingPages(*request, static_cast<std::int64_t>(request->tokens.size()) + 1);
    if (left < 0 && !blocked) return;
    if (CouldFetchAhead(*request) && !TryFetchAhead(request, now)) return;
    if (blocked || scratch_.fetches_in_flight >= KvTiers::kMaxFetchesAhead) return;
  }
}

// The end of its history is in the host tier alone, and its adapter is there to use it. Looks at what was found for it when
// it was last looked for: what came since was computed since, on the device.
bool Scheduler::CouldFetchAhead(const Request& request) const {
  const NodeId tail = request.found;
  if (request.fetched || request.fetched_ahead || !tree_->Exists(tail) || tree_->OnDevice(tail) || tree_->Moving(tail)) return false;
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
    if (tree_->Moving(device_tail) || kv_plan_.IsFetched(device_tail)) return true;   // another's: the rest can come later
  }
  const bool given_up = scratch_.droppable_host < pages || kv_plan_.Kept(device_tail) != device_tail;   // by this plan
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

}  // namespace loramux
