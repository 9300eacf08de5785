// How the steps of other systems differ from continuous batching: S-LoRA's steps of prompts and of decodes take turns,
// and a step of vLLM-LoRA waits for the adapters of the requests that it admits. StepPlanner calls these functions at
// fixed points of every plan, whatever the system. The base class is continuous batching: it changes nothing.
#pragma once

#include <memory>
#include <optional>

#include "adapter/residency.h"
#include "schedule/plan/step_draft.h"
#include "schedule/plan/step_shape_options.h"

namespace loramux {

class Admitter;

// See the top of this file. Immutable but for Committed. Not thread-safe.
class StepShape {
 public:
  virtual ~StepShape() = default;

  // True if the next step waits for loads, so that nothing is planned.
  virtual bool Waits(const ResidencyManager& residency) const { return false; }
  // True if a step is held back when a request lacks only its adapter to start (PlanOutlook::awaits_load).
  virtual bool HoldsForLoads() const { return false; }
  // True if adapters may load beside a step for requests that arrive during it.
  virtual bool LoadsBesideSteps() const { return true; }
  // True if later requests may pass one that would exceed max_distinct_adapters or max_decode_step.
  virtual bool SkipsBeyondBatch() const { return skips_beyond_distinct_; }
  // The request comes up, and its adapter is not usable. None: it is loaded as usual.
  virtual std::optional<AdmissionOutcome> AdmitCold(Admitter& admitter, Request* request) const { return std::nullopt; }
  // The decodes are planned; prompts follow.
  virtual void BeforePrompts(StepDraft& draft) const {}
  // Everything is planned.
  virtual void AfterPrompts(Admitter& admitter) const {}
  // The plan is made, whether or not requests paused for it.
  virtual void Finish(StepPlan& plan) const {}
  // The plan was committed, and its loads have begun.
  virtual void Committed(const StepPlan& plan, const ResidencyManager& residency) {}

  explicit StepShape(bool skips_beyond_distinct = false) : skips_beyond_distinct_(skips_beyond_distinct) {}

 private:
  const bool skips_beyond_distinct_;
};

// The shape that the options describe. Never null.
std::unique_ptr<StepShape> MakeStepShape(const StepShapeOptions& options);

}  // namespace loramux
