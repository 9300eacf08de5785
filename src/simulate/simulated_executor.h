// An executor that computes nothing. A step takes the time that the performance model gives, and a token is a hash of
// its sequence's seed and its index. If an adapter is still being loaded, the step waits for it; or, for a segment in
// the host tier, each layer that has not arrived yet takes as long as with the host's processor
// (costs/cpu_assist.h, which plans use too).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "costs/pace.h"
#include "costs/performance_model.h"
#include "engine/executor.h"
#include "simulate/devices.h"
#include "simulate/event_queue.h"
#include "simulate/simulated_transfer.h"
#include "workload/workload.h"

namespace loramux {

// The work of a program on the host for a step (ProgramCosts), in seconds: beside the device's work, and then for each
// request of the batch.
struct HostWork {
  double beside = 0, per_request = 0;
};

// The executor of a simulation. Not thread-safe.
class SimulatedExecutor final : public Executor {
 public:
  // Token ids are in [0, kVocab).
  static constexpr std::int64_t kVocab = kWorkloadVocab;

  // Owns none of its arguments. Pushes the end of each step to `events`. `pace` scales the model's time of a step by
  // its factor at the step's begin. `adapters` tells when adapters arrive. `server`: of the events. `host`: its own
  // work.
  SimulatedExecutor(const Clock* clock, EventQueue* events, SimulatedDevice device, const Pace* pace,
                    const SimulatedTransfer* adapters, std::int32_t server = 0, HostWork host = {})
      : clock_(clock),
        events_(events),
        device_(std::move(device)),
        pace_(pace),
        adapters_(adapters),
        server_(server),
        host_(host) {}
  bool reads_contents() const override { return false; }
  void Submit(StepBatch batch) override;
  bool Poll(StepResult& result) override;

  // The n-th token that a sequence with this seed generates. It does not depend on the batch and is the same after a
  // preemption.
  static TokenId TokenAt(std::uint64_t seed, std::size_t n);

  TimeNs busy() const { return busy_; }  // total of all steps so far

 private:
  double SecondsOf(const StepBatch& batch);
  // When the segment's adapter arrives, in seconds from now.
  AssistedRows RowsOf(const AdapterSegment& segment) const;
  // When a step ends that begins at `begin` and takes `on_device` once its adapters are there, in seconds. Each layer
  // waits for that layer of those that are still arriving.
  double WithArrivals(double begin, double on_device, const std::vector<AssistedRows>& arriving) const;
  const Clock* clock_;
  EventQueue* events_;
  const SimulatedDevice device_;
  const Pace* pace_;
  const SimulatedTransfer* adapters_;
  const std::int32_t server_;
  const HostWork host_;
  std::optional<StepBatch> batch_;  // in flight
  TimeNs ends_at_ = 0, busy_ = 0;
  std::int32_t after_prefill_ = 0;  // StepLoad's field for the next step
};

}  // namespace loramux
