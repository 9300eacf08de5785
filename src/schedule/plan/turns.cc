#include "schedule/plan/turns.h"

namespace loramux {

void Turns::Order(TimeNs now) {
  const QueueOrder& queue = view_.queues.order();
  const TenantCounters& tenants = view_.queues.tenants();
  const std::int32_t lanes = queue.lanes();
  const auto lookahead = static_cast<std::size_t>(view_.options.lookahead);
  lane_begins_.clear();
  if (lanes == 1) {
    lane_begins_.push_back(0);
    // Requests with resident adapters may be anywhere in the queue; the search for them ends here.
    const std::size_t window = queue.residents_first() ? 4 * lookahead : lookahead;
    tenants.Order(now, 0, window, order_);
    if (queue.residents_first()) PutResidentsFirst(lookahead, now);
  } else {
    order_.turns.clear();
    for (std::int32_t lane = 0; lane < lanes; ++lane) {
      lane_begins_.push_back(order_.turns.size());
      tenants.AppendOrder(now, lane, lookahead, order_);
    }
  }
  lane_begins_.push_back(order_.turns.size());
  FindOverdue(now);
}

// Stable, so each of the three groups stays first come, first served. An overdue request, or one of an overdue tenant,
// keeps its place in the first group, so that residents of others cannot starve it.
void Turns::PutResidentsFirst(std::size_t limit, TimeNs now) {
  auto& turns = order_.turns;
  for (std::vector<Turn>* part : {&later_turns_, &last_turns_}) part->clear();
  std::size_t kept = 0;
  for (const Turn& turn : turns) {
    const bool overdue =
        view_.options.overdue_first && (turn.standing.overdue || now - turn.request->arrival > view_.options.age_bound);
    if (overdue)
      turns[kept++] = turn;
    else if (room_.IsLoading(*turn.request))
      later_turns_.push_back(turn);
    else if (view_.MustLoad(*turn.request))
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
void Turns::FindOverdue(TimeNs now) {
  overdue_.clear();
  if (!view_.options.overdue_first) return;
  if (view_.queues.tenants().active_tenants() > 1) {
    if (Request* const turn = OverdueTurn()) overdue_.push_back(turn);
    return;
  }
  const auto most = static_cast<std::size_t>(view_.options.lookahead);
  for (Request* const request : view_.queues.waiting()) {  // the oldest first
    if (now - request->arrival <= view_.options.age_bound || overdue_.size() == most) return;
    overdue_.push_back(request);
  }
}

// The overdue request is the first of its lane. It is scheduled before other lanes too, so that they cannot starve
// it.
Request* Turns::OverdueTurn() const {
  Request* first = nullptr;
  for (std::size_t lane = 0; view_.queues.order().has_quotas() && lane < lanes(); ++lane) {
    if (lane_begins_[lane] == lane_begins_[lane + 1]) continue;
    const Turn& turn = order_.turns[lane_begins_[lane]];
    if (turn.standing.overdue && (first == nullptr || turn.request->id < first->id)) first = turn.request;
  }
  return first;
}

}  // namespace loramux
