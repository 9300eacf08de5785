#include "schedule/plan/runners.h"

#include <algorithm>

#include "schedule/plan/merge_runs.h"

namespace loramux {

Runners::Runners(const PlanningView& view) : view_(view) {
  const auto most = static_cast<std::size_t>(2 * view.options.Seats());
  runners_.reserve(most);
  merge_buffer_.reserve(most);
}

// Few ranks change from step to step, so the order of the last step is nearly sorted.
void Runners::Rank(TimeNs now) {
  runners_.clear();
  decode_pages_ = 0;
  for (Request* request : view_.queues.by_rank()) {
    Runner& runner = runners_.emplace_back();  // filled in place: a copy would wait for the stores
    runner.request = request;
    runner.standing.service = view_.queues.tenants().Service(*request);
    runner.rank = RankOf(request->id, runner.standing.service, view_.options.max_batch_tokens);
    runner.uncomputed = static_cast<std::int32_t>(request->uncomputed());
    runner.next_pages = static_cast<std::int32_t>(view_.MissingPages(*request, request->computed + 1));
    decode_pages_ += runner.next_pages;
  }
  if (Runner* const overdue = Overdue(now)) {
    overdue->standing.overdue = true;
    overdue->rank.level = std::numeric_limits<std::int64_t>::min();
  }
  MergeRuns(runners_, merge_buffer_, [](const Runner& a, const Runner& b) { return a.rank < b.rank; });
}

// The oldest request of the tenant that has made no progress for longest, because its requests pause: it is treated as
// the turn of a tenant that waits. With a single seat only the tenant that has waited longest of all has its turn.
Runner* Runners::Overdue(TimeNs now) {
  const TenantCounters& tenants = view_.queues.tenants();
  if (tenants.active_tenants() <= 1) return nullptr;
  Runner* overdue = nullptr;
  TimeNs longest = now - view_.options.fairness.max_wait;
  if (view_.options.Seats() == 1) longest = std::min(longest, tenants.LongestWaitSince());
  for (Runner& runner : runners_) {
    const TimeNs progressed = tenants.ProgressedAt(*runner.request);
    const bool older = overdue != nullptr && progressed == longest && runner.rank.id < overdue->rank.id;
    if (progressed >= longest && !older) continue;
    overdue = &runner;
    longest = progressed;
  }
  return overdue;
}

void Runners::Erase(std::size_t index) {
  decode_pages_ -= runners_[index].next_pages;
  runners_.erase(runners_.begin() + static_cast<std::ptrdiff_t>(index));
}

bool Runners::AnyPaused() const {
  return std::any_of(runners_.begin(), runners_.end(), [](const Runner& runner) { return runner.paused; });
}

}  // namespace loramux
