// "objective": as few requests as possible get their first token after their objective. When more waits than can be
//              served
// in time, somebody is too late in any case; first come, first served then makes everybody late by a little. Moore and
// Hodgson's algorithm (1968: the fewest late jobs on one machine) chooses instead: requests in the order in which they
// will be served; as soon as the work up to one of them does not fit the time until it is due, the largest request so
// far is given up, and waits behind the others: until none of them is there, or for the age bound (queue_order.h).
//
// Work is what the device has to compute before the first token: the prompt's tokens without those that are cached. How
// much of it gets done in a second is measured, as long as somebody waits; so it does not matter whether it is
// computation, memory or seats that is short. As long as too little was measured nobody is given up; who was is not
// taken back.
//
// Adapters that are not on the device are a second machine's work: the link brings one after the other, whoever waits
// for them. The same algorithm there, with an adapter as the job, due when the first of its requests is: as soon as the
// loads up to one do not fit, the requests of one adapter are given up, of which the load takes longest for each
// request that waits for it.
//
// Not thread-safe. Reads no clock. Deterministic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "schedule/queue_order.h"
#include "schedule/waiting_list.h"

namespace loramux {

// Work per second of waiting: an average in which what was seen `memory` ago counts 1/e. Of time in which nobody waits,
// and of who was let in without waiting, it counts nothing, as nobody knows how much more could have been done.
class DrainRate {
 public:
  // `trusted`: less waiting than that says nothing.
  DrainRate(TimeNs memory, TimeNs trusted);
  void Pass(TimeNs now, bool somebody_waits);
  // One that waited was let in.
  void Done(double work) { work_ += work, done_ += 1; }
  // Nothing as long as less waiting than `trusted` was seen, or fewer were let in than would be chance.
  std::optional<double> PerSecond() const;

 private:
  const double memory_, trusted_;  // seconds
  double work_ = 0, done_ = 0, seconds_ = 0;
  TimeNs seen_ = 0;
};

class ObjectiveOrder final : public QueueOrder {
 public:
  // REQUIRES: both > 0. `objective`: from arrival to the first token, where the request has no deadline of its own.
  ObjectiveOrder(TimeNs objective, TimeNs age_bound);
  std::string_view name() const override { return "objective"; }
  TimeNs Delay(const Request& request) const override { return request.late ? age_bound_ : 0; }
  TimeNs objective() const override { return objective_; }
  void BeginsToWait(Request* request, std::int64_t work, TimeNs now) override;
  void EndsWait(Request* request, bool let_in, TimeNs now) override;
  // Takes about 2 us for 1,000 requests that wait, O(n log n) where somebody is given up.
  std::span<Request* const> GiveUp(TimeNs now, const AdapterLoads& loads) override;
  void CheckIntegrity() const override;

  std::size_t on_time() const { return on_time_.size(); }
  std::size_t late() const { return late_; }  // that wait

 private:
  struct Member {
    Urgency urgency;
    Request* request = nullptr;
    double work = 0;    // tokens
    TimeNs latest = 0;  // for its first token
  };
  // An adapter that on-time requests wait for. Those are members_of_loads_[begin, end), the first in the order of
  // service first.
  struct Load {
    std::size_t first = 0;  // of its members, in the order of service
    std::uint32_t begin = 0, end = 0;
    double seconds = 0, due = 0;  // of the load; until when it must have ended, from now
    bool given_up = false;
    double PerRequest() const { return seconds / static_cast<double>(end - begin); }
  };
  void GiveUpWork(double rate, TimeNs begun);
  void GiveUpLoads(std::optional<double> rate, TimeNs begun, const AdapterLoads& loads);
  void FindLoads(std::optional<double> rate, TimeNs begun, const AdapterLoads& loads);
  void GiveUpOne(Member& member);
  void Pass(TimeNs now) { drain_.Pass(now, on_time() + late_ > 0); }

  const TimeNs objective_, age_bound_;
  UrgencyList<Member> on_time_;  // in the order of service
  std::size_t late_ = 0;
  DrainRate drain_;
  std::vector<Request*> given_up_;    // by the last call
  std::vector<std::size_t> largest_;  // of it: a heap of indices
  std::vector<Load> loads_;           // of it
  std::vector<std::pair<AdapterGeneration, std::size_t>> members_of_loads_;
};

}  // namespace loramux
