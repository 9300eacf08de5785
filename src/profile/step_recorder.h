// Records the content and the time of each step of a running engine, as the engine sees them.
#pragma once

#include <memory>
#include <vector>

#include "base/clock.h"
#include "costs/performance_model.h"
#include "engine/executor.h"

namespace loramux {

// One step.
struct ObservedStep {
  StepLoad load;
  TimeNs begin = 0;       // when it was submitted: on the machine's clock, or relative to the start of an EngineRun
  TimeNs gap = -1;        // from the result of the previous step to this Submit; -1: the first step
  TimeNs seconds_ns = 0;  // from Submit to the Poll that returned the result, both wake-ups included
  bool plain = true;      // it waited for no transfer and copied no page, so `load` describes all its work
};

// Wraps the real executor. The engine's thread uses it, like the executor. `steps` must outlive it, and may be read
// once the engine's thread has ended.
class StepRecorder final : public Executor {
 public:
  StepRecorder(std::unique_ptr<Executor> inner, std::vector<ObservedStep>* steps)
      : inner_(std::move(inner)), steps_(steps) {}
  void Submit(StepBatch batch) override;
  bool Poll(StepResult& result) override;

 private:
  OsClock clock_;
  std::unique_ptr<Executor> inner_;
  std::vector<ObservedStep>* steps_;
  ObservedStep current_;
  TimeNs submitted_ = 0, ended_ = 0;
};

}  // namespace loramux
