// An executor without a model: a step takes a modelled time, and tokens are a hash of the sequence. It never waits for
// layers, because the engine collects a step only after everything the step uses has arrived. For the planning
// benchmark, the scheduler's fuzz test and the simulator.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "engine/executor.h"

namespace loramux {

// Cost of a step, linear in what it computes (the form of CaraServe section 5).
struct StepCost {
  TimeNs base_ns = 5 * kNsPerMs;
  TimeNs per_token_ns = 50 * kNsPerUs;
  TimeNs per_rank_ns = 5 * kNsPerUs;  // per unit of rank, summed over distinct adapters
};

// Takes StepCost's time for each batch. Not thread-safe.
class ModeledExecutor final : public Executor {
 public:
  // Does not own `clock`. Poll succeeds once `clock` has passed the end of the step.
  ModeledExecutor(const Clock* clock, StepCost cost, std::int64_t vocab_size)
      : clock_(clock), cost_(cost), vocab_size_(vocab_size) {}
  void Submit(StepBatch batch) override;
  bool Poll(StepResult& result) override;

  // When the batch in flight ends; -1 if none. (The simulator advances its clock to it.)
  TimeNs ends_at() const { return batch_.has_value() ? ends_at_ : -1; }
  // The token that follows `prompt` and `generated`. Depends on the adapter, the two lengths and the last token alone,
  // so that a preempted request must continue with the same tokens.
  static TokenId NextToken(AdapterGeneration adapter, std::span<const TokenId> prompt,
                           std::span<const TokenId> generated, std::int64_t vocab_size);
  // The result of a row, which depends on the row alone.
  static ScoredToken ScoreOf(const ScoreRow& row);
  // What stands for the hidden state of a token, which depends on the token alone.
  static std::array<double, 2> HiddenOf(TokenId token) { return {static_cast<double>(token) + 1, 1}; }

 private:
  void PoolInto(std::vector<double>& pooled) const;

  const Clock* clock_;
  const StepCost cost_;
  const std::int64_t vocab_size_;
  std::optional<StepBatch> batch_;  // in flight
  TimeNs ends_at_ = 0;
};

}  // namespace loramux
