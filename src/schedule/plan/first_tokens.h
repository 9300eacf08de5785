// Which prompts are computed first, so that as many first tokens as possible come within the TTFT objective. Unlike the
// order "objective" (queue/objective_order.h), which chooses among waiting requests once and for all, this is decided
// anew for each step, and it includes the prompts that were begun. So a long prompt that cannot be on time beside
// others is interrupted, however much of it is computed, and goes on when they are done.
//
// Fairness among tenants makes no first token late that could be on time:
//  1. If all are on time in the order of the tenants' service, with half of the objective to spare, that order stays.
//  2. Otherwise, if all are on time in the order of their due times, that is the order.
//  3. Otherwise some are late. Tenants are compared by their service, in quanta of the work that fits an objective, and
//     within a quantum the due time decides. In this order, Moore and Hodgson's algorithm (1968) chooses the late ones:
//     as soon as the work up to one prompt does not fit, the largest prompt of the quantum so far is late; or that one
//     itself, if the others would have to be several. Late ones are last. So a flood of small prompts never makes a
//     tenant late that got less.
//
// Pure: reads neither a clock nor the scheduler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "schedule/queue/fairness.h"
#include "schedule/queue/waiting_list.h"

namespace loramux {

// A prompt that waits, or that is computed in part.
struct AwaitedToken {
  Standing standing;         // standing of its tenant; one that is overdue goes first
  Urgency urgency;           // the order without regard to tenants
  double tokens = 0;         // to be computed before the first output token
  double seconds_left = 0;   // until it is wanted; negative: it is late already
  bool may_be_late = true;   // false: it has no objective, or waits for too long
  bool given_up = false;     // the queue order gave it up: it has no say, and is late as soon as any other is
  bool late = false;         // result
  std::int64_t quantum = 0;  // scratch: of its tenant's service
  std::size_t at = 0;        // the caller's
};

// See the top of this file. The members are scratch memory, so that nothing is allocated in the steady state.
class FirstTokens {
 public:
  struct Pace {
    double seconds_per_token = 0;  // seconds to compute a token of a prompt
    double objective = 0;          // seconds; > 0
    bool fair = false;             // there are tenants whose service counts
  };
  // Puts the prompts into the order in which they are computed and marks the late ones, which are last. `prompts`: in
  // the order of the tenants' service. Returns the number of those that are not late. Deterministic if no two have the
  // same urgency.
  std::size_t Arrange(const Pace& pace, std::vector<AwaitedToken>& prompts);

 private:
  // Moore and Hodgson's algorithm on the prompts in this order.
  void MarkLate(const Pace& pace, std::vector<AwaitedToken>& prompts);
  // Returns the number of the others.
  std::size_t PutLateLast(std::vector<AwaitedToken>& prompts);

  std::vector<AwaitedToken> late_;
  std::vector<std::size_t> largest_;  // a heap of indices: those that are not late so far and may be
};

}  // namespace loramux
