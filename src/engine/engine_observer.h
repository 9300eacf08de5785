// Who watches an engine: is told everything that its decisions depend on and that is not a function of what it was told
// before, and every plan. From that, FlightRecorder makes a file, a replay of the file compares its plans, and tests
// hold each plan against what must not be exceeded.
#pragma once

#include <cstdint>

#include "adapter/registry.h"
#include "adapter/residency.h"
#include "base/clock.h"
#include "base/ids.h"
#include "memory/page_pool.h"
#include "schedule/plan.h"
#include "schedule/scheduler.h"

namespace loramux {

// A plan before it is carried out, and the world as the plan found it. Changes nothing of it; valid during the call.
struct PlannedStep {
  const StepPlan& plan;
  const Scheduler& scheduler;
  const ResidencyManager& residency;
  const PagePool& device;
  const PagePool* host;  // null: no host tier
  TimeNs now = 0;
};

// All calls on the engine's thread, within its step, in the order in which they stand here; they may not block. What
// transfers complete is not among them: that is seen where they are polled (FlightRecorder::Watch). What a call is
// given is valid during the call. Here, everything is ignored.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;

  // `now` is the step's only look at the clock.
  virtual void StepBegan(TimeNs now) {}
  // From the inbox. `version` is null for the base model.
  virtual void Arrived(const Request& request, const AdapterVersion* version) {}
  virtual void Pinned(const AdapterVersion& version, bool pinned) {}  // only what was granted
  virtual void CancelAsked(RequestId id) {}
  virtual void CancelAllAsked() {}  // from then on in each step
  virtual void Ending() {}          // nothing is accepted any more; in each step
  virtual void Retired(AdapterGeneration generation) {}
  // So many layers of what is arriving on the device were there when the step looked: an adapter by its generation,
  // keys and values by their fetch's number. In each step until the transfer's completion.
  virtual void SawLayers(bool kv, std::uint64_t transfer, std::int32_t layers) {}
  // The executor is done with the batch in flight.
  virtual void Computed(TimeNs waited) {}
  // The batch's results are taken: then each token that counts, and each request that ends (at any time in a step).
  virtual void Collected() {}
  virtual void Sampled(RequestId id, TokenId token, bool stops) {}
  virtual void Ended(RequestId id) {}
  virtual void Planned(const PlannedStep& step) {}
  virtual void StepEnded() {}
};

}  // namespace loramux
