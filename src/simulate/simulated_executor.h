// An executor that computes nothing: a step takes what the performance model says of it, and a token is a hash of its
// sequence's seed and its place.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "engine/executor.h"
#include "schedule/performance_model.h"
#include "simulate/event_queue.h"

namespace loramux {

class SimulatedExecutor final : public Executor {
 public:
  static constexpr std::int64_t kVocab = std::int64_t{1} << 30;

  // Owns neither. Puts the end of each step into `events`.
  SimulatedExecutor(const Clock* clock, EventQueue* events, PerformanceModel model)
      : clock_(clock), events_(events), model_(std::move(model)) {}
  void Submit(const ExecutorBatch& batch) override;
  bool Poll(ExecutorResult& result) override;

  // The n-th token that a sequence with this seed generates: the same whatever shares its batch, and after a preemption.
  static TokenId TokenAt(std::uint64_t seed, std::size_t n);

  TimeNs busy() const { return busy_; }   // in all steps so far

 private:
  const Clock* clock_;
  EventQueue* events_;
  const PerformanceModel model_;
  const ExecutorBatch* batch_ = nullptr;
  TimeNs ends_at_ = 0, busy_ = 0;
};

}  // namespace loramux
