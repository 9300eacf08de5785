// An executor without a model, which waits for no layer either (the engine collects a step only when what it used has
// arrived): a step takes a modelled time, and tokens are a hash of the sequence. For the planning
// benchmark, the scheduler's fuzz test and the simulator.
#pragma once

#include "base/clock.h"
#include "engine/executor.h"

namespace loramux {

// Linear in what a step computes (CaraServe section 5 uses the same form).
struct StepCost {
  TimeNs base_ns = 5 * kNsPerMs;
  TimeNs per_token_ns = 50 * kNsPerUs;
  TimeNs per_rank_ns = 5 * kNsPerUs;  // per unit of the sum of ranks over distinct adapters
};

class ModeledExecutor final : public Executor {
 public:
  // Polling succeeds once `clock` has passed the step's end. Does not own the clock.
  ModeledExecutor(const Clock* clock, StepCost cost, std::int64_t vocab_size)
      : clock_(clock), cost_(cost), vocab_size_(vocab_size) {}
  void Submit(const ExecutorBatch& batch) override;
  bool Poll(ExecutorResult& result) override;

  // When the batch in flight ends; -1 if none. (The simulator advances its clock to it.)
  TimeNs ends_at() const { return batch_ == nullptr ? -1 : ends_at_; }
  // The token that follows `tokens`: depends on nothing else, so that a resumed request must go on alike.
  static TokenId NextToken(AdapterGeneration adapter, std::span<const TokenId> prompt,
                           std::span<const TokenId> generated, std::int64_t vocab_size);

 private:
  const Clock* clock_;
  const StepCost cost_;
  const std::int64_t vocab_size_;
  const ExecutorBatch* batch_ = nullptr;
  TimeNs ends_at_ = 0;
};

}  // namespace loramux
