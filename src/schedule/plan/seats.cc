#include "schedule/plan/seats.h"

#include <optional>

#include "base/check.h"

namespace loramux {

void Seats::Plan(bool for_waiters) {
  draft_.free_seats = draft_.view.options.Seats() - static_cast<std::int64_t>(draft_.runners.size());
  pausable_.Clear();
  lower_levels_ = draft_.runners.size();
  PauseBeyondSeats();
  const bool enough = static_cast<std::int64_t>(draft_.turns.all().size()) <= draft_.free_seats;
  if (for_waiters && !enough && draft_.view.queues.tenants().active_tenants() > 1) PauseForWaiters();
}

void Seats::PauseForWaiters() {
  const PlanningView& view = draft_.view;
  const std::int64_t all = view.options.Seats();
  std::int64_t seats = draft_.free_seats;
  // The bound on running requests, because paused requests keep their memory.
  std::int64_t more = all + all / 8 + 4 - static_cast<std::int64_t>(draft_.runners.size());
  std::int64_t pages = draft_.room.free_kv() - view.GrowthReserve() - draft_.runners.decode_pages();
  std::optional<std::int64_t> evictable;  // not changed in this function
  for (const Turn& turn : draft_.turns.all()) {
    const Request& request = *turn.request;
    if (draft_.IsArriving(request) || (view.partitioned() && view.MustLoad(request))) continue;
    if (draft_.room.ExceedsDistinct(request)) return;
    pages -= view.PagesToStart(request) + draft_.PagesOfIdleAdapter(request);
    if (pages < 0 && !evictable.has_value()) evictable = draft_.room.evictable(PageCategory::kKv, false);
    if (pages < 0 && pages + *evictable < 0) return;
    if (--more < 0) return;
    if (seats > 0) {
      --seats;
      continue;
    }
    const Pausable* worst = Worst();
    if (worst == nullptr || !turn.standing.Before(worst->standing)) return;
    PauseWorst();
  }
}

// Pauses whole levels first; that needs no order within the level.
void Seats::PauseBeyondSeats() {
  Runners& runners = draft_.runners;
  std::size_t& end = lower_levels_;
  while (draft_.free_seats < 0) {
    std::size_t begin = end;
    while (begin > 0 && runners[begin - 1].rank.level == runners[end - 1].rank.level) --begin;
    if (static_cast<std::int64_t>(end - begin) > -draft_.free_seats) break;
    draft_.free_seats += static_cast<std::int64_t>(end - begin);
    for (; end > begin; --end) runners[end - 1].paused = true;
  }
  while (draft_.free_seats < 0) {
    const Pausable* worst = Worst();
    CHECK(worst != nullptr && !worst->standing.overdue);
    PauseWorst();
  }
}

const Seats::Pausable* Seats::Worst() {
  if (pausable_.empty()) NextLevel();
  return pausable_.empty() ? nullptr : &pausable_.first();
}

void Seats::PauseWorst() {
  draft_.runners[pausable_.first().runner].paused = true;
  pausable_.PopFirst();
  ++draft_.free_seats;
}

// Takes the highest level that is left; all other levels got less service.
void Seats::NextLevel() {
  const Runners& runners = draft_.runners;
  std::size_t& at = lower_levels_;
  if (at == 0) return;
  const std::int64_t level = runners[at - 1].rank.level;
  for (; at > 0 && runners[at - 1].rank.level == level; --at) {
    pausable_.Append(runners[at - 1].standing, runners[at - 1].rank.id, at - 1);
  }
  pausable_.MakeHeap();
}

void Seats::FillIdle() {
  if (draft_.memory_short) return;
  for (Runner& runner : draft_.runners) {
    if (draft_.full()) return;
    if (!runner.paused || !draft_.rules.Computes(*runner.request)) continue;
    const std::int64_t tokens = draft_.ChunkTokens(*runner.request, runner.uncomputed);
    const std::int64_t pages = draft_.view.MissingPages(*runner.request, runner.request->computed + tokens);
    if (!draft_.room.MakeRoom(PageCategory::kKv, pages)) continue;
    draft_.room.Take(pages);
    --draft_.free_seats;
    runner.paused = false;
    draft_.AddChunk(runner.request, runner.uncomputed, tokens, pages);
  }
}

}  // namespace loramux
