#include "schedule/plan/fetch_ahead.h"

#include <algorithm>

#include "base/check.h"

namespace loramux {

void FetchAhead::Plan() {
  if (!AnyCandidate()) return;
  const PlanningView& view = draft_.view;
  for (const Turn& turn : draft_.turns.all()) {
    if (turn.request->adapter != kBaseModel) draft_.room.Want(turn.request->adapter);
  }
  std::int64_t left =
      draft_.room.free_kv() + draft_.room.evictable(PageCategory::kKv, /*even_wanted=*/false) - view.GrowthReserve();
  for (const Turn& turn : draft_.turns.all()) {
    Request* request = turn.request;
    if (draft_.IsAdmitted(request)) continue;  // its pages are taken already
    const bool blocked = request == draft_.blocked;
    left -= view.MissingPages(*request, static_cast<std::int64_t>(request->tokens.size()) + 1);
    if (left < 0 && !blocked) return;
    if (IsCandidate(*request) && !TryFetch(request)) return;
    if (blocked || draft_.room.host().fetches_in_flight() >= KvTiers::kMaxFetchesAhead) return;
  }
}

bool FetchAhead::AnyCandidate() const {
  const PlanningView& view = draft_.view;
  if (!view.options.fetch_ahead || view.tree.tiers().host_pages() == 0 || draft_.closed()) return false;
  if (draft_.room.host().fetches_in_flight() >= KvTiers::kMaxFetchesAhead) return false;
  const std::vector<Turn>& turns = draft_.turns.all();
  return std::any_of(turns.begin(), turns.end(), [this](const Turn& turn) { return IsCandidate(*turn.request); });
}

bool FetchAhead::IsCandidate(const Request& request) const {
  const DependencyTree& tree = draft_.view.tree;
  const NodeId tail = request.found;
  if (request.fetches == Request::kMostFetches || request.fetched_ahead) return false;
  if (!tree.nodes().Exists(tail) || tree.tiers().OnDevice(tail) || tree.nodes().At(tail).moving()) return false;
  if (request.state != RequestState::kWaiting || draft_.room.history().IsFetched(tail)) return false;
  if (request.adapter == kBaseModel) return true;
  return draft_.view.residency.Get(request.adapter).device == TierState::kResident &&
         !draft_.room.Is(request.adapter, Draft::kEvicted);
}

bool FetchAhead::TryFetch(Request* request) {
  const DependencyTree& tree = draft_.view.tree;
  Draft& room = draft_.room;
  NodeId tail = request->found;
  std::int64_t pages = 0;
  NodeId device_tail = tail;
  for (; !tree.tiers().OnDevice(device_tail); device_tail = tree.nodes().Parent(device_tail), ++pages) {
    // Part of another fetch; the rest can come later.
    if (tree.nodes().At(device_tail).moving() || room.history().IsFetched(device_tail)) return true;
  }
  // The plan evicts part of the path, or the host tier drops it.
  const bool given_up = room.host().droppable() < pages || room.history().Staying(device_tail) != device_tail;
  if (given_up) return true;
  room.history().Use(device_tail);
  const std::int64_t reserve = draft_.view.GrowthReserve();
  const std::int64_t fitting = std::min(pages, room.MakeUnwantedRoom(pages + reserve) - reserve);
  if (fitting <= 0) {
    room.history().EndUse(device_tail, room.now());
    return false;
  }
  for (std::int64_t i = fitting; i < pages; ++i) tail = tree.nodes().Parent(tail);
  draft_.AddFetch(request, tail, fitting, /*ahead=*/true);
  return true;
}

}  // namespace loramux
