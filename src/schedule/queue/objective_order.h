// "objective": deadline-aware; minimises the requests that get their first token after their objective. Under overload
// some requests miss it whatever the order is, and first come, first served makes all of them miss it by a little.
// Moore and Hodgson's algorithm (1968: the fewest late jobs on one machine) selects instead. It goes through the
// requests in the order of service. As soon as the work up to one of them does not fit into the time until it is due,
// it gives up the largest request so far. A request that is given up waits behind all requests that are not, at most
// for the age bound (queue_order.h).
//
// Work is measured in prompt tokens that are not cached, which the device computes before the first token. The work
// done per second is measured while requests wait. So it does not matter whether computation, memory or seats are the
// bottleneck. Until enough was measured, no request is given up for work. Giving up is final.
//
// Adapters that are not on the device are the work of a second machine, the link, which loads one at a time. The same
// algorithm applies with adapters as jobs; an adapter is due when the first of its requests is. As soon as the loads up
// to one do not fit, the requests of one adapter are given up: the one with the longest load per waiting request.
//
// Not thread-safe. Reads no clock. Deterministic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "schedule/queue/queue_order.h"
#include "schedule/queue/waiting_list.h"

namespace loramux {

// Measures work per second of waiting, as an exponential average: an observation of age `memory` has the weight 1/e.
// Counts neither time in which no request waits, nor requests that were admitted without waiting: both say nothing
// about how much more work was possible.
class DrainRate {
 public:
  // `trusted`: waiting time that must be measured before there is a rate. REQUIRES: memory > 0.
  DrainRate(TimeNs memory, TimeNs trusted);
  // Notes that time has passed up to `now`, and whether requests have waited since the last call.
  void Pass(TimeNs now, bool somebody_waits);
  // Notes that a request that had waited was admitted; `work` in tokens.
  void Done(double work) { work_ += work, done_ += 1; }
  // Tokens per second. None until waiting of `trusted` was measured and four such requests were admitted.
  std::optional<double> PerSecond() const;

 private:
  const double memory_, trusted_;             // seconds
  double work_ = 0, done_ = 0, seconds_ = 0;  // weighted: tokens, requests, seconds of waiting
  TimeNs seen_ = 0;                           // time of the last Pass
};

// The order "objective". Keeps pointers to waiting requests; does not own them.
class ObjectiveOrder final : public QueueOrder {
 public:
  // `objective`: the TTFT objective of requests without a deadline. `age_bound`: the delay of requests that are
  // given up. REQUIRES: both > 0.
  ObjectiveOrder(TimeNs objective, TimeNs age_bound);
  std::string_view name() const override { return "objective"; }
  TimeNs Delay(const Request& request) const override { return request.late ? age_bound_ : 0; }
  TimeNs objective() const override { return objective_; }
  void BeginsToWait(Request* request, std::int64_t work, TimeNs now) override;
  void EndsWait(Request* request, bool let_in, TimeNs now) override;
  // Takes about 2 us for 1,000 waiting requests; O(n log n) if any are given up.
  std::span<Request* const> GiveUp(TimeNs now, const AdapterLoads& loads) override;
  void CheckIntegrity() const override;

  // Waiting requests that are not given up.
  std::size_t on_time() const { return on_time_.size(); }
  // Waiting requests that are given up.
  std::size_t late() const { return late_; }

 private:
  // A waiting request that is not given up.
  struct Member {
    Urgency urgency;
    Request* request = nullptr;  // null: given up by the call in progress
    double work = 0;             // tokens
    TimeNs latest = 0;           // time by which its first token is wanted
  };
  // A load of an adapter that on-time requests need. Those requests are members_of_loads_[begin, end), in the order of
  // service.
  struct Load {
    std::size_t first = 0;  // index in on_time_ of the first of its requests
    std::uint32_t begin = 0, end = 0;
    double seconds = 0, due = 0;  // duration of the load; time from now by which it must end
    bool given_up = false;
    // Seconds of the load per waiting request.
    double PerRequest() const { return seconds / static_cast<double>(end - begin); }
  };
  // Gives up requests until the work of the others fits. `rate`: tokens per second. `begun`: start of the work.
  void GiveUpWork(double rate, TimeNs begun);
  // Gives up the requests of adapters until the loads of the others fit.
  void GiveUpLoads(std::optional<double> rate, TimeNs begun, const AdapterLoads& loads);
  // Fills loads_ and members_of_loads_.
  void FindLoads(std::optional<double> rate, TimeNs begun, const AdapterLoads& loads);
  // Marks the request as late and adds it to given_up_.
  void GiveUpOne(Member& member);
  void Pass(TimeNs now) { drain_.Pass(now, on_time() + late_ > 0); }

  const TimeNs objective_, age_bound_;
  UrgencyList<Member> on_time_;  // in the order of service
  std::size_t late_ = 0;
  DrainRate drain_;
  std::vector<Request*> given_up_;    // result of the last GiveUp
  std::vector<std::size_t> largest_;  // scratch of it: a heap of indices
  std::vector<Load> loads_;           // scratch of it, in the order of service
  // Scratch of it: adapters and indices in on_time_, sorted.
  std::vector<std::pair<AdapterGeneration, std::size_t>> members_of_loads_;
};

}  // namespace loramux
