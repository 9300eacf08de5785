// EngineObserver receives every plan, of steps and of moves beside them, and every input of the engine's decisions that
// is not a function of earlier inputs. FlightRecorder writes them to a file, the replay of that file compares its plans
// with them, and tests check each plan against its limits.
#pragma once

#include <cstdint>
#include <span>

#include "adapter/registry.h"
#include "base/clock.h"
#include "base/ids.h"
#include "engine/generation.h"
#include "memory/page_pool.h"
#include "residency/adapter_residency.h"
#include "schedule/plan/move_plan.h"
#include "schedule/plan/step_plan.h"
#include "schedule/scheduler.h"

namespace loramux {

// A plan before it is committed, and the state that the planner saw. Read-only; valid during the call.
struct PlannedStep {
  const StepPlan& plan;
  const Scheduler& scheduler;
  const ResidencyManager& residency;
  const PagePool& device;
  const PagePool& host;
  TimeNs now = 0;
};

// All calls are made on the engine thread within a step, in the order of their declaration. They may not block.
// Transfer completions are not reported here; they are observed where they are polled (FlightRecorder::Watch).
// Arguments are valid during the call only. This base class ignores all calls.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;

  // A step begins. `now` is its only reading of the clock.
  virtual void StepBegan(TimeNs now) {}
  // What Engine::SetHold said last; in each step, before the arrivals.
  virtual void Holding(Hold hold) {}
  // `request` was taken from the inbox. `version` is null for the base model.
  virtual void Arrived(const Request& request, const AdapterVersion* version) {}
  // Engine::Retarget: what runs or waits on `old` goes on with `next`; null: it ends.
  virtual void RetargetAsked(AdapterGeneration old, const AdapterVersion* next) {}
  virtual void Pinned(const AdapterVersion& version, bool pinned) {}  // granted pins and all unpins
  // A cancellation was taken from the inbox; the id may be unknown. Also: a request ends because it cannot go on with
  // the version that takes the place of its own.
  virtual void CancelAsked(RequestId id) {}
  virtual void DropHistoryAsked() {}  // Engine::DropHistory was called
  virtual void CancelAllAsked() {}    // CancelAll or AbortAll was called
  virtual void Ending() {}            // StopAccepting was called; repeated in each later step
  // The registry retired this generation.
  virtual void Retired(AdapterGeneration generation) {}
  // Engine::Register, where a copy in the host tier is wanted. The generation is not retired.
  virtual void Registered(const AdapterVersion& version) {}
  // The step saw `layers` layers of an arriving transfer (TransferJob::id) on the device. Reported in each step until
  // the transfer completes.
  virtual void SawLayers(std::uint64_t transfer, std::int32_t layers) {}
  // The executor has finished the batch in flight, of which it waited `waited` ns for layers.
  virtual void Computed(TimeNs waited) {}
  // The batch's results are taken. Then follow the calls for each token that counts. Ended is called for each request
  // that ends, at any point of a step.
  virtual void Collected() {}
  // `request id` sampled `token`; `stops`: the token ends the request and is not delivered.
  virtual void Sampled(RequestId id, TokenId token, bool stops) {}
  // With speculation, after each token with which a request goes on: what was guessed to follow it (Request::draft),
  // which may be nothing. It depends on what recordings do not have, so their replay writes as many tokens here;
  // nothing else may change them.
  virtual void Drafted(RequestId id, std::vector<TokenId>& draft) {}
  // The request, which runs or waits, goes on with `version`. `tokens`: all that it has. In a recording tokens have
  // other names under another adapter, so its replay writes these here; nothing else may change them.
  virtual void Retargeted(const Request& request, const AdapterVersion& version, std::span<TokenId> tokens) {}
  // The request ended, for any reason.
  virtual void Ended(RequestId id) {}
  // A plan was made and is about to be committed.
  virtual void Planned(const PlannedStep& step) {}
  // Moves beside steps were planned, and are about to be committed. Several times in a step, or not at all; also while
  // a batch is in flight.
  virtual void Moving(const MovePlan& moves) {}
  // The step is over.
  virtual void StepEnded() {}
};

}  // namespace loramux
