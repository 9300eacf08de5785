// An executor that computes nothing: a step takes what the performance model says of it, and a token is a hash of its
// sequence's seed and its place. Where an adapter is still on its way, the step waits for it; or it computes with it on
// the host's processor until then, and on the device from then on (CaraServe 4).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "engine/executor.h"
#include "schedule/pace.h"
#include "schedule/performance_model.h"
#include "simulate/devices.h"
#include "simulate/event_queue.h"
#include "simulate/simulated_transfer.h"

namespace loramux {

class SimulatedExecutor final : public Executor {
 public:
  static constexpr std::int64_t kVocab = std::int64_t{1} << 30;

  // Owns none of it. Puts the end of each step into `events`. `pace`: how long steps take beside what the model says
  // when they begin. `adapters`: whose ends it knows. `assist`: no value: steps wait.
  SimulatedExecutor(const Clock* clock, EventQueue* events, PerformanceModel model, const Pace* pace,
                    const SimulatedTransfer* adapters, std::optional<CpuAssist> assist)
      : clock_(clock), events_(events), model_(std::move(model)), pace_(pace), adapters_(adapters), assist_(assist) {}
  void Submit(const ExecutorBatch& batch) override;
  bool Poll(ExecutorResult& result) override;

  // The n-th token that a sequence with this seed generates: the same whatever shares its batch, and after a
  // preemption.
  static TokenId TokenAt(std::uint64_t seed, std::size_t n);

  TimeNs busy() const { return busy_; }  // in all steps so far

 private:
  double SecondsOf(const ExecutorBatch& batch);
  const Clock* clock_;
  EventQueue* events_;
  const PerformanceModel model_;
  const Pace* pace_;
  const SimulatedTransfer* adapters_;
  const std::optional<CpuAssist> assist_;
  const ExecutorBatch* batch_ = nullptr;
  TimeNs ends_at_ = 0, busy_ = 0;
  std::int32_t after_prefill_ = 0;  // StepLoad's, of the next step
};

}  // namespace loramux
