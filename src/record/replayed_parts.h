// Stand-ins for the executor and the transfers during a replay. They complete when, and as, the recording says.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/executor.h"
#include "record/recording.h"
#include "residency/transfer.h"

namespace loramux {

// The transfer. Copies nothing.
class ReplayedTransfer final : public PageTransfer {
 public:
  // Sets the completions and the layer counts of the coming step.
  void Expect(std::vector<RecordedCompletion> completions, std::vector<RecordedLayers> layers);
  // Whether an expected event did not happen in the step, because no such transfer was in flight or the engine did not
  // poll.
  bool diverged() const { return diverged_ || next_ < completions_.size() || !layers_.empty(); }

  void Submit(TransferJob job) override;
  // Payload bytes of all submitted jobs towards the device.
  std::optional<TransferCompletion> Poll() override;
  double bytes_to_device() const { return bytes_to_device_; }
  double bytes_to_host() const { return bytes_to_host_; }

 private:
  void PublishLayers();

  std::map<std::uint64_t, std::shared_ptr<LayerProgress>> moving_;  // by job id; null: the job has no progress
  std::vector<RecordedCompletion> completions_;
  std::size_t next_ = 0;
  std::vector<RecordedLayers> layers_;
  bool diverged_ = false;
  double bytes_to_device_ = 0, bytes_to_host_ = 0;
};

// An executor that completes batches as recorded.
class ReplayedExecutor final : public Executor {
 public:
  // The batch in flight completes in the coming step, having waited `waited` ns, and samples these tokens. Other tokens
  // it samples do not count.
  void Expect(TimeNs waited, std::span<const RecordedToken> tokens);
  // Whether a batch is in flight.
  bool in_flight() const { return batch_.has_value(); }
  bool expected() const { return waited_.has_value(); }  // a completion is set and not polled yet

  void Submit(StepBatch batch) override;
  bool Poll(StepResult& result) override;

 private:
  std::optional<StepBatch> batch_;
  std::optional<TimeNs> waited_;
  // tokens of each request, in order; looked up, never iterated
  std::unordered_map<RequestId, std::vector<TokenId>> tokens_;
};

}  // namespace loramux
