// What the emulated device's streams do, when they do it, and what can go wrong then.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "gpu/device.h"
#include "gpu/emulated/block_pool.h"
#include "gpu/emulated/block_runner.h"
#include "gpu/emulated/device_memory.h"

namespace loramux::gpu {

// A launch that has been enqueued: it owns its arguments.
struct EnqueuedLaunch {
  EmulatedKernel kernel;
  GridSize grid;
  std::uint32_t threads = 0;
  std::size_t shared_bytes = 0;
  std::vector<std::max_align_t> arguments;
  std::size_t argument_bytes = 0;
};

// Fails once, after a number of successes.
class InjectedFailure {
 public:
  void After(std::int64_t successes) { left_ = successes; }
  bool Now() { return left_ >= 0 && left_-- == 0; }

 private:
  std::atomic<std::int64_t> left_{-1};
};

// Thread-safe. A call that fails loses the device; calls of a lost device do nothing.
class DeviceWork {
 public:
  DeviceWork(std::int64_t memory_bytes, std::uint64_t seed, int threads, std::size_t max_shared_bytes)
      : memory(memory_bytes), seed_(seed), max_shared_bytes_(max_shared_bytes), pool_(threads) {}

  void CopyToDevice(std::uintptr_t device, const void* host, std::size_t bytes);
  void CopyToHost(void* host, std::uintptr_t device, std::size_t bytes);
  void Fill(std::uintptr_t device, std::uint8_t byte, std::size_t bytes);
  void Launch(const EnqueuedLaunch& launch);
  void Multiply(const DenseProduct& product);

  // The first reason stays.
  void Lose(std::string why);
  bool lost() const { return lost_; }
  Status status() const;

  void AddPinned(const void* base, std::int64_t bytes);
  void RemovePinned(const void* base);

  DeviceMemory memory;
  InjectedFailure fail_allocation, fail_copy, lose_at_launch;

 private:
  bool CheckDevice(const char* what, const MemoryMap& map, const void* address, std::int64_t bytes);
  bool CheckPinned(const char* what, const void* host, std::size_t bytes);
  std::optional<std::string> FaultOf(const EnqueuedLaunch& launch) const;

  const std::uint64_t seed_;
  const std::size_t max_shared_bytes_;
  std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;
  std::string why_;
  std::vector<std::pair<const std::byte*, std::size_t>> pinned_;
  BlockPool pool_;
};

}  // namespace loramux::gpu
