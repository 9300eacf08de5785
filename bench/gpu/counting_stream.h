// A stream that counts what the host enqueues.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "gpu/device.h"

namespace loramux {

// Hands each call on to another stream. What is recorded into a graph does not count; its Replay counts once.
class CountingStream final : public DeviceStream {
 public:
  // The stream outlives this.
  explicit CountingStream(DeviceStream& stream) : stream_(stream) {}

  // Copies, fills, launches, products, events and replays so far.
  std::int64_t calls() const { return calls_; }

  void CopyToDevice(void* device, const void* host, std::size_t bytes) override {
    Count().CopyToDevice(device, host, bytes);
  }
  void CopyToHost(void* host, const void* device, std::size_t bytes) override {
    Count().CopyToHost(host, device, bytes);
  }
  void Fill(void* device, std::uint8_t byte, std::size_t bytes) override { Count().Fill(device, byte, bytes); }
  void Launch(const KernelLaunch& launch) override { Count().Launch(launch); }
  void Multiply(const DenseProduct& product) override { Count().Multiply(product); }
  void Record(DeviceEvent& event) override { Count().Record(event); }
  void Wait(const DeviceEvent& event) override { Count().Wait(event); }
  Status Synchronize() override { return stream_.Synchronize(); }
  Result<std::unique_ptr<DeviceGraph>> Capture(const std::function<void()>& enqueue) override {
    const std::int64_t before = calls_;
    Result<std::unique_ptr<DeviceGraph>> graph = stream_.Capture(enqueue);
    calls_ = before;
    return graph;
  }
  void Replay(const DeviceGraph& graph) override { Count().Replay(graph); }

 private:
  DeviceStream& Count() {
    ++calls_;
    return stream_;
  }

  DeviceStream& stream_;
  std::int64_t calls_ = 0;
};

}  // namespace loramux
