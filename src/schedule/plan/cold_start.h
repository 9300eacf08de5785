// Whether a request begins before its adapter is on the device, with the copy in the host tier (CaraServe 4).
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "costs/performance_model.h"
#include "residency/adapter_residency.h"
#include "schedule/system_spec.h"
#include "worth/reload_costs.h"

namespace loramux {

// Predicted seconds of the request's first step, by where its adapter is computed.
struct ColdStartCosts {
  double load = 0;       // until the adapter is on the device
  double assisted = 0;   // the step, if it begins now with the copy in the host tier
  double on_device = 0;  // the step, once the adapter is on the device
};

// Whether the request begins now. REQUIRES: the host tier has the whole adapter.
inline bool BeginsFromHost(ColdStartPolicy policy, const ColdStartCosts& costs) {
  switch (policy) {
    case ColdStartPolicy::kWait:
      return false;
    case ColdStartPolicy::kAssist:
      return true;
    case ColdStartPolicy::kAuto:
      return costs.assisted <= costs.load + costs.on_device;
  }
  return false;
}

// When the layers of a load are expected on the device: evenly between two times, in seconds from now. `begins` may be
// negative.
struct ExpectedArrival {
  double begins = 0, ends = 0;
};

// The expected arrival of an adapter whose load from the host tier is under way, or begins now. Layers that have
// arrived give the pace. Before the first, the transfers that were requested earlier come first, each with the latency
// and the bandwidth of `reloads`. 0 as far as these are unknown. REQUIRES: known.
ExpectedArrival ExpectArrival(const ResidencyManager& residency, const ReloadCostEstimator& reloads,
                              AdapterGeneration generation, TimeNs now);

// The costs for a request that computes `tokens` after `context` positions with an adapter of this rank, in a step of
// its own. `step_floor`: of StepFloor, if other requests run. Who waits joins when the step after the present one
// begins, so waiting takes at least that long; 0: no other
// request runs. Without measured assistance (CpuAssist::measured),
// `assisted` is `on_device`.
ColdStartCosts CostsOfColdStart(const PerformanceModel& model, std::int64_t tokens, std::int64_t context,
                                std::int64_t rank, const ExpectedArrival& arrival, TimeNs step_floor);

// Whether steps compute with the copy in the host tier of an adapter that is not on the device yet. A copy that is
// still being read from disk helps only where the host tier is as good as the device.
inline bool ComputesFromHost(const SystemSpec& options, const AdapterResidency& adapter) {
  if (options.cold_start == ColdStart::kOverlap) return false;
  if (options.cold_start_policy == ColdStartPolicy::kWait || !adapter.arriving()) return false;
  return adapter.host == TierState::kResident || (options.reads_host_tier && adapter.host == TierState::kLoading);
}

}  // namespace loramux
