// A device that counts how often the host waits for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "gpu/device.h"

namespace loramux {

// Passes everything on to `device`, which outlives it. Streams and events are `device`'s own but for the counts.
class CountingDevice final : public Device {
 public:
  explicit CountingDevice(Device& device) : device_(device) {}

  void Reset() { synchronisations_ = waits_ = 0; }
  // Calls of Synchronize, and of Wait for another stream's event, since Reset.
  std::int64_t synchronisations() const { return synchronisations_; }
  std::int64_t waits() const { return waits_; }

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
    return std::unique_ptr<DeviceStream>(std::make_unique<Stream>(*this, std::move(stream)));
  }
  std::unique_ptr<DeviceEvent> CreateEvent() override { return device_.CreateEvent(); }
  Result<bool> IsDone(const DeviceEvent& event) override { return device_.IsDone(event); }
  Status status() const override { return device_.status(); }

 private:
  class Stream final : public DeviceStream {
   public:
    Stream(CountingDevice& device, std::unique_ptr<DeviceStream> stream)
        : device_(device), stream_(std::move(stream)) {}
    void CopyToDevice(void* device, const void* host, std::size_t bytes) override {
      stream_->CopyToDevice(device, host, bytes);
    }
    void CopyToHost(void* host, const void* device, std::size_t bytes) override {
      stream_->CopyToHost(host, device, bytes);
    }
    void Fill(void* device, std::uint8_t byte, std::size_t bytes) override { stream_->Fill(device, byte, bytes); }
    void Launch(const KernelLaunch& launch) override { stream_->Launch(launch); }
    void Multiply(const DenseProduct& product) override { stream_->Multiply(product); }
    void Record(DeviceEvent& event) override { stream_->Record(event); }
    void Wait(const DeviceEvent& event) override {
      ++device_.waits_;
      stream_->Wait(event);
    }
    Status Synchronize() override {
      ++device_.synchronisations_;
      return stream_->Synchronize();
    }
    Result<std::unique_ptr<DeviceGraph>> Capture(const std::function<void()>& enqueue) override {
      return stream_->Capture(enqueue);
    }
    void Replay(const DeviceGraph& graph) override { stream_->Replay(graph); }

   private:
    CountingDevice& device_;
    std::unique_ptr<DeviceStream> stream_;
  };

  Device& device_;
  std::atomic<std::int64_t> synchronisations_{0}, waits_{0};
};

}  // namespace loramux
