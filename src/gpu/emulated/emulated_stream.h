// Streams, events and graphs of the emulated device: a stream is a queue with a thread of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "gpu/device.h"
#include "gpu/emulated/device_work.h"

namespace loramux::gpu {

class EmulatedEvent final : public DeviceEvent {
 public:
  // One Record.
  struct Mark {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  // The last Record's mark; null: never recorded. Thread-safe.
  std::shared_ptr<Mark> mark() const;
  std::shared_ptr<Mark> Renew();
  bool IsDone() const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Mark> mark_;
};

class EmulatedStream final : public DeviceStream {
 public:
  // `pause_one_in`: before about one of so many pieces of work the stream sleeps a little; 0: never.
  EmulatedStream(DeviceWork& work, std::uint64_t seed, std::uint32_t pause_one_in);
  ~EmulatedStream() override;

  void CopyToDevice(void* device, const void* host, std::size_t bytes) override;
  void CopyToHost(void* host, const void* device, std::size_t bytes) override;
  void Fill(void* device, std::uint8_t byte, std::size_t bytes) override;
  void Launch(const KernelLaunch& launch) override;
  void LaunchKernel(const EmulatedKernel& kernel, const KernelLaunch& launch);
  void Multiply(const DenseProduct& product) override;
  void Record(DeviceEvent& event) override;
  void Wait(const DeviceEvent& event) override;
  Status Synchronize() override;
  Result<std::unique_ptr<DeviceGraph>> Capture(const std::function<void()>& enqueue) override;
  void Replay(const DeviceGraph& graph) override;

 private:
  using Operation = std::function<void(DeviceWork&)>;
  class Graph;
  void Add(Operation operation);
  void Enqueue(std::shared_ptr<const Operation> operation);
  void Work();

  DeviceWork& work_;
  Prng random_;
  const std::uint32_t pause_one_in_;
  Graph* capture_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<const Operation>> queue_;
  bool busy_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace loramux::gpu
