// The order in which waiting requests are admitted: one interface, and a table of orders by name. Fairness among
// tenants takes precedence: within each lane, the tenant that got the least service is served next (fairness.h), and of
// that tenant the request with the earliest due time.
//
// In every order, priorities and deadlines shift a request's due time, by at most `age_bound` in either direction. So
// within its tenant and lane, a request is overtaken only by requests that arrive less than two age bounds after it.
// Without priorities and deadlines it is one age bound. With one tenant, requests that have waited longer than
// `age_bound` are served before all others. With several tenants, each tenant gets a turn after
// FairnessOptions::max_wait.
//
// Not thread-safe. Reads no clock.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "schedule/queue/size_lanes.h"
#include "schedule/request.h"
#include "schedule/system_spec.h"

namespace loramux {

// Times of the adapter loads that waiting requests need. The link moves one adapter at a time.
class AdapterLoads {
 public:
  virtual ~AdapterLoads() = default;
  // Seconds until the loads under way have ended.
  virtual double SecondsUnderWay() const = 0;
  // Seconds that a load of `adapter` takes once the link is free. 0 if it is on the device or loading, or if too few
  // loads were measured.
  virtual double SecondsToLoad(AdapterGeneration adapter) const = 0;
};

// The lengths that decide the size of the request.
inline RequestExtent ExtentOf(const Request& request) {
  return {.input_tokens = request.prompt_tokens,
          .output_tokens = request.predicted_output,
          .adapter_tokens = request.adapter_tokens,
          .cached_tokens = request.found_on_arrival};
}

// Decides the lane and the due time of each request. Does not own requests.
class QueueOrder {
 public:
  virtual ~QueueOrder() = default;
  // As in SystemSpec::queue.
  virtual std::string_view name() const = 0;

  // Time from the arrival of the request to its due time, before priority and deadline are applied. Not negative.
  virtual TimeNs Delay(const Request&) const { return 0; }
  // The TTFT objective that the order works towards; assumed for requests without a deadline. 0: none.
  virtual TimeNs objective() const { return 0; }
  // Number of lanes. Lane 0 has the smallest requests.
  virtual std::int32_t lanes() const { return 1; }
  // The lane of the request, below lanes().
  virtual std::int32_t LaneOf(const Request&) const { return 0; }
  // True if each lane has a quota of tokens.
  virtual bool has_quotas() const { return false; }
  // Tokens (Request::quota_tokens) that running requests of the lane may have in use. REQUIRES: has_quotas().
  virtual double Quota(std::int32_t) const { return 0; }
  // The tokens that all quotas need at least, over those that there are (SizeLanes::LeastShare); 0: no quotas.
  virtual double LeastShare() const { return 0; }
  // Tokens of a quota that the request uses while it runs: input, predicted output and adapter. The same at any time.
  virtual std::int64_t QuotaTokens(const Request& request) const { return ExtentOf(request).total(); }
  // True if requests with their adapter on the device come first, then requests with a loading adapter, then the rest.
  // REQUIRES: lanes() == 1.
  virtual bool residents_first() const { return false; }

  // Notes that `request` arrived at `now`.
  virtual void SawArrival(const Request&, TimeNs) {}
  // Notes that `request` finished, `duration` after its first admission.
  virtual void SawEnd(const Request&, TimeNs) {}
  // Notes that a new request, already placed, begins to wait; `work` tokens are to be computed before its first output
  // token. The order may keep the pointer until EndsWait.
  virtual void BeginsToWait(Request*, std::int64_t, TimeNs) {}
  // Notes that the request no longer waits: it was admitted (`let_in`), or it left the queue. Also called after later
  // waits, of preempted requests, for which BeginsToWait is not called.
  virtual void EndsWait(Request*, bool, TimeNs) {}
  // Returns the waiting requests with a changed delay; the caller places them anew. Each request is returned once.
  // Valid until the next call. Runs beside the computation.
  virtual std::span<Request* const> GiveUp(TimeNs, const AdapterLoads&) { return {}; }
  // True if the lanes have changed; the caller then places all requests anew. Runs beside the computation.
  virtual bool Refit(TimeNs) { return false; }

  // Aborts if the order's records of waiting requests are inconsistent.
  virtual void CheckIntegrity() const {}
};

// The names of all orders:
// - "fifo":       first come, first served.
// - "sjf":        shortest predicted output first, as in uServe, with aging: the longest is due `age_bound` after its
//                 arrival, the others proportionally sooner.
// - "residency":  as in vLLM-LoRA: adapter on the device, then loading, then absent; first come, first served in each.
// - "objective":  deadline-aware: minimises requests that miss SystemSpec::objective (objective_order.h).
// - "mlq":        Chameleon's lanes of requests of similar size, with quotas (size_lanes.h).
// - "mlq-static": four lanes of equal ranges and equal quotas (Chameleon 5.4.5).
std::vector<std::string> QueueOrderNames();
// Makes the order `spec.queue`. Error: an unknown name; the message lists the valid ones.
Result<std::unique_ptr<QueueOrder>> MakeQueueOrder(const SystemSpec& spec);

// Sets request.lane and request.due from the order, the priority and the deadline.
void PlaceInQueue(const QueueOrder& order, TimeNs age_bound, Request& request);

}  // namespace loramux
