// The order in which waiting requests are let in: one interface, a table of names, no scheduler of its own. Fairness
// among tenants lies above it: within each lane, the tenant that got the least service is next (fairness.h), and of a
// tenant, the request that is due first.
//
// All orders: priorities and deadlines shift when a request is due, by at most `age_bound` either way: so a request is
// overtaken, within its tenant and lane, only by those that come within two of those after it (one, where nobody has a
// priority or a deadline). With one tenant, who has waited for longer than `age_bound` goes before everybody else; with
// several, each tenant gets its turn after FairnessOptions::max_wait.
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
#include "schedule/request.h"
#include "schedule/size_lanes.h"

namespace loramux {

struct QueueOrderOptions {
  std::string name = "fifo";
  TimeNs age_bound = 30 * kNsPerSecond;
  SizeLanesOptions lanes;               // of "mlq" and "mlq-static"
  TimeNs objective = 5 * kNsPerSecond;  // of "objective": from arrival to the first token
  double total_tokens = 0;              // that the device holds; for quotas
};

// The adapters that waiting requests need, and the link that brings them one after the other.
class AdapterLoads {
 public:
  virtual ~AdapterLoads() = default;
  // Until the loads under way have ended.
  virtual double SecondsUnderWay() const = 0;
  // That a load of this one takes once the link is free for it. 0: it is on the device or on its way, or nobody knows
  // yet.
  virtual double SecondsToLoad(AdapterGeneration adapter) const = 0;
};

class QueueOrder {
 public:
  virtual ~QueueOrder() = default;
  virtual std::string_view name() const = 0;

  // How long after its arrival the request is due, before priority and deadline. At least 0.
  virtual TimeNs Delay(const Request&) const { return 0; }
  // From arrival to the first token, if that is what it orders by: then who has no deadline is thought to want that. 0:
  // it is not.
  virtual TimeNs objective() const { return 0; }
  // Lanes are numbered from 0, smallest requests first.
  virtual std::int32_t lanes() const { return 1; }
  virtual std::int32_t LaneOf(const Request&) const { return 0; }
  // Tokens that requests of the lane may have in use (input, predicted output, adapter). REQUIRES: has_quotas().
  virtual bool has_quotas() const { return false; }
  virtual double Quota(std::int32_t) const { return 0; }
  // Those whose adapter is on the device before those whose adapter is being loaded, and these before the rest.
  virtual bool residents_first() const { return false; }

  // A request comes in; it has ended, `duration` after it was let in.
  virtual void SawArrival(const Request&, TimeNs) {}
  virtual void SawEnd(const Request&, TimeNs) {}
  // A request that was placed begins to wait, with so many tokens to compute before its first one; it waits no more: it
  // was let in, or has left. The order may keep the pointer from the one to the other.
  virtual void BeginsToWait(Request*, std::int64_t, TimeNs) {}
  virtual void EndsWait(Request*, bool, TimeNs) {}
  // Waiting requests whose delay has changed, each once: they are to be placed anew. Beside the computation.
  virtual std::span<Request* const> GiveUp(TimeNs, const AdapterLoads&) { return {}; }
  // True if lanes have changed, so that all requests are to be placed anew. Beside the computation.
  virtual bool Refit(TimeNs) { return false; }

  // Aborts if what it knows of waiting requests is not so.
  virtual void CheckIntegrity() const {}
};

// "fifo":       first come, first served.
// "sjf":        shortest predicted output first; as uServe's, with aging: the longest is due `age_bound` after it came,
// the
//               others sooner in proportion.
// "residency":  vLLM-LoRA's: adapter on the device, then loading, then cold; first come, first served within each.
// "objective":  as few as possible beyond QueueOrderOptions::objective (objective_order.h).
// "mlq":        Chameleon's lanes of like size with quotas (size_lanes.h).
// "mlq-static": four lanes of equal ranges and quotas (Chameleon 5.4.5).
std::vector<std::string> QueueOrderNames();
// Error: an unknown name; the message lists the valid ones.
Result<std::unique_ptr<QueueOrder>> MakeQueueOrder(const QueueOrderOptions& options);

// Sets lane and due.
void PlaceInQueue(const QueueOrder& order, TimeNs age_bound, Request& request);

inline RequestExtent ExtentOf(const Request& request) {
  return {.input_tokens = request.prompt_tokens,
          .output_tokens = request.predicted_output,
          .adapter_tokens = request.adapter_tokens};
}

}  // namespace loramux
