// Transfers between host and device by a device's copy engines, and from disk through pinned memory.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include "base/result.h"
#include "gpu/device.h"
#include "memory/tier.h"
#include "residency/transfer.h"

namespace loramux {

// Options of DeviceTransfer.
struct DeviceTransferOptions {
  // Pinned memory through which jobs go from disk to the device, in bytes; at least a page.
  std::size_t staging_bytes = std::size_t{16} << 20;
  // Most copies that one job enqueues, so that Submit stays short: a job with more has events for groups of layers.
  std::size_t max_copies = 2048;
  // Adapters' jobs towards the device keep LayerEvents::ArrivedWord: a launch more for each layer.
  bool arrived_words = false;
};

// Jobs between host and device are enqueued in Submit as a whole, on a stream for each direction. One towards the
// device has an event for each layer, which the device waits for (LayerProgress::events); Poll asks them and publishes
// what has arrived. As nothing can be taken back, a cancelled job ends with its last copy. A thread asks for the events
// too, and calls `on_completion` when a job has its lead or has ended.
//
// Jobs from disk are read by another thread, in order of submission. One towards the device is packed in ordinary
// memory and copied through pinned memory.
//
// If the device is lost, all jobs fail with its error (kUnavailable).
class DeviceTransfer final : public PageTransfer {
 public:
  // `device` and `memory` outlive the transfer; memory.host is pinned, memory.device the device's. `on_completion` is
  // called on threads of the transfer. Errors: no stream or no pinned memory.
  static Result<std::unique_ptr<DeviceTransfer>> Create(Device& device, const TierMemory& memory,
                                                        std::function<void()> on_completion,
                                                        DeviceTransferOptions options = {});
  // Waits for the copies in flight and drops the other jobs.
  ~DeviceTransfer() override;
  void Submit(TransferJob job) override;
  std::optional<TransferCompletion> Poll() override;

 private:
  class Copies;
  class Reader;
  DeviceTransfer();
  std::unique_ptr<Copies> copies_;
  std::unique_ptr<Reader> reader_;
};

}  // namespace loramux
