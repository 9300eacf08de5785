// Simulated links of finite bandwidth, shared by all transfers. Nothing is copied.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "base/clock.h"
#include "costs/performance_model.h"
#include "residency/transfer.h"
#include "schedule/presets.h"
#include "simulate/event_queue.h"

namespace loramux {

// One link in one direction. It serves jobs in order of submission, each with the full bandwidth, as a copy engine
// does. A job's duration therefore depends on all jobs submitted before it, by any user.
class SimulatedLink {
 public:
  explicit SimulatedLink(PerformanceModel::Link link) : link_(link) {}
  // When a job's bytes arrive.
  struct Arrival {
    TimeNs begins = 0, ends = 0;  // when the first byte and the last one arrive
  };
  // Enqueues a job of `bytes` at time `now`.
  Arrival Occupy(double bytes, TimeNs now) { return Occupy(bytes, 0, now); }
  // The same for a job that occupies the link for `seconds` more than its bytes do.
  Arrival Occupy(double bytes, double seconds, TimeNs now);
  // Bytes of all jobs so far, and the time (ns) they occupy the link.
  double bytes() const { return bytes_; }
  TimeNs busy() const { return busy_; }

 private:
  PerformanceModel::Link link_;
  TimeNs free_at_ = 0, busy_ = 0;
  double bytes_ = 0;
};

// The links of a server; adapters, keys and values share them.
class SimulatedTransfer final : public PageTransfer {
 public:
  // The links of a server.
  struct Links {
    SimulatedLink disk, to_device, to_host;
  };
  // Owns none of its arguments. `model` describes the links. `in_host_memory`: all adapters initially lie in the host's
  // memory, so that an adapter's first move from "disk" takes no disk time. `server`: of the events. `program`: what
  // its loads of adapters to the device cost.
  SimulatedTransfer(const Clock* clock, EventQueue* events, const PerformanceModel& model, bool in_host_memory,
                    std::int32_t server = 0, const ProgramCosts& program = {})
      : clock_(clock),
        events_(events),
        links_{SimulatedLink(model.disk), SimulatedLink(model.host_to_device), SimulatedLink(model.device_to_host)},
        in_host_memory_(in_host_memory),
        server_(server),
        program_(program) {}
  void Submit(TransferJob job) override;
  std::optional<TransferCompletion> Poll() override;
  const Links& links() const { return links_; }
  // When the data of the transfer in flight for this adapter arrives. REQUIRES: there is one.
  SimulatedLink::Arrival ArrivalOf(AdapterGeneration generation) const;

  // How much of the adapter's last load to the device lies between `from` and `to`: the part of a request's wait, from
  // arrival to start, that the load took.
  TimeNs LoadedBetween(std::uint32_t generation, TimeNs from, TimeNs to) const;

 private:
  struct Span {
    TimeNs begin = 0, end = 0;
  };
  struct Moving {
    TimeNs begin = 0, end = 0;
    std::uint64_t id = 0;
  };
  SimulatedLink::Arrival FromDisk(const TransferJob& job, double bytes, TimeNs now);
  SimulatedLink::Arrival ToDevice(const TransferJob& job, double bytes, TimeNs now);

  const Clock* clock_;
  EventQueue* events_;
  Links links_;
  const bool in_host_memory_;
  const std::int32_t server_;
  const ProgramCosts program_;
  std::unordered_set<std::uint32_t> seen_;              // generations that have moved; never iterated
  std::unordered_map<std::uint32_t, Span> last_loads_;  // to the device, by generation; never iterated
  std::deque<Moving> moving_;                           // ascending by end, then by submission
};

}  // namespace loramux
