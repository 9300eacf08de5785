// What the transfers of a running engine moved and how long they took, as the engine sees it.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "adapter/transfer.h"
#include "base/clock.h"

namespace loramux {

struct ObservedTransfer {
  TransferKind kind = TransferKind::kHostToDevice;
  bool kv = false;         // keys and values, not an adapter
  std::int64_t bytes = 0;  // PayloadBytes
  // From Submit, or from the end of the job before it if that was later, to the Poll that gave its completion: both
  // wake-ups included.
  TimeNs seconds_ns = 0;
};

// Around a real transfer, one job after the other; used by the engine's thread, as that is. Cancelled jobs and failed
// ones are left out. `transfers` must outlive it and may be read once the engine's thread has ended.
class TransferRecorder final : public AdapterTransfer {
 public:
  TransferRecorder(std::unique_ptr<AdapterTransfer> inner, std::vector<ObservedTransfer>* transfers)
      : inner_(std::move(inner)), transfers_(transfers) {}
  void Submit(TransferJob job) override;
  std::optional<TransferCompletion> Poll() override;

 private:
  struct Open {
    ObservedTransfer transfer;
    TimeNs submitted = 0;
  };
  OsClock clock_;
  std::unique_ptr<AdapterTransfer> inner_;
  std::vector<ObservedTransfer>* transfers_;
  std::unordered_map<std::uint64_t, Open> open_;  // by the job's id
  TimeNs ended_ = 0;                              // the job before
};

}  // namespace loramux
