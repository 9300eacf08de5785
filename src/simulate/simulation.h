// A server on a virtual clock. It runs the same Engine, Scheduler, DependencyTree, PagePool, ResidencyManager and
// KvTiers as `serve`; only the executor and the transfers are models. Deterministic: the same options and workload give
// the same result.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "costs/pace.h"
#include "costs/performance_profile.h"
#include "engine/engine_observer.h"
#include "engine/snapshot.h"
#include "record/run_result.h"
#include "schedule/presets.h"
#include "simulate/devices.h"
#include "simulate/objective.h"
#include "workload/workload.h"
#include "worth/eviction_policy.h"

namespace loramux {

// Options of Simulate.
struct SimulationOptions {
  SimulatedDevice device;
  Preset preset;                             // with what an operator sets beside it
  const EvictionPolicy* eviction = nullptr;  // replaces the regime's policy; not owned; null: the regime's
  double host_bytes = 256e9;                 // size of the host tier; 0: none
  // At the start; false: only on disk. With SystemSpec::host_copies they then are in the host tier from the start, as
  // far as it has room; those on disk are read into it.
  bool adapters_in_host_memory = true;
  double predictor_accuracy = 0.8;  // accuracy of OraclePredictor (Chameleon's predictor reaches about 80 %)
  std::uint64_t seed = 1;           // seed of the predictor and of the tree
  // steps between integrity checks; 0: only at the end
  std::int64_t check_every = 0;
  GiveUpRule give_up;                          // ends a run early
  std::function<void(double share)> progress;  // is told the share of the requests that were asked; may be empty
  std::int64_t samples = 200;                  // samples of memory and queue, spread over the arrivals
  EngineObserver* observer = nullptr;          // sees every plan; not owned
  Pace pace;                                   // pace of the device's steps; plans do not know it
  // The costs that plans use (schedule/plan_by_model.h). Null: learned during the run, but with a bound on
  // decoding steps those of the device's own model.
  std::shared_ptr<const PerformanceModel> costs;
};

// Makes steps and transfers take the measured times, and plans use them, as `serve --profile` does. Memory sizes stay
// unchanged, and so are the costs of CPU assistance if the profile has none.
void UseProfile(const PerformanceProfile& profile, SimulationOptions& options);

using SimulationResult = RunResult;

// The n-th token of the answer to `request` (an index of the workload) in a simulation with this seed. A prompt can
// quote it.
TokenId AnsweredToken(std::uint64_t seed, std::size_t request, std::size_t n);

// Runs the workload to its end. Errors: an unknown cache or order; memory too small for one page.
Result<SimulationResult> Simulate(const SimulationOptions& options, const Workload& workload);

}  // namespace loramux
