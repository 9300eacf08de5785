// What the steps of a running engine computed and how long they took, as the engine sees it.
#pragma once

#include <memory>
#include <vector>

#include "base/clock.h"
#include "engine/executor.h"
#include "schedule/performance_model.h"

namespace loramux {

struct ObservedStep {
  StepLoad load;
  TimeNs begin = 0;       // Submit; of a run's step since its start, of a recorder's on the machine's clock
  TimeNs gap = -1;        // from the result of the step before to this one's Submit; -1: the first
  TimeNs seconds_ns = 0;  // from Submit to the Poll that gave the result: both wake-ups included
  bool plain = true;      // waited for no transfer, copied no page: what StepLoad counts is all it did
};

// Around the real executor; used by the engine's thread, as that is. `steps` must outlive it and may be read once the
// engine's thread has ended.
class StepRecorder final : public Executor {
 public:
  StepRecorder(std::unique_ptr<Executor> inner, std::vector<ObservedStep>* steps)
      : inner_(std::move(inner)), steps_(steps) {}
  void Submit(const ExecutorBatch& batch) override;
  bool Poll(ExecutorResult& result) override;

 private:
  OsClock clock_;
  std::unique_ptr<Executor> inner_;
  std::vector<ObservedStep>* steps_;
  ObservedStep current_;
  TimeNs submitted_ = 0, ended_ = 0;
};

}  // namespace loramux
