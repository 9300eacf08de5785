// A stream that counts what the host does with it, for benchmarks and tests.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "gpu/device.h"

namespace loramux {

// A number of calls; threads may count and read at the same time.
class CallCount {
 public:
  CallCount() = default;
  CallCount(const CallCount& other) : calls_(std::int64_t{other}) {}
  CallCount& operator=(const CallCount& other) {
    calls_ = std::int64_t{other};
    return *this;
  }
  operator std::int64_t() const { return calls_.load(std::memory_order_relaxed); }
  void Add() { calls_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> calls_{0};
};

// Calls so far, of one stream or of several. What is recorded into a graph does not count; its Replay does, once.
struct StreamCounts {
  CallCount launches;  // products included
  CallCount copies;    // in either direction
  CallCount fills, records, replays;
  CallCount waits;             // for another stream's event
  CallCount synchronisations;  // the host waits

  // All that the host enqueued.
  std::int64_t enqueued() const { return launches + copies + fills + records + replays + waits; }
};

// Hands each call on to another stream.
class CountingStream final : public DeviceStream {
 public:
  // What is given by reference outlives this.
  CountingStream(DeviceStream& stream, StreamCounts& counts) : stream_(stream), counts_(counts) {}
  CountingStream(std::unique_ptr<DeviceStream> stream, StreamCounts& counts)
      : owned_(std::move(stream)), stream_(*owned_), counts_(counts) {}

  void CopyToDevice(void* device, const void* host, std::size_t bytes) override {
    Count(counts_.copies).CopyToDevice(device, host, bytes);
  }
  void CopyToHost(void* host, const void* device, std::size_t bytes) override {
    Count(counts_.copies).CopyToHost(host, device, bytes);
  }
  void Fill(void* device, std::uint8_t byte, std::size_t bytes) override {
    Count(counts_.fills).Fill(device, byte, bytes);
  }
  void Launch(const KernelLaunch& launch) override { Count(counts_.launches).Launch(launch); }
  void Multiply(const DenseProduct& product) override { Count(counts_.launches).Multiply(product); }
  void Record(DeviceEvent& event) override { Count(counts_.records).Record(event); }
  void Wait(const DeviceEvent& event) override { Count(counts_.waits).Wait(event); }
  Status Synchronize() override { return Count(counts_.synchronisations).Synchronize(); }
  Result<std::unique_ptr<DeviceGraph>> Capture(const std::function<void()>& enqueue) override {
    recording_ = true;
    Result<std::unique_ptr<DeviceGraph>> graph = stream_.Capture(enqueue);
    recording_ = false;
    return graph;
  }
  void Replay(const DeviceGraph& graph) override { Count(counts_.replays).Replay(graph); }

 private:
  DeviceStream& Count(CallCount& calls) {
    if (!recording_) calls.Add();
    return stream_;
  }

  const std::unique_ptr<DeviceStream> owned_;
  DeviceStream& stream_;
  StreamCounts& counts_;
  bool recording_ = false;
};

}  // namespace loramux
