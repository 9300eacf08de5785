// Records the size and the time of each transfer of a running engine, as the engine sees them.
#pragma once

#include <array>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "residency/transfer.h"

namespace loramux {

// One transfer.
struct ObservedTransfer {
  TransferKind kind = TransferKind::kHostToDevice;
  bool kv = false;         // keys and values; false: an adapter
  std::int64_t bytes = 0;  // PayloadBytes
  // From Submit, or from the end of the previous job of its queue if that was later, to the Poll that returned the
  // completion; both wake-ups included.
  TimeNs seconds_ns = 0;
};

// Wraps a real transfer that runs one job of a queue at a time; where a device's do not, times of jobs that overlap are
// too short. The engine's thread uses it, like the transfer. Leaves out cancelled and failed jobs. `transfers` must
// outlive it, and may be read once the engine's thread has ended.
class TransferRecorder final : public PageTransfer {
 public:
  TransferRecorder(std::unique_ptr<PageTransfer> inner, std::vector<ObservedTransfer>* transfers)
      : inner_(std::move(inner)), transfers_(transfers) {}
  void Submit(TransferJob job) override;
  std::optional<TransferCompletion> Poll() override;

 private:
  struct Open {
    ObservedTransfer transfer;
    TimeNs submitted = 0;
    std::size_t queue = 0;
  };
  OsClock clock_;
  std::unique_ptr<PageTransfer> inner_;
  std::vector<ObservedTransfer>* transfers_;
  std::unordered_map<std::uint64_t, Open> open_;  // by job id
  std::array<TimeNs, kTransferQueues> ended_{};   // ends of the previous jobs, by queue
};

}  // namespace loramux
