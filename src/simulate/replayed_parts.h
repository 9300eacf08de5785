// What stands for the executor and the transfers when a recorded run is replayed: they end when, and as, the recording
// says.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "adapter/transfer.h"
#include "engine/executor.h"
#include "engine/recording.h"

namespace loramux {

// Of adapters, or of keys and values. Nothing is copied.
class ReplayedTransfer final : public AdapterTransfer {
 public:
  // What it completes, and how far it is, in the step that comes.
  void Expect(std::vector<RecordedCompletion> completions, std::vector<RecordedLayers> layers);
  // After the step: something of it did not happen, because no such transfer was under way, or nobody asked.
  bool diverged() const { return diverged_ || next_ < completions_.size() || !layers_.empty(); }

  void Submit(TransferJob job) override;
  std::optional<TransferCompletion> Poll() override;
  double bytes_to_device() const { return bytes_to_device_; }
  double bytes_to_host() const { return bytes_to_host_; }

 private:
  void PublishLayers();

  std::map<std::uint64_t, std::shared_ptr<LayerProgress>> moving_;  // by the job; null: nobody looks at its progress
  std::vector<RecordedCompletion> completions_;
  std::size_t next_ = 0;
  std::vector<RecordedLayers> layers_;
  bool diverged_ = false;
  double bytes_to_device_ = 0, bytes_to_host_ = 0;
};

class ReplayedExecutor final : public Executor {
 public:
  // The batch in flight is done in the step that comes, and samples these; others it samples do not count.
  void Expect(TimeNs waited, std::span<const RecordedToken> tokens);
  bool in_flight() const { return batch_ != nullptr; }
  bool expected() const { return waited_.has_value(); }  // and not polled yet

  void Submit(const ExecutorBatch& batch) override;
  bool Poll(ExecutorResult& result) override;

 private:
  const ExecutorBatch* batch_ = nullptr;
  std::optional<TimeNs> waited_;
  std::unordered_map<RequestId, TokenId> tokens_;  // looked up, never iterated
};

}  // namespace loramux
