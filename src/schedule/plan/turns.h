// The waiting requests in a plan under construction, in the order of service.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "schedule/plan/draft.h"
#include "schedule/plan/planning_view.h"
#include "schedule/queue/fairness.h"

namespace loramux {

// The turns of the waiting requests within `lookahead`, lane after lane, and the requests that have waited too long.
class Turns {
 public:
  Turns(const PlanningView& view, const Draft& room) : view_(view), room_(room) {}

  // Starts a new plan.
  void Order(TimeNs now);

  const std::vector<Turn>& all() const { return order_.turns; }
  // Requests that are served before all others, the oldest first. They may lie beyond lookahead.
  std::span<Request* const> overdue() const { return overdue_; }
  bool IsOverdue(const Request& request) const {
    return std::binary_search(overdue_.begin(), overdue_.end(), &request,
                              [](const Request* a, const Request* b) { return a->id < b->id; });
  }
  std::size_t lanes() const { return lane_begins_.size() - 1; }
  // Index of the first turn of the lane; of `lanes()`: the number of turns.
  std::size_t lane_begin(std::size_t lane) const { return lane_begins_[lane]; }

 private:
  // Sorts by the state of the adapters (QueueOrder::residents_first), up to `limit` turns.
  void PutResidentsFirst(std::size_t limit, TimeNs now);
  void FindOverdue(TimeNs now);
  // The oldest first turn of a tenant that has waited too long for it; null: none.
  Request* OverdueTurn() const;

  const PlanningView& view_;
  const Draft& room_;
  ServiceOrder order_;
  std::vector<Turn> later_turns_, last_turns_;  // scratch of PutResidentsFirst
  std::vector<std::size_t> lane_begins_;
  std::vector<Request*> overdue_;
};

}  // namespace loramux
