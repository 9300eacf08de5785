// The running requests in a plan under construction, by precedence for memory.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <vector>

#include "schedule/plan/planning_view.h"
#include "schedule/request.h"

namespace loramux {

// Precedence for memory. The least comes first and is preempted last. The level is the service of the tenant in quanta
// of a step's tokens, so that it does not change with every token.
struct Rank {
  std::int64_t level = std::numeric_limits<std::int64_t>::max();
  RequestId id{std::numeric_limits<std::uint64_t>::max()};
  auto operator<=>(const Rank&) const = default;
};

// The rank of a request whose tenant has got `service`; `quantum`: the most tokens of a step.
inline Rank RankOf(RequestId id, double service, std::int64_t quantum) {
  return {static_cast<std::int64_t>(service / static_cast<double>(quantum)), id};
}

// A running request.
struct Runner {
  Request* request = nullptr;
  Rank rank;
  Standing standing;            // standing of its tenant
  std::int32_t uncomputed = 0;  // tokens
  std::int32_t next_pages = 0;  // pages that one more token needs
  bool paused = false;          // has no seat in this step
};

// The running requests without the preempted ones, highest rank first.
class Runners {
 public:
  explicit Runners(const PlanningView& view);

  // Starts a new plan.
  void Rank(TimeNs now);
  // The plan preempts a runner.
  void Erase(std::size_t index);

  std::size_t size() const { return runners_.size(); }
  bool empty() const { return runners_.empty(); }
  Runner& operator[](std::size_t index) { return runners_[index]; }
  const Runner& operator[](std::size_t index) const { return runners_[index]; }
  const Runner& back() const { return runners_.back(); }
  auto begin() { return runners_.begin(); }
  auto end() { return runners_.end(); }
  auto begin() const { return runners_.begin(); }
  auto end() const { return runners_.end(); }
  // Pages that all runners together need to decode one more token each.
  std::int64_t decode_pages() const { return decode_pages_; }
  bool AnyPaused() const;

 private:
  // The runner that is served before all others because its tenant made no progress for too long; null: none.
  Runner* Overdue(TimeNs now);

  const PlanningView& view_;
  std::vector<Runner> runners_, merge_buffer_;
  std::int64_t decode_pages_ = 0;
};

}  // namespace loramux
