// A device that counts how often the host waits for it.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "gpu/counting_stream.h"
#include "gpu/device.h"

namespace loramux {

// Passes everything on to `device`, which outlives it, and counts what the host does with its streams.
class CountingDevice final : public Device {
 public:
  explicit CountingDevice(Device& device) : device_(device) {}

  void Reset() { counts_ = {}; }
  // Counts of all streams since Reset.
  const StreamCounts& counts() const { return counts_; }

  const DeviceProperties& properties() const override { return device_.properties(); }
  std::int64_t FreeMemory() const override { return device_.FreeMemory(); }
  Result<std::unique_ptr<Arena>> Allocate(std::string_view name, std::int64_t bytes) override {
    return device_.Allocate(name, bytes);
  }
  Result<std::unique_ptr<Arena>> AllocatePinned(std::string_view name, std::int64_t bytes) override {
    return device_.AllocatePinned(name, bytes);
  }
  Result<std::unique_ptr<DeviceStream>> CreateStream() override {
    ASSIGN_OR_RETURN(std::unique_ptr<DeviceStream> stream, device_.CreateStream());
    return std::unique_ptr<DeviceStream>(std::make_unique<CountingStream>(std::move(stream), counts_));
  }
  std::unique_ptr<DeviceEvent> CreateEvent() override { return device_.CreateEvent(); }
  Result<bool> IsDone(const DeviceEvent& event) override { return device_.IsDone(event); }
  Status status() const override { return device_.status(); }

 private:
  Device& device_;
  StreamCounts counts_;
};

}  // namespace loramux
